/* See tile.h. One loop is compiled for every number of rows and vectors, so that all sums stay in registers. */
#include "kernels/cpu/tile.h"

#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif

static ALWAYS_INLINE void tile_of(const int rows, const int vectors, int64_t k, const float *a, int64_t a_row,
                                  int64_t a_step, const float *b, int64_t b_row, float *c, int64_t c_row, bool add)
{
    vf sum[TILE_ROWS][TILE_VECTORS];
    UNROLLED for (int i = 0; i < rows; i++) UNROLLED for (int j = 0; j < vectors; j++) sum[i][j] =
        add ? v_load(c + i * c_row + j * VF) : (vf){0};
    for (int64_t l = 0; l < k; l++, a += a_step, b += b_row) {
        vf column[TILE_VECTORS];
        UNROLLED for (int j = 0; j < vectors; j++) column[j] = v_load(b + j * VF);
        UNROLLED for (int i = 0; i < rows; i++)
        {
            vf x = v_set(a[i * a_row]);
            UNROLLED for (int j = 0; j < vectors; j++) sum[i][j] = v_fma(x, column[j], sum[i][j]);
        }
    }
    UNROLLED for (int i = 0; i < rows; i++) UNROLLED for (int j = 0; j < vectors; j++)
        v_store(c + i * c_row + j * VF, sum[i][j]);
}

typedef void tile_fn(int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b, int64_t b_row, float *c,
                     int64_t c_row, bool add);

#define TILE(rows, vectors)                                                                                       \
    static void tile_##rows##_##vectors(int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b, \
                                        int64_t b_row, float *c, int64_t c_row, bool add)                         \
    {                                                                                                             \
        tile_of(rows, vectors, k, a, a_row, a_step, b, b_row, c, c_row, add);                                     \
    }
#if VF == 16
#define TILE_EACH(rows) TILE(rows, 1) TILE(rows, 2) TILE(rows, 3) TILE(rows, 4)
#define TILE_NAMES(rows)                                                   \
    {                                                                      \
        tile_##rows##_1, tile_##rows##_2, tile_##rows##_3, tile_##rows##_4 \
    }
#else
#define TILE_EACH(rows) TILE(rows, 1) TILE(rows, 2)
#define TILE_NAMES(rows)                 \
    {                                    \
        tile_##rows##_1, tile_##rows##_2 \
    }
#endif
TILE_EACH(1)
TILE_EACH(2)
TILE_EACH(3)
TILE_EACH(4)
TILE_EACH(5)
TILE_EACH(6)

static tile_fn *const tiles[TILE_ROWS][TILE_VECTORS] = {TILE_NAMES(1), TILE_NAMES(2), TILE_NAMES(3),
                                                        TILE_NAMES(4), TILE_NAMES(5), TILE_NAMES(6)};

void KERN_FN(tile)(int rows, int vectors, int64_t k, const float *a, int64_t a_row, int64_t a_step, const float *b,
                   int64_t b_row, float *c, int64_t c_row, bool add)
{
    tiles[rows - 1][vectors - 1](k, a, a_row, a_step, b, b_row, c, c_row, add);
}

void KERN_FN(tile_block)(int64_t m, int64_t vectors, int64_t k, const float *a, int64_t a_row, int64_t a_step,
                         const float *b, int64_t b_row, float *c, int64_t c_row, bool add)
{
    for (int64_t i = 0; i < m; i += TILE_ROWS)
        for (int64_t j = 0; j < vectors; j += TILE_VECTORS) {
            int rows = (int)(m - i < TILE_ROWS ? m - i : TILE_ROWS);
            int wide = (int)(vectors - j < TILE_VECTORS ? vectors - j : TILE_VECTORS);
            tiles[rows - 1][wide - 1](k, a + i * a_row, a_row, a_step, b + j * VF, b_row, c + i * c_row + j * VF, c_row,
                                      add);
        }
}

#if VF == 16
/* Swaps halves, then quarters and so on, between rows that are the same distance apart. */
static ALWAYS_INLINE void transpose(vf row[VF])
{
    const vi lane = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    UNROLLED for (int size = VF / 2; size; size /= 2)
    {
        vi low = lane + (((lane & size) != 0) & (VF - size)), high = low + size;
        UNROLLED for (int i = 0; i < VF; i++)
        {
            if (i & size)
                continue;
            __m512 x = (__m512)row[i], y = (__m512)row[i + size];
            row[i] = (vf)_mm512_permutex2var_ps(x, (__m512i)low, y);
            row[i + size] = (vf)_mm512_permutex2var_ps(x, (__m512i)high, y);
        }
    }
}

/* Packs a square of VF rows and columns. */
static void pack_square(const elem *from, int64_t stride, float *to)
{
    vf row[VF];
    UNROLLED for (int i = 0; i < VF; i++) row[i] = e_load(from + i * stride);
    transpose(row);
    UNROLLED for (int i = 0; i < VF; i++) v_store(to + i * PANEL, row[i]);
}
#else
static void pack_square(const elem *from, int64_t stride, float *to)
{
    for (int i = 0; i < VF; i++)
        for (int j = 0; j < VF; j++)
            to[j * PANEL + i] = e_value(from[i * stride + j]);
}
#endif

/* Packs VF columns of a panel, of whose source rows only `rows` exist. */
static void pack_columns(int64_t rows, int64_t width, const elem *from, int64_t stride, float *to)
{
    int64_t d = 0;
    for (; rows >= VF && d + VF <= width; d += VF)
        pack_square(from + d, stride, to + d * PANEL);
    for (; d < width; d++)
        for (int64_t j = 0; j < VF; j++)
            to[d * PANEL + j] = j < rows ? e_value(from[j * stride + d]) : 0;
}

void KERN_FN(tile_pack_transposed)(int64_t n, int64_t width, const elem *from, int64_t stride, float *to)
{
    for (int64_t first = 0; first < n; first += PANEL, to += width * PANEL)
        for (int64_t j = 0; j < PANEL; j += VF) {
            for (int64_t i = 0; i < VF; i++)
                tile_expect_row(from + (first + j + VF + i) * stride, width, 0);
            pack_columns(n - first - j, width, from + (first + j) * stride, stride, to + j);
        }
}

void KERN_FN(tile_pack_rows)(int64_t n, int64_t width, int64_t padded, const elem *from, int64_t stride, float *to)
{
    for (int64_t i = 0; i < n; i++, from += stride, to += padded) {
        tile_expect_row(from + TILE_AHEAD * stride, width, 0);
        e_widen_row(width, from, to);
        memset(to + width, 0, (size_t)(padded - width) * sizeof(float));
    }
}
