/* See matmul.h. A prepared product depends on shape, types and number of threads. The list of a stream is in the order
 * of last use; a training program has some dozens of products, so a search takes less than a microsecond. Scratch
 * memory belongs to the stream, because oneDNN's own is valid only in the thread that prepared the product. */
#include "kernels/matmul.h"
#include "common/base/log.h"
#include "kernels/stream.h"

#include <oneapi/dnnl/dnnl.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PRODUCTS 512 /* more shapes than any program has; limits the memory of a series of odd ones */

/* Compared as bytes, so all fields have the same size and there is no padding. */
struct matmul_key {
    int64_t trans_a, trans_b, accumulate, wide_c, bias, m, n, k, lda, ldb, ldc, threads;
};

enum { MAT_A, MAT_B, MAT_BIAS, MAT_C, MAT_SCRATCH, MAT_COUNT };

struct matmul_product {
    struct matmul_product *next;
    struct matmul_key key;
    dnnl_primitive_t primitive; /* NULL: oneDNN has no fast code for it */
    dnnl_memory_t memory[MAT_COUNT];
    size_t scratch_bytes;
};

struct matmul_cache {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    struct matmul_product *first;
    int count;
};

bool matmul_is_native(void)
{
    return (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core_bf16) == dnnl_cpu_isa_avx512_core_bf16;
}

static err_t converted(dnnl_status_t status, const char *call, const struct matmul_key *k)
{
    if (status == dnnl_success)
        return OK;
    log_error("kernels event=matmul_failed call=%s status=%d m=%lld n=%lld k=%lld", call, (int)status, (long long)k->m,
              (long long)k->n, (long long)k->k);
    return status == dnnl_out_of_memory ? ERR_NOMEM : ERR_INTERNAL;
}

static void product_free(struct matmul_product *p)
{
    for (int i = 0; i < MAT_COUNT; i++)
        if (p->memory[i])
            dnnl_memory_destroy(p->memory[i]);
    if (p->primitive)
        dnnl_primitive_destroy(p->primitive);
    free(p);
}

void matmul_cache_free(struct matmul_cache *c)
{
    if (!c)
        return;
    for (struct matmul_product *p = c->first, *next; p; p = next) {
        next = p->next;
        product_free(p);
    }
    if (c->stream)
        dnnl_stream_destroy(c->stream);
    if (c->engine)
        dnnl_engine_destroy(c->engine);
    free(c);
}

static err_t cache_new(const struct matmul_key *k, struct matmul_cache **ret)
{
    struct matmul_cache *c = calloc(1, sizeof(*c));
    if (!c)
        return ERR_NOMEM;
    err_t err = converted(dnnl_engine_create(&c->engine, dnnl_cpu, 0), "engine", k);
    if (!err)
        err = converted(dnnl_stream_create(&c->stream, c->engine, dnnl_stream_default_flags), "stream", k);
    if (err)
        matmul_cache_free(c);
    else
        *ret = c;
    return err;
}

static dnnl_status_t describe(int64_t rows, int64_t columns, int64_t stride, bool trans, dnnl_data_type_t type,
                              dnnl_memory_desc_t *ret)
{
    const dnnl_dims_t dims = {rows, columns}, strides = {trans ? 1 : stride, trans ? stride : 1};
    return dnnl_memory_desc_init_by_strides(ret, 2, dims, type, strides);
}

static dnnl_status_t attributes(const struct matmul_key *k, dnnl_primitive_attr_t attr)
{
    dnnl_post_ops_t sum = NULL;
    dnnl_status_t status = dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (status != dnnl_success || !k->accumulate)
        return status;
    status = dnnl_post_ops_create(&sum);
    if (status == dnnl_success)
        status = dnnl_post_ops_append_sum(sum, 1.0f);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(attr, sum); /* copies it */
    dnnl_post_ops_destroy(sum);
    return status;
}

/* oneDNN's portable code, "ref:any", is a hundred times slower than ours. */
static bool is_fast(dnnl_primitive_desc_t desc)
{
    const char *name = "";
    return dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name) == dnnl_success &&
           strncmp(name, "ref", 3) != 0;
}

static dnnl_status_t create(const struct matmul_cache *c, const dnnl_memory_desc_t *desc,
                            dnnl_primitive_desc_t prepared, struct matmul_product *p)
{
    const dnnl_memory_desc_t *scratch = dnnl_primitive_desc_query_md(prepared, dnnl_query_scratchpad_md, 0);
    dnnl_status_t status = dnnl_primitive_create(&p->primitive, prepared);
    for (int i = 0; i < MAT_COUNT && status == dnnl_success; i++)
        if (i != MAT_BIAS || p->key.bias)
            status =
                dnnl_memory_create(&p->memory[i], i == MAT_SCRATCH ? scratch : &desc[i], c->engine, DNNL_MEMORY_NONE);
    p->scratch_bytes = dnnl_memory_desc_get_size(scratch);
    return status;
}

static dnnl_status_t prepare(const struct matmul_cache *c, struct matmul_product *p)
{
    const struct matmul_key *k = &p->key;
    dnnl_memory_desc_t desc[MAT_COUNT];
    dnnl_matmul_desc_t op;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t prepared = NULL;
    dnnl_status_t status = describe(k->m, k->k, k->lda, k->trans_a, dnnl_bf16, &desc[MAT_A]);
    status = status ? status : describe(k->k, k->n, k->ldb, k->trans_b, dnnl_bf16, &desc[MAT_B]);
    status = status ? status : describe(1, k->n, k->n, false, dnnl_bf16, &desc[MAT_BIAS]);
    status = status ? status : describe(k->m, k->n, k->ldc, false, k->wide_c ? dnnl_f32 : dnnl_bf16, &desc[MAT_C]);
    status =
        status ? status
               : dnnl_matmul_desc_init(&op, &desc[MAT_A], &desc[MAT_B], k->bias ? &desc[MAT_BIAS] : NULL, &desc[MAT_C]);
    status = status ? status : dnnl_primitive_attr_create(&attr);
    status = status ? status : attributes(k, attr);
    status = status ? status : dnnl_primitive_desc_create(&prepared, &op, attr, c->engine, NULL);
    if (status == dnnl_success && is_fast(prepared))
        status = create(c, desc, prepared, p);
    if (prepared)
        dnnl_primitive_desc_destroy(prepared);
    if (attr)
        dnnl_primitive_attr_destroy(attr);
    return status == dnnl_unimplemented ? dnnl_success : status;
}

static void drop_last(struct matmul_cache *c)
{
    struct matmul_product **at = &c->first;
    while ((*at)->next)
        at = &(*at)->next;
    product_free(*at);
    *at = NULL;
    c->count--;
}

/* Finds or prepares the product and makes it the list's first. */
static err_t take(struct matmul_cache *c, const struct matmul_key *key)
{
    for (struct matmul_product **at = &c->first, *p; (p = *at); at = &p->next)
        if (memcmp(&p->key, key, sizeof(*key)) == 0) {
            *at = p->next;
            p->next = c->first;
            c->first = p;
            return OK;
        }
    struct matmul_product *p = calloc(1, sizeof(*p));
    if (!p)
        return ERR_NOMEM;
    p->key = *key;
    err_t err = converted(prepare(c, p), "prepare", key);
    if (err) {
        product_free(p);
        return err;
    }
    if (c->count == MOST_PRODUCTS)
        drop_last(c);
    p->next = c->first;
    c->first = p;
    c->count++;
    return OK;
}

static err_t execute(const struct matmul_cache *c, struct kern_stream *s, const struct kern_gemm *g, void *x)
{
    static const int names[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST, DNNL_ARG_SCRATCHPAD};
    const struct matmul_product *p = c->first;
    void *data[MAT_COUNT] = {(void *)g->a, (void *)g->b, (void *)g->bias, x, NULL};
    dnnl_exec_arg_t args[MAT_COUNT];
    dnnl_status_t status = dnnl_success;
    int n = 0;
    err_t err = p->scratch_bytes ? kern_stream_scratch(s, p->scratch_bytes, &data[MAT_SCRATCH]) : OK;
    if (err)
        return err;
    for (int i = 0; i < MAT_COUNT && status == dnnl_success; i++) {
        if (!p->memory[i])
            continue;
        status = dnnl_memory_set_data_handle(p->memory[i], data[i]);
        args[n++] = (dnnl_exec_arg_t){names[i], p->memory[i]};
    }
    status = status ? status : dnnl_primitive_execute(p->primitive, c->stream, n, args);
    status = status ? status : dnnl_stream_wait(c->stream);
    return converted(status, "execute", &p->key);
}

err_t matmul_run(struct kern_stream *s, const struct kern_gemm *g, void *x, bool *ret_done)
{
    struct cpu_stream *stream = (struct cpu_stream *)s;
    const struct matmul_key key = {.trans_a = g->trans_a,
                                   .trans_b = g->trans_b,
                                   .accumulate = g->accumulate,
                                   .wide_c = g->wide_c,
                                   .bias = g->bias != NULL,
                                   .m = g->m,
                                   .n = g->n,
                                   .k = g->k,
                                   .lda = g->lda,
                                   .ldb = g->ldb,
                                   .ldc = g->ldc,
                                   .threads = kern_stream_limit(kern_stream_threads(s))};
    err_t err = stream->matmuls ? OK : cache_new(&key, &stream->matmuls);
    err = err ? err : take(stream->matmuls, &key);
    if (err)
        return err;
    *ret_done = stream->matmuls->first->primitive != NULL;
    return *ret_done ? execute(stream->matmuls, s, g, x) : OK;
}
