/* One of the module's two tables; compiled once per type. */
#include "kernels/cuda/cuda.h"

const struct kern_ops KERN_FN(ops) = KERN_TABLE("cuda", CUDA_DTYPE, DT_F32);
