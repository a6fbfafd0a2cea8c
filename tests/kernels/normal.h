/* Compares kern_ops.normal with a loop that computes one element at a time and finds its index by a division for each
 * dimension. Asserts with cmocka. */
#ifndef DTD_TESTS_KERNELS_NORMAL_H
#define DTD_TESTS_KERNELS_NORMAL_H

#include "kernels/kernels.h"

/* Boxes of a matrix, cut along one dimension or both; the rest of the memory must not change. The stream has `threads`
 * threads. */
void normal_check_boxes(struct dev *d, const struct kern_ops *k, int threads);
/* Rows that are more than 2^31 elements apart, in host memory, which the device must be able to access. Skips the test
 * if the system does not provide so many addresses. */
void normal_check_far_rows(struct dev *d, const struct kern_ops *k);
/* The bits that float32 hides: fused multiply-adds or a library's functions would change them. */
void normal_check_doubles(struct dev *d, const struct kern_ops *k);

#endif
