/* Leading: who is there, who votes, which keys hold.
 *
 * A member is known from the state. It comes by a connection of its own, says Hello, and beats; when the connection
 * goes it may come back, until CLUSTER_LOST_MS have passed in silence. A new leader gives all of them that time from
 * its own beginning, twice over, since they must first find it; but the one that led before it, whom it has heard
 * itself, is silent from its last word on. */
#include "daemon/control/cluster/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/cluster/voters.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define FIND_MS (2 * CLUSTER_LOST_MS) /* for finding a new leader */
#define FIND_LEAST_MS 1000            /* ... that one's, who may live and have been outvoted */
#define CHANGE_MS 500                 /* between looks at who votes */

/* ---- members ---- */

static struct member *find(struct cluster *c, const char *name)
{
    struct member *m = c->members;
    while (m && strcmp(m->name, name) != 0)
        m = m->next;
    return m;
}

static void drop(struct cluster *c, struct member *m)
{
    struct inbound *in = m->in;
    m->in = NULL;
    if (!in)
        return;
    c->events->member_down(c->node, m->name);
    rpc_conn_close(in->conn);
}

static void forget(struct cluster *c, struct member **at)
{
    struct member *m = *at;
    bool was_lost = m->lost;
    drop(c, m);
    if (!was_lost)
        c->events->member_lost(c->node, m->name, clock_mono_ms() - m->heard_ms, "it has left the cluster");
    *at = m->next;
    free(m->name);
    free(m);
}

static void add(struct cluster *c, const char *name, int64_t now)
{
    struct member *m = calloc(1, sizeof(*m));
    char *copy = strdup(name);
    if (!m || !copy) {
        free(m);
        free(copy);
        return;
    }
    m->name = copy;
    m->heard_ms = now + FIND_MS - CLUSTER_LOST_MS;
    m->keeping = true;
    m->next = c->members;
    c->members = m;
}

/* The list follows the state. */
static void follow_state(struct cluster *c, int64_t now)
{
    const struct state_cluster *k = cluster_known(c);
    struct member *m;
    for (m = c->members; m; m = m->next)
        m->keeping = false;
    for (int i = 0; i < k->n_nodes; i++) {
        if (k->nodes[i].id == c->self.id)
            continue;
        m = find(c, k->nodes[i].name);
        if (m)
            m->keeping = true;
        else
            add(c, k->nodes[i].name, now);
    }
    for (struct member **at = &c->members; *at;) {
        if ((*at)->keeping)
            at = &(*at)->next;
        else
            forget(c, at);
    }
}

static void judge(struct cluster *c, struct member *m, int64_t now)
{
    int64_t silent = now - m->heard_ms;
    if (m->lost || silent <= CLUSTER_LOST_MS)
        return;
    const char *why = m->in ? "it is silent" : "its connection has gone";
    log_warn("node lost node=%s silent_ms=%" PRId64 " why=\"%s\"", m->name, silent, why);
    m->lost = true;
    drop(c, m);
    c->events->member_lost(c->node, m->name, silent, why);
}

void cluster_lead_gone(struct cluster *c, struct inbound *in)
{
    struct member *m = c->members;
    while (m && m->in != in)
        m = m->next;
    if (!m)
        return;
    m->in = NULL;
    c->events->member_down(c->node, m->name);
}

err_t cluster_hello(struct cluster *c, struct rpc_conn *conn, const char *name, const uint8_t *instance,
                    const char *version, const char **ret_why)
{
    struct inbound *in = rpc_conn_data(conn);
    const struct state_node *x = cluster_node(c, name);
    if (!c->is_member || !c->leads)
        return ERR_AGAIN;
    *ret_why = "it is no node of this cluster: dtctl cluster join";
    if (!in || strcmp(in->name, name) != 0 || !x)
        return ERR_NOTFOUND;
    *ret_why = "another node of that name has joined since: dtctl cluster leave, then join under another name";
    if (memcmp(x->instance, instance, NODE_INSTANCE_BYTES) != 0)
        return ERR_DENIED;
    follow_state(c, clock_mono_ms());
    struct member *m = find(c, name);
    if (!m)
        return ERR_AGAIN;
    if (m->in != in)
        drop(c, m);
    m->in = in;
    m->lost = false;
    m->heard_ms = clock_mono_ms();
    snprintf(m->version, sizeof(m->version), "%s", version);
    log_info("node there node=%s", m->name);
    c->events->member_up(c->node, m->name, conn);
    return OK;
}

/* The others that are there could commit nothing. */
static bool is_needed(const struct cluster *c, const char *name)
{
    const struct state_node *x = cluster_node(c, name);
    struct log_member in_log[LOG_MAX_MEMBERS];
    int n = log_members(c->node->log, in_log), voters = 0, others = 0;
    bool votes = false;
    for (int i = 0; x && i < n; i++) {
        const struct state_node *y = cluster_node_by_id(c, in_log[i].id);
        const struct member *m = y ? find((struct cluster *)c, y->name) : NULL;
        if (in_log[i].role != LOG_VOTER)
            continue;
        voters++;
        votes |= in_log[i].id == x->id;
        others += in_log[i].id != x->id && (in_log[i].id == c->self.id || (m && m->in));
    }
    return votes && others <= voters / 2;
}

err_t cluster_beat(struct cluster *c, struct rpc_conn *conn, uint64_t view, uint64_t index, const struct buf **ret,
                   bool *ret_needed)
{
    struct inbound *in = rpc_conn_data(conn);
    struct member *m = c->leads && in ? find(c, in->name) : NULL;
    if (!m || m->in != in)
        return ERR_AGAIN;
    cluster_view_make(c);
    m->heard_ms = clock_mono_ms();
    m->view = view;
    m->index = index;
    *ret = view == c->view_hash ? NULL : &c->view_bytes;
    *ret_needed = is_needed(c, m->name);
    return OK;
}

/* ---- who votes ---- */

/* It is told to end, as it says itself. */
static bool is_leaving(const struct cluster *c, const struct state_node *x)
{
    const struct agent *a = agent_find(c->node, x->id == c->self.id ? c->node->self.name : x->name);
    return a && a->leaving;
}

static void fill(const struct cluster *c, const struct state_node *x, struct voters_node *ret, int64_t now)
{
    const struct member *m = find((struct cluster *)c, x->name);
    bool self = x->id == c->self.id;
    *ret = (struct voters_node){.id = x->id,
                                .listed = true,
                                .self = self,
                                .up = self || (m && m->in),
                                .drained = x->drained != NULL || is_leaving(c, x),
                                .away_ms = self || !m ? 0
                                           : m->in    ? 0
                                                      : now - m->heard_ms,
                                .domain = x->domain};
}

static void changed(void *arg, err_t err)
{
    struct cluster *c = arg;
    c->changing = false;
    if (err)
        log_warn("voters not changed error=%s", err_text(err));
}

static void make_change(struct cluster *c, struct voters_change x)
{
    struct log *log = c->node->log;
    err_t err = OK;
    c->changing = x.step != VOTERS_NOTHING;
    if (x.step == VOTERS_ADD)
        err = log_add(log, x.id, changed, c);
    else if (x.step == VOTERS_PROMOTE)
        err = log_assign(log, x.id, LOG_VOTER, changed, c);
    else if (x.step == VOTERS_REMOVE)
        err = log_remove(log, x.id, changed, c);
    else if (x.step == VOTERS_HAND_OVER)
        err = log_transfer(log, x.id, changed, c);
    if (err) {
        c->changing = false;
        log_debug("voters not changed error=%s", err_text(err));
    }
}

/* All nodes and all voters, some of them the same; returns how many. NULL in *ret: no memory. The caller frees. */
static int list_nodes(const struct cluster *c, int64_t now, struct voters_node **ret)
{
    const struct state_cluster *k = cluster_known(c);
    struct log_member in_log[LOG_MAX_MEMBERS];
    int n_log = log_members(c->node->log, in_log), n = 0;
    struct voters_node *nodes = *ret = calloc((size_t)(k->n_nodes + n_log) + 1, sizeof(*nodes));
    for (; nodes && n < k->n_nodes; n++)
        fill(c, &k->nodes[n], &nodes[n], now);
    for (int i = 0; nodes && i < n_log; i++) {
        int at = 0;
        while (at < n && nodes[at].id != in_log[i].id)
            at++;
        if (at == n)
            nodes[n++] = (struct voters_node){.id = in_log[i].id, .self = in_log[i].id == c->self.id, .domain = ""};
        nodes[at].in_log = true;
        nodes[at].role = in_log[i].role;
    }
    return n;
}

static void choose_voters(struct cluster *c, int64_t now)
{
    struct voters_node *nodes;
    int n = list_nodes(c, now, &nodes);
    if (nodes && cluster_known(c)->n_nodes)
        make_change(c, voters_next(nodes, n));
    free(nodes);
}

/* Who has just begun to lead has yet to find it. */
static bool may_come(const struct voters_node *x)
{
    return x->listed && !x->self && !x->up && !x->drained && x->away_ms < CLUSTER_LOST_MS;
}

bool cluster_has_heir(const struct cluster *c)
{
    struct voters_node *nodes;
    int n = c->is_member && c->leads ? list_nodes(c, clock_mono_ms(), &nodes) : 0;
    if (!n)
        return false;
    bool has = voters_have_heir(nodes, n);
    for (int i = 0; i < n; i++)
        has = has || may_come(&nodes[i]);
    free(nodes);
    return has;
}

/* ---- records of our own ---- */

static void proposed(void *arg, err_t err, uint64_t index, const void *result)
{
    struct cluster *c = arg;
    (void)index;
    const struct state_result *r = result;
    c->proposing = false;
    if (err || r->err)
        log_warn("a record of the cluster is not taken error=%s", err_text(err ? err : r->err));
}

static void propose(struct cluster *c, struct record *r)
{
    r->wall_ms = clock_wall_ms();
    c->proposing = node_propose(c->node, r, proposed, c) == OK;
}

static void propose_key(struct cluster *c, uint32_t version, enum state_key_step step)
{
    struct record r = {.kind = RECORD_KEY, .key = {.version = version, .step = step}};
    const struct key *given = key_ring_newest(&c->ring);
    if (step == KEY_ADDED && given && !cluster_known(c)->n_keys) {
        r.key.version = given->version;
        memcpy(r.key.secret, given->secret, sizeof(r.key.secret));
    } else if (step == KEY_ADDED && getrandom(r.key.secret, sizeof(r.key.secret), 0) != sizeof(r.key.secret)) {
        return;
    }
    propose(c, &r);
    explicit_bzero(&r, sizeof(r));
}

/* A cluster begins with its key and its first node; and a node that has moved says so. */
static bool begin_records(struct cluster *c)
{
    const struct state_cluster *k = cluster_known(c);
    const struct state_node *own = cluster_node(c, c->self.name);
    if (!k->n_keys) {
        propose_key(c, 1, KEY_ADDED);
        return true;
    }
    if (own && strcmp(own->address, c->self.address) == 0 && strcmp(own->domain, c->self.domain) == 0)
        return false;
    if (!own && k->next_node != 1)
        return false; /* it has left, and leads only until another does */
    struct record r = {.kind = RECORD_NODE,
                       .node = {.name = c->self.name, .address = c->self.address, .domain = c->self.domain}};
    memcpy(r.node.instance, c->self.instance, NODE_INSTANCE_BYTES);
    propose(c, &r);
    return true;
}

/* All that have the view have its keys; a lost one will not get a new key before it comes back by the old. */
static bool all_have_view(const struct cluster *c, bool lost_too)
{
    for (const struct member *m = c->members; m; m = m->next)
        if (m->view != c->view_hash && (lost_too || !m->lost))
            return false;
    return true;
}

static void turn_keys(struct cluster *c)
{
    const struct state_cluster *k = cluster_known(c);
    if (k->n_keys < 2)
        return;
    uint32_t newest = k->keys[k->n_keys - 1].version;
    if (k->key_used != newest && all_have_view(c, false))
        propose_key(c, newest, KEY_USED);
    else if (k->key_used == newest && all_have_view(c, true))
        propose_key(c, k->keys[0].version, KEY_DROPPED);
}

/* ---- what people see ---- */

void cluster_lead_facts(const struct cluster *c, const struct state_node *x, struct cluster_facts *ret)
{
    const struct member *m = find((struct cluster *)c, x->name);
    bool self = x->id == c->self.id;
    *ret = (struct cluster_facts){.state = self      ? "up"
                                           : !m      ? "unknown"
                                           : m->in   ? "up"
                                           : m->lost ? "lost"
                                                     : "away",
                                  .version = self                 ? DTD_VERSION
                                             : m && m->version[0] ? m->version
                                                                  : NULL,
                                  .silent_ms = self || !m || m->in ? 0 : clock_mono_ms() - m->heard_ms,
                                  .index = self ? log_index(c->node->log)
                                           : m  ? m->index
                                                : 0};
}

/* ---- life ---- */

/* Its loss is what has made us lead, in most cases. */
static void judge_predecessor(struct cluster *c, int64_t now)
{
    int64_t latest = now + FIND_LEAST_MS - CLUSTER_LOST_MS;
    struct member *m = find(c, c->followed);
    if (m)
        m->heard_ms = c->leader_heard_ms > latest ? c->leader_heard_ms : latest;
}

void cluster_lead_begin(struct cluster *c)
{
    int64_t now = clock_mono_ms();
    c->lead_ms = now;
    c->changing = c->proposing = false;
    if (c->is_member) {
        follow_state(c, now);
        judge_predecessor(c, now);
    }
    c->events->lead(c->node);
}

void cluster_lead_end(struct cluster *c)
{
    struct member *m;
    while ((m = c->members)) {
        struct inbound *in = m->in;
        m->in = NULL;
        if (in)
            rpc_conn_close(in->conn);
        c->members = m->next;
        free(m->name);
        free(m);
    }
    /* What was the state until now is what we know of the cluster. */
    if (c->is_member && c->view_bytes.len && state_restore(c->view, c->view_bytes.data, c->view_bytes.len))
        log_error("the cluster's nodes are not kept");
    c->changing = c->proposing = false;
    c->led_ms = clock_mono_ms();
    c->events->follow(c->node);
}

void cluster_lead_tick(struct cluster *c, int64_t now, int64_t gap_ms)
{
    cluster_view_make(c);
    follow_state(c, now);
    for (struct member *m = c->members; m; m = m->next) {
        m->heard_ms += gap_ms;
        judge(c, m, now);
    }
    if (!c->proposing && !begin_records(c))
        turn_keys(c);
    if (c->changing || now < c->change_ms)
        return;
    c->change_ms = now + CHANGE_MS;
    choose_voters(c, now);
}
