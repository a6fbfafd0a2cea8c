/* Creates a cluster, joins one, leaves one. Each writes the file that describes this node from now on, completely or
 * not at all, and then restarts control with it, so that no old state is left in memory. */
#include "daemon/control/cluster/internal.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/tunnel/address.h"
#include "daemon/control/cluster/rpc.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define JOIN_MS 20000 /* for all addresses of a token together */
#define STEP_MS 5000  /* for one connection or call */

struct cluster_joining {
    struct cluster_self self;
    struct rpc_conn *conn;
    struct tunnel_request *request;
    int at; /* index of the address being tried */
    int64_t due_ms, next_ms;
    bool is_static, over;
    struct why why;
    cluster_done_cb done;
    void *arg;
};

/* ---- the new identity ---- */

static void default_address(const char *listen, char *ret, size_t size)
{
    char host[256] = "localhost";
    const char *port = strrchr(listen, ':');
    (void)gethostname(host, sizeof(host) - 1);
    snprintf(ret, size, "%s%s", host, port ? port : ":7811");
}

static const char *first_set(const char *a, const char *b)
{
    return a && a[0] ? a : b;
}

/* Writes the list that the option, or else the configuration, gives; else the host name. */
static err_t advertised(const struct cluster_options *w, const struct node_conf *conf, struct cluster_self *ret,
                        struct why *why)
{
    struct address legal[ADDRESSES_MAX];
    struct buf list = {0};
    char host[NODE_TEXT_MAX + 1];
    int n;
    err_t err = OK;
    default_address(ret->listen, host, sizeof(host));
    for (int i = 0; !err && i < conf->cluster.n_advertise; i++)
        err = buf_printf(&list, "%s%s", i ? "," : "", conf->cluster.advertise[i]);
    err = err ? err : buf_append(&list, "", 1);
    const char *text = err ? "" : first_set(w->advertise, first_set((const char *)list.data, host));
    err = err ? why_set(why, err, "%s", err_text(err)) : addresses_parse(text, legal, &n, why);
    if (!err)
        snprintf(ret->address, sizeof(ret->address), "%s", text);
    buf_fini(&list);
    return err;
}

static err_t make_self(const struct cluster *c, const struct cluster_options *w, struct cluster_self *ret,
                       struct why *why)
{
    const struct node_conf *conf = c->conf;
    char host[NODE_NAME_MAX + 1] = "";
    *ret = (struct cluster_self){.id = LOG_FIRST_ID};
    (void)gethostname(host, sizeof(host) - 1);
    snprintf(ret->name, sizeof(ret->name), "%s", first_set(w->name, first_set(conf->name, host)));
    snprintf(ret->listen, sizeof(ret->listen), "%s", first_set(w->listen, conf->cluster.listen));
    snprintf(ret->domain, sizeof(ret->domain), "%s", first_set(w->domain, conf->cluster.domain));
    if (!ret->name[0] ||
        strspn(ret->name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != strlen(ret->name))
        return why_set(why, ERR_INVALID, "a node's name consists of letters, digits, '.', '_' and '-': --name NAME");
    if (strpbrk(ret->listen, "\n=") || strpbrk(ret->domain, "\n="))
        return why_set(why, ERR_INVALID,
                       "an address has the form host:port, a domain has no \"=\": --listen, --domain");
    err_t err = advertised(w, conf, ret, why); /* --listen is checked by binding it */
    if (err)
        return err;
    if (getrandom(ret->instance, sizeof(ret->instance), 0) != sizeof(ret->instance))
        return why_set(why, ERR_IO, "no random bytes: %s", strerror(errno));
    return OK;
}

static err_t write_self(struct cluster *c, const struct cluster_self *self, struct why *why)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%s/cluster", c->dir);
    err_t err = file_make_dirs(dir, 0700);
    if (err)
        return why_set(why, err, "%s: %s", dir, err_text(err));
    err = cluster_identity_write(c, why);
    return err ? err : cluster_file_write(c->self_path, self, why);
}

static err_t check_can_enter(const struct cluster *c, const char *what, bool keeps_jobs, struct why *why)
{
    uint64_t job;
    if (c->is_member)
        return why_set(why, ERR_EXISTS, "this node is in a cluster already, as %s: dtctl cluster status", c->self.name);
    if (c->join)
        return why_set(why, ERR_BUSY, "this node is joining a cluster");
    if (!keeps_jobs && c->events->has_job(c->owner, &job))
        return why_set(why, ERR_BUSY,
                       "job %" PRIu64 " of this node has not ended and would be lost: cancel it or wait for its "
                       "end, then %s",
                       job, what);
    return OK;
}

/* ---- init ---- */

err_t cluster_init(struct cluster *c, const struct cluster_options *w, struct why *why)
{
    struct cluster_self self;
    int fd;
    err_t err = make_self(c, w, &self, why);
    if (!err)
        err = check_can_enter(c, "dtctl cluster init", strcmp(self.name, cluster_self(c)) == 0, why);
    if (!err)
        err = tunnel_bind(self.listen, &fd, why); /* an address that cannot be bound fails now, not after the restart */
    if (err)
        return err;
    close(fd);
    err = identity_make(&c->identity, why);
    if (!err)
        err = write_self(c, &self, why);
    if (!err)
        cluster_restart(c);
    return err;
}

/* ---- join ---- */

static void finish_join(struct cluster *c, err_t err)
{
    struct cluster_joining *j = c->join;
    if (j->over)
        return;
    j->over = true;
    if (j->conn) {
        rpc_conn_set_data(j->conn, NULL);
        rpc_conn_close(j->conn);
    }
    j->conn = NULL;
    if (j->done)
        j->done(j->arg, err, j->why.text);
    token_wipe(&c->token);
    c->join = NULL;
    free(j);
    if (!err)
        cluster_restart(c);
}

static int count_addresses(const struct cluster *c)
{
    return c->join->is_static ? c->conf->cluster.n_peers : c->token.n_addresses;
}

/* Gives up this address. Some errors would be the same at every address; they end the attempt. */
static void try_next_address(struct cluster *c, err_t err)
{
    struct cluster_joining *j = c->join;
    if (j->conn) {
        rpc_conn_set_data(j->conn, NULL);
        rpc_conn_close(j->conn);
    }
    j->conn = NULL;
    j->at++;
    j->next_ms = clock_mono_ms() + TICK_MS;
    bool hopeless = err == ERR_EXISTS || err == ERR_STALE || err == ERR_LIMIT || err == ERR_INVALID;
    if (hopeless || (!j->is_static && j->at >= count_addresses(c)))
        finish_join(c, err);
}

/* Of the view that the leader has sent; 0: the first. */
static uint64_t view_generation(const void *view, size_t len)
{
    struct state *s;
    uint64_t ret = 0;
    if (state_new(&s))
        return 0;
    if (state_restore(s, view, len) == OK && state_cluster(s)->lineage.generation > 1)
        ret = state_cluster(s)->lineage.generation;
    state_free(s);
    return ret;
}

static void on_join_reply(void *arg, err_t err, const char *text, uint64_t id, const void *view, size_t len)
{
    struct cluster *c = arg;
    struct cluster_joining *j = c->join;
    if (!j || j->over)
        return;
    if (err) {
        why_set(&j->why, err, "%s", text);
        try_next_address(c, err);
        return;
    }
    j->self.id = id;
    j->self.joins = j->self.fresh = true;
    j->self.generation = view_generation(view, len);
    struct why why = {""};
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%s/cluster", c->dir);
    err = file_make_dirs(dir, 0700);
    if (!err)
        err = cluster_view_write(c->view_path, view, len);
    if (err)
        why_set(&j->why, err, "%s: %s", c->view_path, err_text(err));
    else
        err = write_self(c, &j->self, &why);
    if (err && why.text[0])
        j->why = why;
    finish_join(c, err);
}

static void join_conn_closed(void *owner, struct rpc_conn *conn)
{
    struct cluster *c = rpc_conn_data(conn);
    (void)owner;
    if (c && c->join && c->join->conn == conn)
        c->join->conn = NULL; /* on_join_reply has been called */
}

static void join_connected(void *owner, err_t err, const char *text, const struct tunnel_peer *peer, int fd)
{
    struct cluster *c = owner;
    struct cluster_joining *j = c->join;
    const struct rpc_conn_config config = {.loop = c->loop,
                                           .methods = c->methods,
                                           .n_methods = RPC_METHOD_COUNT,
                                           .owner = c->methods_owner,
                                           .on_close = join_conn_closed};
    (void)peer;
    if (!j || j->over) {
        if (fd >= 0)
            close(fd);
        return;
    }
    j->request = NULL;
    if (!err)
        err = rpc_conn_open(&config, fd, 0, &j->conn);
    if (!err) {
        rpc_conn_set_data(j->conn, c);
        const struct features_range has = {features_oldest(), features_newest()};
        err = rpc_cluster_join(j->conn, &j->self, &has, j->is_static ? 0 : c->token.id, c->identity.public_key, STEP_MS,
                               on_join_reply, c);
    }
    if (!err)
        return;
    why_set(&j->why, err, "%s",
            err == ERR_DENIED ? "the cluster does not accept the token: it was used up, has expired or was withdrawn; "
                                "create a new one on a node of the cluster: dtctl cluster token"
            : text && text[0] ? text
                              : err_text(err));
    try_next_address(c, err);
}

static void try_address(struct cluster *c)
{
    struct cluster_joining *j = c->join;
    struct why why = {""};
    const char *address = j->is_static ? c->conf->cluster.peers[j->at % count_addresses(c)] : c->token.addresses[j->at];
    const struct tunnel_connect_config config = {.address = address,
                                                 .key = j->is_static ? cluster_key(c) : token_key_id(&c->token),
                                                 .purpose = TUNNEL_JOIN,
                                                 .deadline_ms = STEP_MS};
    if (tunnel_connect(c->host, &config, join_connected, c, &j->request, &why)) {
        j->request = NULL;
        j->why = why;
        try_next_address(c, ERR_IO);
    }
}

void cluster_join_tick(struct cluster *c, int64_t now)
{
    struct cluster_joining *j = c->join;
    if (!j || j->over)
        return;
    if (!j->is_static && now > j->due_ms) {
        why_set(&j->why, ERR_TIMEOUT,
                "no node answers at the addresses in the token; check that this node can reach them");
        finish_join(c, ERR_TIMEOUT);
    } else if (!j->conn && !j->request && now >= j->next_ms) {
        try_address(c);
    }
}

static err_t begin_join(struct cluster *c, const struct cluster_self *self, bool is_static, cluster_done_cb cb,
                        void *arg, struct why *why)
{
    if (c->host)
        return why_set(why, ERR_BUSY, "an earlier attempt has not ended: try again");
    struct cluster_joining *j = calloc(1, sizeof(*j));
    if (!j)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    j->self = *self;
    j->is_static = is_static;
    j->done = cb;
    j->arg = arg;
    j->due_ms = clock_mono_ms() + JOIN_MS;
    snprintf(c->self.name, sizeof(c->self.name), "%s", self->name);
    err_t err = identity_make(&c->identity, why);
    if (!err)
        err = cluster_host_open(c, why);
    if (err)
        free(j);
    else
        c->join = j;
    return err;
}

err_t cluster_join(struct cluster *c, const char *text, const struct cluster_options *w, cluster_done_cb cb, void *arg,
                   struct why *why)
{
    struct cluster_self self;
    int fd;
    err_t err = check_can_enter(c, "dtctl cluster join", false, why);
    if (!err)
        err = make_self(c, w, &self, why);
    if (!err)
        err = token_decode(text, strlen(text), &c->token, why);
    if (!err)
        err = tunnel_bind(self.listen, &fd, why);
    if (err)
        return err;
    close(fd);
    if (c->host && !c->join) { /* left by an attempt that failed */
        tunnel_host_close(c->host, NULL, NULL);
        c->host = NULL;
    }
    return begin_join(c, &self, false, cb, arg, why);
}

/* ---- nodes with a key file ---- */

err_t cluster_static(struct cluster *c, struct why *why)
{
    const struct node_conf *conf = c->conf;
    struct cluster_options wish = {0};
    struct cluster_self self;
    err_t err = key_file_read(conf->cluster.key_file, &c->ring, why);
    if (!err)
        err = make_self(c, &wish, &self, why);
    if (!err && !conf->cluster.first && !conf->cluster.n_peers)
        err = why_set(why, ERR_INVALID, "cluster.key_file requires cluster.first or cluster.peers");
    if (err)
        return err;
    if (!conf->cluster.first)
        return begin_join(c, &self, true, NULL, NULL, why);
    err = identity_make(&c->identity, why);
    if (!err)
        err = write_self(c, &self, why);
    c->self = self;
    c->is_member = !err;
    return err;
}

/* ---- leaving ---- */

static void exit_after_leaving(void *arg)
{
    const struct cluster *c = arg;
    char from[PATH_MAX], to[PATH_MAX];
    snprintf(from, sizeof(from), "%s/raft/log", c->dir);
    snprintf(to, sizeof(to), "%s/raft/log.left-%" PRId64, c->dir, clock_wall_ms() / 1000);
    cluster_lineage_forget(c);
    bool is_done = (rename(from, to) == 0 || errno == ENOENT) && unlink(c->self_path) == 0 &&
                   unlink(c->view_path) == 0 && unlink(c->identity_path) == 0;
    if (!is_done)
        log_error("this node has left the cluster, but files of it remain dir=%s why=\"%s\"", c->dir, strerror(errno));
    exit(0);
}

static void close_log_when_released(uv_timer_t *timer)
{
    struct cluster *c = timer->data;
    if (cluster_is_needed(c) || c->view_saving) /* the write would bring the file back */
        uv_timer_start(timer, close_log_when_released, TICK_MS, 0);
    else
        c->events->close_log(c->owner, exit_after_leaving, c);
}

struct cluster_leaving {
    struct cluster *c;
    cluster_done_cb done;
    void *arg;
};

static void begin_leaving(struct cluster *c)
{
    log_info("this node has left the cluster");
    c->closing = true;
    uv_timer_start(&c->timer, close_log_when_released, TICK_MS, 0);
}

static void on_leave_reply(void *arg, err_t err, const char *text)
{
    struct cluster_leaving *l = arg;
    struct cluster *c = l->c;
    if (err == ERR_NOTFOUND) /* it has been removed already */
        err = OK;
    l->done(l->arg, err, text);
    free(l);
    if (err || c->closing)
        return;
    begin_leaving(c);
}

err_t cluster_hand_over(struct cluster *c, struct why *why)
{
    if (log_transfer(c->replica->log, 0, NULL, NULL) == ERR_NOTFOUND)
        return why_set(why, ERR_AGAIN,
                       "this node is the only voter; another must become one first, which takes a few "
                       "seconds with 3 nodes. In a cluster of 2 nodes, the other one can leave");
    return why_set(why, ERR_AGAIN, "the leader is changing: try again");
}

err_t cluster_leave(struct cluster *c, cluster_done_cb cb, void *arg, struct why *why)
{
    if (!c->is_member)
        return why_set(why, ERR_NOTFOUND, "this node is in no cluster");
    if (cluster_superseded(c)) { /* no node has to agree: the cluster does not list it */
        cb(arg, OK, "");
        begin_leaving(c);
        return OK;
    }
    if (c->leads && cluster_known(c)->n_nodes < 2)
        return why_set(why, ERR_INVALID, "this is the cluster's only node and cannot leave it");
    if (c->leads)
        return cluster_hand_over(c, why);
    if (c->is_removed) {
        begin_leaving(c);
        cb(arg, OK, "");
        return OK;
    }
    if (!c->leader_up) /* a removed node whose key has been replaced since gets no answer */
        return why_set(why, ERR_AGAIN,
                       "no leader can be reached: try again. If the cluster has removed this node while it was down "
                       "(dtctl cluster status, on another node): stop dtd here, and remove %s/cluster and %s/raft",
                       c->dir, c->dir);
    struct cluster_leaving *l = calloc(1, sizeof(*l));
    if (!l)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    *l = (struct cluster_leaving){c, cb, arg};
    err_t err = rpc_cluster_leave(c->leader, &c->self, STEP_MS, on_leave_reply, l);
    if (err) {
        free(l);
        why_set(why, err, "%s", err_text(err));
    }
    return err;
}

/* ---- a permanently lost majority ---- */

err_t cluster_recover(struct cluster *c, uint32_t uid, struct why *why)
{
    struct cluster_self self = c->self;
    if (!c->is_member)
        return why_set(why, ERR_NOTFOUND, "this node is in no cluster");
    if (cluster_superseded(c))
        return why_set(
            why, ERR_INVALID,
            "the cluster was recovered on %s, without this node: dtctl cluster leave, then dtctl cluster join",
            cluster_superseded(c)->by);
    if (cluster_old_copy(c))
        return why_set(why, ERR_INVALID,
                       "the log of this node is an old copy (see dtctl cluster status): recover another voter");
    if (cluster_leader(c))
        return why_set(why, ERR_INVALID,
                       "%s leads, so there is a majority and nothing to recover. To remove a lost node: "
                       "dtctl cluster remove",
                       cluster_leader(c));
    if (!log_index(c->replica->log))
        return why_set(why, ERR_INVALID,
                       "this node has no copy of the log; run the command on a node that was a voter");
    self.recover = true;
    err_t err = cluster_lineage_request(c, uid, why);
    if (!err)
        err = write_self(c, &self, why);
    if (!err)
        cluster_restart(c);
    return err;
}
