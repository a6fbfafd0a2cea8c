/* Adapter: calls with which the web page logs in for a user. */
#include "daemon/control/local/web_token.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "proto/client.pb-c.h"

#include <unistd.h>

#define TOKEN_DAYS 7

void rpc_client_web_token(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    const struct node_conf *conf = server->local->conf;
    struct why why = {0};
    char token[WEB_TOKEN_MAX];
    int64_t expires_s = clock_wall_ms() / 1000 + TOKEN_DAYS * 86400;
    err_t err = web_token_make(server->local->dir, rpc_caller_uid(call), expires_s, token, &why);
    if (err) {
        rpc_fail(call, err, "%s", why.text);
        return;
    }
    Dtd__WebTokenReply m = DTD__WEB_TOKEN_REPLY__INIT;
    m.token = token;
    m.expires_ms = expires_s * 1000;
    m.address = conf->web.listen[0] ? conf->web.listen : NULL;
    m.has_tls = m.tls = conf->web.certificate[0];
    rpc_reply(call, &m.base);
}

/* The connection loses the rights that the process has by its own user. */
void rpc_client_web_login(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    struct peer *p = rpc_caller_peer(call);
    struct why why = {0};
    uint32_t uid;
    const char *token = ((const Dtd__WebLoginRequest *)request)->token;
    err_t err = p && !p->job && !p->from
                    ? web_token_check(server->local->dir, token, clock_wall_ms() / 1000, &uid, &why)
                    : why_set(&why, ERR_DENIED, "only a client may log in");
    if (err) {
        log_warn("web login refused pid=%d", p ? (int)rpc_conn_peer_pid(p->conn) : -1);
        rpc_fail(call, err, "%s", why.text);
        return;
    }
    p->uid = uid;
    p->is_page = true;
    rpc_conn_set_roles(p->conn, RPC_ROLE_WEB);
    char name[80];
    Dtd__WebLoginReply m = DTD__WEB_LOGIN_REPLY__INIT;
    m.uid = uid;
    m.user = (char *)rpc_caller_user(server, uid, name, sizeof(name));
    m.system = server->system;
    m.has_operator_ = m.operator_ = server->system && (uid == 0 || rpc_caller_is_operator(p));
    rpc_reply(call, &m.base);
}
