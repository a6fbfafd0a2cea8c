/* See snapshot_lineage.h. */
#include "daemon/control/state/snapshot_lineage.h"

#include <stdio.h>
#include <string.h>

void state_lineage_put(const struct state_cluster *c, struct state_lineage_message *l, Dtd__SnapshotCluster *m)
{
    const struct state_lineage *from = &c->lineage;
    dtd__record_lineage__init(&l->lineage);
    l->lineage.id = from->id;
    l->lineage.generation = from->generation;
    l->lineage.by = from->by[0] ? (char *)from->by : NULL;
    l->lineage.has_uid = from->by[0] != '\0';
    l->lineage.uid = from->uid;
    l->lineage.has_at_ms = true;
    l->lineage.at_ms = from->at_ms;
    l->lineage.has_first_key = from->first_key != 0;
    l->lineage.first_key = from->first_key;
    m->lineage = from->generation ? &l->lineage : NULL;
    for (int i = 0; i < c->n_retired; i++) {
        dtd__record_key__init(&l->keys[i]);
        l->keys[i].version = c->retired[i].version;
        l->keys[i].step = KEY_DROPPED;
        l->keys[i].has_secret = true;
        l->keys[i].secret = (ProtobufCBinaryData){KEY_SECRET_LENGTH, (uint8_t *)c->retired[i].secret};
        l->key[i] = &l->keys[i];
    }
    m->n_retired = (size_t)c->n_retired;
    m->retired = l->key;
}

err_t state_lineage_get(const Dtd__SnapshotCluster *m, struct state_cluster *c)
{
    const Dtd__RecordLineage *x = m->lineage;
    if (x && (!x->id || !x->generation || (x->by && strlen(x->by) > NODE_NAME_MAX)))
        return ERR_CORRUPT;
    if (m->n_retired > STATE_MAX_RETIRED)
        return ERR_CORRUPT;
    for (size_t i = 0; i < m->n_retired; i++) {
        if (!m->retired[i]->version || m->retired[i]->secret.len != KEY_SECRET_LENGTH)
            return ERR_CORRUPT;
        c->retired[i].version = m->retired[i]->version;
        memcpy(c->retired[i].secret, m->retired[i]->secret.data, KEY_SECRET_LENGTH);
        c->n_retired++;
    }
    if (!x)
        return OK;
    c->lineage = (struct state_lineage){.id = x->id, .generation = x->generation, .at_ms = x->at_ms, .uid = x->uid};
    c->lineage.first_key = x->first_key;
    snprintf(c->lineage.by, sizeof(c->lineage.by), "%s", x->by ? x->by : "");
    return OK;
}
