/* Start and stop of the cluster, its keys, and incoming connections. A node that is in no cluster has one
 * voter, leads, and does not listen. */
#include "daemon/control/cluster/internal.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SAVE_MS 1000 /* pause before a file that could not be written is tried again */

/* ---- view ---- */

const struct state_cluster *cluster_known(const struct cluster *c)
{
    return state_cluster(c->leads ? c->replica->state : c->view);
}

const struct state_node *cluster_node(const struct cluster *c, const char *name)
{
    return state_node_find(c->leads ? c->replica->state : c->view, name);
}

const struct state_node *cluster_node_by_id(const struct cluster *c, uint64_t id)
{
    return state_node_by_id(c->leads ? c->replica->state : c->view, id);
}

void cluster_self_save(struct cluster *c)
{
    struct why why = {""};
    err_t err = cluster_file_write(c->self_path, &c->self, &why);
    if (err && !c->self_due)
        log_error("%s; it is tried again", why.text);
    c->self_due = err != OK;
}

static void save_again(struct cluster *c, int64_t now)
{
    if (now < c->save_ms)
        return;
    c->save_ms = now + SAVE_MS;
    cluster_view_save_again(c);
    if (c->self_due)
        cluster_self_save(c);
}

/* ---- keys ---- */

struct tunnel_key_id cluster_key(const struct cluster *c)
{
    uint32_t used = cluster_known(c)->key_used;
    const struct key *newest = used ? NULL : key_ring_newest(&c->ring);
    return (struct tunnel_key_id){TUNNEL_KEY_CLUSTER, used ? used : newest ? newest->version : 0};
}

static err_t find_cluster_key(const struct cluster *c, struct tunnel_key_id id, struct tunnel_secret *ret)
{
    const struct state_cluster *k = cluster_known(c);
    for (int i = 0; i < k->n_keys; i++)
        if (k->keys[i].version == id.number) {
            memcpy(ret->bytes, k->keys[i].secret, KEY_SECRET_LENGTH);
            ret->len = KEY_SECRET_LENGTH;
            return OK;
        }
    for (int i = 0; i < k->n_retired && !c->rechecks; i++)
        if (k->retired[i].version == id.number) {
            memcpy(ret->bytes, k->retired[i].secret, KEY_SECRET_LENGTH);
            ret->len = KEY_SECRET_LENGTH;
            return OK;
        }
    return k->n_keys ? ERR_NOTFOUND : key_ring_secret(&c->ring, id, ret);
}

static err_t find_token(const struct cluster *c, struct tunnel_key_id id, struct tunnel_secret *ret)
{
    const struct state_cluster *k = cluster_known(c);
    if (c->token.id && c->token.id == id.number) {
        token_secret(&c->token, ret);
        return OK;
    }
    for (int i = 0; i < k->n_tokens; i++)
        if (k->tokens[i].id == id.number) { /* the leader decides whether it has expired, by the cluster's clock */
            memcpy(ret->bytes, k->tokens[i].secret, TOKEN_SECRET_LENGTH);
            ret->len = TOKEN_SECRET_LENGTH;
            return OK;
        }
    return ERR_NOTFOUND;
}

static err_t find_key(void *owner, struct tunnel_key_id id, struct tunnel_secret *ret)
{
    return id.kind == TUNNEL_KEY_JOIN ? find_token(owner, id, ret) : find_cluster_key(owner, id, ret);
}

void cluster_recheck(struct cluster *c)
{
    c->rechecks = true;
    if (c->host)
        tunnel_host_recheck(c->host);
    c->rechecks = false;
}

/* ---- incoming connections ---- */

static void inbound_closed(void *owner, struct rpc_conn *conn)
{
    struct cluster_inbound *in = rpc_conn_data(conn);
    (void)owner;
    if (!in)
        return;
    LIST_REMOVE(in, link);
    cluster_lead_gone(in->cluster, in);
    free(in);
}

static void accept_rpc(struct cluster *c, const struct tunnel_peer *peer, int fd)
{
    const struct rpc_conn_config config = {.loop = c->loop,
                                           .methods = c->methods,
                                           .n_methods = RPC_METHOD_COUNT,
                                           .max_calls = RPC_PEER_MAX_CALLS,
                                           .owner = c->methods_owner,
                                           .on_close = inbound_closed};
    bool joins = peer->purpose == TUNNEL_JOIN;
    struct cluster_inbound *in = calloc(1, sizeof(*in));
    if (!in) {
        close(fd);
        return;
    }
    in->cluster = c;
    in->token = peer->key.kind == TUNNEL_KEY_JOIN ? peer->key.number : 0;
    in->joins = joins;
    in->is_proven = peer->is_proven;
    memcpy(in->public_key, peer->public_key, NODE_KEY_BYTES);
    snprintf(in->name, sizeof(in->name), "%s", peer->name);
    err_t err = rpc_conn_open(&config, fd, joins ? RPC_ROLE_JOIN : RPC_ROLE_PEER, &in->conn);
    if (err) {
        log_warn("connection not opened node=%s error=%s", in->name, err_text(err));
        free(in);
        return;
    }
    rpc_conn_set_data(in->conn, in);
    LIST_INSERT_HEAD(&c->inbound, in, link);
}

static void accept_raft(struct cluster *c, const struct tunnel_peer *peer, int fd)
{
    uint64_t from = 0, to = 0;
    uint32_t newest = 1, version = 1; /* dtds without a cluster version send only two numbers */
    int read = sscanf(peer->argument, "%" SCNu64 " %" SCNu64 " %" SCNu32 " %" SCNu32, &from, &to, &newest, &version);
    /* The older of the two could not apply what the other one records. */
    bool too_old = newest < cluster_version(c) || version > features_newest();
    if (read < 2 || too_old || cluster_log_is_old(c) || cluster_old_copy(c) || !cluster_is_node(c, from, peer->name) ||
        log_accept(c->replica->log, from, to, fd)) {
        log_debug("stream of a voter refused node=%s argument=\"%s\"", peer->name, peer->argument);
        close(fd);
    }
}

static void on_tunnel_accepted(void *owner, const struct tunnel_peer *peer, int fd)
{
    struct cluster *c = owner;
    if (!c->closing && (peer->purpose == TUNNEL_RPC || peer->purpose == TUNNEL_JOIN))
        accept_rpc(c, peer, fd);
    else if (!c->closing && peer->purpose == TUNNEL_RAFT)
        accept_raft(c, peer, fd);
    else if (!c->closing && peer->purpose == TUNNEL_STORE)
        c->events->stream(c->owner, peer->argument, fd);
    else
        close(fd);
}

/* ---- streams to stores ---- */

struct store_dial {
    cluster_dial_cb cb;
    void *arg;
};

static void store_dialled(void *owner, err_t err, const char *why, const struct tunnel_peer *peer, int fd)
{
    struct store_dial d = *(struct store_dial *)owner;
    (void)peer;
    free(owner);
    if (err)
        log_warn("no stream to a store why=\"%s\"", why);
    d.cb(d.arg, err ? -1 : fd);
}

err_t cluster_dial_store(struct cluster *c, const char *node, const char *argument, cluster_dial_cb cb, void *arg)
{
    const struct state_node *x = cluster_node(c, node);
    struct tunnel_request *ignored;
    struct why why = {""};
    struct store_dial *d = x && c->host && !c->closing ? malloc(sizeof(*d)) : NULL;
    if (!d)
        return ERR_NOTFOUND;
    *d = (struct store_dial){cb, arg};
    const struct tunnel_connect_config config = {.address = x->address,
                                                 .key = cluster_key(c),
                                                 .expected = x->name,
                                                 .purpose = TUNNEL_STORE,
                                                 .argument = argument};
    err_t err = tunnel_connect(c->host, &config, store_dialled, d, &ignored, &why);
    if (err)
        free(d);
    return err;
}

/* ---- voters' streams ---- */

/* After a link was down, TCP may wait for as long again before it retransmits. So a stream is closed after
 * CLUSTER_LOST_MS, like a lost node: a new one carries votes at once, when the next node may already have failed. */

static void raft_connected(void *owner, err_t err, const char *why, const struct tunnel_peer *peer, int fd)
{
    (void)peer;
    if (err)
        log_debug("no stream to a voter why=\"%s\"", why);
    log_connected(owner, err ? -1 : fd);
}

static err_t connect_raft(void *arg, struct log_connect *request, uint64_t id)
{
    struct cluster *c = arg;
    const struct state_node *x = cluster_node_by_id(c, id);
    struct tunnel_request *ignored;
    struct why why = {""};
    char argument[TUNNEL_ARGUMENT_MAX + 1];
    const struct log_mark own = log_opened(c->replica->log);
    if (!x || !c->host || c->closing)
        return ERR_NOTFOUND;
    snprintf(argument, sizeof(argument),
             "%" PRIu64 " %" PRIu64 " %" PRIu32 " %" PRIu32 " %" PRIu64 " %" PRIu64 " %" PRIu64, c->self.id, id,
             features_newest(), cluster_version(c), own.process, own.term, own.stored);
    const struct tunnel_connect_config config = {.address = x->address,
                                                 .key = cluster_key(c),
                                                 .expected = x->name,
                                                 .purpose = TUNNEL_RAFT,
                                                 .argument = argument,
                                                 .deadline_ms = CALL_MS,
                                                 .lost_ms = CLUSTER_LOST_MS,
                                                 .one_way = true};
    return tunnel_connect(c->host, &config, raft_connected, request, &ignored, &why);
}

/* ---- start ---- */

err_t cluster_host_open(struct cluster *c, struct why *why)
{
    const struct tunnel_host_config config = {.loop = c->loop,
                                              .name = c->self.name,
                                              .keys = {.owner = c, .find = find_key},
                                              .kin = cluster_kin,
                                              .identity = {.own = &c->identity, .owner = c, .admit = cluster_admit}};
    return tunnel_host_open(&config, &c->host, why);
}

static err_t listen_on(struct cluster *c, struct why *why)
{
    err_t err = cluster_host_open(c, why);
    if (!err)
        err = tunnel_bind(c->self.listen, &c->fd, why);
    if (!err)
        err = tunnel_listen(c->host, c->fd, on_tunnel_accepted, c, &c->listener);
    if (!err)
        log_info("cluster node=%s id=%" PRIu64 " listens=%s address=%s", c->self.name, c->self.id, c->self.listen,
                 c->self.address);
    return err;
}

/* A node that has joined may have a log of its own, from the time when it was alone. It is renamed, never merged. */
static err_t rename_old_log(struct cluster *c, struct why *why)
{
    char from[PATH_MAX], to[PATH_MAX], folder[PATH_MAX];
    snprintf(from, sizeof(from), "%s/raft/log", c->dir);
    snprintf(to, sizeof(to), "%s/raft/log.before-%" PRId64, c->dir, clock_wall_ms() / 1000);
    snprintf(folder, sizeof(folder), "%s/raft", c->dir);
    if (rename(from, to) && errno != ENOENT)
        return why_set(why, err_from_errno(errno), "%s: %s", from, strerror(errno));
    snprintf(from, sizeof(from), "%s/raft/witness", c->dir); /* what it knows of the voters of another log */
    unlink(from);
    err_t err = access(folder, F_OK) ? OK : file_sync_dir(folder); /* before the note that it is done */
    if (err)
        return why_set(why, err, "%s: %s", folder, err_text(err));
    log_info("the log from before joining is renamed path=%s", to);
    c->self.fresh = false;
    return cluster_file_write(c->self_path, &c->self, why);
}

static err_t read_self(struct cluster *c, struct why *why)
{
    err_t err = cluster_file_read(c->self_path, &c->self, why);
    if (err == ERR_NOTFOUND)
        return cluster_lineage_load(c, why);
    if (!err)
        err = cluster_identity_load(c, why);
    if (!err)
        err = cluster_view_load(c, why);
    if (!err)
        err = cluster_identity_check(c, why);
    if (!err)
        err = cluster_lineage_load(c, why);
    if (!err && cluster_log_is_old(c)) {
        c->self.generation = cluster_known(c)->lineage.generation;
        c->self.joins = c->self.fresh = true;
    }
    if (!err && c->self.fresh)
        err = rename_old_log(c, why);
    if (!err && c->conf->cluster.key_file[0])
        err = key_file_read(c->conf->cluster.key_file, &c->ring, why);
    c->is_member = !err;
    return err;
}

static void on_tick(uv_timer_t *timer)
{
    struct cluster *c = timer->data;
    int64_t now = clock_mono_ms();
    /* A loop that stood still has received nothing in that time, so the gap does not count as silence of others. */
    int64_t gap = c->ticked_ms ? now - c->ticked_ms - TICK_MS : 0;
    c->ticked_ms = now;
    if (c->closing)
        return;
    if (c->recheck_due)
        cluster_recheck(c);
    c->recheck_due = false;
    if (c->is_member && c->leads)
        cluster_lead_tick(c, now, gap > TICK_MS ? gap : 0);
    else if (c->is_member)
        cluster_follow_tick(c, now, gap > TICK_MS ? gap : 0);
    cluster_join_tick(c, now);
    if (c->recovers && c->replica->log)
        cluster_role(c); /* the record may be applied by now */
    save_again(c, now);
}

err_t cluster_start(const struct cluster_config *config, struct cluster **ret, struct why *why)
{
    struct cluster *c = calloc(1, sizeof(*c));
    if (!c)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    c->loop = config->loop;
    c->dir = config->dir;
    c->conf = config->conf;
    c->replica = config->replica;
    c->methods = config->methods;
    c->methods_owner = config->methods_owner;
    c->events = config->events;
    c->owner = config->owner;
    c->saves = config->saves;
    TAILQ_INIT(&c->sources);
    c->spread_limit = CLUSTER_SPREAD_BYTES;
    c->fd = -1;
    snprintf(c->self_path, sizeof(c->self_path), "%s/cluster/self", c->dir);
    snprintf(c->view_path, sizeof(c->view_path), "%s/cluster/view", c->dir);
    snprintf(c->identity_path, sizeof(c->identity_path), "%s/cluster/identity", c->dir);
    *ret = c;
    err_t err = state_new(&c->view);
    if (!err)
        err = read_self(c, why);
    if (!err && !c->is_member && c->conf->cluster.key_file[0])
        err = cluster_static(c, why);
    if (!err && c->is_member && !cluster_superseded(c))
        err = listen_on(c, why);
    if (err)
        return err;
    uv_timer_init(c->loop, &c->timer);
    c->timer.data = c;
    uv_timer_start(&c->timer, on_tick, TICK_MS, TICK_MS);
    return OK;
}

void cluster_log_config(struct cluster *c, struct log_config *ret)
{
    if (!c->is_member)
        return;
    ret->id = c->self.id;
    ret->joins = c->self.joins;
    ret->recovers = c->self.recover || c->recovers;
    if (!cluster_superseded(c) && !cluster_old_copy(c))
        ret->peers = (struct log_peers){c, connect_raft};
}

void cluster_role(struct cluster *c)
{
    bool leads = log_leads(c->replica->log) && cluster_may_lead(c);
    if (leads == c->leads)
        return;
    c->leads = leads;
    if (leads && c->self.recover) {
        c->self.recover = false;
        cluster_self_save(c);
    }
    if (leads) {
        cluster_follow_end(c);
        cluster_lead_begin(c);
    } else {
        cluster_lead_end(c);
    }
}

/* ---- stop ---- */

static void exit_for_restart(void *arg)
{
    (void)arg;
    exit(0);
}

static void restart_now(uv_timer_t *timer)
{
    const struct cluster *c = timer->data;
    c->events->close_log(c->owner, exit_for_restart, NULL);
}

void cluster_restart(struct cluster *c)
{
    log_info("control restarts");
    c->closing = true; /* the reply is sent meanwhile */
    uv_timer_start(&c->timer, restart_now, TICK_MS, 0);
}

static void host_closed(void *owner)
{
    struct cluster *c = owner;
    void (*closed)(void *owner) = c->closed;
    if (closed)
        closed(c->owner);
}

void cluster_close(struct cluster *c, void (*cb)(void *owner))
{
    c->closing = true;
    c->closed = cb;
    uv_timer_stop(&c->timer);
    if (c->host)
        tunnel_host_close(c->host, host_closed, c);
    else
        host_closed(c);
}

/* ---- queries ---- */

bool cluster_named(const struct cluster *c)
{
    return c->is_member;
}

const char *cluster_self(const struct cluster *c)
{
    return c->is_member ? c->self.name : c->conf->name[0] ? c->conf->name : "node-1";
}

uint64_t cluster_self_id(const struct cluster *c)
{
    return c->self.id;
}

const char *cluster_address(const struct cluster *c)
{
    return c->self.address;
}

/* A node that was found goes to the front: while thousands join, most requests come from the few that forward them. */
bool cluster_caller(struct cluster *c, const struct rpc_conn *conn, struct cluster_caller *ret)
{
    struct cluster_inbound *in = LIST_FIRST(&c->inbound);
    while (in && in->conn != conn)
        in = LIST_NEXT(in, link);
    if (in) {
        LIST_REMOVE(in, link);
        LIST_INSERT_HEAD(&c->inbound, in, link);
    }
    if (in)
        *ret = (struct cluster_caller){in->name, in->token, in->joins, in->is_proven ? in->public_key : NULL};
    return in != NULL;
}

bool cluster_has_key_file(const struct cluster *c)
{
    return c->conf->cluster.key_file[0] != '\0';
}

const char *cluster_leader(const struct cluster *c)
{
    return c->leads ? cluster_self(c) : c->leader_up ? c->leader_name : NULL;
}

int cluster_nodes(const struct cluster *c)
{
    return c->is_member && cluster_known(c)->n_nodes ? cluster_known(c)->n_nodes : 1;
}

bool cluster_leads(const struct cluster *c)
{
    return c->leads;
}

struct rpc_conn *cluster_leader_conn(struct cluster *c)
{
    return c->leader_up ? c->leader : NULL;
}

bool cluster_is_needed(const struct cluster *c)
{
    struct log_member in_log[LOG_MAX_MEMBERS];
    int n = c->is_member && !c->leads ? log_members(c->replica->log, in_log) : 0;
    int64_t last = c->leader_reply_ms > c->led_ms ? c->leader_reply_ms : c->led_ms;
    bool votes = false;
    for (int i = 0; i < n; i++)
        votes |= in_log[i].role == LOG_VOTER && in_log[i].id == c->self.id;
    return votes && !c->released && clock_mono_ms() - last <= CLUSTER_LOST_MS;
}
