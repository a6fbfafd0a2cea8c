/* Runs a case on a table with guarded, shiftable buffers. Used by the tests of kernels/ only; asserts by cmocka. */
#ifndef DTD_TESTS_KERNELS_HARNESS_H
#define DTD_TESTS_KERNELS_HARNESS_H

#include "tests/kernels/ops.h"

/* Operands as the kernel finds them, in float64 (reals), int32 (ids, targets) or float64 (doubles). */
struct values {
    struct operand o[MAX_OPERANDS];
    void *p[MAX_OPERANDS];
};

/* Contents of every IN and ACC operand, the same for the same case; for a gradient those of `from` are computed by the
 * float64 oracle's forward. `round` leaves only what float32 can hold. */
void values_init(struct values *v, const struct kcase *c, bool round);
void values_copy(struct values *to, const struct values *from);
void values_fini(struct values *v);

/* One call on its own copies: every operand between guards of NaNs, which must be there afterwards; outputs start as
 * NaNs; pointers shifted by multiples of 4 (8) bytes that depend on `shift`; the case's alias applied. Results of OUT
 * and ACC replace those in `v`, as float64; what a kernel left alone stays a NaN of HOLE's payload. `bits`, when not
 * NULL, is a hash of all results. */
void values_run(struct values *v, const struct kern_ops *k, int threads, int shift, const struct kcase *c,
                uint64_t *bits);

/* |got - want| <= multiple eps32 sqrt(terms) max(|want|, rms(want), floor) for every output; holes must be holes in
 * both. */
void values_compare(const struct values *got, const struct values *want, double multiple, const struct kcase *c,
                    const char *backend);

const char *case_text(const struct kcase *c);

#endif
