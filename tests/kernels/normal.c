/* See normal.h. */
#include "tests/kernels/normal.h"
#include "common/base/box.h"
#include "common/base/rng.h"
#include "tests/kernels/values.h"
#include "tests/lib/test.h"

#include <sys/mman.h>

#define SEED 0x9e3779b97f4a7c15u
#define STREAM 0x7f4a7c159e3779b9u
#define STD 0.02
#define UNTOUCHED 0xa5

/* The value of element `at` of the box, of a tensor with the extents dim. */
static double value_of(const struct box *b, const int64_t dim[2], int64_t at)
{
    int64_t index = 0, stride = 1;
    for (int d = b->ndim - 1; d >= 0; d--) {
        index += (b->offset[d] + at % b->size[d]) * stride;
        at /= b->size[d];
        stride *= dim[d];
    }
    return STD * rng_normal(SEED, STREAM, (uint64_t)index);
}

static bool is_value(enum dtype t, const uint8_t *at, double want)
{
    return element_get(t, at) == (t == DT_F64 ? want : (double)(float)want);
}

static struct kern_normal call_of(const struct box *b, const int64_t dim[2], int64_t stride, void *y)
{
    return (struct kern_normal){.rows = b->size[0],
                                .n = b->size[1],
                                .stride = stride,
                                .cols = dim[1],
                                .first = (uint64_t)(b->offset[0] * dim[1] + b->offset[1]),
                                .seed = SEED,
                                .stream = STREAM,
                                .std = STD,
                                .y = y};
}

static void check_image(const struct kern_ops *k, int threads, const struct box *b, const int64_t dim[2],
                        int64_t stride, const uint8_t *image)
{
    const size_t size = dtype_bytes(k->wide);
    for (int64_t i = 0; i < b->size[0] * stride; i++) {
        int64_t row = i / stride, col = i % stride;
        const uint8_t *at = image + (size_t)i * size;
        bool good = col < b->size[1] ? is_value(k->wide, at, value_of(b, dim, row * b->size[1] + col))
                                     : at[0] == UNTOUCHED && memcmp(at, at + 1, size - 1) == 0;
        if (!good)
            fail_msg("%s %s, %d threads: box %lld+%lld, %lld+%lld: row %lld column %lld", k->name, dtype_name(k->dtype),
                     threads, (long long)b->offset[0], (long long)b->size[0], (long long)b->offset[1],
                     (long long)b->size[1], (long long)row, (long long)col);
    }
}

static void check_box(struct dev *d, const struct kern_ops *k, int threads, const struct box *b, const int64_t dim[2],
                      int64_t stride)
{
    const size_t bytes = (size_t)(b->size[0] * stride) * dtype_bytes(k->wide);
    struct why why = {""};
    struct kern_stream *s;
    void *y, *image = malloc(bytes);
    assert_non_null(image);
    memset(image, UNTOUCHED, bytes);
    assert_ok(dev_alloc(d, bytes, "a box", &y, &why));
    assert_ok(dev_stream_new(d, threads, false, &s, &why));
    assert_ok(dev_copy(s, y, image, bytes));
    struct kern_normal call = call_of(b, dim, stride, y);
    k->normal(s, &call);
    assert_ok(dev_copy(s, image, y, bytes));
    assert_ok(dev_stream_sync(s, &why));
    check_image(k, threads, b, dim, stride, image);
    dev_stream_free(s);
    dev_free(d, y, bytes);
    free(image);
}

void normal_check_boxes(struct dev *d, const struct kern_ops *k, int threads)
{
    static const struct {
        int64_t dim[2];
        struct box box;
        int64_t pad;
    } cases[] = {
        {{1, 9000}, {2, {0, 0}, {1, 9000}}, 0},                                   /* a whole vector */
        {{1, 9000}, {2, {0, 4097}, {1, 4903}}, 0},                                /* a part of it */
        {{150, 90}, {2, {0, 0}, {150, 90}}, 0},                                   /* a whole matrix */
        {{150, 90}, {2, {50, 0}, {50, 90}}, 0},                                   /* its rows */
        {{150, 90}, {2, {0, 60}, {150, 30}}, 0},                                  /* its columns */
        {{150, 90}, {2, {149, 89}, {1, 1}}, 0},                                   /* its last element */
        {{150, 90}, {2, {33, 7}, {101, 51}}, 13},                                 /* rows and columns, in wider rows */
        {{150, 90}, {2, {0, 89}, {150, 1}}, 3},                                   /* one column */
        {{70000, 70000}, {2, {61356, 40000}, {3, 30000}}, 1},                     /* index 2^32 is inside */
        {{INT64_C(1) << 31, 1 << 20}, {2, {INT64_C(2000000000), 5}, {4, 100}}, 0} /* about 2^51 */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_box(d, k, threads, &cases[i].box, cases[i].dim, cases[i].box.size[1] + cases[i].pad);
}

void normal_check_far_rows(struct dev *d, const struct kern_ops *k)
{
    const int64_t dim[2] = {3, (INT64_C(1) << 33) + 11}, stride = (INT64_C(1) << 31) + 5;
    const struct box b = {2, {1, 3}, {2, 30}};
    const size_t size = dtype_bytes(k->wide), bytes = (size_t)(2 * stride) * size;
    uint8_t *y = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (y == MAP_FAILED)
        TEST_SKIP("no address space for rows that are 2^31 elements apart");
    struct kern_normal call = call_of(&b, dim, stride, y);
    struct kern_stream *s;
    struct why why = {""};
    assert_ok(dev_stream_new(d, 2, false, &s, &why));
    k->normal(s, &call);
    assert_ok(dev_stream_sync(s, &why));
    for (int64_t i = 0; i < 60; i++)
        assert_true(is_value(k->wide, y + (size_t)(i / 30 * stride + i % 30) * size, value_of(&b, dim, i)));
    dev_stream_free(s);
    munmap(y, bytes);
}

/* A number minus itself is 0. Minus a number that differs in the last bit of float64 it is not 0, even in float32. */
void normal_check_doubles(struct dev *d, const struct kern_ops *k)
{
    enum { N = 1000 };
    const size_t size = dtype_bytes(k->wide);
    uint8_t image[N * sizeof(double)];
    struct kern_stream *s;
    struct why why = {""};
    uint8_t *y;
    assert_ok(dev_alloc(d, N * size, "differences", (void **)&y, &why));
    assert_ok(dev_stream_new(d, 1, false, &s, &why));
    for (uint64_t i = 0; i < N; i++) {
        const struct kern_normal call = {.rows = 1,
                                         .n = 1,
                                         .stride = 1,
                                         .cols = 1,
                                         .first = i,
                                         .seed = SEED,
                                         .stream = STREAM,
                                         .mean = -rng_normal(SEED, STREAM, i),
                                         .std = 1,
                                         .y = y + i * size};
        k->normal(s, &call);
    }
    assert_ok(dev_copy(s, image, y, N * size));
    assert_ok(dev_stream_sync(s, &why));
    for (size_t i = 0; i < N; i++)
        if (!is_value(k->wide, image + i * size, 0))
            fail_msg("%s %s: number %zu differs in float64", k->name, dtype_name(k->dtype), i);
    dev_stream_free(s);
    dev_free(d, y, N * size);
}
