/* The metrics of one training step. The worker of rank 0 fills the struct, control stores it in metrics.jsonl, and the
 * client prints it.
 *
 * A new metric is a row here, and the code that computes it (worker/train.c). metrics.jsonl, `dtctl metrics`, the
 * progress line, `dtctl status` and `-o json` print it without further changes, and it is a curve in TensorBoard and
 * W&B. A metric that has no number of its own
 * in proto/client.proto travels as a named value (FieldValue); older versions ignore it. Metrics are numbers: the
 * struct is copied by assignment, so that a row of kind TEXT does not compile (METRIC_MEMBER). */
#ifndef DTD_COMMON_RPC_METRIC_H
#define DTD_COMMON_RPC_METRIC_H

#include "common/mesh/mesh.h"
#include "common/rpc/fields.h"

/* targets: how many targets of the step count in the loss, where not all of them do. The expert_ fields belong to
 * mixtures of experts: tokens of the busiest expert, over the mean of its layer, in the worst layer; mean entropy of
 * the routers' choices, 1: all experts are equally likely; the smallest difference between a chosen score and the next;
 * choices that no expert computed. aux_loss and z_loss: the losses of all routers, with their coefficients; training
 * minimizes loss + aux_loss + z_loss.
 *
 * mfu: the share of the workers' peak rate that the model's FLOPs take (FLOPs of a token, as `dtctl plan` counts them,
 * times tokens per second, over the peak of all workers); absent if the peak of the device is not known.
 *
 * In the order of the columns of `dtctl metrics` and of the keys in JSON. One row is one line: a new row changes no
 * other. */
// clang-format off
#define METRIC_FIELDS(X) \
    X(INT, step, FIELD_REQUIRED, .column = "STEP", .width = 8) \
    X(REAL, loss, FIELD_REQUIRED, .column = "LOSS", .width = 10, .look = LOOK_FIXED, .digits = 6, .line = "loss") \
    X(REAL, valid_loss, FIELD_OPTIONAL, .column = "VALID", .width = 10, .late = 2, .digits = 6, .line = "valid") \
    X(REAL, test_loss, FIELD_OPTIONAL, .column = "TEST", .width = 10, .late = 6, .digits = 6, .line = "test") \
    X(REAL, grad_norm, FIELD_REQUIRED, .column = "GRAD_NORM", .width = 10, .late = 4, .digits = 5) \
    X(REAL, lr, FIELD_REQUIRED, .column = "LR", .width = 10, .late = 3, .digits = 4) \
    X(REAL, tokens_per_s, FIELD_REQUIRED, .column = "TOK/S", .width = 9, .late = 1, .look = LOOK_COUNT, .line = "", \
      .unit = "tok/s") \
    X(REAL, step_s, FIELD_REQUIRED, .column = "STEP_S", .width = 8, .late = 5, .look = LOOK_FIXED, .digits = 4, .unit = "s") \
    X(INT, targets, FIELD_OPTIONAL, .column = "TARGETS", .width = 9, .late = 6, .rare = true) \
    X(REAL, expert_load, FIELD_OPTIONAL, .column = "LOAD", .width = 6, .late = 6, .digits = 3, .rare = true) \
    X(REAL, expert_entropy, FIELD_OPTIONAL, .column = "ENTROPY", .width = 7, .late = 6, .digits = 3, .rare = true) \
    X(REAL, expert_gap, FIELD_OPTIONAL, .column = "GAP", .width = 8, .late = 9, .digits = 2, .rare = true) \
    X(INT, expert_dropped, FIELD_OPTIONAL, .column = "DROPPED", .width = 7, .late = 9, .rare = true) \
    X(INT, expert_rounds, FIELD_OPTIONAL, .column = "ROUNDS", .width = 6, .late = 9, .rare = true) \
    X(REAL, aux_loss, FIELD_OPTIONAL, .column = "AUX", .width = 9, .late = 9, .digits = 5, .rare = true, .label = "Aux loss") \
    X(REAL, z_loss, FIELD_OPTIONAL, .column = "Z", .width = 9, .late = 9, .digits = 5, .rare = true, .label = "Z-loss") \
    X(REAL, mfu, FIELD_OPTIONAL, .column = "MFU", .width = 6, .late = 5, .digits = 3) \
    X(INT, workers, FIELD_REQUIRED, .column = "WORKERS", .width = 7, .late = 7) \
    X(UINT, epoch, FIELD_REQUIRED, .column = "EPOCH", .width = 5, .late = 8) \
    X(BOOL, skipped, FIELD_OPTIONAL) /* the optimizer skipped the step: loss or norm was not finite */ \
    X(INT, wall_ms, FIELD_REQUIRED) /* time of the report */
// clang-format on

#define METRIC_TYPE_INT FIELD_TYPE_INT
#define METRIC_TYPE_UINT FIELD_TYPE_UINT
#define METRIC_TYPE_REAL FIELD_TYPE_REAL
#define METRIC_TYPE_BOOL FIELD_TYPE_BOOL
#define METRIC_MEMBER(kind_, name_, ...) METRIC_TYPE_##kind_ name_;

struct metric {
    METRIC_FIELDS(METRIC_MEMBER)
    struct traffic traffic; /* bytes that all ranks received from their peers in the step; "bytes" in JSON */
};

extern const struct field_table metric_fields;
extern const struct metric metric_none; /* every field is absent */

#endif
