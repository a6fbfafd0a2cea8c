/* The operations of a layout's slots, for the simulation of a step: their order, the ranks that meet in each
 * collective, and what is queued beside the computation. Times are those of step_time.h, divided among the operations
 * of a layer by their arithmetic and their bytes; so the simulation without noise and the closed form differ only in
 * what waits for what. Pure; any thread. */
#ifndef DTD_COMMON_PLAN_SEARCH_OPERATIONS_H
#define DTD_COMMON_PLAN_SEARCH_OPERATIONS_H

#include "common/plan/schedule/schedule.h"
#include "common/plan/search/flows.h"
#include "common/plan/search/step_time.h"

/* In the order of the parts of a step (PLAN_TP, PLAN_WAIT_TP, ...). */
enum plan_group { PLAN_GROUP_TP, PLAN_GROUP_CP, PLAN_GROUP_EP, PLAN_GROUP_FSDP, PLAN_GROUPS };

enum plan_op_kind {
    PLAN_OP_RUN,   /* the rank computes */
    PLAN_OP_MEET,  /* the ranks of a group wait for each other and communicate */
    PLAN_OP_QUEUE, /* the same on a second queue of the rank, which goes on at once */
    PLAN_OP_AWAIT, /* the rank waits for what was queued under a number */
    PLAN_OP_READY  /* the gradients of a layer are complete: the replicas may reduce them */
};

#define PLAN_EVENTS 3 /* gathers that may be on their way: of two layers, and of the first one of the next slot */

struct plan_op {
    enum plan_op_kind kind;
    enum plan_group group;
    int number;     /* QUEUE, AWAIT: from 0 to PLAN_EVENTS - 1, or -1; READY: the layer of the rank */
    double seconds; /* RUN: of an average device */
    double tax;     /* QUEUE, READY: what the rank's computation loses to the transfer beside it */
};

struct plan_slot {
    struct plan_op *ops;
    int n, room;
};

/* How gradients are reduced at the end. Those of a layer go from all ranks that hold the same part of the model. */
struct plan_sums {
    int64_t inner, pipes;  /* ranks hold different parts: `inner` of a stage's (tp), times `pipes` pipelines (zero 2) */
    int layers;            /* of the stage that has most */
    double delay, work;    /* seconds of a layer: fixed, and those that depend on the network's links */
    bool exposed;          /* all of it comes after the last operation */
    double most;           /* rate at which `work` runs alone; 1 when all groups run at the same time */
    double tax;            /* seconds that the computation loses to a layer's reduction */
    struct flow_use *uses; /* [stage rank][n_uses]: links between pods, and adapters that devices share */
    int n_uses, links;     /* links: of all stages */
};

struct plan_operations {
    int stages;
    struct plan_slot *slots; /* [stage][kind][0, or 1 for the last microbatch] */
    struct {
        int64_t n, stride;
    } groups[PLAN_GROUPS];
    int64_t joined;              /* pipelines that meet within slots */
    double latency_s, message_s; /* of a message: beside computation, and what it costs its receiver */
    struct plan_sums sums;
};

/* `slots_only`: each slot is one RUN and one MEET of all ranks of a stage, and with zero 3 of all that gather with
 * them. ERR_NOMEM. Freed by plan_operations_fini. */
NODISCARD err_t plan_operations_init(const struct plan_shape *s, const struct plan_layout *l, const struct machine *m,
                                     const struct plan_overlap *overlap, const struct schedule *schedule,
                                     bool slots_only, struct plan_operations *ret);
void plan_operations_fini(struct plan_operations *o); /* legal on a zeroed one */
const struct plan_slot *plan_operations_slot(const struct plan_operations *o, int stage, enum slot_kind kind,
                                             bool last);

#endif
