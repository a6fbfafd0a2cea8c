/* Small products for attention: operands that are in cache already, at most a few hundred rows. oneDNN would pack them
 * first and knows nothing of a causal mask's edge. Private to kernels/cpu. */
#ifndef DTD_KERNELS_CPU_TILE_H
#define DTD_KERNELS_CPU_TILE_H

#include "kernels/cpu/cpu.h"

#define TILE_ROWS 6 /* sums of a full tile: 6 x 4 of 32 registers (AVX-512), 6 x 2 of 16 (else) */
#define TILE_VECTORS (VF == 16 ? 4 : 2)
#define TILE_AHEAD 12             /* rows: how far packing prefetches */
#define PANEL (TILE_VECTORS * VF) /* columns of a packed panel */

/* Rows of one head lie a page or so apart, too far for the hardware to see them coming: asks for one, to be read (0) or
 * written (1). Rows beyond the last do no harm. */
static ALWAYS_INLINE void tile_expect_row(const float *row, int64_t width, const int write)
{
    for (int64_t j = 0; j < width; j += 16)
        if (write)
            __builtin_prefetch(row + j, 1); /* clang wants a literal */
        else
            __builtin_prefetch(row + j, 0);
}

/* c[rows, vectors * VF] (= | +=) a[rows, k] b[k, vectors * VF], 1 <= rows <= TILE_ROWS, 1 <= vectors <= TILE_VECTORS.
 * a[i, l] is at a + i * a_row + l * a_step, so that a transposed a needs no copy. Sums run over l ascending. */
void KERN_FN(tile)(int rows, int vectors, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                   int64_t b_row, float *c, int64_t c_row, bool add);

/* The same for any m and number of vectors. */
void KERN_FN(tile_block)(int64_t m, int64_t vectors, int64_t k, const float *a, int64_t a_row, int64_t a_step,
                         const float *b, int64_t b_row, float *c, int64_t c_row, bool add);

/* Rows become columns: to[panel][d][PANEL] = from[panel * PANEL + j][d], d < width; rows beyond n are zero. `to` has
 * room for whole panels. */
void KERN_FN(tile_pack_transposed)(int64_t n, int64_t width, const float *from, int64_t stride, float *to);

/* to[n][padded] = from[n][width], the rest zero */
void KERN_FN(tile_pack_rows)(int64_t n, int64_t width, int64_t padded, const float *from, int64_t stride, float *to);

#endif
