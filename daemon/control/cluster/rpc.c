/* Calls of the cluster to other nodes. rpc/cluster.c serves the calls of other nodes and of clients. */
#include "daemon/control/cluster/rpc.h"

#include "common/base/log.h"
#include "common/rpc/methods.h"
#include "daemon/control/log/log.h"
#include "daemon/control/state/features.h"
#include "proto/peer.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- calls to other nodes ---- */

struct cluster_call {
    rpc_hello_cb hello;
    rpc_heartbeat_cb heartbeat;
    rpc_join_cb join;
    rpc_view_cb view;
    void (*leave)(void *arg, err_t err, const char *text);
    void *arg;
};

/* False: it is not one. */
static bool take_introduction(const Dtd__PeerIntroduction *m, struct cluster_introduced *ret)
{
    if (strlen(m->name) > CLUSTER_NAME_MAX || (m->has_public_key && m->public_key.len != NODE_KEY_BYTES))
        return false;
    *ret = (struct cluster_introduced){.id = m->id};
    snprintf(ret->name, sizeof(ret->name), "%s", m->name);
    if (m->has_public_key)
        memcpy(ret->public_key, m->public_key.data, NODE_KEY_BYTES);
    return true;
}

/* `b` NULL: an error. More changes than a leader keeps do not fit; then the hash does not, and the view comes whole. */
static struct rpc_beat_reply beat_reply_of(const Dtd__PeerBeatReply *b)
{
    struct rpc_beat_reply ret = {.n_changes = 0};
    if (!b)
        return ret;
    if (b->has_view)
        ret.view = (struct cluster_bytes){b->view.data, b->view.len};
    for (size_t i = 0; i < b->n_change && i < CLUSTER_STEPS; i++)
        ret.changes[ret.n_changes++] = (struct cluster_bytes){b->change[i].data, b->change[i].len};
    ret.hash = b->hash;
    ret.known = b->known;
    ret.behind = b->behind;
    if (b->source && take_introduction(b->source->node, &ret.source))
        ret.source_address = b->source->address;
    ret.needed = b->has_needed && b->needed;
    ret.voters = b->voter;
    ret.n_voters = b->n_voter <= LOG_MAX_MEMBERS ? (int)b->n_voter : 0;
    for (size_t i = 0; i < b->n_mark && i < CLUSTER_MARKS; i++)
        ret.marks[ret.n_marks++] =
            (struct log_mark){b->mark[i]->id, b->mark[i]->process, b->mark[i]->term, b->mark[i]->stored};
    return ret;
}

/* Introductions of a newer version that has more than fit are left out. */
static void take_introductions(const Dtd__PeerStatus *s, struct cluster_introductions *ret)
{
    for (size_t i = 0; i < s->n_introduction && ret->n < CLUSTER_INTRODUCED; i++)
        ret->n += take_introduction(s->introduction[i], &ret->nodes[ret->n]);
}

static struct rpc_hello_reply hello_reply_of(const Dtd__PeerStatus *s)
{
    struct rpc_hello_reply ret = {.version = 1};
    if (!s)
        return ret;
    ret.leads = s->leads;
    ret.term = s->raft_term;
    ret.version = s->has_cluster_version ? s->cluster_version : 1;
    ret.leader = s->leader;
    ret.address = s->leader_address;
    take_introductions(s, &ret.introductions);
    return ret;
}

static void on_reply(void *arg, const struct rpc_result *r)
{
    struct cluster_call a = *(struct cluster_call *)arg;
    free(arg);
    if (a.hello) {
        const struct rpc_hello_reply reply = hello_reply_of((const Dtd__PeerStatus *)r->reply);
        a.hello(a.arg, r->err, r->text, &reply);
    } else if (a.heartbeat) {
        const struct rpc_beat_reply reply = beat_reply_of((const Dtd__PeerBeatReply *)r->reply);
        a.heartbeat(a.arg, r->err, &reply);
    } else if (a.join) {
        const Dtd__JoinReply *j = (const Dtd__JoinReply *)r->reply;
        a.join(a.arg, r->err, r->text, j ? j->id : 0, j ? j->view.data : NULL, j ? j->view.len : 0);
    } else if (a.view) {
        const Dtd__PeerView *v = (const Dtd__PeerView *)r->reply;
        a.view(a.arg, r->err, v ? v->view.data : NULL, v ? v->view.len : 0);
    } else {
        a.leave(a.arg, r->err, r->text);
    }
}

static err_t send_call(struct rpc_conn *conn, uint16_t method, const ProtobufCMessage *m, uint32_t ms,
                       struct cluster_call a)
{
    struct cluster_call *copy = malloc(sizeof(*copy));
    if (!copy)
        return ERR_NOMEM;
    *copy = a;
    err_t err = rpc_send(conn, method, m, ms, on_reply, copy, NULL);
    if (err)
        free(copy);
    return err;
}

static Dtd__PeerHello hello_of(const char *name, const uint8_t *instance, bool old_copy)
{
    Dtd__PeerHello m = DTD__PEER_HELLO__INIT;
    m.node = (char *)name;
    m.version = (char *)DTD_VERSION;
    m.has_old_copy = m.old_copy = old_copy;
    m.has_instance = true;
    m.instance = (ProtobufCBinaryData){NODE_INSTANCE_BYTES, (uint8_t *)instance};
    m.has_oldest = m.has_newest = true;
    m.oldest = features_oldest();
    m.newest = features_newest();
    return m;
}

err_t rpc_cluster_hello(struct rpc_conn *conn, const char *name, const uint8_t *instance, bool old_copy, uint32_t ms,
                        rpc_hello_cb cb, void *arg)
{
    const Dtd__PeerHello m = hello_of(name, instance, old_copy);
    return send_call(conn, PEER_HELLO, &m.base, ms, (struct cluster_call){.hello = cb, .arg = arg});
}

err_t rpc_cluster_heartbeat(struct rpc_conn *conn, const struct cluster_beat *beat, uint32_t ms, rpc_heartbeat_cb cb,
                            void *arg)
{
    Dtd__PeerBeat m = DTD__PEER_BEAT__INIT;
    m.view = beat->view;
    m.has_raft_index = true;
    m.raft_index = beat->index;
    m.has_changes = m.changes = beat->changes;
    m.has_shares = m.shares = beat->shares;
    m.has_fetched = beat->fetched != NULL;
    m.fetched = (ProtobufCBinaryData){beat->fetched ? CLUSTER_DIGEST_BYTES : 0, (uint8_t *)beat->fetched};
    return send_call(conn, PEER_BEAT, &m.base, ms, (struct cluster_call){.heartbeat = cb, .arg = arg});
}

err_t rpc_cluster_join(struct rpc_conn *conn, const struct cluster_self *self, const struct features_range *has,
                       uint64_t token, const uint8_t *public_key, uint32_t ms, rpc_join_cb cb, void *arg)
{
    Dtd__JoinRequest m = DTD__JOIN_REQUEST__INIT;
    m.name = (char *)self->name;
    m.address = (char *)self->address;
    m.domain = (char *)self->domain;
    m.instance = (ProtobufCBinaryData){NODE_INSTANCE_BYTES, (uint8_t *)self->instance};
    m.has_token = token != 0;
    m.token = token;
    m.version = (char *)DTD_VERSION;
    m.has_oldest = m.has_newest = true;
    m.oldest = has->oldest;
    m.newest = has->newest;
    m.has_public_key = public_key != NULL;
    m.public_key = (ProtobufCBinaryData){public_key ? NODE_KEY_BYTES : 0, (uint8_t *)public_key};
    return send_call(conn, PEER_JOIN, &m.base, ms, (struct cluster_call){.join = cb, .arg = arg});
}

err_t rpc_cluster_view(struct rpc_conn *conn, uint32_t ms, rpc_view_cb cb, void *arg)
{
    const Dtd__PeerEmpty m = DTD__PEER_EMPTY__INIT;
    return send_call(conn, PEER_VIEW, &m.base, ms, (struct cluster_call){.view = cb, .arg = arg});
}

err_t rpc_cluster_leave(struct rpc_conn *conn, const struct cluster_self *self, uint32_t ms,
                        void (*cb)(void *arg, err_t err, const char *text), void *arg)
{
    const Dtd__PeerHello m = hello_of(self->name, self->instance, false);
    return send_call(conn, PEER_LEAVE, &m.base, ms, (struct cluster_call){.leave = cb, .arg = arg});
}

static void on_dismissed(void *arg, err_t err, const char *text)
{
    (void)arg, (void)err, (void)text;
}

/* The same method as a node uses to leave: it is called by the leader here. */
void rpc_cluster_dismiss(struct rpc_conn *conn, const char *name)
{
    static const uint8_t none[NODE_INSTANCE_BYTES];
    const Dtd__PeerHello m = hello_of(name, none, false);
    err_t err = send_call(conn, PEER_LEAVE, &m.base, 0, (struct cluster_call){.leave = on_dismissed});
    if (err)
        log_warn("the removal of a node is not reported to it node=%s error=%s", name, err_text(err));
}

/* ---- calls to other nodes ---- */
