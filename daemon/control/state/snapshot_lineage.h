/* The lineage of the cluster and its retired keys in a snapshot (snapshot.c). Pure functions. */
#ifndef DTD_DAEMON_CONTROL_STATE_SNAPSHOT_LINEAGE_H
#define DTD_DAEMON_CONTROL_STATE_SNAPSHOT_LINEAGE_H

#include "daemon/control/state/state.h"
#include "proto/log.pb-c.h"

/* Memory of the messages. */
struct state_lineage_message {
    Dtd__RecordLineage lineage;
    Dtd__RecordKey keys[STATE_MAX_RETIRED], *key[STATE_MAX_RETIRED];
};
/* `m` borrows from `c` and `l`. */
void state_lineage_put(const struct state_cluster *c, struct state_lineage_message *l, Dtd__SnapshotCluster *m);
/* ERR_CORRUPT. */
NODISCARD err_t state_lineage_get(const Dtd__SnapshotCluster *m, struct state_cluster *c);

#endif
