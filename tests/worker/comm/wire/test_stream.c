/* The stream wire against unauthorized connections, misbehaving peers, and peers that exit. Two ranks, as threads, are
 * two nodes; the test itself makes the unauthorized connections. */
#include "tests/lib/test.h"
#include "tests/worker/memory_store.h"
#include "worker/comm/wire/stream/internal.h"

#include "common/base/clock.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

static const int two_nodes[] = {0, 1};
static const uint8_t secret[32] = "an epoch's secret, for a test's", other_secret[32] = "another one";

struct side {
    struct wire_config config;
    struct memory_store_view view;
    struct comm_wire *wire;
    struct why why;
    err_t err;
    pthread_t thread;
    _Atomic int cancel;
};

static void *side_main(void *arg)
{
    struct side *s = arg;
    s->err = wire_stream.open(&s->config, &s->wire, &s->why);
    return NULL;
}

static void side_start(struct side *s, struct memory_store *store, uint64_t epoch, int rank)
{
    memset(s, 0, sizeof(*s));
    s->config = (struct wire_config){.rank = rank,
                                     .world = 2,
                                     .node_of = two_nodes,
                                     .epoch = epoch,
                                     .secret = secret,
                                     .secret_bytes = sizeof(secret),
                                     .address = "127.0.0.1",
                                     .timeout_ms = 30000,
                                     .cancel = &s->cancel};
    s->config.store =
        memory_store_view_init(&s->view, store, 1); /* one store for all: the test's epochs share its keys */
}

static void side_go(struct side *s)
{
    assert_int_equal(pthread_create(&s->thread, NULL, side_main, s), 0);
}

static void side_join(struct side *s)
{
    pthread_join(s->thread, NULL);
}

static void open_both(struct side *s, struct memory_store *store)
{
    for (int r = 0; r < 2; r++)
        side_start(&s[r], store, 1, r);
    for (int r = 0; r < 2; r++)
        side_go(&s[r]);
    for (int r = 0; r < 2; r++) {
        side_join(&s[r]);
        if (s[r].err)
            fprintf(stderr, "rank %d: %s\n", r, s[r].why.text);
        assert_ok(s[r].err);
    }
}

/* A message on each lane from rank 1 to rank 0. */
static void talk(struct side *s)
{
    uint8_t out[WIRE_LANES] = {41, 42}, in[WIRE_LANES] = {0};
    struct wire_op sends[WIRE_LANES], recvs[WIRE_LANES];
    for (int lane = 0; lane < WIRE_LANES; lane++) {
        sends[lane] = (struct wire_op){.buffer = &out[lane], .bytes = 1};
        recvs[lane] = (struct wire_op){.buffer = &in[lane], .bytes = 1};
        wire_stream.send(s[1].wire, 0, lane, &sends[lane]);
        wire_stream.recv(s[0].wire, 1, lane, &recvs[lane]);
    }
    for (int turn = 0; turn < 1000 && !(recvs[0].done && recvs[1].done); turn++) {
        assert_ok(wire_stream.progress(s[1].wire, 0));
        assert_ok(wire_stream.progress(s[0].wire, 5));
    }
    assert_true(in[0] == 41 && in[1] == 42);
}

static void close_both(struct side *s)
{
    wire_stream.close(s[1].wire);
    wire_stream.close(s[0].wire);
}

/* Rank 0's address, when it listens. */
static void where_is_0(struct side *s, union wire_address *ret)
{
    struct why why;
    assert_ok(wire_lookup_address(&s->config, "stream", 0, clock_mono_ms() + 10000, ret, &why));
}

static int reach(const union wire_address *at)
{
    int fd = socket(at->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, &at->any, wire_address_bytes(at)), 0);
    return fd;
}

/* ---- the log ---- */

static char log_path[256];

static void keep_log(void)
{
    snprintf(log_path, sizeof(log_path), "%s/log", test_tmpdir());
    int fd = open(log_path, O_CREAT | O_TRUNC | O_RDWR | O_APPEND, 0600);
    assert_true(fd >= 0 && dup2(fd, 2) == 2);
    close(fd);
}

static int lines_with(const char *word)
{
    char line[4096];
    int n = 0;
    FILE *f = fopen(log_path, "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        n += strstr(line, word) != NULL;
    fclose(f);
    return n;
}

static void wait_for_lines(const char *word, int n)
{
    const int64_t deadline = clock_mono_ms() + 20000;
    while (lines_with(word) < n && clock_mono_ms() < deadline)
        usleep(10000);
    assert_int_equal(lines_with(word), n);
}

/* ---- strangers ---- */

/* Rank 0 waits while `strange` makes its connections; then rank 1 connects normally. */
static void with_stranger(void (*strange)(struct side *zero, const union wire_address *at, struct memory_store *store))
{
    struct memory_store *store = memory_store_new();
    struct side s[2];
    union wire_address at;
    keep_log();
    side_start(&s[0], store, 1, 0);
    side_start(&s[1], store, 1, 1);
    side_go(&s[0]);
    where_is_0(&s[0], &at);
    strange(&s[0], &at, store);
    side_go(&s[1]);
    side_join(&s[0]);
    side_join(&s[1]);
    assert_ok(s[0].err);
    assert_ok(s[1].err);
    talk(s);
    close_both(s);
}

static void send_garbage(struct side *zero, const union wire_address *at, struct memory_store *store)
{
    uint8_t bytes[700];
    uint64_t x = 88172645463325252u;
    (void)zero;
    (void)store;
    for (int k = 0; k < 3; k++) {
        int fd = reach(at);
        for (size_t i = 0; i < sizeof(bytes); i++)
            bytes[i] = (uint8_t)(x = x * 6364136223846793005u + 1442695040888963407u, x >> 33);
        assert_true(send(fd, bytes, sizeof(bytes), MSG_NOSIGNAL) > 0);
        wait_for_lines("comm_connection_refused", k + 1);
        close(fd);
    }
}

TEST(garbage_is_refused_with_one_line)
{
    with_stranger(send_garbage);
    assert_int_equal(lines_with("comm_connection_refused"), 3);
}

/* More silent connections than there are places, and two that have begun a handshake. */
static void stay_silent(struct side *zero, const union wire_address *at, struct memory_store *store)
{
    static const uint8_t begun[] = {0x16, 3, 1, 2, 0, 1};
    (void)zero;
    (void)store;
    for (int k = 0; k < 200; k++) {
        int fd = reach(at); /* left open until the process ends */
        if (k % 2)
            assert_true(send(fd, begun, sizeof(begun), MSG_NOSIGNAL) == sizeof(begun));
    }
}

TEST(silent_connections_block_no_rank)
{
    const int64_t start = clock_mono_ms();
    with_stranger(stay_silent);
    assert_true(clock_mono_ms() - start < 20000);
    assert_true(lines_with("comm_connection_refused") <= 200);
}

static void connect_with(struct memory_store *store, const uint8_t *key, uint64_t epoch, int world, const char *text)
{
    static const int nodes[] = {0, 1, 1};
    struct side one;
    side_start(&one, store, epoch, 1);
    one.config.secret = key;
    one.config.world = world;
    one.config.node_of = nodes;
    side_go(&one);
    side_join(&one);
    assert_err(ERR_DENIED, one.err);
    assert_non_null(strstr(one.why.text, "rank 0 on node 0 refused"));
    assert_true(lines_with(text) >=
                3); /* one lane was refused three times; the other may have been closed before its refusal */
    assert_true(lines_with("comm_connection_refused") <= 6);
}

static void connect_with_other_key(struct side *zero, const union wire_address *at, struct memory_store *store)
{
    (void)zero;
    (void)at;
    connect_with(store, other_secret, 1, 2, "binder");
}

TEST(another_secret_is_refused)
{
    with_stranger(connect_with_other_key);
}

static void connect_with_other_epoch(struct side *zero, const union wire_address *at, struct memory_store *store)
{
    (void)zero;
    (void)at;
    connect_with(store, secret, 2, 2, "another epoch");
}

TEST(another_epoch_is_refused)
{
    with_stranger(connect_with_other_epoch);
}

static void connect_with_other_world(struct side *zero, const union wire_address *at, struct memory_store *store)
{
    (void)zero;
    (void)at;
    connect_with(store, secret, 1, 3, "another rank or another number");
}

TEST(another_world_is_refused)
{
    with_stranger(connect_with_other_world);
}

/* The recorded beginning of a genuine handshake is replayed to another listener: it takes no rank's place. */
static void replay(struct side *zero, const union wire_address *at, struct memory_store *store)
{
    struct memory_store *mine = memory_store_new();
    struct side victim, here;
    union wire_address trap;
    uint8_t bytes[4096], answer[4096];
    socklen_t room = sizeof(trap);
    (void)zero;
    (void)store;
    assert_ok(wire_address_make("127.0.0.1", 0, &trap));
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(bind(listener, &trap.any, sizeof(trap.v4)) == 0 && listen(listener, 5) == 0);
    assert_int_equal(getsockname(listener, &trap.any, &room), 0);
    side_start(&here, mine, 1, 0);
    assert_ok(wire_publish_address(&here.config, "stream", &trap, NULL));
    side_start(&victim, mine, 1, 1);
    side_go(&victim);
    int caught = accept(listener, NULL, NULL);
    ssize_t n = recv(caught, bytes, sizeof(bytes), 0);
    assert_true(n > 100);
    victim.cancel = 1;
    side_join(&victim);
    assert_err(ERR_CANCELED, victim.err);
    for (int k = 0; k < 2; k++) {
        int fd = reach(at);
        assert_true(send(fd, bytes, (size_t)n, MSG_NOSIGNAL) == n);
        assert_true(recv(fd, answer, sizeof(answer), 0) > 0); /* the server accepts this part of the handshake */
        assert_true(k == 1 || send(fd, bytes, (size_t)n, MSG_NOSIGNAL) == n);
    }
    wait_for_lines("comm_connection_refused", 1);
    close(caught);
    close(listener);
}

TEST(a_replayed_beginning_takes_no_place)
{
    with_stranger(replay);
}

TEST(a_secret_is_needed)
{
    struct side s;
    side_start(&s, memory_store_new(), 1, 0);
    s.config.secret_bytes = 15;
    assert_err(ERR_INVALID, wire_stream.open(&s.config, &s.wire, &s.why));
    assert_non_null(strstr(s.why.text, "secret"));
}

TEST(an_address_is_needed)
{
    struct side s;
    side_start(&s, memory_store_new(), 1, 0);
    s.config.address = "somewhere";
    assert_err(ERR_INVALID, wire_stream.open(&s.config, &s.wire, &s.why));
    assert_non_null(strstr(s.why.text, "somewhere"));
}

TEST(missing_ranks_are_named)
{
    struct side s;
    for (int rank = 0; rank < 2; rank++) {
        side_start(&s, memory_store_new(), 1, rank);
        s.config.timeout_ms = 100;
        assert_err(ERR_TIMEOUT, wire_stream.open(&s.config, &s.wire, &s.why));
        assert_non_null(strstr(s.why.text, rank ? "rank 0" : "rank 1"));
    }
}

/* ---- peers ---- */

static err_t progress_until_error(struct side *s, int64_t limit_ms)
{
    const int64_t deadline = clock_mono_ms() + limit_ms;
    err_t err = OK;
    while (!err && clock_mono_ms() < deadline)
        err = wire_stream.progress(s->wire, 10);
    return err;
}

static struct stream_connection *conn_to(struct side *s, int rank, int lane)
{
    return stream_conn((struct stream_wire *)s->wire, rank, lane);
}

TEST(a_peer_that_sends_no_message_ends_the_wire)
{
    struct side s[2];
    size_t n;
    open_both(s, memory_store_new());
    assert_int_equal(SSL_write_ex(conn_to(&s[1], 0, 0)->ssl, "sixteen bytes, and none of ours", 31, &n), 1);
    assert_err(ERR_PROTO, progress_until_error(&s[0], 5000));
    assert_non_null(strstr(s[0].wire->why.text, "rank 1 on node 1 sent an invalid message header"));
    close_both(s);
}

TEST(a_repeated_message_ends_the_wire)
{
    struct side s[2];
    uint8_t header[WIRE_HEADER_BYTES];
    size_t n;
    struct wire_op op = {0};
    open_both(s, memory_store_new());
    wire_header_put(&(const struct wire_header){0, 0}, header);
    wire_stream.recv(s[0].wire, 1, 0, &op);
    for (int k = 0; k < 2; k++)
        assert_int_equal(SSL_write_ex(conn_to(&s[1], 0, 0)->ssl, header, sizeof(header), &n), 1);
    assert_err(ERR_PROTO, progress_until_error(&s[0], 5000));
    assert_true(op.done);
    close_both(s);
}

TEST(data_changed_in_transit_ends_the_wire)
{
    struct side s[2];
    open_both(s, memory_store_new());
    uint8_t record[64] = {0x17, 3, 3, 0, 59};
    assert_true(send(conn_to(&s[1], 0, 1)->fd, record, sizeof(record), MSG_NOSIGNAL) == sizeof(record));
    assert_err(ERR_CLOSED, progress_until_error(&s[0], 5000));
    assert_non_null(strstr(s[0].wire->why.text, "lost rank 1 on node 1"));
    close_both(s);
}

TEST(a_cut_connection_names_the_rank)
{
    struct side s[2];
    open_both(s, memory_store_new());
    shutdown(conn_to(&s[1], 0, 1)->fd, SHUT_RDWR);
    assert_err(ERR_CLOSED, progress_until_error(&s[0], 5000));
    assert_non_null(strstr(s[0].wire->why.text, "lost rank 1 on node 1"));
    assert_err(ERR_CLOSED, wire_stream.progress(s[0].wire, 0)); /* progress keeps returning the error */
    close_both(s);
}

TEST(a_peer_may_leave_when_no_data_is_due)
{
    struct side s[2];
    uint8_t x;
    struct wire_op op = {.buffer = &x, .bytes = 1};
    open_both(s, memory_store_new());
    talk(s);
    wire_stream.close(s[1].wire);
    assert_ok(progress_until_error(&s[0], 300));
    wire_stream.recv(s[0].wire, 1, 0, &op);
    assert_err(ERR_CLOSED, progress_until_error(&s[0], 5000));
    assert_non_null(strstr(s[0].wire->why.text, "rank 1 on node 1 has left the epoch"));
    wire_stream.close(s[0].wire);
}

static void *abort_later(void *w)
{
    usleep(100000);
    wire_stream.abort(w);
    return NULL;
}

/* abort wakes the thread that waits for a silent peer, and the peer detects it too. */
TEST(abort_ends_a_wait_on_both_sides)
{
    struct side s[2];
    pthread_t thread;
    uint8_t x;
    struct wire_op op = {.buffer = &x, .bytes = 1};
    const int64_t start = clock_mono_ms();
    open_both(s, memory_store_new());
    wire_stream.recv(s[0].wire, 1, 0, &op);
    assert_int_equal(pthread_create(&thread, NULL, abort_later, s[0].wire), 0);
    err_t err = OK;
    while (!err)
        err = wire_stream.progress(s[0].wire, 60000);
    assert_err(ERR_CANCELED, err);
    pthread_join(thread, NULL);
    assert_err(ERR_CLOSED, progress_until_error(&s[1], 5000));
    assert_true(clock_mono_ms() - start < 20000);
    close_both(s);
}

/* The key is renewed many times during the messages. */
TEST(keys_are_renewed)
{
    enum { N = 40, BYTES = 300001 };
    struct side s[2];
    uint8_t *out = malloc(BYTES), *in = malloc(BYTES);
    assert_true(out && in);
    open_both(s, memory_store_new());
    ((struct stream_wire *)s[1].wire)->rekey = 1 << 20;
    for (int k = 0; k < N; k++) {
        struct wire_op a = {.buffer = out, .bytes = BYTES}, b = {.buffer = in, .bytes = BYTES};
        memset(out, k, BYTES);
        wire_stream.send(s[1].wire, 0, 0, &a);
        wire_stream.recv(s[0].wire, 1, 0, &b);
        while (!a.done || !b.done) {
            assert_ok(wire_stream.progress(s[1].wire, 0));
            assert_ok(wire_stream.progress(s[0].wire, 0));
        }
        assert_memory_equal(in, out, BYTES);
    }
    assert_true(conn_to(&s[1], 0, 0)->sealed < 2 << 20);
    close_both(s);
    free(out);
    free(in);
}

/* ---- ports ---- */

static const char six[] = "::1";

static uint16_t port_of(const union wire_address *at)
{
    return ntohs(at->any.sa_family == AF_INET6 ? at->v6.sin6_port : at->v4.sin_port);
}

/* A listener at a free port of the kernel's choice: no other process may use it. */
static int occupy(const char *address, uint16_t *ret)
{
    union wire_address at;
    socklen_t room = sizeof(at);
    assert_ok(wire_address_make(address, *ret, &at));
    int fd = socket(at.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (bind(fd, &at.any, wire_address_bytes(&at)) || listen(fd, 1)) {
        close(fd);
        return -1;
    }
    assert_int_equal(getsockname(fd, &at.any, &room), 0);
    *ret = port_of(&at);
    return fd;
}

/* Three adjacent ports, of which the first is in use. */
static int occupy_first_of_three(uint16_t *ret)
{
    for (int i = 0; i < 100; i++) {
        uint16_t first = 0;
        int fd = occupy("127.0.0.1", &first), more[2] = {-1, -1};
        uint16_t next[2] = {(uint16_t)(first + 1), (uint16_t)(first + 2)};
        for (int k = 0; k < 2 && first < UINT16_MAX - 2; k++)
            more[k] = occupy("127.0.0.1", &next[k]);
        for (int k = 0; k < 2; k++)
            if (more[k] >= 0)
                close(more[k]);
        *ret = first;
        if (more[0] >= 0 && more[1] >= 0)
            return fd;
        close(fd);
    }
    fail_msg("no three free ports");
    return -1;
}

TEST(ranks_listen_on_the_ports_of_the_range)
{
    struct memory_store *store = memory_store_new();
    struct side s[2];
    union wire_address at;
    struct why why;
    char range[32];
    uint16_t first;
    int used = occupy_first_of_three(&first);
    snprintf(range, sizeof(range), "%u-%u", first, first + 2);
    for (int r = 0; r < 2; r++) {
        side_start(&s[r], store, 1, r);
        s[r].config.ports = range;
        side_go(&s[r]);
    }
    for (int r = 0; r < 2; r++) {
        side_join(&s[r]);
        if (s[r].err)
            fail_msg("rank %d: %s", r, s[r].why.text);
        assert_ok(wire_lookup_address(&s[0].config, "stream", r, clock_mono_ms() + 1000, &at, &why));
        assert_in_range(port_of(&at), first + 1, first + 2);
    }
    talk(s);
    close_both(s);
    close(used);
}

/* The sentence names the range and both keys. */
TEST(a_range_without_a_free_port)
{
    struct memory_store *store = memory_store_new();
    struct side s;
    char range[32];
    uint16_t only = 0;
    int used = occupy("127.0.0.1", &only);
    snprintf(range, sizeof(range), "%u-%u", only, only);
    side_start(&s, store, 1, 0);
    s.config.ports = range;
    side_go(&s);
    side_join(&s);
    assert_err(ERR_LIMIT, s.err);
    assert_non_null(strstr(s.why.text, range));
    assert_non_null(strstr(s.why.text, "run.ports"));
    assert_non_null(strstr(s.why.text, "cluster.ports"));
    close(used);
}

TEST(ranks_connect_over_ipv6)
{
    struct memory_store *store = memory_store_new();
    struct side s[2];
    uint16_t any = 0;
    int has_six = occupy(six, &any);
    if (has_six < 0)
        TEST_SKIP("this machine has no IPv6 at its loopback interface");
    close(has_six);
    for (int r = 0; r < 2; r++) {
        side_start(&s[r], store, 1, r);
        s[r].config.address = six;
        side_go(&s[r]);
    }
    for (int r = 0; r < 2; r++) {
        side_join(&s[r]);
        if (s[r].err)
            fail_msg("rank %d: %s", r, s[r].why.text);
    }
    talk(s);
    close_both(s);
}
