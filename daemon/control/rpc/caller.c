/* The kernel reports the user of a local connection. The user of a forwarded call is reported by the node that forwards
 * it, which got it from its own kernel. */
#include "daemon/control/rpc/caller.h"

#include "common/conf/node.h"
#include "daemon/control/job/job.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct peer *rpc_caller_peer(struct rpc_call *call)
{
    return rpc_call_data(call);
}

uid_t rpc_caller_uid(struct rpc_call *call)
{
    const struct peer *p = rpc_caller_peer(call);
    return p ? p->uid : (uid_t)-1;
}

const char *rpc_caller_name(struct rpc_server *server, uid_t uid, char *ret, size_t size)
{
    const char *name;
    enum name_state state = names_get(&server->names, uid, &name);
    if (state == NAME_KNOWN)
        snprintf(ret, size, "%s", name);
    else
        snprintf(ret, size, "uid %u", (unsigned)uid);
    return state == NAME_NONE ? NULL : ret;
}

const char *rpc_caller_user(struct rpc_server *server, uid_t uid, char *ret, size_t size)
{
    (void)rpc_caller_name(server, uid, ret, size);
    return ret;
}

bool rpc_caller_is_admin(struct rpc_call *call, const char *what)
{
    const struct peer *p = rpc_caller_peer(call);
    uid_t uid = rpc_caller_uid(call);
    if (uid == 0 || uid == getuid())
        return true;
    char name[80];
    rpc_fail(call, ERR_DENIED, "only root may %s that serves all users of this machine, and you are %s", what,
             p ? rpc_caller_user(p->server, uid, name, sizeof(name)) : "gone");
    return false;
}

bool rpc_caller_owns(const struct rpc_server *server, struct rpc_call *call, const struct job *j)
{
    uid_t uid = rpc_caller_uid(call);
    return !server->system || uid == 0 || uid == job_view_of(j).uid;
}

/* Until the user's name is known, he is none: the name service answers later. */
bool rpc_caller_is_operator(const struct peer *p)
{
    const struct node_conf *conf = p->server->local->conf;
    const char *name;
    if (p->is_operator)
        return true;
    if (!p->is_page || !conf->web.n_operators || names_get(&p->server->names, p->uid, &name) != NAME_KNOWN)
        return false;
    for (int i = 0; i < conf->web.n_operators; i++)
        if (strcmp(conf->web.operators[i], name) == 0)
            return true;
    return false;
}

bool rpc_caller_sees(const struct rpc_server *server, struct rpc_call *call, const struct job *j)
{
    const struct peer *p = rpc_caller_peer(call);
    return rpc_caller_owns(server, call, j) || (p && rpc_caller_is_operator(p));
}

struct job *rpc_caller_job(struct rpc_call *call, struct job_process **ret)
{
    const struct peer *p = rpc_caller_peer(call);
    struct job *j = p && p->job ? jobs_find(p->server->jobs, p->job) : NULL;
    if (p && p->job && !j && jobs_is_unread(p->server->jobs, p->job)) {
        rpc_server_park(call); /* for a leader that can read the job */
        return NULL;
    }
    const struct node_view *a = !j ? NULL : p->from ? node_view_find(p->server->jobs, p->from) : &p->server->jobs->self;
    struct job_process *process = a ? job_process_find(j, a, p->slot) : NULL;
    if (!process || !job_process_running(process)) {
        rpc_fail(call, ERR_STALE, "this process does not belong to a current job");
        return NULL;
    }
    *ret = process;
    return j;
}
