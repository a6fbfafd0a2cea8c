/* What simulate.c (the slots of a step) and simulate_sums.c (the reductions at its end) share. */
#ifndef DTD_COMMON_PLAN_SEARCH_SIMULATE_INTERNAL_H
#define DTD_COMMON_PLAN_SEARCH_SIMULATE_INTERNAL_H

#include "common/plan/search/draw.h"
#include "common/plan/search/operations.h"
#include "common/plan/search/simulate.h"

struct step_item {
    int rank, slot;
    int before; /* index in the list of the rank's slot before; -1: none */
    int source; /* of the slot whose value this one reads; -1: none */
    bool comes; /* this value, from another rank */
    bool ends;  /* the rank's last slot */
    int row;    /* where its ends are */
    double start, scale;
    const struct plan_slot *ops;
};

/* A lane is a rank of a stage, of the pipelines that are played at the same time. */
struct stepper {
    const struct plan_step *step;
    const struct plan_noise *noise;
    const struct plan_operations *ops;
    struct step_item *items;
    int n, n_rows;
    int64_t replicas, unit; /* pipelines in all, and at a time */
    int64_t lanes, slots, operations;
    double *rows, *time;       /* [row][lane], [lane]: now */
    double *queues;            /* [stage rank][2][lane]: end of what is queued */
    double *events;            /* [stage rank][number][2][lane]: ends of what was queued under a number */
    float *factor;             /* [lane]: durations in this slot relative to the mean */
    float *speed;              /* [rank]: durations of this device relative to the mean */
    double *ends;              /* [rank] of the last operation */
    double *solo;              /* [rank] of its reductions, if no rank came later */
    double *parts[PLAN_PARTS]; /* [rank], sums of all steps */
    struct {
        double *ready;      /* [stage rank][bundle][layer]; negative: there is no such layer */
        double *alone;      /* [stage rank][bundle]: end if no flow shares its links */
        double *shared;     /* the true end */
        int *last;          /* the chain's last flow */
        struct flow *flows; /* [stage rank][bundle][layer] in the order of their begin */
        double *capacities;
        int bundles;
    } sums;
    float normals[DRAW_TABLE + DRAW_WINDOW];
    uint64_t state;
    err_t err; /* of the reductions */
    struct plan_operations cost_operations;
    struct plan_slot cost_slots[2 * SLOT_KIND_COUNT];
    struct plan_op cost_ops[SLOT_KIND_COUNT][2];
};

NODISCARD err_t plan_sums_init(struct stepper *k);
void plan_sums_fini(struct stepper *k);
void plan_sums_begin(struct stepper *k);
/* The ranks of the unit from rank `at` on have the gradients of a layer. */
void plan_sums_ready(struct stepper *k, const struct plan_op *op, int rank, int64_t at);
/* Those have done all slots: what they queued ends, too. */
void plan_sums_queued(struct stepper *k, int rank, int64_t at);
/* When all reductions have ended. Adds the waiting of each rank to its parts. */
double plan_sums_end(struct stepper *k);

#endif
