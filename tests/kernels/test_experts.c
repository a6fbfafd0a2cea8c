/* A row of a product by expert has the same bits whatever rows stand beside it, on every instruction set; the order of
 * rows that arrive is that of a general sort. */
#include "common/base/rng.h"
#include "kernels/variants.h"
#include "tests/kernels/values.h"
#include "tests/lib/test.h"

enum { ROWS = 512 };

static char *numbers_new(enum dtype type, int64_t n, uint64_t stream)
{
    const size_t size = dtype_bytes(type);
    char *x = aligned_alloc(64, ((size_t)n * size + 64) / 64 * 64);
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        element_put(type, x + (size_t)i * size, rng_normal(3, stream, (uint64_t)i));
    return x;
}

static void check_rows(const struct kern_ops *k, const char *isa, int threads, bool trans_b, int64_t n, int64_t terms)
{
    const int64_t size = (int64_t)dtype_bytes(k->dtype);
    struct dev *d;
    struct kern_stream *s;
    assert_ok(dev_open("cpu", 0, &d, NULL));
    assert_ok(dev_stream_new(d, threads, false, &s, NULL));
    char *a = numbers_new(k->dtype, ROWS * terms, 1), *b = numbers_new(k->dtype, n * terms, 2);
    char *all = numbers_new(k->dtype, ROWS * n, 3), *some = numbers_new(k->dtype, ROWS * n, 4);
    int32_t offsets[2] = {0, ROWS};
    struct kern_grouped g = {.trans_b = trans_b,
                             .experts = 1,
                             .rows = ROWS,
                             .n = n,
                             .k = terms,
                             .offsets = offsets,
                             .a = a,
                             .b = b,
                             .c = all};
    assert_ok(k->grouped_gemm(s, &g));
    for (int64_t rows = 1; rows < ROWS; rows += rows < 40 || n * terms < 1000 ? 1 : 47) {
        int64_t first = (ROWS - rows) / 2;
        offsets[1] = (int32_t)rows;
        g.a = a + first * terms * size;
        g.c = some;
        assert_ok(k->grouped_gemm(s, &g));
        if (memcmp(some, all + first * n * size, (size_t)(rows * n * size)) != 0)
            fail_msg("%s %s, %d threads, n=%lld k=%lld: %lld rows have other bits alone", dtype_name(k->dtype), isa,
                     threads, (long long)n, (long long)terms, (long long)rows);
    }
    free(a);
    free(b);
    free(all);
    free(some);
    dev_stream_free(s);
    dev_close(d);
}

TEST(rows_do_not_depend_on_their_neighbours)
{
    static const int64_t sizes[][2] = {{1, 1}, {7, 5}, {100, 300}, {512, 1024}, {33, 2500}};
    const struct kern_ops *k;
    const char *isa;
    for (int i = 0; (k = kern_variant(i, &isa)); i++)
        for (size_t j = 0; strcmp(k->name, "cpu") == 0 && j < sizeof(sizes) / sizeof(sizes[0]); j++)
            for (int way = 0; way < 4; way++)
                check_rows(k, isa, way / 2 ? 3 : 1, way % 2, sizes[j][0], sizes[j][1]);
}

/* ---- rows that arrive ---- */

enum { MEMBERS = 4, EXPERTS = 9, MOST = 40 };

/* A home row of a member; `at`: its place among the rows that arrive. */
struct sent_row {
    int32_t expert, member, home, at;
};

static int by_expert(const void *a, const void *b)
{
    const struct sent_row *x = a, *y = b;
    if (x->expert != y->expert)
        return x->expert - y->expert;
    return x->member != y->member ? x->member - y->member : x->home - y->home;
}

/* The expert of each home row of a member, ascending. Returns how many there are. */
static int32_t draw_home_rows(int member, int round, int32_t experts[MOST])
{
    int32_t n = 0, rows = (int32_t)(rng_uniform(5, (uint64_t)round, (uint64_t)member) * MOST);
    for (int32_t e = 0; e < EXPERTS; e++)
        for (int i = 0; i < MOST && n < rows; i++)
            if (rng_uniform(6, (uint64_t)(round * MEMBERS + member), (uint64_t)(e * MOST + i)) < 0.15)
                experts[n++] = e;
    return n;
}

struct arrival {
    int32_t all[MEMBERS * (EXPERTS + 1)], sources[MEMBERS * MOST], base[MEMBERS];
    struct sent_row row[MEMBERS * MOST];
    int n; /* rows for the experts [lo, hi) */
};

static void draw_arrival(struct arrival *a, int round, int lo, int hi)
{
    int32_t base = 0;
    *a = (struct arrival){.n = 0};
    for (int i = 0; i < MEMBERS; i++) {
        int32_t experts[MOST], n = draw_home_rows(i, round, experts);
        a->base[i] = base;
        for (int32_t h = 0; h < n; h++) {
            for (int e = experts[h] + 1; e <= EXPERTS; e++)
                a->all[i * (EXPERTS + 1) + e]++;
            a->sources[base + h] = (h * 7 + 3) % n;
            if (experts[h] >= lo && experts[h] < hi) {
                a->row[a->n] = (struct sent_row){experts[h], i, h, a->n};
                a->n++;
            }
        }
        base += n;
    }
    qsort(a->row, (size_t)a->n, sizeof(a->row[0]), by_expert);
}

static void check_arrival(const struct kern_ops *k, int round, int lo, int hi)
{
    static struct arrival a;
    int32_t index[MEMBERS * MOST], inverse[MEMBERS * MOST], choices[MEMBERS * MOST], offsets[EXPERTS + 1];
    struct dev *d;
    struct kern_stream *s;
    assert_ok(dev_open("cpu", 0, &d, NULL));
    assert_ok(dev_stream_new(d, 1, false, &s, NULL));
    draw_arrival(&a, round, lo, hi);
    const struct kern_arrive call = {.members = MEMBERS,
                                     .experts = EXPERTS,
                                     .lo = lo,
                                     .hi = hi,
                                     .all = a.all,
                                     .sources = a.sources,
                                     .index = index,
                                     .inverse = inverse,
                                     .offsets = offsets,
                                     .choices = choices};
    k->arrive(s, &call);
    for (int r = 0; r < a.n; r++) {
        const struct sent_row *x = &a.row[r];
        assert_int_equal(index[r], x->at);
        assert_int_equal(inverse[x->at], r);
        assert_int_equal(choices[r], a.base[x->member] + a.sources[a.base[x->member] + x->home]);
        assert_true(offsets[x->expert - lo] <= r && r < offsets[x->expert + 1 - lo]);
    }
    assert_int_equal(offsets[0], 0);
    assert_int_equal(offsets[hi - lo], a.n);
    dev_stream_free(s);
    dev_close(d);
}

TEST(rows_arrive_in_the_order_of_a_general_sort)
{
    const struct kern_ops *tables[] = {kern_find("ref", DT_F64), kern_find("cpu", DT_F32)};
    for (int t = 0; t < 2; t++)
        for (int round = 0; tables[t] && round < 50; round++)
            check_arrival(tables[t], round, round % 3 * 3, round % 3 * 3 + (round % 2 ? 3 : 1));
}
