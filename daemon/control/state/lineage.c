/* Which cluster this is: its id and its generation (state.h). A recovery continues with one copy of the log, so it
 * makes a new generation: the nodes that had other copies are no part of it, and their keys and join tokens are not
 * accepted any more. The keys of the generation before stay valid for the nodes that had no copy until all of these
 * have the new one; then they are retired. A retired key opens nothing, but a node that has it can still be informed
 * that the cluster was recovered without it. */
#include "daemon/control/state/internal.h"

#include <stdio.h>
#include <string.h>

static bool is_gone(const struct record *r, uint64_t id)
{
    for (int i = 0; i < r->lineage.n_gone; i++)
        if (r->lineage.gone[i] == id)
            return true;
    return false;
}

static void remove_gone(struct state_cluster *c, const struct record *r)
{
    int n = 0;
    for (int i = 0; i < c->n_nodes; i++)
        if (is_gone(r, c->nodes[i].id))
            state_node_fini(&c->nodes[i]);
        else
            c->nodes[n++] = c->nodes[i];
    c->n_nodes = n;
}

static void drop_first(struct state_key *keys, int *n)
{
    --*n;
    memmove(keys, keys + 1, (size_t)*n * sizeof(keys[0]));
    explicit_bzero(&keys[*n], sizeof(keys[0]));
}

void state_key_retire(struct state_cluster *c, const struct state_key *key)
{
    if (key->version >= c->lineage.first_key)
        return;
    if (c->n_retired == STATE_MAX_RETIRED)
        drop_first(c->retired, &c->n_retired);
    c->retired[c->n_retired++] = *key;
}

static void begin_key(struct state_cluster *c, const struct record *r)
{
    c->lineage.first_key = r->lineage.key;
    if (c->n_keys == STATE_MAX_KEYS) {
        state_key_retire(c, &c->keys[0]);
        drop_first(c->keys, &c->n_keys);
    }
    c->keys[c->n_keys].version = r->lineage.key;
    memcpy(c->keys[c->n_keys].secret, r->lineage.secret, KEY_SECRET_LENGTH);
    c->n_keys++;
    if (!c->key_used)
        c->key_used = r->lineage.key;
    explicit_bzero(c->tokens, sizeof(c->tokens));
    c->n_tokens = 0;
}

/* The first id of a cluster is that of its first record; a recovery keeps it, or gives a cluster without one its id. */
err_t state_lineage_apply(struct state *s, const struct record *r, struct state_result *ret)
{
    struct state_cluster *c = &s->cluster;
    const struct state_lineage *old = &c->lineage;
    uint32_t newest = c->n_keys ? c->keys[c->n_keys - 1].version : 0;
    if (r->lineage.generation <= old->generation || (old->id && old->id != r->lineage.id) ||
        (r->lineage.key && r->lineage.key <= newest)) {
        ret->err = ERR_STALE;
        return OK;
    }
    struct state_lineage next = {.id = r->lineage.id, .generation = r->lineage.generation, .at_ms = r->wall_ms};
    next.first_key = old->first_key;
    next.uid = r->lineage.uid;
    snprintf(next.by, sizeof(next.by), "%s", r->lineage.by);
    c->lineage = next;
    c->changes++;
    remove_gone(c, r);
    if (r->lineage.key)
        begin_key(c, r);
    if (r->lineage.generation > 1)
        s->next_job += STATE_RECOVERY_GAP;
    return OK;
}
