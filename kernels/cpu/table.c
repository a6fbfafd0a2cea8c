/* The table of one instruction set and type. */
#include "kernels/cpu/cpu.h"

const struct kern_ops KERN_FN(ops) = KERN_TABLE("cpu", KERN_CPU_BITS == 32 ? DT_F32 : DT_BF16, DT_F32);
