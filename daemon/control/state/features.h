/* The cluster version: a number in the replicated state. It rises when every node of the cluster reports that its dtd
 * has it; until then nothing is recorded or sent that needs it, so that a dtd of the version before can follow, vote
 * and lead. A dtd supports its newest version and the one before.
 *
 * To add a feature that older dtds do not understand: raise FEATURES_NEWEST if a release has it already, and add a row.
 *
 *   a kind of record              its row in feature_of_record's table
 *   a key of the job file         `.since` of its row in common/conf/job.c
 *   a field, or a message         a FEATURE_ here; ask cluster_may_use (or compare state_version) before using it
 *
 * Pure functions. They are calls, so that the tests can put dtds of several versions into one cluster. */
#ifndef DTD_DAEMON_CONTROL_STATE_FEATURES_H
#define DTD_DAEMON_CONTROL_STATE_FEATURES_H

#include "daemon/control/state/record.h"

/* 1: dtds that do not report a version. 2: the cluster version itself. */
#define FEATURES_OLDEST 1
#define FEATURES_NEWEST 2
#define FEATURE_IDENTITY 2   /* public keys of nodes in their records */
#define FEATURE_ADDRESSES 2  /* the address of a node may be a list */
#define FEATURE_MANY_NODES 2 /* more than STATE_MAX_NODES_BEFORE nodes */
/* Records have the cluster's clock. Voters without it would go by dates, and their states would differ. */
#define FEATURE_CLOCK 2

/* The cluster versions of a dtd. */
struct features_range {
    uint32_t oldest, newest;
};

/* Of this dtd. */
uint32_t features_oldest(void);
uint32_t features_newest(void);
/* The cluster version that first has records of this kind. Dtds without it refuse them. */
uint32_t feature_of_record(const struct record *r);

#endif
