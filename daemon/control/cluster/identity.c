/* Which identities are nodes of the cluster, and this node's own.
 *
 * The public key of a node is in the replicated list of nodes, from its join on. Nodes of older versions have none: the
 * first one that such a node shows to the leader is recorded, and never replaced. A node of another key has to be
 * removed and to join again.
 *
 * Every node decides by the view that the leader sent last. A node with an old view may lack nodes that joined since,
 * and one of them may lead, or be a candidate whose stream it must accept. So each answer to Hello introduces the
 * voters with their keys. Introductions count until the leader's replies have made the view current. They come from a
 * node that was itself admitted. So a node with an old view trusts those that it knew, even one that was
 * evicted meanwhile, until it has reached the leader. */
#include "daemon/control/cluster/internal.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* How long the answers to a node that is not connected must have been that it was removed, before its workers are
 * stopped. A leader that was outvoted may lack a node that has just joined; it steps down within this time. */
#define REMOVED_MS (2 * CLUSTER_LOST_MS)

/* ---- this node's identity ---- */

static err_t read_file(const char *path, struct identity *ret)
{
    struct buf text = {0};
    err_t err = file_read(path, IDENTITY_FILE_BYTES + 1, &text);
    if (!err)
        err = identity_parse(text.data, text.len, ret);
    if (text.data)
        explicit_bzero(text.data, text.len);
    buf_fini(&text);
    return err;
}

err_t cluster_identity_write(struct cluster *c, struct why *why)
{
    char text[IDENTITY_FILE_BYTES + 1];
    identity_write(&c->identity, text);
    err_t err = file_replace(c->identity_path, text, IDENTITY_FILE_BYTES, 0600);
    explicit_bzero(text, sizeof(text));
    return err ? why_set(why, err, "%s: %s", c->identity_path, err_text(err)) : OK;
}

static err_t not_restored(const struct cluster *c, err_t err, const char *text, struct why *why)
{
    return why_set(why, err,
                   "%s: %s. If the file cannot be restored: remove the node from the cluster (dtctl cluster remove, on "
                   "another node), then its state directory, and join again",
                   c->identity_path, text);
}

err_t cluster_identity_load(struct cluster *c, struct why *why)
{
    char print[IDENTITY_FINGERPRINT_MAX];
    err_t err = read_file(c->identity_path, &c->identity);
    bool is_missing = err == ERR_NOTFOUND;
    if (is_missing) {
        err = identity_make(&c->identity, why);
        err = err ? err : cluster_identity_write(c, why);
    } else if (err) {
        not_restored(c, err, err_text(err), why);
    }
    c->has_old_identity = !is_missing;
    if (err)
        return err;
    identity_fingerprint(c->identity.public_key, print);
    log_info("identity node=%s fingerprint=%s%s", c->self.name, print, is_missing ? " is new" : "");
    return OK;
}

/* The file has no checksum, and any 32 bytes are a private key. */
err_t cluster_identity_check(const struct cluster *c, struct why *why)
{
    const struct state_node *own = cluster_node(c, c->self.name);
    bool is_same = !own || own->id != c->self.id || !c->has_old_identity || !record_has_key(own->public_key) ||
                   memcmp(own->public_key, c->identity.public_key, NODE_KEY_BYTES) == 0;
    return is_same ? OK
                   : not_restored(c, ERR_CORRUPT, "it is not the identity that the cluster has for this node", why);
}

/* ---- which peers are admitted ---- */

/* By a token, or by the file with the key that the administrator gave to all nodes: not by a key of the log, which
 * every node that ever was in the cluster has. */
static enum tunnel_verdict admit_joining(const struct cluster *c, const struct tunnel_peer *peer)
{
    struct tunnel_secret secret;
    bool is_given = peer->key.kind == TUNNEL_KEY_JOIN || key_ring_secret(&c->ring, peer->key, &secret) == OK;
    explicit_bzero(&secret, sizeof(secret));
    return is_given ? TUNNEL_ADMIT : TUNNEL_NEEDS_TOKEN;
}

static const struct cluster_introduced *find_introduced(const struct cluster *c, const char *name)
{
    for (int i = 0; i < c->introduced.n; i++)
        if (strcmp(c->introduced.nodes[i].name, name) == 0)
            return &c->introduced.nodes[i];
    return NULL;
}

static bool is_shown(const struct tunnel_peer *peer, const uint8_t public_key[NODE_KEY_BYTES])
{
    return !record_has_key(public_key) ||
           (peer->is_proven && memcmp(peer->public_key, public_key, NODE_KEY_BYTES) == 0);
}

enum tunnel_verdict cluster_admit(void *owner, const struct tunnel_peer *peer, bool accepts)
{
    const struct cluster *c = owner;
    if (peer->purpose == TUNNEL_JOIN)
        return accepts ? admit_joining(c, peer) : TUNNEL_ADMIT;
    const struct state_node *x = cluster_node(c, peer->name);
    const struct cluster_introduced *in = find_introduced(c, peer->name);
    if (!accepts && strcmp(c->fetch.source.name, peer->name) == 0)
        in = &c->fetch.source; /* the leader has named it */
    if ((x && is_shown(peer, x->public_key)) || (in && is_shown(peer, in->public_key)))
        return TUNNEL_ADMIT;
    if (x || in)
        return TUNNEL_OTHER;
    /* A node whose view is lost, or that has none yet, finds the leader with the cluster's key alone. */
    if (!accepts && !cluster_known(c)->n_nodes)
        return TUNNEL_ADMIT;
    return c->leads && accepts ? TUNNEL_REMOVED : TUNNEL_STRANGER;
}

bool cluster_is_node(const struct cluster *c, uint64_t id, const char *name)
{
    const struct state_node *x = cluster_node(c, name);
    const struct cluster_introduced *in = find_introduced(c, name);
    return (x && x->id == id) || (in && in->id == id);
}

/* ---- introductions ---- */

static int voter_ids(const struct cluster *c, uint64_t ret[LOG_MAX_MEMBERS])
{
    struct log_member in_log[LOG_MAX_MEMBERS];
    int n_log = log_members(c->replica->log, in_log), n = 0;
    for (int i = 0; i < n_log; i++)
        if (in_log[i].role == LOG_VOTER)
            ret[n++] = in_log[i].id;
    if (n)
        return n;
    memcpy(ret, c->voters, (size_t)c->n_voters * sizeof(ret[0])); /* this node has no vote, and no log */
    return c->n_voters;
}

/* The nodes of the list are looked up again by their names. False: one of them is not there any more. */
static bool renew_introductions(struct cluster *c)
{
    struct cluster_introductions *to = &c->introduces;
    for (int i = 0; i < to->n; i++) {
        const struct state_node *x = cluster_node(c, to->nodes[i].name);
        if (!x || x->id != to->nodes[i].id)
            return false;
        memcpy(to->nodes[i].public_key, x->public_key, NODE_KEY_BYTES);
    }
    return to->n == c->n_introduces_ids;
}

/* A lookup by id goes through all nodes, so it is made only if there are other voters. While thousands of nodes join,
 * the nodes have changed at nearly every call. */
const struct cluster_introductions *cluster_introductions(struct cluster *c)
{
    uint64_t ids[LOG_MAX_MEMBERS], changes = cluster_known(c)->changes;
    int n = voter_ids(c, ids);
    n = n < CLUSTER_INTRODUCED ? n : CLUSTER_INTRODUCED;
    struct cluster_introductions *to = &c->introduces;
    bool are_same = c->introduces_from == (c->leads ? 1 : 2) && n == c->n_introduces_ids &&
                    memcmp(ids, c->introduces_ids, (size_t)n * sizeof(ids[0])) == 0;
    if (are_same && (changes == c->introduces_changes || renew_introductions(c))) {
        c->introduces_changes = changes;
        return to;
    }
    c->introduces_from = c->leads ? 1 : 2;
    c->introduces_changes = changes;
    c->n_introduces_ids = n;
    memcpy(c->introduces_ids, ids, (size_t)n * sizeof(ids[0]));
    to->n = 0;
    for (int i = 0; i < n; i++) {
        const struct state_node *x = cluster_node_by_id(c, ids[i]);
        if (!x)
            continue;
        struct cluster_introduced *in = &to->nodes[to->n++];
        *in = (struct cluster_introduced){.id = x->id};
        snprintf(in->name, sizeof(in->name), "%s", x->name);
        memcpy(in->public_key, x->public_key, NODE_KEY_BYTES);
    }
    return to;
}

void cluster_introduce(struct cluster *c, const struct cluster_introductions *from)
{
    c->introduced = *from;
}

/* ---- a node of an older version shows its first identity ---- */

static void on_registered(void *arg, err_t err, uint64_t index, const void *result)
{
    const struct state_result *r = result;
    (void)arg, (void)index;
    if (err || r->err)
        log_warn("the identity of a node is not recorded error=%s", err_text(err ? err : r->err));
}

void cluster_identity_register(const struct cluster *c, const struct cluster_inbound *in, const struct state_node *x)
{
    char print[IDENTITY_FINGERPRINT_MAX];
    if (!in->is_proven || record_has_key(x->public_key) || cluster_version(c) < FEATURE_IDENTITY)
        return;
    struct record r = {
        .kind = RECORD_NODE,
        .wall_ms = clock_wall_ms(),
        .node = {.name = x->name, .address = x->address, .domain = x->domain, .newest = cluster_version(c)}};
    memcpy(r.node.instance, x->instance, NODE_INSTANCE_BYTES);
    memcpy(r.node.public_key, in->public_key, NODE_KEY_BYTES);
    identity_fingerprint(in->public_key, print);
    log_info("the first identity of a node is recorded node=%s fingerprint=%s", x->name, print);
    err_t err = replica_propose(c->replica, &r, on_registered, NULL);
    if (err)
        log_warn("the identity of a node is not recorded node=%s error=%s", x->name, err_text(err));
}

/* ---- this node was removed ----
 *
 * The leader reports it before it closes the connection. A node that has no connection then gets it as the answer to
 * its attempts to connect, as long as its key of the cluster is valid. */

static void become_removed(struct cluster *c)
{
    c->is_removed = true;
    log_error("this node was removed from the cluster; its workers are stopped. To use it again: dtctl cluster leave, "
              "then join with a new token");
    c->events->removed(c->owner);
}

bool cluster_take_dismissal(struct cluster *c, const struct rpc_conn *conn, const char *name)
{
    if (!conn || conn != c->leader || !c->leader_up || strcmp(name, c->self.name) != 0)
        return false;
    if (!c->closing && !c->is_removed)
        become_removed(c);
    return true;
}

void cluster_note_answer(struct cluster *c, err_t err)
{
    int64_t now = clock_mono_ms();
    if (err == OK)
        c->removed_since_ms = 0;
    if (err != ERR_STALE || c->is_removed)
        return;
    c->removed_since_ms = c->removed_since_ms ? c->removed_since_ms : now;
    if (now - c->removed_since_ms >= REMOVED_MS)
        become_removed(c);
}

bool cluster_is_removed(const struct cluster *c)
{
    return c->is_removed;
}
