/* oneDNN's matmul for bfloat16, with prepared products. Private to kernels/.
 *
 * Preparing a product takes 0.2 to 16 ms (it generates machine code), so each stream keeps those that it has used. */
#ifndef DTD_KERNELS_MATMUL_H
#define DTD_KERNELS_MATMUL_H

#include "kernels/kernels.h"

/* Whether the processor multiplies bfloat16 itself (AVX512_BF16 or AMX) and oneDNN may use it. */
bool matmul_is_native(void);

/* x = op(A) op(B) + bias, or with `accumulate` x +=, all of bfloat16, or x of float32 with wide_c; sums are float32.
 * The stream's threads compute it. *ret_done is false, and nothing is written, if oneDNN has no fast code for the
 * product. Errors are logged. */
NODISCARD err_t matmul_run(struct kern_stream *s, const struct kern_gemm *g, void *x, bool *ret_done);

/* Frees the prepared products of a stream; NULL is allowed. */
struct matmul_cache;
void matmul_cache_free(struct matmul_cache *c);

#endif
