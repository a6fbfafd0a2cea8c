/* See account.h. The bytes that a connection holds are computed anew whenever its queue changes, so that the sums
 * cannot drift. A connection that may be read again is woken by its own timer: it is never read within the call that
 * made room. */
#include "common/rpc/account.h"

#include "common/rpc/conn.h"

void rpc_account_init(struct rpc_account *a, size_t max_bytes, int max_calls)
{
    *a = (struct rpc_account){.max_bytes = max_bytes, .max_calls = max_calls};
    TAILQ_INIT(&a->conns);
}

bool rpc_account_is_idle(const struct rpc_account *a)
{
    return a->n_conns == 0 && a->n_calls == 0;
}

/* ---- pausing ---- */

static void pause_all(struct rpc_account *a)
{
    struct rpc_conn *conn;
    TAILQ_FOREACH(conn, &a->conns, of_account)
    rpc_conn_pause_if_due(conn);
}

static void wake_all(struct rpc_account *a)
{
    struct rpc_conn *conn;
    TAILQ_FOREACH(conn, &a->conns, of_account)
    if (conn->paused)
        rpc_conn_wake_at(conn, 0);
}

static void update_full(struct rpc_account *a)
{
    bool was_full = a->is_full;
    a->is_full = a->answer_bytes >= a->max_bytes / (was_full ? 4 : 2);
    if (a->is_full && !was_full)
        pause_all(a);
    else if (was_full && !a->is_full)
        wake_all(a);
}

bool rpc_account_rests(struct rpc_account *a, uint64_t now_ms)
{
    if (a->rest_ms && now_ms >= a->rest_ms)
        a->rest_ms = 0;
    return a->rest_ms;
}

bool rpc_account_is_paused(struct rpc_account *a, uint64_t now_ms)
{
    return rpc_account_rests(a, now_ms) || a->is_full;
}

void rpc_account_spend(struct rpc_account *a, uint64_t begin_ns, uint64_t now_ms)
{
    uint64_t now_ns = uv_hrtime();
    if (begin_ns - a->window_ns >= RPC_WINDOW_NS) {
        a->window_ns = begin_ns;
        a->spent_ns = 0;
    }
    a->spent_ns += now_ns - begin_ns;
    if (a->spent_ns < RPC_TURN_NS || a->rest_ms)
        return;
    /* Rests as long as the requests took. now_ms is the time at which this turn of the loop began. */
    a->rest_ms = now_ms + (now_ns - a->window_ns + a->spent_ns) / 1000000u;
    pause_all(a);
}

/* ---- memory ---- */

void rpc_account_answers(struct rpc_account *a, struct rpc_conn *conn)
{
    size_t now = rpc_conn_held(conn);
    a->answer_bytes += now - conn->answer_bytes;
    conn->answer_bytes = now;
    update_full(a);
}

static struct rpc_conn *largest(const struct rpc_account *a)
{
    struct rpc_conn *conn, *most = NULL;
    TAILQ_FOREACH(conn, &a->conns, of_account)
    most = !most || conn->answer_bytes > most->answer_bytes ? conn : most;
    return most;
}

bool rpc_account_make_room(struct rpc_account *a, struct rpc_conn *conn, size_t bytes)
{
    while (bytes > a->max_bytes || a->answer_bytes > a->max_bytes - bytes) {
        struct rpc_conn *most = largest(a);
        most = most && most->answer_bytes ? most : conn;
        rpc_conn_break(most, "its user's connections hold too many answers that are not read");
        if (most == conn)
            return false;
    }
    return true;
}

bool rpc_account_take_request(struct rpc_account *a, struct rpc_conn *conn, size_t bytes)
{
    if (bytes > a->max_bytes / 2 || a->request_bytes > a->max_bytes / 2 - bytes)
        return false;
    a->request_bytes += bytes;
    conn->request_bytes = bytes;
    return true;
}

void rpc_account_give_request(struct rpc_account *a, struct rpc_conn *conn)
{
    a->request_bytes -= conn->request_bytes;
    conn->request_bytes = 0;
}

/* ---- connections ---- */

void rpc_account_add(struct rpc_account *a, struct rpc_conn *conn)
{
    a->n_conns++;
    TAILQ_INSERT_TAIL(&a->conns, conn, of_account);
}

void rpc_account_remove(struct rpc_account *a, struct rpc_conn *conn)
{
    TAILQ_REMOVE(&a->conns, conn, of_account);
    a->n_conns--;
    a->answer_bytes -= conn->answer_bytes;
    conn->answer_bytes = 0;
    rpc_account_give_request(a, conn);
    update_full(a);
}
