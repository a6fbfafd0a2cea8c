/* See share.h. Proposals that are not in the log yet count like jobs, because they may arrive by the thousand at once.
 */
#include "daemon/control/rpc/share.h"

#include "daemon/control/log/log.h"
#include "daemon/control/rpc/server.h"

#include <inttypes.h>
#include <stdlib.h>
#include <unistd.h>

/* Of the log's places for proposals: other users and the nodes themselves have the rest. */
#define PROPOSALS_PER_USER (LOG_MAX_PENDING / 4)

static bool has_limits(const struct rpc_server *server, uint32_t uid)
{
    return server->system && uid != 0 && uid != getuid();
}

/* ---- connections ---- */

/* The account of a user who has used the loop lately is kept although nothing is open: it may come back at once. */
#define KEPT_NS UINT64_C(1000000000)

static bool is_unused(const struct rpc_user *u)
{
    return rpc_account_is_idle(&u->account) && TAILQ_EMPTY(&u->waiting) && uv_hrtime() - u->account.window_ns > KEPT_NS;
}

static void tidy(struct rpc_server *server)
{
    struct rpc_user *u, *next;
    for (u = LIST_FIRST(&server->users); u; u = next) {
        next = LIST_NEXT(u, link);
        if (!is_unused(u))
            continue;
        LIST_REMOVE(u, link);
        free(u);
    }
}

struct rpc_user *rpc_share_user(struct rpc_server *server, uint32_t uid)
{
    const struct node_conf *conf = server->local->conf;
    struct rpc_user *u;
    if (!has_limits(server, uid))
        return NULL;
    LIST_FOREACH(u, &server->users, link)
    if (u->uid == uid)
        return u;
    tidy(server);
    u = calloc(1, sizeof(*u));
    if (!u)
        return NULL;
    u->uid = uid;
    TAILQ_INIT(&u->waiting);
    rpc_account_init(&u->account, (size_t)conf->users.buffer_mib << 20, (int)conf->users.calls);
    LIST_INSERT_HEAD(&server->users, u, link);
    return u;
}

static int64_t clients_of(const struct rpc_server *server, uint32_t uid)
{
    int64_t n = 0;
    const struct peer *p;
    LIST_FOREACH(p, &server->peers, link)
    n += p->kernel_uid == uid && !p->job;
    return n;
}

bool rpc_share_connected(struct rpc_server *server, uint32_t uid, struct rpc_account **ret_account)
{
    *ret_account = NULL;
    if (!has_limits(server, uid))
        return server->system || uid == 0 || uid == getuid();
    if (clients_of(server, uid) >= server->local->conf->users.connections ||
        !shares_take(server->descriptors, uid, INT64_MAX))
        return false;
    struct rpc_user *u = rpc_share_user(server, uid);
    if (!u)
        shares_give(server->descriptors, uid);
    *ret_account = u ? &u->account : NULL;
    return u;
}

void rpc_share_disconnected(struct rpc_server *server, uint32_t uid)
{
    if (has_limits(server, uid))
        shares_give(server->descriptors, uid);
}

/* ---- the log ---- */

err_t rpc_share_proposes(const struct rpc_server *server, uint32_t uid, struct why *why)
{
    int his = 0;
    const struct rpc_proposal *p;
    if (!has_limits(server, uid))
        return OK;
    LIST_FOREACH(p, &server->proposals, link)
    his += p->uid == uid;
    if (his < PROPOSALS_PER_USER)
        return OK;
    return why_set(why, ERR_LIMIT, "%d of your requests wait for the log already; repeat this one when they are done",
                   his);
}

static err_t check_jobs(struct rpc_server *server, uint32_t uid, struct why *why)
{
    int his, all;
    const struct rpc_proposal *p;
    jobs_count_of(server->jobs, uid, &his, &all);
    LIST_FOREACH(p, &server->proposals, link)
    {
        his += p->is_submit && p->uid == uid;
        all += p->is_submit;
    }
    int64_t limit = server->local->conf->users.jobs, left = STATE_MAX_JOBS - all;
    if (his >= limit)
        return why_set(why, ERR_LIMIT,
                       "not submitted: you have %d jobs that have not ended, and users.jobs of dtd's configuration "
                       "allows %" PRId64 ". Cancel some, or submit again when one has ended",
                       his, limit);
    if (his >= left)
        return why_set(why, ERR_LIMIT,
                       "not submitted: you have %d jobs that have not ended, and only %" PRId64
                       " of %d places are left "
                       "for all users. Cancel some, or submit again when one has ended",
                       his, left, STATE_MAX_JOBS);
    return OK;
}

/* A job that has ended is remembered only as long as there is room for its job file. */
static err_t check_bytes(struct rpc_server *server, uint32_t uid, size_t bytes, struct why *why)
{
    size_t live, ended, limit = (size_t)server->local->conf->users.job_mib << 20;
    const struct rpc_proposal *p;
    jobs_spec_bytes_of(server->jobs, uid, &live, &ended);
    LIST_FOREACH(p, &server->proposals, link)
    live += p->uid == uid ? p->bytes : 0;
    if (live + bytes > limit)
        return why_set(why, ERR_LIMIT,
                       "not submitted: the job files of your jobs that have not ended would have %zu bytes, and "
                       "users.job_mib of dtd's configuration allows %zu. Cancel some jobs, or shorten the job file "
                       "(`dtctl run` copies the environment into it)",
                       live + bytes, limit);
    if (live + ended + bytes > limit)
        jobs_remove_ended(server->jobs, uid, live + ended + bytes - limit);
    return OK;
}

err_t rpc_share_submits(struct rpc_server *server, uint32_t uid, size_t bytes, struct why *why)
{
    if (!has_limits(server, uid))
        return OK;
    err_t err = check_jobs(server, uid, why);
    return err ? err : check_bytes(server, uid, bytes, why);
}
