/* Reports of the supervisor about the processes of a slot, of which the earlier one exits late. */
#include "common/conf/node.h"
#include "daemon/control/local/local.h"
#include "daemon/control/local/processes.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct node {
    uv_loop_t loop;
    struct node_conf conf;
    struct local local;
    int supervisor; /* its end of the channel */
};

static void node_open(struct node *n)
{
    static const struct local_events events;
    static const struct supervisor_link_events link_events;
    struct why why = {""};
    int pair[2];
    memset(n, 0, sizeof(*n));
    assert_int_equal(0, uv_loop_init(&n->loop));
    assert_ok(node_conf_default(&n->conf, &why));
    assert_int_equal(0, socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
    n->local = (struct local){.events = &events, .name = "n1", .dir = test_tmpdir(), .conf = &n->conf};
    local_init(&n->local);
    n->supervisor = pair[1];
    assert_ok(supervisor_link_start(&n->local.supervisor, &n->loop, pair[0], &link_events, n));
}

static void spawn(struct node *n, int slot, uint8_t token)
{
    uint8_t bytes[CHANNEL_TOKEN_BYTES];
    memset(bytes, token, sizeof(bytes));
    const struct process_spawn x = {.job = 1, .slot = slot, .slots = 2, .workers = 1, .device = -1, .token = bytes};
    assert_ok(local_process_spawn(&n->local, &x));
}

static struct child *report(struct node *n, int slot, uint8_t token, enum channel_state state, pid_t pid, int error)
{
    struct channel_msg m = {.job = 1, .slot = slot, .state = state, .pid = pid, .error = error};
    memset(m.token, token, sizeof(m.token));
    return local_process_event(&n->local, &m);
}

/* A new leader has killed process 'a', which it does not know, and starts 'b' there before 'a' has exited. */
TEST(an_earlier_process_that_exits_late_does_not_take_the_place_of_the_next_one)
{
    static struct node n;
    static const int slots[] = {CHANNEL_SLOT_IO, 0};
    node_open(&n);
    for (int i = 0; i < 2; i++) {
        assert_non_null(report(&n, slots[i], 'a', CHANNEL_RUNNING, 100, 0)); /* found by a control that has started */
        spawn(&n, slots[i], 'b');
        assert_null(report(&n, slots[i], 'a', CHANNEL_EXITED, 100, 0));
        const struct child *c = report(&n, slots[i], 'b', CHANNEL_REFUSED, 0, EEXIST);
        assert_non_null(c);
        assert_int_equal(EEXIST, c->error);
        spawn(&n, slots[i], 'c');
        c = report(&n, slots[i], 'c', CHANNEL_RUNNING, 101, 0);
        assert_non_null(c);
        assert_int_equal(101, c->pid);
    }
}

/* Its control has restarted, and lists it anew. */
TEST(a_process_of_an_unknown_slot_is_adopted_whatever_its_state_is)
{
    static struct node n;
    node_open(&n);
    assert_non_null(report(&n, 0, 'a', CHANNEL_EXITED, 100, 0));
    assert_non_null(report(&n, 1, 'a', CHANNEL_RUNNING, 101, 0));
    assert_non_null(report(&n, 0, 'b', CHANNEL_RUNNING, 102, 0)); /* a running one replaces one that has ended */
}
