/* Training steps of every rank of a large job, each with its own speed and its own jitter. A slot of the schedule is
 * one operation, or all operations of its layers with the collectives in which ranks wait for each other
 * (operations.h). Where no transfer waits for another one, a step is a longest path: an operation starts when the
 * latest of its inputs is there. So no event queue is needed, and a step of 100,000 ranks takes a fraction of a second
 * at the level of slots, and seconds at that of operations. Only reductions of gradients, which share links, are played
 * by events (flows.h). Pure; any thread. */
#ifndef DTD_COMMON_PLAN_SEARCH_SIMULATE_H
#define DTD_COMMON_PLAN_SEARCH_SIMULATE_H

#include "common/plan/schedule/schedule.h"

#include <stdint.h>

struct plan_operations;

/* Relative to the duration. The first three are standard deviations. */
struct plan_noise {
    double spread;               /* between devices, the same in all steps: chips of one kind differ by some percent */
    double jitter;               /* of every slot of a rank, all its operations alike */
    double operation;            /* of every operation, in addition */
    double stragglers, slowdown; /* the share of devices that take longer, and how much longer */
    double replaced; /* the share of devices, the slowest ones first, in whose place there are average ones */
    uint64_t seed;
};

/* X(id, key, name): where the time of a rank goes. Waits are in the order of the collectives that they belong to. */
#define PLAN_PART_LIST(X)                                                            \
    X(PLAN_COMPUTE, "compute", "computes")                                           \
    X(PLAN_TP, "tp", "collectives of tp")                                            \
    X(PLAN_CP, "cp", "collectives of cp")                                            \
    X(PLAN_EP, "ep", "exchange of tokens (ep)")                                      \
    X(PLAN_PARAMS, "params", "gathers of parameters")                                \
    X(PLAN_MESSAGES, "messages", "messages between stages")                          \
    X(PLAN_GRADS, "grads", "reduction of gradients")                                 \
    X(PLAN_UPDATE, "update", "end of the step")                                      \
    X(PLAN_WAIT_TP, "wait_tp", "waits for ranks of its tp group")                    \
    X(PLAN_WAIT_CP, "wait_cp", "waits for ranks of its cp group")                    \
    X(PLAN_WAIT_EP, "wait_ep", "waits for ranks of its ep group")                    \
    X(PLAN_WAIT_PARAMS, "wait_params", "waits for ranks of its fsdp group")          \
    X(PLAN_WAIT_PIPELINE, "wait_pipeline", "waits for other stages")                 \
    X(PLAN_WAIT_REPLICAS, "wait_replicas", "waits for replicas, and the last stage") \
    X(PLAN_WAIT_LINKS, "wait_links", "waits for links that others use")

#define X(id, key, name) id,
enum plan_part { PLAN_PART_LIST(X) PLAN_PARTS };
#undef X
const char *plan_part_name(enum plan_part part);
const char *plan_part_key(enum plan_part part); /* of JSON */

struct plan_step {
    const struct schedule *schedule; /* checked */
    struct schedule_cost cost;       /* with operations, only last_scale counts */
    int64_t replicas;                /* pipelines; they meet at the end of the step */
    int64_t peers; /* ranks of a stage: tp x cp. Without operations they wait for each other after each
                      slot */
    double end_s;  /* after the replicas have met: sums of gradients, update */
    const struct plan_operations *operations; /* NULL: a slot is one operation, of cost.seconds */
    int steps;                                /* with the same devices, each with its own jitter; 0: one */
    double *ranks; /* NULL, or room for [part][rank] seconds of a step in the mean; rank = (stage rank x replicas +
                      replica) x peers + peer */
};

struct plan_step_result {
    double seconds;                /* of a step, in the mean */
    double p50, p99, longest;      /* of the steps */
    double quiet;                  /* without noise */
    double fastest, mean, slowest; /* of the replicas, before they meet, in the last step */
    double parts[PLAN_PARTS];      /* of a rank in the mean; they sum to `seconds` */
    double quiet_parts[PLAN_PARTS];
    int64_t replaced;          /* devices */
    int64_t slots, operations; /* of all ranks, in a step */
};

/* ERR_NOMEM; ERR_INVALID for a schedule that was not checked. */
NODISCARD err_t plan_simulate(const struct plan_step *step, const struct plan_noise *noise,
                              struct plan_step_result *ret, struct why *why);

#endif
