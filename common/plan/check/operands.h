/* The checker's table of operands: one row per op, one letter per operand. Private to common/plan/check. */
#ifndef DTD_COMMON_PLAN_CHECK_OPERANDS_H
#define DTD_COMMON_PLAN_CHECK_OPERANDS_H

#include "common/plan/program.h"

#define OPERAND_MAX_ALIASES 2

struct operand_rules {
    /* Number of elements: M m * n, t m, n n, k k, s one, o own tokens of m times n, 3 three a token, p the same of k
     * parts, g m of every member of the group, b a block per n of m, - not known from the op; A and B m rows of n, lda
     * or ldb apart. NULL: extent.c has a function for the op, whose operands have other strides. */
    const char *shape;
    /* Type of the elements: d program.dtype, w program.wide, e either, f float64, i int32, - any, = that of operand 0.
     */
    const char *type;
    /* t tokens by features, s a number or some per token, v a vector over features, g the gradient of one, i tokens of
     * which tp does not matter. NULL: layout.c has a function for the op, or the op leaves layouts alone. */
    const char *class;
    /* Pairs of operands that the kernel lets lie on one buffer. written 0: no pair. */
    struct {
        int written, read;
    } alias[OPERAND_MAX_ALIASES];
};

extern const struct operand_rules check_operands[OP_KIND_COUNT];

#endif
