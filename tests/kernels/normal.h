/* kern_ops.normal against the loop that filled parameters before there was a kernel: one element at a time, its index
 * by a division for each dimension. Asserts by cmocka. */
#ifndef DTD_TESTS_KERNELS_NORMAL_H
#define DTD_TESTS_KERNELS_NORMAL_H

#include "kernels/kernels.h"

/* Boxes of a matrix, cut on either dimension and on both, with the rest of the memory untouched; on a stream with so
 * many threads. */
void normal_check_boxes(struct dev *d, const struct kern_ops *k, int threads);
/* Rows that lie more than 2^31 elements apart, in the processor's memory, which the device must reach. Skips the test
 * where the system does not lend so many addresses. */
void normal_check_far_rows(struct dev *d, const struct kern_ops *k);
/* The bits that float32 hides: fused multiply-adds, or a library's functions, would change them. */
void normal_check_doubles(struct dev *d, const struct kern_ops *k);

#endif
