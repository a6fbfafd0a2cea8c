/* The table of one instruction set. */
#include "kernels/cpu/cpu.h"

const struct kern_ops KERN_FN(ops) = KERN_TABLE("cpu", DT_F32, DT_F32);
