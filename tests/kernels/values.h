/* Contents of a case's operands, as the oracle sees them, and the comparison of two such sets. */
#ifndef DTD_TESTS_KERNELS_VALUES_H
#define DTD_TESTS_KERNELS_VALUES_H

#include "tests/kernels/ops.h"

/* Operands as the kernel finds them, in float64 or int32 (ids, targets). What a kernel left alone is a hole. */
struct values {
    struct operand o[MAX_OPERANDS];
    void *p[MAX_OPERANDS];
};

/* Contents of every IN and ACC operand, the same for the same case; for a gradient those of `from` are computed by the
 * float64 oracle's forward. `k`: only what its types can hold is left; NULL: all of float64. Asserts by cmocka. */
void values_init(struct values *v, const struct kcase *c, const struct kern_ops *k);
void values_copy(struct values *to, const struct values *from);
void values_fini(struct values *v);

/* Every output of `got` is near `want`'s, holes are holes in both. An element of type T may be off by
 * multiple eps32 sqrt(terms) max(|want|, rms(want), floor) + round(T) |want| + between round(dtype) max(..), where
 * round is the largest relative error of rounding to a type; with 0 terms it must be what want rounds to. The first
 * that is not is printed, unless `label` is NULL. */
bool values_near(const struct values *got, const struct values *want, const struct kern_ops *k, const struct kcase *c,
                 const char *label);

const char *case_text(const struct kcase *c);
enum dtype operand_type(const struct operand *o, const struct kern_ops *k);
/* Memory's form of an element and back; of a hole a hole. */
void element_put(enum dtype t, void *to, double x);
double element_get(enum dtype t, const void *from);
void hole_put(size_t size, void *to);
bool hole_is(size_t size, const void *p);

#endif
