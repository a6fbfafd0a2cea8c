/* What a device can do, measured through its own streams and kernels: the roof of bench_train. On a CPU one core's, by
 * peak.h; on a GPU a large product of the compute type and a large copy within its memory. Blocking. */
#ifndef DTD_TESTS_BENCH_PEAK_DEV_H
#define DTD_TESTS_BENCH_PEAK_DEV_H

#include "kernels/kernels.h"

struct peak_dev {
    char name[128];
    double gflops;         /* products */
    double gbs;            /* memory, read and written bytes both counted */
    double nominal_gflops; /* its maker's figure for dense products of the type, 0: not known here */
};

/* `side` is that of the square matrices on a GPU: 8192 is large enough for an H100's full rate. An emulated GPU, whose
 * rate means nothing, takes a small one. A CPU ignores it. */
NODISCARD err_t peak_dev_measure(struct dev *dev, enum dtype dtype, int side, struct peak_dev *ret, struct why *why);

#endif
