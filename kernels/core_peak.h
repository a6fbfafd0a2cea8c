/* The measured peak rate of one core of this processor. Blocking, on the calling thread. */
#ifndef DTD_KERNELS_CORE_PEAK_H
#define DTD_KERNELS_CORE_PEAK_H

#include "common/base/dtype.h"

/* Fused multiply-adds of the widest vectors, each counted as two operations, per second: the best of `tries` loops of
 * one or two milliseconds, because the machine may be shared. bfloat16: pairs of them with AVX512_BF16, else as
 * float32. AMX is not measured. */
double kern_core_flops(enum dtype dtype, int tries);
/* The loop of float32 once; returns its operations. */
double kern_core_loop(void);

#endif
