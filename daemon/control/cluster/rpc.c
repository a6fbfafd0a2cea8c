/* Calls of the cluster to other nodes. rpc/cluster.c serves the calls of other nodes and of clients. */
#include "daemon/control/cluster/rpc.h"

#include "common/rpc/methods.h"
#include "daemon/control/log/log.h"
#include "daemon/control/state/features.h"
#include "proto/peer.pb-c.h"

#include <stdlib.h>

/* ---- calls to other nodes ---- */

struct cluster_call {
    rpc_hello_cb hello;
    rpc_heartbeat_cb heartbeat;
    rpc_join_cb join;
    void (*leave)(void *arg, err_t err, const char *text);
    void *arg;
};

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
    ret.needed = b->has_needed && b->needed;
    ret.voters = b->voter;
    ret.n_voters = b->n_voter <= LOG_MAX_MEMBERS ? (int)b->n_voter : 0;
    for (size_t i = 0; i < b->n_mark && i < CLUSTER_MARKS; i++)
        ret.marks[ret.n_marks++] =
            (struct log_mark){b->mark[i]->id, b->mark[i]->process, b->mark[i]->term, b->mark[i]->stored};
    return ret;
}

static void on_reply(void *arg, const struct rpc_result *r)
{
    struct cluster_call a = *(struct cluster_call *)arg;
    free(arg);
    if (a.hello) {
        const Dtd__PeerStatus *s = (const Dtd__PeerStatus *)r->reply;
        const struct rpc_hello_reply reply = {.leads = s && s->leads,
                                              .term = s ? s->raft_term : 0,
                                              .version = s && s->has_cluster_version ? s->cluster_version : 1,
                                              .leader = s ? s->leader : NULL,
                                              .address = s ? s->leader_address : NULL};
        a.hello(a.arg, r->err, r->text, &reply);
    } else if (a.heartbeat) {
        const struct rpc_beat_reply reply = beat_reply_of((const Dtd__PeerBeatReply *)r->reply);
        a.heartbeat(a.arg, r->err, &reply);
    } else if (a.join) {
        const Dtd__JoinReply *j = (const Dtd__JoinReply *)r->reply;
        a.join(a.arg, r->err, r->text, j ? j->id : 0, j ? j->view.data : NULL, j ? j->view.len : 0);
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
    return send_call(conn, PEER_BEAT, &m.base, ms, (struct cluster_call){.heartbeat = cb, .arg = arg});
}

err_t rpc_cluster_join(struct rpc_conn *conn, const struct cluster_self *self, const struct features_range *has,
                       uint64_t token, uint32_t ms, rpc_join_cb cb, void *arg)
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
    return send_call(conn, PEER_JOIN, &m.base, ms, (struct cluster_call){.join = cb, .arg = arg});
}

err_t rpc_cluster_leave(struct rpc_conn *conn, const struct cluster_self *self, uint32_t ms,
                        void (*cb)(void *arg, err_t err, const char *text), void *arg)
{
    const Dtd__PeerHello m = hello_of(self->name, self->instance, false);
    return send_call(conn, PEER_LEAVE, &m.base, ms, (struct cluster_call){.leave = cb, .arg = arg});
}

/* ---- calls to other nodes ---- */
