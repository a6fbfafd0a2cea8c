/* Runs cases on a table of any device, with guarded and shiftable buffers. A library of tests: asserts with cmocka. */
#ifndef DTD_TESTS_KERNELS_HARNESS_H
#define DTD_TESTS_KERNELS_HARNESS_H

#include "tests/kernels/values.h"

/* The device, kernels and stream that run a case; the caller owns the device. */
struct kernel_setup {
    struct dev *dev;
    const struct kern_ops *k;
    struct kern_stream *s;
};

void kernel_setup_init(struct kernel_setup *r, struct dev *d, const struct kern_ops *k, int threads);
void kernel_setup_fini(struct kernel_setup *r);

/* Makes one call on separate device memory. Every operand lies between guards of holes, which must be unchanged
 * afterwards. Outputs start as holes. `shift` moves pointers by different numbers of elements (0: multiples of 64
 * bytes). The case's alias is applied. Results of OUT and ACC replace those in `v`. `bits`, when not NULL, receives a
 * hash of all results. False, with a printed line, when a guard was overwritten or the device reports a failure. */
bool values_run(struct values *v, const struct kernel_setup *r, int shift, const struct kcase *c, uint64_t *bits);

/* The same on the float64 oracle, but without aliases. */
void oracle_run(struct values *v, const struct kcase *c);

struct cases_options {
    const char *op;     /* only the cases of this kernel; NULL: all */
    const char *label;  /* for messages; NULL: the table's name and type */
    int threads;        /* threads of a CPU stream */
    bool no_slow, tiny; /* skip SLOW cases; run only TINY cases */
    bool twice;         /* run each case twice and compare the bits */
};

/* Runs every case of the table that `o` selects (NULL: all) with kernels `k` on the device, against the oracle, on
 * values that k's types can represent. If device memory is host memory, all pointers are shifted, differently for each
 * case; on other devices only those of kernels that take ranges of shards. All failures are printed before the test
 * fails. Returns the number of cases. */
int cases_run(struct dev *d, const struct kern_ops *k, const struct cases_options *o);

#endif
