/* The caller of a method, which is a user or a process of a job, and its permissions. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_RPC_CALLER_H
#define DTD_DAEMON_CONTROL_RPC_CALLER_H

#include "daemon/control/rpc/server.h"

#include <sys/types.h>

struct job;
struct job_process;

/* The peer of a call's connection; NULL: the connection is closed. */
struct peer *rpc_caller_peer(struct rpc_call *call);
/* The user of that connection; (uid_t)-1: the connection is closed. */
uid_t rpc_caller_uid(struct rpc_call *call);
/* The user's name, or "uid 1234" if there is no such user; NULL: it is not known yet. */
const char *rpc_caller_name(struct rpc_server *s, uid_t uid, char *ret, size_t size);
/* The user's name, or "uid 1234". */
const char *rpc_caller_user(struct rpc_server *s, uid_t uid, char *ret, size_t size);
/* True for root and the user as whom dtd runs; for any other caller fails the call. `what` completes the message, for
 * example "stop a dtd". */
bool rpc_caller_is_admin(struct rpc_call *call, const char *what);
/* The caller may see and control the job: the caller is its owner or root. In a private dtd every caller may. */
bool rpc_caller_owns(const struct rpc_server *s, struct rpc_call *call, const struct job *j);
/* A user of the web page whom web.operators of the configuration names. */
bool rpc_caller_is_operator(const struct peer *p);
/* The caller may see all of the job: he may control it, or is an operator. */
bool rpc_caller_sees(const struct rpc_server *s, struct rpc_call *call, const struct job *j);
/* The job and the process to which a call's connection belongs. If there is none any more, fails the call and returns
 * NULL. */
struct job *rpc_caller_job(struct rpc_call *call, struct job_process **ret);

#endif
