/* Small products for attention: the operands are already in cache and have at most a few hundred rows. oneDNN would
 * pack them first and cannot skip the masked part of a causal product. Packing widens elements to float32. Private to
 * kernels/cpu. */
#ifndef DTD_KERNELS_CPU_TILE_H
#define DTD_KERNELS_CPU_TILE_H

#include "kernels/cpu/cpu.h"

#define TILE_ROWS 6 /* the sums of a full tile take 6 x 4 of 32 registers (AVX-512), or 6 x 2 of 16 */
#define TILE_VECTORS (VF == 16 ? 4 : 2)
#define TILE_AHEAD 12             /* rows that packing prefetches ahead */
#define PANEL (TILE_VECTORS * VF) /* columns of a packed panel */

/* Prefetches a row for reading (0) or writing (1). Rows of one head are about a page apart, too far for the hardware to
 * predict. Prefetching beyond the last row is harmless. */
static ALWAYS_INLINE void tile_expect_row(const elem *row, int64_t width, const int write)
{
    for (int64_t j = 0; j < width; j += 64 / (int64_t)sizeof(elem))
        if (write)
            __builtin_prefetch(row + j, 1); /* clang requires a literal */
        else
            __builtin_prefetch(row + j, 0);
}

/* c[rows, vectors * VF] (= | +=) a[rows, k] b[k, vectors * VF], 1 <= rows <= TILE_ROWS, 1 <= vectors <= TILE_VECTORS.
 * a[i, l] is at a + i * a_row + l * a_step, so that a transposed a needs no copy. Sums run over l ascending. */
void KERN_FN(tile)(int rows, int vectors, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                   int64_t b_row, float *c, int64_t c_row, bool add);

/* The same for any m and any number of vectors. */
void KERN_FN(tile_block)(int64_t m, int64_t vectors, int64_t k, const float *a, int64_t a_row, int64_t a_step,
                         const float *b, int64_t b_row, float *c, int64_t c_row, bool add);

/* Transposes rows into columns: to[panel][d][PANEL] = from[panel * PANEL + j][d], d < width; rows beyond n are zero.
 * `to` has space for whole panels. */
void KERN_FN(tile_pack_transposed)(int64_t n, int64_t width, const elem *from, int64_t stride, float *to);

/* to[n][padded] = from[n][width], the rest zero */
void KERN_FN(tile_pack_rows)(int64_t n, int64_t width, int64_t padded, const elem *from, int64_t stride, float *to);

#endif
