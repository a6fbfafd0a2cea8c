/* A row of a product by expert has the same bits whatever rows stand beside it, on every instruction set. */
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
