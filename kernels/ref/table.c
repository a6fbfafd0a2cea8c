/* The two tables of the reference kernels. */
#include "kernels/ref/ref.h"

const struct kern_ops KERN_FN(ops) = KERN_TABLE("ref", KERN_REF_BITS == 32 ? DT_F32 : DT_F64,
                                                KERN_REF_BITS == 32 ? DT_F32 : DT_F64);
