/* The measured peak rates of a device through its own streams and kernels, for bench_train. On a CPU they are one
 * core's, by peak.h. On a GPU they are those of a large product of the compute type and of a large copy within its
 * memory. Blocking. */
#ifndef DTD_TESTS_BENCH_PEAK_DEV_H
#define DTD_TESTS_BENCH_PEAK_DEV_H

#include "kernels/kernels.h"

struct peak_dev {
    char name[128];
    double gflops;         /* of products */
    double gbs;            /* of memory, counting both read and written bytes */
    double nominal_gflops; /* the vendor's figure for dense products of the type; 0: not in the table */
};

/* `side` is the side of the square matrices on a GPU. 8192 is large enough for an H100's full rate. An emulated GPU,
 * whose rate is meaningless, gets a small one. A CPU ignores it. */
NODISCARD err_t peak_dev_measure(struct dev *dev, enum dtype dtype, int side, struct peak_dev *ret, struct why *why);

#endif
