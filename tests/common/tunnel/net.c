/* See net.h. Everything waits for a condition, with a limit. */
#include "tests/common/tunnel/net.h"

#include "common/base/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>

#define LIMIT_MS 60000

static err_t find(void *owner, struct tunnel_key_id id, struct tunnel_secret *ret)
{
    struct knows *k = owner;
    k->asked++;
    if (id.kind == TUNNEL_KEY_CLUSTER)
        return key_ring_secret(&k->ring, id, ret);
    if (!k->token.id || id.number != k->token.id)
        return ERR_NOTFOUND;
    token_secret(&k->token, ret);
    return OK;
}

static enum tunnel_verdict admit(void *owner, const struct tunnel_peer *peer, bool accepts)
{
    struct knows *k = owner;
    (void)accepts;
    k->admit_asked++;
    if (k->verdict != TUNNEL_ADMIT)
        return k->verdict;
    return !k->wanted || (peer->is_proven && memcmp(k->wanted, peer->public_key, IDENTITY_BYTES) == 0) ? TUNNEL_ADMIT
                                                                                                       : TUNNEL_OTHER;
}

static void accepted(void *owner, const struct tunnel_peer *peer, int fd)
{
    struct tunnel_net *n = owner;
    assert_true(n->n_accepted < NET_ACCEPTED_MAX);
    n->peers[n->n_accepted] = *peer;
    n->fds[n->n_accepted++] = fd;
}

static void tick(uv_timer_t *timer)
{
    (void)timer;
}

static struct tunnel_host *open_host(struct tunnel_net *n, const char *name, struct knows *knows)
{
    struct tunnel_host *host;
    struct why why = {""};
    const struct tunnel_host_config config = {
        .loop = &n->loop,
        .name = name,
        .keys = {knows, find},
        .identity = {.own = knows->has_identity ? &knows->identity : NULL, .owner = knows, .admit = admit}};
    assert_ok(tunnel_host_open(&config, &host, &why));
    return host;
}

void net_listen_on(struct tunnel_net *n, const char *address)
{
    struct sockaddr_storage at;
    socklen_t len = sizeof(at);
    struct why why = {""};
    assert_ok(tunnel_bind(address, &n->listen_fd, &why));
    assert_int_equal(getsockname(n->listen_fd, (struct sockaddr *)&at, &len), 0);
    address_print(&at, n->address, sizeof(n->address));
    n->port = ntohs(((struct sockaddr_in *)&at)->sin_port); /* at the same place in both families */
    assert_ok(tunnel_listen(n->b, n->listen_fd, accepted, n, &n->listener));
}

static void open_both(struct tunnel_net *n)
{
    assert_int_equal(uv_loop_init(&n->loop), 0);
    uv_timer_init(&n->loop, &n->tick);
    uv_timer_start(&n->tick, tick, 5, 5);
    assert_ok(key_ring_make(&n->a_knows.ring, NULL));
    n->b_knows.ring = n->a_knows.ring;
    n->b_knows.has_identity = n->a_knows.has_identity;
    n->a = open_host(n, "a", &n->a_knows);
    n->b = open_host(n, "b", &n->b_knows);
    net_listen_on(n, "127.0.0.1:0");
}

void net_open(struct tunnel_net *n)
{
    memset(n, 0, sizeof(*n));
    open_both(n);
}

void net_open_identified(struct tunnel_net *n)
{
    memset(n, 0, sizeof(*n));
    assert_ok(identity_make(&n->a_knows.identity, NULL));
    assert_ok(identity_make(&n->b_knows.identity, NULL));
    n->a_knows.has_identity = true;
    n->a_knows.wanted = n->b_knows.identity.public_key;
    n->b_knows.wanted = n->a_knows.identity.public_key;
    open_both(n);
}

static void host_closed(void *owner)
{
    ((struct tunnel_net *)owner)->hosts_closed++;
}

static bool both_closed(void *arg)
{
    return ((struct tunnel_net *)arg)->hosts_closed == 2;
}

void net_close(struct tunnel_net *n)
{
    tunnel_host_close(n->a, host_closed, n);
    tunnel_host_close(n->b, host_closed, n);
    assert_int_equal(n->hosts_closed, 0);
    assert_true(net_pump(n, both_closed, n));
    uv_close((uv_handle_t *)&n->tick, NULL);
    uv_run(&n->loop, UV_RUN_DEFAULT);
    assert_int_equal(n->hosts_closed, 2);
    assert_int_equal(uv_loop_close(&n->loop), 0);
    close(n->listen_fd);
    key_ring_wipe(&n->a_knows.ring);
}

bool net_pump(struct tunnel_net *n, bool (*done)(void *), void *arg)
{
    int64_t end = clock_mono_ms() + LIMIT_MS;
    while (!done(arg)) {
        if (clock_mono_ms() >= end)
            return false;
        uv_run(&n->loop, UV_RUN_ONCE);
    }
    return true;
}

int net_turns(struct tunnel_net *n, int ms)
{
    int64_t end = clock_mono_ms() + ms;
    int turns = 0;
    for (; clock_mono_ms() < end; turns++)
        uv_run(&n->loop, UV_RUN_ONCE);
    return turns;
}

void net_pump_ms(struct tunnel_net *n, int ms)
{
    net_turns(n, ms);
}

struct tunnel_connect_config net_config(struct tunnel_net *n)
{
    return (struct tunnel_connect_config){.address = n->address,
                                          .key = key_id(key_ring_newest(&n->a_knows.ring)),
                                          .expected = "b",
                                          .purpose = TUNNEL_RPC,
                                          .deadline_ms = 30000};
}

static void answered(void *owner, err_t err, const char *why, const struct tunnel_peer *peer, int fd)
{
    struct net_answer *a = owner;
    a->calls++;
    a->err = err;
    a->fd = fd;
    snprintf(a->why, sizeof(a->why), "%s", why);
    assert_int_equal(err == OK, peer != NULL);
    assert_int_equal(err == OK, fd >= 0);
    assert_int_equal(err == OK, why[0] == '\0');
    if (peer)
        a->peer = *peer;
}

void net_connect(struct tunnel_net *n, struct tunnel_host *from, const struct tunnel_connect_config *config,
                 struct net_answer *a)
{
    struct why why = {""};
    memset(a, 0, sizeof(*a));
    (void)n;
    assert_ok(tunnel_connect(from, config, answered, a, &a->request, &why));
    assert_int_equal(a->calls, 0);
}

static bool has_answer(void *arg)
{
    return ((struct net_answer *)arg)->calls > 0;
}

void net_wait(struct tunnel_net *n, struct net_answer *a)
{
    if (!net_pump(n, has_answer, a))
        fail_msg("no answer");
    assert_int_equal(a->calls, 1);
}

struct count {
    struct tunnel_net *n;
    struct tunnel_host *host;
    uint32_t want;
};

static bool accepted_all(void *arg)
{
    const struct count *c = arg;
    return (uint32_t)c->n->n_accepted >= c->want;
}

void net_wait_accepted(struct tunnel_net *n, int count)
{
    struct count c = {n, NULL, (uint32_t)count};
    if (!net_pump(n, accepted_all, &c))
        fail_msg("%d accepted, not %d", n->n_accepted, count);
}

static bool has_tunnels(void *arg)
{
    const struct count *c = arg;
    return c->host->all == c->want;
}

void net_wait_tunnels(struct tunnel_net *n, struct tunnel_host *host, uint32_t count)
{
    struct count c = {n, host, count};
    if (!net_pump(n, has_tunnels, &c))
        fail_msg("%u tunnels, not %u", host->all, count);
}

void net_tunnel(struct tunnel_net *n, int *ret_a, int *ret_b)
{
    struct net_answer a;
    int before = n->n_accepted;
    const struct tunnel_connect_config config = net_config(n);
    net_connect(n, n->a, &config, &a);
    net_wait(n, &a);
    if (a.err)
        fail_msg("%s: %s", err_name(a.err), a.why);
    net_wait_accepted(n, before + 1);
    *ret_a = a.fd;
    *ret_b = n->fds[before];
}

void net_expect(struct tunnel_net *n, const struct tunnel_connect_config *config, err_t err, const char *part_of_why)
{
    struct net_answer a;
    int before = n->n_accepted;
    uint32_t tunnels = n->a->all;
    net_connect(n, n->a, config, &a);
    net_wait(n, &a);
    if (a.err != err || !strstr(a.why, part_of_why))
        fail_msg("%s: \"%s\", expected %s with \"%s\"", err_name(a.err), a.why, err_name(err), part_of_why);
    net_wait_tunnels(n, n->a, tunnels);
    assert_int_equal(n->n_accepted, before);
}

int net_raw(struct tunnel_net *n, const char *from)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(n->port)}, own = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    assert_int_equal(inet_pton(AF_INET, "127.0.0.1", &to.sin_addr), 1);
    if (from) {
        assert_int_equal(inet_pton(AF_INET, from, &own.sin_addr), 1);
        assert_int_equal(bind(fd, (struct sockaddr *)&own, sizeof(own)), 0);
    }
    assert_true(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0 || errno == EINPROGRESS);
    return fd;
}

size_t net_read_to_end(struct tunnel_net *n, int fd)
{
    int64_t end = clock_mono_ms() + LIMIT_MS;
    uint8_t bytes[65536];
    size_t total = 0;
    while (clock_mono_ms() < end) {
        ssize_t got = read(fd, bytes, sizeof(bytes));
        if (got == 0 || (got < 0 && errno == ECONNRESET))
            return total;
        assert_true(got > 0 || errno == EAGAIN);
        total += got > 0 ? (size_t)got : 0;
        uv_run(&n->loop, got > 0 ? UV_RUN_NOWAIT : UV_RUN_ONCE);
    }
    fail_msg("no end of the stream");
    return 0;
}

uint64_t net_refused(struct tunnel_net *n)
{
    return n->b->stats.refused;
}
