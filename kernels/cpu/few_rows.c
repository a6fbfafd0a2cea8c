/* Products with few rows of A, as in the generation of text: y = x W for one token, or for one of each of some
 * sequences. Such a product does almost no arithmetic for each byte of W, so its time is that of reading W, and every
 * part of W must be read once and in long runs. oneDNN packs W first, which takes several times as long.
 *
 *   W stored as [n, k]    a thread has some rows of W; several rows are multiplied at a time, each with all rows of x
 *   W stored as [k, n]    a thread has some columns; several rows of W at a time are added to sums in the first-level
 *                         cache
 *
 * The sum of an element runs over k in one order, which depends neither on the threads nor on the other rows of x: a
 * sequence gets the same bits whatever sequences are computed beside it. */
#include "kernels/cpu/cpu.h"

#define MOST_ROWS 8
#define SUMS 4096      /* floats of the sums of a thread: 16 KiB, half of a first-level cache */
#define GROUP 8        /* rows of a [k, n] matrix that are added at a time: as many streams as a core prefetches */
#define PART (1 << 15) /* elements of W that are worth a thread */

struct few {
    int64_t m, n, k, lda, ldb, ldc;
    const elem *x, *w, *bias;
    elem *y;
};

bool KERN_FN(has_few_rows)(const struct kern_gemm *g)
{
    return g->few && g->m <= MOST_ROWS && !g->trans_a && !g->accumulate && !g->wide_c;
}

static float biased(const struct few *a, int64_t j, float sum)
{
    return a->bias ? sum + e_value(a->bias[j]) : sum;
}

/* ---- W stored as [n, k] ---- */

/* Elements (i, j) of `rows` rows of x and `columns` rows of W; both are constants where this is inlined. */
static ALWAYS_INLINE void dots(const struct few *a, const int rows, const int columns, int64_t i, int64_t j)
{
    vf sum[MOST_ROWS][4];
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            sum[r][c] = (vf){0};
    for (int64_t l = 0; l < a->k; l += VF) {
        vf w[4];
        for (int c = 0; c < columns; c++)
            w[c] = e_load_part(a->w + (j + c) * a->ldb, l, a->k);
        for (int r = 0; r < rows; r++) {
            const vf x = e_load_part(a->x + (i + r) * a->lda, l, a->k);
            for (int c = 0; c < columns; c++)
                sum[r][c] = v_fma(x, w[c], sum[r][c]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++)
            a->y[(i + r) * a->ldc + j + c] = e_of(biased(a, j + c, v_sum(sum[r][c])));
}

static ALWAYS_INLINE void dots_of_columns(const struct few *a, const int columns, int64_t j)
{
    int64_t i = 0;
    for (; i + 4 <= a->m; i += 4)
        dots(a, 4, columns, i, j);
    for (; i < a->m; i++)
        dots(a, 1, columns, i, j);
}

static void by_rows_of_w(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct few *a = arg;
    int64_t j = lo;
    for (; j + 4 <= hi; j += 4)
        dots_of_columns(a, 4, j);
    for (; j < hi; j++)
        dots_of_columns(a, 1, j);
}

/* ---- W stored as [k, n] ---- */

/* sum[0..n) += x times `group` rows of W; `group` is a constant where this is inlined. */
static ALWAYS_INLINE void add_group(const int group, const elem *x, const elem *w, int64_t ldw, int64_t n,
                                    float *restrict sum)
{
    vf factor[GROUP];
    for (int r = 0; r < group; r++)
        factor[r] = v_set(e_value(x[r]));
    for (int64_t j = 0; j < n; j += VF) {
        vf y = v_load(sum + j);
        for (int r = 0; r < group; r++)
            y = v_fma(factor[r], e_load_part(w + r * ldw, j, n), y);
        v_store(sum + j, y);
    }
}

/* Columns [lo, lo + n) of all rows of x; the sums of a row take up whole vectors. */
static void add_columns(const struct few *a, int64_t lo, int64_t n)
{
    float sum[SUMS] __attribute__((aligned(64)));
    const int64_t pitch = (n + VF - 1) / VF * VF;
    memset(sum, 0, (size_t)(a->m * pitch) * sizeof(*sum));
    int64_t l = 0;
    for (; l + GROUP <= a->k; l += GROUP)
        for (int64_t i = 0; i < a->m; i++)
            add_group(GROUP, a->x + i * a->lda + l, a->w + l * a->ldb + lo, a->ldb, n, sum + i * pitch);
    for (; l < a->k; l++)
        for (int64_t i = 0; i < a->m; i++)
            add_group(1, a->x + i * a->lda + l, a->w + l * a->ldb + lo, a->ldb, n, sum + i * pitch);
    for (int64_t i = 0; i < a->m; i++)
        for (int64_t j = 0; j < n; j++)
            a->y[i * a->ldc + lo + j] = e_of(biased(a, lo + j, sum[i * pitch + j]));
}

static void by_columns_of_w(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct few *a = arg;
    const int64_t most = SUMS / a->m / VF * VF;
    for (int64_t j = lo; j < hi; j += most)
        add_columns(a, j, hi - j < most ? hi - j : most);
}

void KERN_FN(few_rows)(struct kern_stream *s, const struct kern_gemm *g, void *y)
{
    struct few a = {g->m, g->n, g->k, g->lda, g->ldb, g->ldc, g->a, g->b, g->bias, y};
    const int64_t grain = 1 + PART / g->k;
    kern_stream_run(s, g->n, grain, g->trans_b ? by_rows_of_w : by_columns_of_w, &a);
}
