/* Calls of one user that another node forwards. Each takes 2 ms. The user's calls wait when they have used their time;
 * those of another user do not. */
#include "common/base/clock.h"
#include "common/conf/node.h"
#include "common/rpc/conn.h"
#include "daemon/control/rpc/turn.h"
#include "tests/common/rpc/pair.h"

enum { MALLORY = 4711, ALICE = 4712, CALLS = 20, CALL_MS = 2 };

static struct {
    struct pair p;
    struct node_conf conf;
    struct local local;
    struct rpc_server server;
    uint32_t uid;
    int handled;
    size_t most_unsent;
} t;

/* ---- what turn.c and share.c call in other rooms ---- */

void jobs_count_of(const struct jobs *jobs, uint32_t uid, int *ret_his, int *ret_all)
{
    (void)jobs, (void)uid;
    *ret_his = *ret_all = 0;
}

void jobs_spec_bytes_of(const struct jobs *jobs, uint32_t uid, size_t *ret_live, size_t *ret_over)
{
    (void)jobs, (void)uid;
    *ret_live = *ret_over = 0;
}

void jobs_remove_ended(struct jobs *jobs, uint32_t uid, size_t bytes)
{
    (void)jobs, (void)uid, (void)bytes;
}

/* ---- the leader ---- */

static void serve(struct rpc_server *server, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)server;
    t.handled++;
    for (int64_t until = clock_mono_ms() + CALL_MS; clock_mono_ms() <= until;)
        ;
    rpc_forwarded_start(call, request, &t.p.forwarded);
}

static void forward_came(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)owner;
    rpc_turn_take(&t.server, t.uid, call, request, serve);
}

static void begin(void)
{
    struct why why = {""};
    memset(&t, 0, sizeof(t));
    pair_open_forwarding(&t.p, RPC_ROLE_CLIENT);
    t.p.server_methods[0].handler = forward_came;
    assert_ok(node_conf_default(&t.conf, &why));
    t.local.conf = &t.conf;
    t.server.loop = &t.p.loop;
    t.server.local = &t.local;
    t.server.system = true;
    t.uid = MALLORY;
}

static void end(void)
{
    struct rpc_user *u;
    pair_fini(&t.p);
    while ((u = LIST_FIRST(&t.server.users))) {
        assert_true(TAILQ_EMPTY(&u->waiting));
        assert_int_equal(0, u->waiting_bytes);
        LIST_REMOVE(u, link);
        free(u);
    }
    node_conf_fini(&t.conf);
}

static bool is_last(void *arg)
{
    return ((struct pair_answer *)arg)->last;
}

TEST(calls_of_a_user_wait_for_their_turn)
{
    struct pair_answer a[CALLS], other;
    begin();
    for (int i = 0; i < CALLS; i++)
        assert_ok(pair_call(&t.p, M_ECHO, "his", 0, &a[i], NULL));
    while (!t.handled)
        uv_run(&t.p.loop, UV_RUN_ONCE);
    print_message("%d of %d calls in one turn of the loop\n", t.handled, CALLS);
    assert_in_range(t.handled, 1, RPC_TURN_NS / 1000000 / CALL_MS + 2); /* not all, which would take 40 ms */
    int before = t.handled;
    t.uid = ALICE;
    assert_ok(pair_call(&t.p, M_ECHO, "hers", 0, &other, NULL));
    assert_true(pair_pump(&t.p, is_last, &other));
    assert_string_equal("hers", other.text);
    assert_true(t.handled < CALLS); /* she has not waited for them */
    assert_true(t.handled > before);
    while (t.handled < CALLS + 1) {
        rpc_turn_tick(&t.server);
        pair_pump_ms(&t.p, 1);
    }
    for (int i = 0; i < CALLS; i++) {
        pair_pump_answer(&t.p, &a[i]);
        assert_string_equal("his", a[i].text);
    }
    end();
}

enum { LONG_ANSWER = 100000 };

static void serve_long(struct rpc_server *server, struct rpc_call *call, const ProtobufCMessage *request)
{
    static uint8_t bytes[LONG_ANSWER];
    Dtd__LogChunk m = DTD__LOG_CHUNK__INIT;
    struct rpc_conn *conn = rpc_call_conn(call);
    (void)server;
    rpc_forwarded_start(call, request, &t.p.forwarded);
    m.text = (ProtobufCBinaryData){sizeof(bytes), bytes};
    rpc_reply(t.p.pending[t.p.n_pending - 1], &m.base);
    t.handled++;
    t.most_unsent = rpc_conn_queued(conn) > t.most_unsent ? rpc_conn_queued(conn) : t.most_unsent;
}

static void long_forward_came(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)owner;
    rpc_turn_take(&t.server, t.uid, call, request, serve_long);
}

/* 20 answers of 100 KB to calls that arrive at once. Other users' answers never stand behind all of them. */
TEST(answers_of_a_user_do_not_fill_the_connection)
{
    struct pair_answer a[CALLS];
    begin();
    t.p.server_methods[0].handler = long_forward_came;
    t.p.methods[M_NEVER - 1].max_reply_bytes = t.p.middle_methods[M_NEVER - 1].max_reply_bytes = 2 * LONG_ANSWER;
    for (int i = 0; i < CALLS; i++)
        assert_ok(pair_call(&t.p, M_NEVER, "", 0, &a[i], NULL));
    while (t.handled < CALLS) {
        rpc_turn_tick(&t.server);
        pair_pump_ms(&t.p, 1);
    }
    for (int i = 0; i < CALLS; i++) {
        pair_pump_answer(&t.p, &a[i]);
        assert_int_equal(LONG_ANSWER, a[i].bytes);
    }
    print_message("at most %zu bytes were unsent\n", t.most_unsent);
    assert_in_range(t.most_unsent, 1, (256 << 10) + LONG_ANSWER + 1000);
    end();
}

TEST(a_caller_who_goes_leaves_the_queue)
{
    struct pair_answer a[CALLS];
    uint64_t id[CALLS];
    begin();
    for (int i = 0; i < CALLS; i++)
        assert_ok(pair_call(&t.p, M_ECHO, "his", 0, &a[i], &id[i]));
    while (!t.handled)
        uv_run(&t.p.loop, UV_RUN_ONCE);
    struct rpc_user *u = LIST_FIRST(&t.server.users);
    assert_false(TAILQ_EMPTY(&u->waiting));
    for (int i = 0; i < CALLS; i++)
        rpc_cancel(t.p.client, id[i]);
    pair_pump_ms(&t.p, 50);
    assert_true(TAILQ_EMPTY(&u->waiting));
    assert_true(t.handled < CALLS);
    end();
}

TEST(calls_that_wait_have_a_limit)
{
    struct pair_answer a[CALLS];
    int refused = 0;
    begin();
    t.conf.users.buffer_mib = 2; /* 1 MiB of requests */
    char *text = calloc(1, 200001);
    memset(text, 'x', 200000);
    for (int i = 0; i < CALLS; i++)
        assert_ok(pair_call(&t.p, M_ECHO, text, 0, &a[i], NULL));
    for (int i = 0; i < CALLS; i++) {
        while (!a[i].last) {
            rpc_turn_tick(&t.server);
            pair_pump_ms(&t.p, 1);
        }
        assert_true(a[i].err == OK || strstr(a[i].text, "users.buffer_mib"));
        refused += a[i].err == ERR_LIMIT;
    }
    print_message("%d of %d calls were refused\n", refused, CALLS);
    assert_in_range(refused, 1, CALLS - 5); /* 5 fit in 1 MiB */
    free(text);
    end();
}
