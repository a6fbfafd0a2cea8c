/* Adapter: c10d stores that users open (dtctl store). The port is on the node that received the call; the leader
 * decides which node has the store. */
#include "common/base/log.h"
#include "daemon/control/job/job.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"
#include "proto/client.pb-c.h"
#include "proto/peer.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A claim waits for no disk and no other node, so without an answer for so long the leader has failed. */
#define CLAIM_MS 5000

static const char *const not_reported =
    "the leader does not have the list of stores of every node yet: try again in a second";

/* ---- open ---- */

struct opening {
    struct rpc_server *server;
    struct rpc_call *call;
    uint32_t uid;
    char name[C10D_NAME_MAX + 1];
};

static void unclaim_done(void *arg, const struct rpc_result *r)
{
    (void)arg, (void)r; /* without an answer the leader has changed, and the new one gets this node's list of stores */
}

/* The leader registered this node for the name, but the store could not be opened here: removes the name. */
static void unclaim(struct rpc_server *server, const struct opening *o)
{
    Dtd__StoreClaimRequest m = DTD__STORE_CLAIM_REQUEST__INIT;
    m.uid = o->uid;
    m.name = (char *)o->name;
    m.has_close = m.close = true;
    err_t err = OK;
    if (server->jobs->leads)
        err = c10d_owners_close(server->c10d_owners, o->uid, o->name);
    else if (server->leader)
        err = rpc_send(server->leader, PEER_STORE_CLAIM, &m.base, CLAIM_MS, unclaim_done, NULL, NULL);
    if (err)
        log_warn("the name of a store that was not opened remains registered store=%s error=%s", o->name,
                 err_text(err));
}

static void open_at(const struct opening *o, const char *holder)
{
    struct rpc_server *server = o->server;
    struct why why = {""};
    bool here = strcmp(holder, server->local->name) == 0;
    uint16_t port = 0;
    Dtd__StoreReply m = DTD__STORE_REPLY__INIT;
    err_t err = c10d_open(server->c10d, o->uid, o->name, here ? NULL : holder, &port, &why);
    if (err && here)
        unclaim(server, o);
    if (err) {
        rpc_fail(o->call, err, "%s", why.text[0] ? why.text : err_text(err));
        return;
    }
    m.port = port;
    m.node = (char *)holder;
    rpc_reply(o->call, &m.base);
}

static void claim_done(void *arg, const struct rpc_result *r)
{
    struct opening *o = arg;
    const Dtd__StoreHolder *h = (const Dtd__StoreHolder *)(const void *)r->reply;
    if (h)
        open_at(o, h->node);
    else
        rpc_fail(o->call, ERR_AGAIN, "%s", r->text[0] ? r->text : "the leader did not answer within 5 s: try again");
    free(o);
}

static err_t claim_from_leader(struct opening *o)
{
    Dtd__StoreClaimRequest m = DTD__STORE_CLAIM_REQUEST__INIT;
    m.uid = o->uid;
    m.name = o->name;
    return rpc_send(o->server->leader, PEER_STORE_CLAIM, &m.base, CLAIM_MS, claim_done, o, NULL);
}

static void open_requested(struct rpc_server *server, struct rpc_call *call, const char *name)
{
    struct opening *o = calloc(1, sizeof(*o)), copy;
    const char *holder = NULL;
    if (!o) {
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        return;
    }
    *o = (struct opening){.server = server, .call = call, .uid = (uint32_t)rpc_caller_uid(call)};
    snprintf(o->name, sizeof(o->name), "%s", name);
    if (!server->jobs->leads && server->leader && claim_from_leader(o) == OK)
        return;
    copy = *o;
    free(o);
    err_t err = server->jobs->leads
                    ? c10d_owners_claim(server->c10d_owners, &server->jobs->self, copy.uid, copy.name, &holder)
                    : ERR_AGAIN;
    if (!err)
        open_at(&copy, holder);
    else
        rpc_fail(call, err, "%s",
                 server->jobs->leads
                     ? not_reported
                     : "there is no leader now, or this node cannot reach it: try again, see `dtctl cluster status`");
}

void rpc_client_store_open(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const char *name = ((const Dtd__StoreRequest *)(const void *)request)->name;
    if (c10d_name_is_legal(name))
        open_requested(owner, call, name);
    else
        rpc_fail(call, ERR_INVALID, "the name of a store has 1 to %d letters, digits, dots, dashes and underscores",
                 C10D_NAME_MAX);
}

/* ---- the leader ---- */

void rpc_peer_store_claim(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    const Dtd__StoreClaimRequest *q = (const Dtd__StoreClaimRequest *)(const void *)request;
    const struct node_view *a = node_view_by_conn(server->jobs, rpc_call_conn(call));
    Dtd__StoreHolder m = DTD__STORE_HOLDER__INIT;
    const char *holder = "";
    err_t err = !server->jobs->leads || !a ? ERR_AGAIN : !c10d_name_is_legal(q->name) ? ERR_INVALID : OK;
    if (!err && q->close)
        err = c10d_owners_close(server->c10d_owners, q->uid, q->name);
    else if (!err)
        err = c10d_owners_claim(server->c10d_owners, a, q->uid, q->name, &holder);
    m.node = (char *)holder;
    if (err)
        rpc_fail(call, err, "%s", server->jobs->leads && err == ERR_AGAIN ? not_reported : err_text(err));
    else
        rpc_reply(call, &m.base);
}

void rpc_client_store_close(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const char *name = ((const Dtd__StoreRequest *)(const void *)request)->name;
    Dtd__Empty empty = DTD__EMPTY__INIT;
    err_t err = c10d_owners_close(((struct rpc_server *)owner)->c10d_owners, (uint32_t)rpc_caller_uid(call), name);
    if (err)
        rpc_fail(call, err, "you have no store %.64s; `dtctl store ls` lists your stores", name);
    else
        rpc_reply(call, &empty.base);
}

/* Users see their own stores. Root, and the user of a private dtd, see all. */
static bool may_see(const struct rpc_server *server, struct rpc_call *call, const struct c10d_owner *s)
{
    uid_t uid = rpc_caller_uid(call);
    return !server->system || uid == 0 || uid == s->uid;
}

struct listing {
    Dtd__StoreItem m;
    char user[80];
};

static void fill_item(struct rpc_server *server, struct listing *item, const struct c10d_owner *s)
{
    dtd__store_item__init(&item->m);
    item->m.name = (char *)s->name;
    item->m.node = (char *)s->node;
    item->m.user = (char *)rpc_caller_user(server, s->uid, item->user, sizeof(item->user));
}

void rpc_client_store_list(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    Dtd__StoreReport list = DTD__STORE_REPORT__INIT;
    const struct c10d_owner *s;
    size_t count = 0;
    (void)request;
    SLIST_FOREACH(s, &server->c10d_owners->names, link)
    count++;
    struct listing *items = calloc(count + 1, sizeof(*items));
    Dtd__StoreItem **refs = calloc(count + 1, sizeof(*refs));
    list.store = refs;
    if (items && refs) {
        SLIST_FOREACH(s, &server->c10d_owners->names, link)
        if (may_see(server, call, s)) {
            fill_item(server, &items[list.n_store], s);
            refs[list.n_store] = &items[list.n_store].m;
            list.n_store++;
        }
        rpc_reply(call, &list.base);
    } else {
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    }
    free(items);
    free(refs);
}
