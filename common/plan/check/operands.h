/* The checker's table of operands: one row per op, one letter per operand. Private to common/plan/check. */
#ifndef DTD_COMMON_PLAN_CHECK_OPERANDS_H
#define DTD_COMMON_PLAN_CHECK_OPERANDS_H

#include "common/plan/program.h"

#define OPERAND_MAX_ALIASES 2

struct operand_rules {
    /* Number of elements: M m * n, K m * k, R m * n * k, T 2 n + 2 (numbers of a router), e n + 1, t m, n n, k k, s
     * one, o own tokens of m times n, 3 three per token, p three per token for each of k parts, g m of every member of
     * the group, b one per n elements of m, - not determined by the op. A and B: m rows of n elements, lda or ldb
     * apart. NULL: extent.c has a function for the op, whose operands have other strides. */
    const char *shape;
    /* Type of the elements: d program.dtype, w program.wide, e either of them, f float64, i int32, - any, = the type of
     * operand 0. */
    const char *type;
    /* Class of the operand's layout: t tokens by features, s one or some numbers per token, v a vector over features, g
     * the gradient of such a vector, i a value per token that may differ over tp. NULL: layout.c has a function for the
     * op, or the op does not change layouts. */
    const char *class;
    /* Pairs of operands that may share one buffer in this kernel. written 0: end of the list. */
    struct {
        int written, read;
    } alias[OPERAND_MAX_ALIASES];
};

extern const struct operand_rules check_operands[OP_KIND_COUNT];

#endif
