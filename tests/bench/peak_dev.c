/* Each result is the best of several runs, because a peak is wanted and not an average. The operands of the product are
 * random, since zeros draw less power and allow higher clocks. */
#include "tests/bench/peak_dev.h"

#include "common/base/rng.h"
#include "tests/bench/peak.h"

#include <stdio.h>
#include <string.h>

#define COPY_PER_SIDE2 16 /* bytes per element of the product's square: a copy of 1 GiB for a product of 8192 */
#define RUNS 10

/* Dense bfloat16 on tensor cores, and float32 without them, in TFLOP/s, from the data sheets. */
static const struct {
    const char *model;
    double bf16, f32;
} makers[] = {{"H200", 989.4, 66.9}, {"H100", 989.4, 66.9}, {"B200", 2250, 75}, {"A100", 312, 19.5}};

static double nominal_tflops(const char *model, enum dtype dtype)
{
    for (size_t i = 0; i < sizeof(makers) / sizeof(makers[0]); i++)
        if (strstr(model, makers[i].model))
            return 1e3 * (dtype == DT_BF16 ? makers[i].bf16 : makers[i].f32);
    return 0;
}

struct peak_buffers {
    struct dev *dev;
    struct kern_stream *s;
    struct dev_event *from, *to;
    void *memory;
    size_t bytes, copy_bytes;
    int side; /* of the product's square matrices */
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static err_t peak_buffers_init(struct peak_buffers *r, struct dev *dev, int side, size_t operands, struct why *why)
{
    size_t copy = COPY_PER_SIDE2 * (size_t)side * (size_t)side;
    *r = (struct peak_buffers){.dev = dev, .side = side, .copy_bytes = copy, .bytes = larger(operands, 2 * copy)};
    err_t err = dev_alloc(dev, r->bytes, "the measurement of its peak", &r->memory, why);
    err = err ? err : dev_stream_new(dev, 0, false, &r->s, why);
    err = err ? err : dev_event_new(dev, true, &r->from);
    return err ? err : dev_event_new(dev, true, &r->to);
}

static void rig_fini(struct peak_buffers *r)
{
    dev_event_free(r->dev, r->to);
    dev_event_free(r->dev, r->from);
    dev_stream_free(r->s);
    dev_free(r->dev, r->memory, r->bytes);
}

/* Random signs and fractions with a constant exponent: numbers of 1 to 2, both as bfloat16 and as the upper half of a
 * float32. */
static err_t fill_random(struct peak_buffers *r, size_t bytes, struct why *why)
{
    static uint16_t chunk[1 << 16];
    for (size_t i = 0; i < sizeof(chunk) / sizeof(chunk[0]); i++)
        chunk[i] = (uint16_t)(0x3f80 | ((uint32_t)(rng_uniform(1, 2, i) * 65536) & 0x807f));
    for (size_t at = 0; at < bytes; at += sizeof(chunk)) {
        size_t n = bytes - at < sizeof(chunk) ? bytes - at : sizeof(chunk);
        err_t err = dev_copy(r->s, (uint8_t *)r->memory + at, chunk, n);
        if (err)
            return err;
    }
    return dev_stream_sync(r->s, why);
}

static err_t call_product(struct peak_buffers *r, enum dtype dtype)
{
    size_t one = (size_t)r->side * (size_t)r->side * dtype_bytes(dtype);
    const struct kern_gemm g = {.m = r->side,
                                .n = r->side,
                                .k = r->side,
                                .lda = r->side,
                                .ldb = r->side,
                                .ldc = r->side,
                                .trans_b = true,
                                .a = r->memory,
                                .b = (uint8_t *)r->memory + one,
                                .c = (uint8_t *)r->memory + 2 * one};
    return dev_kernels(r->dev, dtype)->gemm(r->s, &g);
}

static err_t call_copy(struct peak_buffers *r, enum dtype dtype)
{
    (void)dtype;
    return dev_copy(r->s, (uint8_t *)r->memory + r->copy_bytes, r->memory, r->copy_bytes);
}

typedef err_t call_fn(struct peak_buffers *r, enum dtype dtype);

static err_t best_ms(struct peak_buffers *r, call_fn *call, enum dtype dtype, double *ret, struct why *why)
{
    err_t err = call(r, dtype);
    *ret = 1e30;
    for (int i = 0; !err && i < RUNS; i++) {
        err = dev_event_record(r->dev, r->from, r->s);
        err = err ? err : call(r, dtype);
        err = err ? err : dev_event_record(r->dev, r->to, r->s);
        err = err ? err : dev_stream_sync(r->s, why);
        double ms = err ? *ret : dev_event_ms(r->dev, r->from, r->to);
        *ret = ms < *ret ? ms : *ret;
    }
    return err;
}

static err_t measure_gpu(struct dev *dev, enum dtype dtype, int side, struct peak_dev *ret, struct why *why)
{
    struct peak_buffers r;
    double product_ms = 1, copy_ms = 1;
    size_t operands = 3 * (size_t)side * (size_t)side * dtype_bytes(dtype);
    err_t err = peak_buffers_init(&r, dev, side, operands, why);
    err = err ? err : fill_random(&r, operands, why);
    err = err ? err : best_ms(&r, call_product, dtype, &product_ms, why);
    err = err ? err : best_ms(&r, call_copy, dtype, &copy_ms, why);
    rig_fini(&r);
    if (err)
        return why_prefix(why, err, "the device's peak cannot be measured");
    ret->gflops = 2.0 * side * side * side / product_ms * 1e-6;
    ret->gbs = 2.0 * (double)r.copy_bytes / copy_ms * 1e-6;
    return OK;
}

err_t peak_dev_measure(struct dev *dev, enum dtype dtype, int side, struct peak_dev *ret, struct why *why)
{
    struct dev_facts facts;
    err_t err = dev_facts(dev, &facts, why);
    if (err)
        return err;
    *ret = (struct peak_dev){.nominal_gflops = dev->ops->host_memory ? 0 : nominal_tflops(facts.model, dtype)};
    snprintf(ret->name, sizeof(ret->name), "%s", facts.model);
    if (!dev->ops->host_memory)
        return measure_gpu(dev, dtype, side, ret, why);
    ret->gflops = dtype == DT_BF16 ? peak_bf16_gflops() : peak_fma_gflops();
    ret->gbs = peak_memory_gbs();
    return OK;
}
