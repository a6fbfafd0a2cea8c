/* Adapter: stores that people open. The port is here; whose node has the store, the node that leads says. */
#include "common/base/log.h"
#include "daemon/control/control.h"
#include "daemon/control/job/outbound.h"
#include "daemon/control/rpc/server.h"
#include "proto/client.pb-c.h"
#include "proto/peer.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLAIM_MS 5000

static const char *const not_heard =
    "the node that leads has not yet heard from all nodes which stores there are; ask again";

/* ---- open ---- */

struct opening {
    struct node *n;
    struct rpc_call *call;
    uint32_t uid;
    char name[STORES_NAME_MAX + 1];
};

static void answered(void *arg, const struct rpc_result *r)
{
    (void)arg, (void)r; /* who does not answer has gone, and hears what there is with the next Attend */
}

/* It was given to this node, which cannot have it. */
static void give_back(struct node *n, const struct opening *o)
{
    Dtd__StoreClaimRequest m = DTD__STORE_CLAIM_REQUEST__INIT;
    m.uid = o->uid;
    m.name = (char *)o->name;
    m.has_close = m.close = true;
    err_t err = OK;
    if (n->leads)
        err = store_names_close(n, o->uid, o->name);
    else if (n->leader)
        err = rpc_send(n->leader, PEER_STORE_CLAIM, &m.base, CLAIM_MS, answered, NULL, NULL);
    if (err)
        log_warn("store's name not given back store=%s error=%s", o->name, err_text(err));
}

static void open_at(const struct opening *o, const char *holder)
{
    struct node *n = o->n;
    struct why why = {""};
    bool here = strcmp(holder, n->self.name) == 0;
    uint16_t port = 0;
    Dtd__StoreReply m = DTD__STORE_REPLY__INIT;
    err_t err = stores_open(n, o->uid, o->name, here ? NULL : holder, &port, &why);
    if (err && here)
        give_back(n, o);
    if (err) {
        rpc_fail(o->call, err, "%s", why.text[0] ? why.text : err_text(err));
        return;
    }
    m.port = port;
    m.node = (char *)holder;
    rpc_reply(o->call, &m.base);
}

static void claimed(void *arg, const struct rpc_result *r)
{
    struct opening *o = arg;
    const Dtd__StoreHolder *h = (const Dtd__StoreHolder *)(const void *)r->reply;
    if (h)
        open_at(o, h->node);
    else
        rpc_fail(o->call, ERR_AGAIN, "%s", r->text[0] ? r->text : "the node that leads did not answer; ask again");
    free(o);
}

static err_t ask_leader(struct opening *o)
{
    Dtd__StoreClaimRequest m = DTD__STORE_CLAIM_REQUEST__INIT;
    m.uid = o->uid;
    m.name = o->name;
    return rpc_send(o->n->leader, PEER_STORE_CLAIM, &m.base, CLAIM_MS, claimed, o, NULL);
}

static void open_asked(struct node *n, struct rpc_call *call, const char *name)
{
    struct opening *o = calloc(1, sizeof(*o)), copy;
    const char *holder = NULL;
    if (!o) {
        rpc_fail(call, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        return;
    }
    *o = (struct opening){.n = n, .call = call, .uid = (uint32_t)rpc_server_uid(call)};
    snprintf(o->name, sizeof(o->name), "%s", name);
    if (!n->leads && n->leader && ask_leader(o) == OK)
        return;
    copy = *o;
    free(o);
    err_t err = n->leads ? store_names_claim(n, &n->self, copy.uid, copy.name, &holder) : ERR_AGAIN;
    if (!err)
        open_at(&copy, holder);
    else
        rpc_fail(call, err, "%s",
                 n->leads ? not_heard : "no node leads now, or it cannot be reached from here; ask again");
}

void rpc_client_store_open(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const char *name = ((const Dtd__StoreRequest *)(const void *)request)->name;
    if (stores_name_is_legal(name))
        open_asked(owner, call, name);
    else
        rpc_fail(call, ERR_INVALID, "a store's name has 1 to %d letters, digits, points, dashes and underscores",
                 STORES_NAME_MAX);
}

/* ---- leading ---- */

void rpc_peer_store_claim(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct node *n = owner;
    const Dtd__StoreClaimRequest *q = (const Dtd__StoreClaimRequest *)(const void *)request;
    const struct agent *a = agent_by_conn(n, rpc_call_conn(call));
    Dtd__StoreHolder m = DTD__STORE_HOLDER__INIT;
    const char *holder = "";
    err_t err = !n->leads || !a ? ERR_AGAIN : !stores_name_is_legal(q->name) ? ERR_INVALID : OK;
    if (!err && q->close)
        err = store_names_close(n, q->uid, q->name);
    else if (!err)
        err = store_names_claim(n, a, q->uid, q->name, &holder);
    m.node = (char *)holder;
    if (err)
        rpc_fail(call, err, "%s", n->leads && err == ERR_AGAIN ? not_heard : err_text(err));
    else
        rpc_reply(call, &m.base);
}

void rpc_client_store_close(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const char *name = ((const Dtd__StoreRequest *)(const void *)request)->name;
    Dtd__Empty empty = DTD__EMPTY__INIT;
    err_t err = store_names_close(owner, (uint32_t)rpc_server_uid(call), name);
    if (err)
        rpc_fail(call, err, "you have no store %.64s; `dtctl store ls` lists them", name);
    else
        rpc_reply(call, &empty.base);
}

/* Root sees everybody's, and so does who has a dtd to himself. */
static bool may_see(const struct node *n, struct rpc_call *call, const struct store_name *s)
{
    uid_t uid = rpc_server_uid(call);
    return !n->system || uid == 0 || uid == s->uid;
}

struct listing {
    Dtd__StoreItem m;
    char user[80];
};

static void fill(struct listing *item, const struct store_name *s)
{
    dtd__store_item__init(&item->m);
    item->m.name = (char *)s->name;
    item->m.node = (char *)s->node;
    item->m.user = (char *)rpc_server_user(s->uid, item->user, sizeof(item->user));
}

void rpc_client_store_list(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct node *n = owner;
    Dtd__StoreReport list = DTD__STORE_REPORT__INIT;
    const struct store_name *s;
    size_t count = 0;
    (void)request;
    SLIST_FOREACH(s, &n->store_names, link)
    count++;
    struct listing *items = calloc(count + 1, sizeof(*items));
    Dtd__StoreItem **refs = calloc(count + 1, sizeof(*refs));
    list.store = refs;
    if (items && refs) {
        SLIST_FOREACH(s, &n->store_names, link)
        if (may_see(n, call, s)) {
            fill(&items[list.n_store], s);
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
