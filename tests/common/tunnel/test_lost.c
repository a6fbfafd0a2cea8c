/* A host that vanishes without a word, and one that is there and takes nothing for long. Network namespaces of the
 * test's own: this process is in one, a forked peer in another, a veth pair between. */
#include "tests/common/tunnel/net.h"

#include "common/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static void shell(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

static void shell(const char *fmt, ...)
{
    char command[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(command, sizeof(command), fmt, ap);
    va_end(ap);
    if (system(command) != 0) {
        fprintf(stderr, "failed: %s\n", command);
        _exit(1);
    }
}

struct lost_peer {
    pid_t pid;
    int ready[2], down[2]; /* pipes: the peer listens; take its link down */
};

/* The other host: accepts connections and keeps them open. Exits with its parent. */
static void be_peer(struct lost_peer *p, struct key_ring ring)
{
    static struct tunnel_net n;
    char byte = 'x';
    int said = 0;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (unshare(CLONE_NEWNET))
        _exit(1);
    if (write(p->ready[1], &byte, 1) != 1 || read(p->down[0], &byte, 1) != 1) /* the parent creates the link */
        _exit(1);
    shell("ip link set lo up && ip addr add 10.99.0.2/24 dev v1 && ip link set v1 up");
    memset(&n, 0, sizeof(n));
    net_open(&n);
    n.b_knows.ring = ring;
    tunnel_listener_close(n.listener, NULL);
    net_pump_ms(&n, 20);
    close(n.listen_fd);
    net_listen_on(&n, "10.99.0.2:7000");
    if (write(p->ready[1], &byte, 1) != 1)
        _exit(1);
    fcntl(p->down[0], F_SETFL, O_NONBLOCK);
    for (;;) {
        net_pump_ms(&n, 5);
        if (said < n.n_accepted && write(p->ready[1], &byte, 1) == 1)
            said++;
        if (read(p->down[0], &byte, 1) == 1)
            shell("ip link set v1 down");
    }
}

static void wait_peer(struct lost_peer *p)
{
    char byte;
    assert_int_equal(read(p->ready[0], &byte, 1), 1);
}

/* A host "a" here that has a tunnel to the peer; skips without the right to make namespaces. */
static int connect_peer(struct lost_peer *p, struct tunnel_net *n)
{
    struct net_answer a;
    if (geteuid() != 0 || unshare(CLONE_NEWNET))
        TEST_SKIP("network namespaces need root (%s)", strerror(errno));
    shell("ip link set lo up");
    if (system("ip link add v0 type veth peer name v1 2>/dev/null") != 0)
        TEST_SKIP("this kernel makes no veth pair");
    net_open(n);
    assert_int_equal(pipe2(p->ready, O_CLOEXEC), 0);
    assert_int_equal(pipe2(p->down, O_CLOEXEC), 0);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (!p->pid)
        be_peer(p, n->a_knows.ring);
    close(p->ready[1]); /* so that the exit of the peer ends the stream */
    close(p->down[0]);
    wait_peer(p);
    shell("ip link set v1 netns %d && ip addr add 10.99.0.1/24 dev v0 && ip link set v0 up", (int)p->pid);
    assert_int_equal(write(p->down[1], "x", 1), 1);
    wait_peer(p);
    struct tunnel_connect_config config = net_config(n);
    config.address = "10.99.0.2:7000";
    net_connect(n, n->a, &config, &a);
    net_wait(n, &a);
    if (a.err)
        fail_msg("%s", a.why);
    wait_peer(p);
    return a.fd;
}

static void end_peer(struct lost_peer *p, struct tunnel_net *n)
{
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
    close(p->ready[0]);
    close(p->down[1]);
    net_close(n);
}

static void link_down(struct lost_peer *p)
{
    assert_int_equal(write(p->down[1], "x", 1), 1);
}

TEST(vanished_host_is_seen_from_an_idle_tunnel)
{
    struct tunnel_net n;
    struct lost_peer p;
    int fd = connect_peer(&p, &n);
    net_pump_ms(&n, 500);
    int64_t start = clock_mono_ms();
    link_down(&p);
    assert_int_equal(net_read_to_end(&n, fd), 0);
    print_message("idle: seen after %d ms\n", (int)(clock_mono_ms() - start));
    close(fd);
    net_wait_tunnels(&n, n.a, 0);
    end_peer(&p, &n);
}

TEST(vanished_host_is_seen_while_bytes_are_under_way)
{
    struct tunnel_net n;
    struct lost_peer p;
    static const uint8_t bytes[1000];
    int fd = connect_peer(&p, &n);
    net_pump_ms(&n, 500);
    int64_t start = clock_mono_ms();
    link_down(&p);
    net_pump_ms(&n, 200);
    assert_int_equal(write(fd, bytes, sizeof(bytes)), sizeof(bytes));
    net_read_to_end(&n, fd);
    print_message("with bytes under way: seen after %d ms\n", (int)(clock_mono_ms() - start));
    close(fd);
    net_wait_tunnels(&n, n.a, 0);
    end_peer(&p, &n);
}

/* Two tunnels to one host: the one with the short timeout is closed first, the other stays open until its own. */
TEST(impatient_tunnel_is_given_up_first)
{
    struct tunnel_net n;
    struct lost_peer p;
    struct net_answer soon;
    int fd = connect_peer(&p, &n);
    struct tunnel_connect_config config = net_config(&n);
    config.address = "10.99.0.2:7000";
    config.lost_ms = 1500;
    net_connect(&n, n.a, &config, &soon);
    net_wait(&n, &soon);
    assert_ok(soon.err);
    wait_peer(&p);
    net_pump_ms(&n, 500);
    assert_int_equal(n.a->stats.tunnels, 2);
    link_down(&p);
    net_pump_ms(&n, 200);
    assert_int_equal(write(fd, "x", 1), 1);
    assert_int_equal(write(soon.fd, "x", 1), 1);
    net_read_to_end(&n, soon.fd);
    close(soon.fd);
    net_wait_tunnels(&n, n.a, 1);
    net_read_to_end(&n, fd);
    close(fd);
    net_wait_tunnels(&n, n.a, 0);
    end_peer(&p, &n);
}

/* Writes until the tunnel is full because the other owner does not read. */
static size_t fill(struct tunnel_net *n, int fd)
{
    static const uint8_t bytes[65536];
    size_t total = 0;
    for (int refused = 0; refused < 100;) {
        ssize_t got = write(fd, bytes, sizeof(bytes));
        refused = got > 0 ? 0 : refused + 1;
        total += got > 0 ? (size_t)got : 0;
        net_pump_ms(n, got > 0 ? 0 : 5);
    }
    return total;
}

TEST(vanished_host_is_seen_from_a_full_tunnel)
{
    struct tunnel_net n;
    struct lost_peer p;
    int fd = connect_peer(&p, &n);
    fill(&n, fd);
    net_pump_ms(&n, 15000);
    assert_int_equal(n.a->stats.tunnels, 1); /* being full for 15 s must not close the tunnel */
    int64_t start = clock_mono_ms();
    link_down(&p);
    net_read_to_end(&n, fd);
    print_message("full: seen after %d ms\n", (int)(clock_mono_ms() - start));
    close(fd);
    net_wait_tunnels(&n, n.a, 0);
    end_peer(&p, &n);
}

/* For comparison: the kernel's timeout alone would close the connection after 7 s of a closed window. */
TEST(reader_that_rests_for_long_loses_nothing)
{
    struct tunnel_net n;
    int a, b;
    net_open(&n);
    net_tunnel(&n, &a, &b);
    size_t there = fill(&n, a), got = 0;
    net_pump_ms(&n, 25000);
    assert_int_equal(n.a->stats.tunnels, 1);
    shutdown(a, SHUT_WR);
    got = net_read_to_end(&n, b);
    assert_int_equal(got, there);
    close(a), close(b);
    net_close(&n);
}

/* The last few bytes close the reader's window: all unsent bytes are in the kernel. */
TEST(reader_that_rests_with_little_to_take_loses_nothing)
{
    struct tunnel_net n;
    int a, b, queued = 0;
    static const uint8_t bytes[4096];
    size_t there = 0;
    net_open(&n);
    net_tunnel(&n, &a, &b);
    struct tunnel *t = TAILQ_FIRST(&n.a->tunnels);
    while (!queued) {
        ssize_t got = write(a, bytes, sizeof(bytes));
        assert_true(got > 0);
        there += (size_t)got;
        for (int i = 0; i < 20; i++) {
            net_pump_ms(&n, 2);
            assert_int_equal(ioctl(t->wire_fd, SIOCOUTQ, &queued), 0);
            if (!queued)
                break;
        }
    }
    assert_int_equal(wire_pending(t), 0);
    net_pump_ms(&n, 25000);
    assert_int_equal(n.a->stats.tunnels, 1);
    shutdown(a, SHUT_WR);
    assert_int_equal(net_read_to_end(&n, b), there);
    close(a), close(b);
    net_close(&n);
}

/* ---- a name with several addresses ---- */

static void replace_file(const char *name, const char *text)
{
    char path[512], place[64];
    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    snprintf(place, sizeof(place), "/etc/%s", name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    if (mount(path, place, NULL, MS_BIND, NULL))
        TEST_SKIP("%s: %s", place, strerror(errno));
}

static void name_addresses(const char *text)
{
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL))
        TEST_SKIP("no mount namespace (%s)", strerror(errno));
    replace_file("hosts", text);
}

/* The management network of the node is dead, the fabric answers. Then neither answers: the deadline holds. */
TEST(dead_address_of_a_name_costs_a_moment)
{
    struct lost_peer p;
    struct tunnel_net n;
    struct net_answer a;
    close(connect_peer(&p, &n));
    name_addresses("10.99.0.3 two\n10.99.0.2 two\n10.99.0.3 none\n10.99.0.4 none\n");
    struct tunnel_connect_config config = net_config(&n);
    config.address = "two:7000";
    config.deadline_ms = 4000;
    int64_t begin = clock_mono_ms();
    net_connect(&n, n.a, &config, &a);
    net_wait(&n, &a);
    if (a.err)
        fail_msg("%s", a.why);
    assert_in_range(clock_mono_ms() - begin, 0, 1500);
    close(a.fd);
    config.address = "none:7000";
    config.deadline_ms = 1200;
    begin = clock_mono_ms();
    net_connect(&n, n.a, &config, &a);
    net_wait(&n, &a);
    assert_int_equal(ERR_TIMEOUT, a.err);
    assert_in_range(clock_mono_ms() - begin, 1000, 4000);
    end_peer(&p, &n);
}

static void expect_answer(struct tunnel_net *n, const char *list, const char *address)
{
    struct net_answer a;
    struct tunnel_connect_config config = net_config(n);
    config.address = list;
    config.deadline_ms = 20000;
    net_connect(n, n->a, &config, &a);
    net_wait(n, &a);
    if (a.err)
        fail_msg("%s: %s", list, a.why);
    assert_string_equal(address, a.peer.address);
    close(a.fd);
}

/* The host "b" of this process listens at the loopback interface, the peer at 10.99.0.2, and nothing at .3. */
TEST(a_list_of_addresses_is_tried_in_its_order)
{
    struct lost_peer p;
    struct tunnel_net n;
    struct net_answer a;
    char list[256];
    close(connect_peer(&p, &n));
    name_addresses("10.99.0.3 dead\n10.99.0.2 live\n");
    snprintf(list, sizeof(list), "10.99.0.2:7000,%s", n.address);
    expect_answer(&n, list, "10.99.0.2:7000");
    snprintf(list, sizeof(list), "%s,10.99.0.2:7000", n.address);
    expect_answer(&n, list, n.address);
    expect_answer(&n, "10.99.0.3:7000,dead:7000,10.99.0.2:1,10.99.0.2:7000",
                  "10.99.0.2:7000"); /* silent, and refused */
    expect_answer(&n, "dead:7000,live:7000", "10.99.0.2:7000");
    expect_answer(&n, "no-such-name.invalid:7000,live:7000", "10.99.0.2:7000");
    struct tunnel_connect_config config = net_config(&n);
    config.address = "10.99.0.2:1,no-such-name.invalid:7000";
    config.deadline_ms = 20000;
    net_connect(&n, n.a, &config, &a);
    net_wait(&n, &a);
    assert_int_equal(ERR_NOTFOUND, a.err);
    assert_non_null(strstr(a.why, "10.99.0.2:1,no-such-name.invalid:7000: "));
    end_peer(&p, &n);
}

/* The name service is on the dead network. The resolver waits for it for 5 s and more, and the deadline is 3 s. */
TEST(a_name_that_is_resolved_slowly_does_not_delay_the_next_address)
{
    struct lost_peer p;
    struct tunnel_net n;
    struct net_answer a;
    close(connect_peer(&p, &n));
    name_addresses("127.0.0.1 localhost\n");
    replace_file("resolv.conf", "nameserver 10.99.0.3\noptions timeout:30 attempts:5\n");
    replace_file("nsswitch.conf", "hosts: files dns\n");
    shell("ip neigh add 10.99.0.3 lladdr 02:00:00:00:00:99 dev v0"); /* else the kernel reports it as unreachable */
    struct tunnel_connect_config config = net_config(&n);
    config.address = "far.example:7000,10.99.0.2:7000";
    config.deadline_ms = 3000;
    net_connect(&n, n.a, &config, &a);
    net_wait(&n, &a);
    if (a.err)
        fail_msg("%s", a.why);
    assert_string_equal("10.99.0.2:7000", a.peer.address);
    close(a.fd);
    _exit(0); /* a thread of the resolver waits for minutes; the peer exits with this process */
}

/* The machine's default is that a socket of IPv6 takes no IPv4. */
TEST(all_addresses_take_both_families_whatever_the_default_is)
{
    struct why why = {""};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr_in6 at;
    socklen_t len = sizeof(at);
    int listener;
    if (geteuid() != 0 || unshare(CLONE_NEWNET))
        TEST_SKIP("network namespaces need root (%s)", strerror(errno));
    shell("ip link set lo up");
    FILE *f = fopen("/proc/sys/net/ipv6/bindv6only", "we");
    if (!f || fputs("1", f) < 0 || fclose(f))
        TEST_SKIP("this kernel has no IPv6");
    assert_ok(tunnel_bind("[::]:0", &listener, &why));
    assert_int_equal(0, getsockname(listener, (struct sockaddr *)&at, &len));
    to.sin_port = at.sin6_port;
    int four = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(0, connect(four, (struct sockaddr *)&to, sizeof(to)));
    close(four);
    close(listener);
}
