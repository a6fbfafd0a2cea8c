/* Contents of a case's operands for the oracle, and the comparison of two such sets. */
#ifndef DTD_TESTS_KERNELS_VALUES_H
#define DTD_TESTS_KERNELS_VALUES_H

#include "tests/kernels/ops.h"

/* Operands before or after the call, in float64 or int32 (ids, rows, offsets). Elements that the kernel did not write
 * are holes. */
struct values {
    struct case_operand o[MAX_OPERANDS];
    void *p[MAX_OPERANDS];
};

/* Fills every IN and ACC operand, always the same for the same case; for a gradient the float64 oracle computes the
 * forward's results. `k`: values are rounded to its types; NULL: full float64. Asserts with cmocka. */
void values_init(struct values *v, const struct kcase *c, const struct kern_ops *k);
void values_copy(struct values *to, const struct values *from);
void values_fini(struct values *v);

/* Checks that every output of `got` is near that of `want`, and that holes are holes in both. An element of type T may
 * have an error of multiple eps32 sqrt(terms) max(|want|, rms(want), floor) + round(T) |want| + between round(dtype)
 * max(..), where round is the largest relative error of rounding to a type; with 0 terms it must equal `want` rounded.
 * Integers must be equal. Prints the first element that is not near, unless `label` is NULL. */
bool values_near(const struct values *got, const struct values *want, const struct kern_ops *k, const struct kcase *c,
                 const char *label);

const char *case_text(const struct kcase *c);
enum dtype operand_type(const struct case_operand *o, const struct kern_ops *k);
/* Converts an element to and from its type in memory; a hole stays a hole. */
void element_put(enum dtype t, void *to, double x);
double element_get(enum dtype t, const void *from);
void hole_put(size_t size, void *to);
bool hole_is(size_t size, const void *p);

#endif
