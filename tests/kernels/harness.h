/* Runs cases on a table of any device, with guarded and shiftable buffers. A library of tests: asserts by cmocka. */
#ifndef DTD_TESTS_KERNELS_HARNESS_H
#define DTD_TESTS_KERNELS_HARNESS_H

#include "tests/kernels/values.h"

/* Where a case runs; the caller owns the device. */
struct kernel_setup {
    struct dev *dev;
    const struct kern_ops *k;
    struct kern_stream *s;
};

void kernel_setup_init(struct kernel_setup *r, struct dev *d, const struct kern_ops *k, int threads);
void kernel_setup_fini(struct kernel_setup *r);

/* One call on its own device memory: every operand between guards of holes, which must be there afterwards; outputs
 * start as holes; pointers lie `shift`-dependent numbers of elements further (0: at multiples of 64 bytes); the case's
 * alias applied. Results of OUT and ACC replace those in `v`. `bits`, when not NULL, is a hash of all results. False
 * with a line printed when a guard was written or the device reports a failure. */
bool values_run(struct values *v, const struct kernel_setup *r, int shift, const struct kcase *c, uint64_t *bits);

/* The same on the float64 oracle, as the case says but with all operands apart. */
void oracle_run(struct values *v, const struct kcase *c);

struct cases_options {
    const char *op;     /* only this kernel's; NULL: all */
    const char *label;  /* for messages; NULL: the table's name and type */
    int threads;        /* of a CPU stream */
    bool no_slow, tiny; /* without the cases that are SLOW; only those that are TINY */
    bool twice;         /* and again, for the same bits */
};

/* Every case of the table that `o` asks for (NULL: all) on `k` of the device, against the oracle on values that k's
 * types can hold. On devices whose memory is the processor's all pointers are shifted differently case by case, on
 * others those of kernels that take ranges of shards. All failures are printed before the test fails. Returns how many
 * cases ran. */
int cases_run(struct dev *d, const struct kern_ops *k, const struct cases_options *o);

#endif
