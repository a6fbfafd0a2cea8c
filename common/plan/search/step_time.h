/* The time and memory of a training step in closed form: no program is compiled, so that a search can look at every
 * layout. `dtctl plan` without --search forecasts one layout from its program (common/plan/estimate), which is more
 * exact; tests compare the two. Pure; any thread.
 *
 * A layer is a list of operations (products, and passes over memory), each with the time max(arithmetic, bytes,
 * launch); a collective costs what the slower of a node's links and its network needs; a pipeline adds its bubble.
 * Formulas and their sources: docs/internals/planner.md. */
#ifndef DTD_COMMON_PLAN_SEARCH_STEP_TIME_H
#define DTD_COMMON_PLAN_SEARCH_STEP_TIME_H

#include "common/conf/job.h"
#include "common/conf/machine.h"

/* The model and its batch. All layers are alike, except that some have experts. */
struct plan_shape {
    double layers, dim, heads, kv_heads, head_dim, ffn, vocab, seq;
    double ffn_matrices;                                                      /* 2, or 3 with a gate */
    double window;                                                            /* keys that a query sees; 0: all */
    double experts, experts_per_token, expert_ffn, shared_ffn, expert_layers; /* experts 0: none */
    bool even_experts;    /* the router is made to give all experts equally many tokens; else at random */
    bool tied;            /* the head uses the embedding table */
    bool fused_attention; /* scores are not written to memory, and masked pairs are not computed */
    bool dropout;
    bool even_stages; /* stages have equally many layers, whatever the head costs (Megatron); else they cost the same */
    bool saves_in_memory; /* the worker's memory also holds the copy of its state that a checkpoint is written from
                             (CPUs) */
    double type_bytes;    /* of activations, and of parameters in products */
    double keep_bytes;    /* of a parameter between steps, with its master copy */
    double state_bytes;   /* of a parameter's optimizer state */
    double grad_bytes;    /* of a gradient */
    /* What other programs than this one move in memory; 0: as this one does. */
    double update_bytes;     /* of a parameter, in the optimizer's step */
    double accumulate_bytes; /* of a parameter, when the gradient of a further microbatch is added */
    double loss_bytes;       /* of a logit, in the loss and its gradient */
    double global_batch;
};

/* A layout. workers = dp x fsdp x tp x cp x pp; ranks of one tensor-parallel group are adjacent, then those of cp,
 * fsdp, dp and pp. Experts are divided over ep ranks of tp, cp and fsdp (mesh_fold); with ep 1 each of them is cut over
 * tp. */
struct plan_layout {
    int64_t dp, fsdp, tp, cp, pp, ep, zero, chunks, micro_batch;
    bool sp, reshard;
    enum recompute recompute;
    enum pipe_schedule schedule;
};

/* What the program that runs overlaps. */
struct plan_overlap {
    bool gradients;     /* their reduction with the backward pass of the last microbatch */
    bool parameters;    /* zero 3: the gather of a layer with the computation of another */
    bool messages;      /* between pipeline stages, with computation */
    bool exchanges;     /* all-to-alls of experts, with the computation of another microbatch */
    bool once_per_node; /* a token crosses the network once for each node, not for each of its experts (DeepEP) */
    bool cut_messages;  /* without sequence parallelism: each rank of tp sends its part, and the receivers gather it */
};

/* Seconds of one step on the slowest stage. The parts sum to `seconds`. */
struct plan_time {
    double compute;    /* all operations of all microbatches */
    double recompute;  /* of them those that are repeated */
    double tp, cp, ep; /* collectives within layers, not overlapped */
    double pp;         /* messages between stages, not overlapped */
    double bubble;     /* idle because of the pipeline's order */
    double wait;       /* for the slowest device: the others are as fast as in the machine file */
    double params;     /* zero 3: gathers, not overlapped */
    double grads;      /* reduction of gradients, not overlapped */
    double update;     /* optimizer */
    double seconds;
    double model_flops; /* of one worker; without repeated ones */
};

/* Seconds of a stage of the pipeline on one microbatch: of each layer, and of the head where it has it. `again`: what
 * recomputation repeats. */
struct plan_stage {
    double layers;
    double forward, backward, again;
    double head_forward, head_backward;
};

/* Bytes of the worker that needs most. */
struct plan_bytes {
    double params, grads, optimizer, activations, buffers, total;
};

/* How much slower than the mean the slowest of so many devices is, in standard deviations (machine.noise.spread). */
double plan_slowest(double devices);
int64_t plan_layout_workers(const struct plan_layout *l);
/* Microbatches of one pipeline per step, rounded up. */
double plan_layout_micros(const struct plan_shape *s, const struct plan_layout *l);
/* Parameters of the model; of them, those of experts. */
double plan_shape_params(const struct plan_shape *s, double *ret_experts);
void plan_step_time(const struct plan_shape *s, const struct plan_layout *l, const struct machine *m,
                    const struct plan_overlap *overlap, struct plan_time *ret);
/* Stage `at` of pp x chunks. */
void plan_stage_time(const struct plan_shape *s, const struct plan_layout *l, const struct machine *m, int at,
                     struct plan_stage *ret);
void plan_step_bytes(const struct plan_shape *s, const struct plan_layout *l, struct plan_bytes *ret);
/* Seconds on the links of nodes and on the network between them, one after the other. */
struct plan_seconds {
    double link, network;
};
/* What may run beside computation, on the pipeline's first rank. */
struct plan_transfers {
    struct plan_seconds gathers;  /* of all parameters, once */
    struct plan_seconds scatters; /* zero 2 and 3: of all gradients, in one microbatch */
    struct plan_seconds sums;     /* of gradients, after the last microbatch */
    struct plan_seconds message;  /* of a microbatch, between two stages */
};
void plan_step_transfers(const struct plan_shape *s, const struct plan_layout *l, const struct machine *m,
                         const struct plan_overlap *overlap, struct plan_transfers *ret);
/* Communication beside computation takes a part of the device and of its memory's bandwidth: both are slower. What the
 * computation loses, as a part of the transfer's time. */
double plan_overlap_cost(struct plan_seconds t);
/* Time of a collective over n ranks whose numbers differ by `stride`, while all other groups of the machine run the
 * same. `bytes`: of the whole buffer, after a gather or before a reduction. */
enum plan_collective {
    PLAN_GATHER,
    PLAN_REDUCE,
    PLAN_ALL_TO_ALL
}; /* PLAN_GATHER: reduce-scatter too. REDUCE: all-reduce */
struct plan_seconds plan_collective_parts(const struct machine *m, enum plan_collective op, double bytes, int64_t n,
                                          int64_t stride);
/* Their sum. */
double plan_collective_time(const struct machine *m, enum plan_collective op, double bytes, int64_t n, int64_t stride);

#endif
