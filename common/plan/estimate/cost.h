/* A lower bound of the work of an op. Pure. */
#ifndef DTD_COMMON_PLAN_ESTIMATE_COST_H
#define DTD_COMMON_PLAN_ESTIMATE_COST_H

#include "common/plan/program.h"

/* The least work of an op on a microbatch of `samples`: floating-point operations of its matmuls (attention: of the
 * pairs that the mask leaves, five matmuls backward), and the bytes of its operands, each moved once (twice where it is
 * added to). A kernel that computes or reads something twice does more than this. */
struct op_cost {
    double flops, bytes;
};
void plan_op_cost(const struct program *p, const struct op *op, int64_t samples, struct op_cost *ret);

#endif
