/* The cluster's part of the state: nodes, join tokens, keys. As in state.c, each function first does what can fail. A
 * verdict depends only on the state and the record; whether a token has expired is decided by the record's clock. */
#include "daemon/control/state/features.h"
#include "daemon/control/state/internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory, lookup ---- */

void state_node_fini(struct state_node *n)
{
    free(n->name);
    free(n->address);
    free(n->domain);
    free(n->drained);
}

void state_nodes_clear(struct state_cluster *c)
{
    for (int i = 0; i < c->n_nodes; i++)
        state_node_fini(&c->nodes[i]);
    free(c->nodes);
    explicit_bzero(c, sizeof(*c));
}

/* Makes room for one more. The capacity is the next power of two, at least 4. */
err_t state_node_reserve(struct state_cluster *c)
{
    int n = c->n_nodes;
    if (n < 4 ? n != 0 : (n & (n - 1)) != 0)
        return OK;
    struct state_node *more = realloc(c->nodes, (size_t)(n ? n * 2 : 4) * sizeof(*more));
    if (!more)
        return ERR_NOMEM;
    c->nodes = more;
    return OK;
}

const struct state_cluster *state_cluster(const struct state *s)
{
    return &s->cluster;
}

uint32_t state_version(const struct state *s)
{
    uint32_t recorded = s->cluster.version ? s->cluster.version : 1;
    return s->cluster.n_nodes ? recorded : features_newest();
}

/* Position of `name` in the order of names, or where it would be inserted. */
static int node_position(const struct state_cluster *c, const char *name)
{
    int low = 0, high = c->n_nodes;
    while (low < high) {
        int at = (low + high) / 2;
        bool is_before = strcmp(c->nodes[at].name, name) < 0;
        low = is_before ? at + 1 : low;
        high = is_before ? high : at;
    }
    return low;
}

static struct state_node *find_node(struct state_cluster *c, const char *name)
{
    int at = node_position(c, name);
    return at < c->n_nodes && strcmp(c->nodes[at].name, name) == 0 ? &c->nodes[at] : NULL;
}

const struct state_node *state_node_find(const struct state *s, const char *name)
{
    return find_node((struct state_cluster *)&s->cluster, name);
}

const struct state_node *state_node_by_id(const struct state *s, uint64_t id)
{
    for (int i = 0; i < s->cluster.n_nodes; i++)
        if (s->cluster.nodes[i].id == id)
            return &s->cluster.nodes[i];
    return NULL;
}

bool state_is_same_text(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

/* ---- tokens ---- */

static struct state_token *find_token(struct state_cluster *c, uint64_t id)
{
    for (int i = 0; i < c->n_tokens; i++)
        if (c->tokens[i].id == id)
            return &c->tokens[i];
    return NULL;
}

static void drop_token(struct state_cluster *c, int at)
{
    c->n_tokens--;
    memmove(&c->tokens[at], &c->tokens[at + 1], (size_t)(c->n_tokens - at) * sizeof(c->tokens[0]));
    explicit_bzero(&c->tokens[c->n_tokens], sizeof(c->tokens[0]));
}

/* By the cluster's clock; by the date only where an older version wrote one of the records. */
static bool is_expired(const struct state_token *t, const struct record *r)
{
    return t->until_ms && r->clock_ms ? t->until_ms <= r->clock_ms : t->expires_ms <= r->wall_ms;
}

/* Removes expired tokens. A token that is used up stays while there is room: the reply to the last node that joined
 * with it may have been lost, and that node tries again. */
static void remove_old_tokens(struct state_cluster *c, const struct record *r)
{
    bool is_full = c->n_tokens == STATE_MAX_TOKENS;
    for (int i = c->n_tokens - 1; i >= 0; i--)
        if (is_expired(&c->tokens[i], r) || (is_full && !c->tokens[i].uses))
            drop_token(c, i);
}

static err_t apply_token(struct state_cluster *c, const struct record *r, struct state_result *ret)
{
    struct state_token *same = find_token(c, r->token.id);
    if (!r->token.uses) {
        if (same)
            drop_token(c, (int)(same - c->tokens));
        else
            ret->err = ERR_NOTFOUND;
        return OK;
    }
    remove_old_tokens(c, r);
    if (find_token(c, r->token.id))
        ret->err = ERR_EXISTS;
    else if (c->n_tokens == STATE_MAX_TOKENS)
        ret->err = ERR_LIMIT;
    else {
        struct state_token *t = &c->tokens[c->n_tokens++];
        *t = (struct state_token){
            .id = r->token.id, .expires_ms = r->token.expires_ms, .until_ms = r->token.until_ms, .uses = r->token.uses};
        memcpy(t->secret, r->token.secret, sizeof(t->secret));
    }
    return OK;
}

/* ---- nodes ---- */

static err_t check_token(struct state_cluster *c, const struct record *r)
{
    const struct state_token *t = r->node.token ? find_token(c, r->node.token) : NULL;
    if (!r->node.token)
        return OK;
    if (!t || !t->uses)
        return ERR_DENIED;
    return is_expired(t, r) ? ERR_STALE : OK;
}

static err_t replace_text(char **at, const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return ERR_NOMEM;
    free(*at);
    *at = copy;
    return OK;
}

static err_t update_node(struct state_cluster *c, struct state_node *n, const struct record *r,
                         struct state_result *ret)
{
    n->changed = c->changes;
    ret->node = n->id;
    bool has_key = record_has_key(r->node.public_key);
    bool is_other_key =
        has_key && record_has_key(n->public_key) && memcmp(n->public_key, r->node.public_key, NODE_KEY_BYTES) != 0;
    if (memcmp(n->instance, r->node.instance, NODE_INSTANCE_BYTES) != 0 || is_other_key) {
        ret->err = ERR_EXISTS;
        return OK;
    }
    err_t err = replace_text(&n->address, r->node.address);
    err = err ? err : replace_text(&n->domain, r->node.domain);
    if (!err && has_key)
        memcpy(n->public_key, r->node.public_key, NODE_KEY_BYTES);
    return err;
}

static err_t add_node(struct state_cluster *c, const struct record *r, struct state_result *ret)
{
    struct state_node n = {.id = c->next_node, .joined_ms = r->wall_ms, .changed = c->changes};
    n.name = strdup(r->node.name);
    n.address = strdup(r->node.address);
    n.domain = strdup(r->node.domain);
    memcpy(n.instance, r->node.instance, NODE_INSTANCE_BYTES);
    memcpy(n.public_key, r->node.public_key, NODE_KEY_BYTES);
    if (!n.name || !n.address || !n.domain || state_node_reserve(c)) {
        state_node_fini(&n);
        return ERR_NOMEM;
    }
    int at = node_position(c, n.name);
    memmove(&c->nodes[at + 1], &c->nodes[at], (size_t)(c->n_nodes - at) * sizeof(n));
    c->nodes[at] = n;
    c->n_nodes++;
    ret->node = c->next_node++;
    if (r->node.token)
        find_token(c, r->node.token)->uses--;
    return OK;
}

static err_t apply_node(struct state_cluster *c, const struct record *r, struct state_result *ret)
{
    struct state_node *same = find_node(c, r->node.name);
    if (r->node.newest < c->version) {
        ret->err = ERR_UNSUPPORTED;
        return OK;
    }
    if (same)
        return update_node(c, same, r, ret);
    ret->err = check_token(c, r);
    if (!ret->err && c->n_nodes == STATE_MAX_NODES)
        ret->err = ERR_LIMIT;
    return ret->err ? OK : add_node(c, r, ret);
}

static err_t apply_left(struct state_cluster *c, const struct record *r, struct state_result *ret)
{
    struct state_node *n = find_node(c, r->node_left.name);
    if (!n) {
        ret->err = ERR_NOTFOUND;
        return OK;
    }
    ret->node = n->id;
    state_node_fini(n);
    c->n_nodes--;
    memmove(n, n + 1, (size_t)(c->n_nodes - (n - c->nodes)) * sizeof(*n));
    return OK;
}

static err_t apply_admin(struct state_cluster *c, const struct record *r, struct state_result *ret)
{
    struct state_node *n = find_node(c, r->node_admin.name);
    if (!n) {
        ret->err = ERR_NOTFOUND;
        return OK;
    }
    char *reason = r->node_admin.drained ? strdup(r->node_admin.drained) : NULL;
    if (r->node_admin.drained && !reason)
        return ERR_NOMEM;
    free(n->drained);
    n->changed = c->changes;
    n->drained = reason;
    n->drained_ms = reason ? r->wall_ms : 0;
    ret->node = n->id;
    return OK;
}

/* ---- records that would change nothing ---- */

/* The same node joins once more: its address, domain and key are known. */
static bool is_joined(const struct state_node *n, const struct record *r)
{
    bool is_known_key =
        !record_has_key(r->node.public_key) || memcmp(n->public_key, r->node.public_key, NODE_KEY_BYTES) == 0;
    return memcmp(n->instance, r->node.instance, NODE_INSTANCE_BYTES) == 0 && is_known_key &&
           strcmp(n->address, r->node.address) == 0 && strcmp(n->domain, r->node.domain) == 0;
}

bool state_nodes_is_idle(const struct state *s, const struct record *r, struct state_result *ret)
{
    const char *name = r->kind == RECORD_NODE         ? r->node.name
                       : r->kind == RECORD_NODE_LEFT  ? r->node_left.name
                       : r->kind == RECORD_NODE_ADMIN ? r->node_admin.name
                                                      : NULL;
    const struct state_node *n = name ? state_node_find(s, name) : NULL;
    bool joins = r->kind == RECORD_NODE;
    if (!name || (joins && (!n || r->node.newest < s->cluster.version)))
        return false;
    bool is_idle =
        !n || (joins ? is_joined(n, r)
                     : r->kind == RECORD_NODE_ADMIN && state_is_same_text(n->drained, r->node_admin.drained));
    if (is_idle)
        *ret = n ? (struct state_result){.node = n->id} : (struct state_result){.err = ERR_NOTFOUND};
    return is_idle;
}

/* ---- keys ---- */

static int key_position(const struct state_cluster *c, uint32_t version)
{
    int at = 0;
    while (at < c->n_keys && c->keys[at].version < version)
        at++;
    return at;
}

static void add_key(struct state_cluster *c, int at, const struct record *r)
{
    memmove(&c->keys[at + 1], &c->keys[at], (size_t)(c->n_keys - at) * sizeof(c->keys[0]));
    c->keys[at].version = r->key.version;
    memcpy(c->keys[at].secret, r->key.secret, KEY_SECRET_LENGTH);
    c->n_keys++;
    if (!c->key_used)
        c->key_used = r->key.version;
}

static void drop_key(struct state_cluster *c, int at)
{
    state_key_retire(c, &c->keys[at]);
    c->n_keys--;
    memmove(&c->keys[at], &c->keys[at + 1], (size_t)(c->n_keys - at) * sizeof(c->keys[0]));
    explicit_bzero(&c->keys[c->n_keys], sizeof(c->keys[0]));
}

static err_t apply_key(struct state_cluster *c, const struct record *r, struct state_result *ret)
{
    int at = key_position(c, r->key.version);
    bool is_there = at < c->n_keys && c->keys[at].version == r->key.version;
    switch (r->key.step) {
    case KEY_ADDED:
        if (is_there)
            ret->err = memcmp(c->keys[at].secret, r->key.secret, KEY_SECRET_LENGTH) == 0 ? OK : ERR_EXISTS;
        else if (c->n_keys == STATE_MAX_KEYS)
            ret->err = ERR_LIMIT;
        else
            add_key(c, at, r);
        break;
    case KEY_USED:
        ret->err = is_there ? OK : ERR_NOTFOUND;
        c->key_used = is_there ? r->key.version : c->key_used;
        break;
    case KEY_DROPPED:
        if (!is_there)
            ret->err = ERR_NOTFOUND;
        else if (c->key_used == r->key.version)
            ret->err = ERR_INVALID; /* nodes still connect with this key */
        else
            drop_key(c, at);
        break;
    }
    return OK;
}

/* ---- the cluster version ---- */

/* The leader has counted nodes 1 to next_node - 1. A node that has joined since may have an older dtd. */
static err_t apply_version(struct state_cluster *c, const struct record *r, struct state_result *ret)
{
    if (r->cluster_version.version <= c->version || r->cluster_version.next_node != c->next_node)
        ret->err = ERR_STALE;
    else
        c->version = r->cluster_version.version;
    return OK;
}

err_t state_nodes_apply(struct state *s, const struct record *r, struct state_result *ret)
{
    static err_t (*const appliers[])(struct state_cluster * c, const struct record *r, struct state_result *ret) = {
        [RECORD_NODE] = apply_node,   [RECORD_NODE_LEFT] = apply_left, [RECORD_NODE_ADMIN] = apply_admin,
        [RECORD_TOKEN] = apply_token, [RECORD_KEY] = apply_key,        [RECORD_CLUSTER_VERSION] = apply_version};
    s->cluster.changes++;
    return appliers[r->kind](&s->cluster, r, ret);
}
