/* The caller of a method: a user, or a process of a job; and what it may do. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_RPC_CALLER_H
#define DTD_DAEMON_CONTROL_RPC_CALLER_H

#include "daemon/control/rpc/server.h"

#include <sys/types.h>

struct job;
struct job_process;

/* The peer of a call's connection; NULL when it has gone. */
struct peer *rpc_caller_peer(struct rpc_call *call);
/* Its user; (uid_t)-1 when it has gone. */
uid_t rpc_caller_uid(struct rpc_call *call);
/* The user's name, or "uid 1234". */
const char *rpc_caller_user(uid_t uid, char *ret, size_t size);
/* Root and the user that dtd itself runs as; fails the call for anybody else. `what`: "stop a dtd". */
bool rpc_caller_is_admin(struct rpc_call *call, const char *what);
/* Whether it may see and do everything with the job: its owner and root; with a private dtd everybody who can connect.
 */
bool rpc_caller_owns(const struct rpc_server *s, struct rpc_call *call, const struct job *j);
/* The job and process that a call's connection belongs to; fails the call and returns NULL when there is none any more.
 */
struct job *rpc_caller_job(struct rpc_call *call, struct job_process **ret);

#endif
