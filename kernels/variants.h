/* All compiled tables that this processor can run, for tests and benchmarks that need more than kern_find's choice. */
#ifndef DTD_KERNELS_VARIANTS_H
#define DTD_KERNELS_VARIANTS_H

#include "kernels/kernels.h"

/* The index-th runnable table, best first within a name; NULL after the last. isa: "avx512", "avx2", "base"; for
 * bfloat16 also "native", whose products use the processor's own instructions; "" for ref. */
const struct kern_ops *kern_variant(int index, const char **ret_isa);

#endif
