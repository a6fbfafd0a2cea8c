/* The share of one user in a server: the memory that his connections hold, the calls that wait for an answer, and the
 * time of the loop that their requests use. The owner of a listener gives each connection the account of its user.
 *
 * A user whose requests have used the loop for RPC_TURN_NS rests for as long, so that one turn of the loop is short for
 * all other users. A user whose connections hold half of max_bytes of unread answers is not read any more. Each
 * connection that reads nothing then for RPC_STALL_FULL_MS is closed; and if the answers to requests that were read
 * before exceed max_bytes, the connection that holds most is closed at once.
 *
 * Loop thread. An account must outlive its connections and calls (rpc_account_is_idle). */
#ifndef DTD_COMMON_RPC_ACCOUNT_H
#define DTD_COMMON_RPC_ACCOUNT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define RPC_TURN_NS 5000000u    /* little beside the 50 ms for which another user's request may wait */
#define RPC_READ_BYTES_PER_NS 4 /* of a socket: counted for bytes of which no request comes, too */
#define RPC_WINDOW_NS 10000000u /* in which they are counted: half of the loop's time */

struct rpc_conn;

struct rpc_account {
    size_t max_bytes; /* of answers that are not read; of incomplete requests: half of it */
    int max_calls;
    size_t answer_bytes, request_bytes;
    int n_conns, n_calls;
    bool is_full;                 /* half of max_bytes is used by answers; until it is a quarter */
    uint64_t window_ns, spent_ns; /* start of the present window; time that requests have used in it */
    uint64_t rest_ms;             /* loop time at which the user is read again; 0: he is */
    TAILQ_HEAD(, rpc_conn) conns; /* those that are open */
};

void rpc_account_init(struct rpc_account *a, size_t max_bytes, int max_calls);
bool rpc_account_is_idle(const struct rpc_account *a);

/* For requests that do not come over connections of the account: counts the time of a request that began at `begin_ns`
 * (uv_hrtime). now_ms: loop time. */
void rpc_account_spend(struct rpc_account *a, uint64_t begin_ns, uint64_t now_ms);
/* True: the user has used so much time that his requests wait. */
bool rpc_account_rests(struct rpc_account *a, uint64_t now_ms);

/* ---- for conn.c and server.c ---- */

void rpc_account_add(struct rpc_account *a, struct rpc_conn *conn);
/* The connection closes: returns all that it holds. */
void rpc_account_remove(struct rpc_account *a, struct rpc_conn *conn);
/* The connection's queue of answers has changed. */
void rpc_account_answers(struct rpc_account *a, struct rpc_conn *conn);
/* Makes room for an answer of so many bytes, by closing connections. False: `conn` is one of them. */
bool rpc_account_make_room(struct rpc_account *a, struct rpc_conn *conn, size_t bytes);
/* Memory for a request that is going to arrive. False: there is none. */
bool rpc_account_take_request(struct rpc_account *a, struct rpc_conn *conn, size_t bytes);
void rpc_account_give_request(struct rpc_account *a, struct rpc_conn *conn);
/* True: no connection of the account is to be read now. */
bool rpc_account_is_paused(struct rpc_account *a, uint64_t now_ms);

#endif
