/* cuBLASLt's functions with the vendor's prototypes: products by plain loops, column-major, over the queues.
 *
 * There are several algorithms, which add the terms of an element in different orders and with different roundings, so
 * the bits show which one was used. The heuristics propose those that the preference allows, always in the same order.
 * Descriptors are counted. Inputs that the documentation forbids are rejected: an aux matrix whose rows or address are
 * not aligned, operands of different types, an epilogue without its pointer, an algorithm of another library. The
 * workspace is overwritten, so data that a caller keeps there is lost. */
#include "tests/cuda_host/block.h"
#include "tests/cuda_host/counts.h"
#include "tests/cuda_host/queue.h"

#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORKSPACE 4096 /* bytes that every algorithm requires */
#define VERSION 130001
#define MAGIC UINT64_C(0x6c745f686f737400) /* marks an algorithm, together with its number */

/* `splits` parts of k are added according to `scheme`; `single`: in float32 instead of float64. */
static const struct algorithm {
    int id, splits;
    uint32_t scheme;
    bool single, backwards;
} algorithms[] = {
    {101, 1, CUBLASLT_REDUCTION_SCHEME_NONE, false, false},
    {102, 1, CUBLASLT_REDUCTION_SCHEME_NONE, true, false},
    {103, 1, CUBLASLT_REDUCTION_SCHEME_NONE, true, true},
    {104, 2, CUBLASLT_REDUCTION_SCHEME_INPLACE, true, false},
    {105, 2, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, true, false},
    {106, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, true, false},
};
#define ALGORITHMS (sizeof(algorithms) / sizeof(algorithms[0]))

struct handle {
    int device;
};

struct desc {
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t trans_a, trans_b;
    cublasLtEpilogue_t epilogue;
    void *bias, *aux;
    int64_t aux_ld;
};

struct layout {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};

struct preference {
    size_t workspace;
    uint32_t schemes;
    uint32_t align[4]; /* alignment of a, b, c, d */
};

static bool plain_only, rough;
static uint32_t least_align = 1;

void cuda_host_refuse_fused(bool refuse)
{
    plain_only = refuse;
}

void cuda_host_require_aligned(uint32_t bytes)
{
    least_align = bytes;
}

void cuda_host_rough_gelu(bool yes)
{
    rough = yes;
}

size_t cublasLtGetVersion(void)
{
    return VERSION;
}

/* ---- handles and descriptors ---- */

static void *new_counted(size_t bytes)
{
    void *p = calloc(1, bytes);
    if (p) {
        host_lock();
        host_counts.live_handles++;
        host_unlock();
    }
    return p;
}

static cublasStatus_t free_counted(void *p)
{
    if (!p)
        return CUBLAS_STATUS_INVALID_VALUE;
    host_lock();
    host_counts.live_handles--;
    host_unlock();
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
           : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                                   : "CUBLAS_STATUS_EXECUTION_FAILED";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *ret)
{
    struct handle *h = new_counted(sizeof(*h));
    if (!h)
        return CUBLAS_STATUS_ALLOC_FAILED;
    cudaGetDevice(&h->device);
    *ret = (cublasLtHandle_t)(void *)h;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t h)
{
    return free_counted(h);
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *ret, cublasComputeType_t compute, cudaDataType_t scale)
{
    struct desc *d = new_counted(sizeof(*d));
    if (!d)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *d = (struct desc){.compute = compute, .scale = scale, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    *ret = (cublasLtMatmulDesc_t)(void *)d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    return free_counted(d);
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute,
                                              const void *value, size_t bytes)
{
    struct desc *d = (struct desc *)(void *)desc;
    const struct {
        cublasLtMatmulDescAttributes_t attribute;
        void *to;
        size_t bytes;
    } rows[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &d->trans_a, sizeof(d->trans_a)},
        {CUBLASLT_MATMUL_DESC_TRANSB, &d->trans_b, sizeof(d->trans_b)},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &d->epilogue, sizeof(d->epilogue)},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &d->bias, sizeof(d->bias)},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &d->aux, sizeof(d->aux)},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &d->aux_ld, sizeof(d->aux_ld)},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].attribute == attribute && rows[i].bytes == bytes) {
            memcpy(rows[i].to, value, bytes);
            return CUBLAS_STATUS_SUCCESS;
        }
    cuda_host_fail("the stand-in does not support attribute %d of a product, of %zu bytes", attribute, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *ret, cudaDataType type, uint64_t rows, uint64_t cols,
                                          int64_t ld)
{
    struct layout *l = new_counted(sizeof(*l));
    if (!l)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *l = (struct layout){type, rows, cols, ld};
    *ret = (cublasLtMatrixLayout_t)(void *)l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    return free_counted(l);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *ret)
{
    struct preference *p = new_counted(sizeof(*p));
    if (!p)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *p = (struct preference){.schemes = CUBLASLT_REDUCTION_SCHEME_MASK, .align = {256, 256, 256, 256}};
    *ret = (cublasLtMatmulPreference_t)(void *)p;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    return free_counted(p);
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                                    size_t bytes)
{
    struct preference *p = (struct preference *)(void *)preference;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        void *to;
        size_t bytes;
    } rows[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &p->workspace, sizeof(p->workspace)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &p->schemes, sizeof(p->schemes)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &p->align[0], sizeof(p->align[0])},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &p->align[1], sizeof(p->align[1])},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &p->align[2], sizeof(p->align[2])},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &p->align[3], sizeof(p->align[3])},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].attribute == attribute && rows[i].bytes == bytes) {
            memcpy(rows[i].to, value, bytes);
            return CUBLAS_STATUS_SUCCESS;
        }
    cuda_host_fail("the stand-in does not support attribute %d of a preference, of %zu bytes", attribute, bytes);
}

/* ---- supported products ---- */

static bool is_type(cudaDataType_t type)
{
    return type == CUDA_R_32F || type == CUDA_R_16BF;
}

static cublasStatus_t check_shapes(const struct desc *d, const struct layout *a, const struct layout *b,
                                   const struct layout *c)
{
    uint64_t m = d->trans_a ? a->cols : a->rows, k = d->trans_a ? a->rows : a->cols;
    uint64_t k2 = d->trans_b ? b->cols : b->rows, n = d->trans_b ? b->rows : b->cols;
    if (d->compute != CUBLAS_COMPUTE_32F || d->scale != CUDA_R_32F || !m || !n || !k)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (k != k2 || m != c->rows || n != c->cols || a->ld < (int64_t)a->rows || b->ld < (int64_t)b->rows ||
        c->ld < (int64_t)c->rows)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!is_type(a->type) || a->type != b->type || !is_type(c->type) || (a->type == CUDA_R_32F && c->type != a->type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

/* The arguments that an epilogue reads and writes. */
static const struct epilogue {
    cublasLtEpilogue_t kind;
    bool bias, aux, sum;
} epilogues[] = {
    {CUBLASLT_EPILOGUE_DEFAULT, false, false, false}, {CUBLASLT_EPILOGUE_BIAS, true, false, false},
    {CUBLASLT_EPILOGUE_GELU_AUX, false, true, false}, {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, true, true, false},
    {CUBLASLT_EPILOGUE_DGELU, false, true, false},    {CUBLASLT_EPILOGUE_BGRADA, false, false, true},
    {CUBLASLT_EPILOGUE_BGRADB, false, false, true},
};

static const struct epilogue *epilogue_of(const struct desc *d)
{
    for (size_t i = 0; i < sizeof(epilogues) / sizeof(epilogues[0]); i++)
        if (epilogues[i].kind == d->epilogue)
            return &epilogues[i];
    return NULL;
}

static cublasStatus_t check(const struct desc *d, const struct layout *a, const struct layout *b,
                            const struct layout *c)
{
    const struct epilogue *e = epilogue_of(d);
    cublasStatus_t status = check_shapes(d, a, b, c);
    if (status)
        return status;
    if (!e || (plain_only && e->kind != CUBLASLT_EPILOGUE_DEFAULT))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((e->bias || e->sum) && !d->bias)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (e->aux && (!d->aux || d->aux_ld < (int64_t)c->rows))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (e->aux && ((uintptr_t)d->aux % 16 || d->aux_ld % 8 || c->type != a->type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

static size_t elem_bytes(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : 2;
}

static bool rows_aligned(const struct layout *l)
{
    return (size_t)l->ld * elem_bytes(l->type) % least_align == 0;
}

/* ---- algorithms ---- */

static cublasLtMatmulAlgo_t algo_of(const struct algorithm *a)
{
    cublasLtMatmulAlgo_t algo = {{MAGIC + (uint64_t)a->id, a->scheme, (uint64_t)a->splits}};
    return algo;
}

/* NULL: it is not one of these algorithms. */
static const struct algorithm *algorithm_of(const cublasLtMatmulAlgo_t *algo)
{
    for (size_t i = 0; i < ALGORITHMS; i++) {
        cublasLtMatmulAlgo_t known = algo_of(&algorithms[i]);
        if (memcmp(&known, algo, sizeof(known)) == 0)
            return &algorithms[i];
    }
    return NULL;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int wanted,
                                              cublasLtMatmulHeuristicResult_t ret[], int *ret_n)
{
    const struct preference *p = (const struct preference *)(void *)preference;
    const struct layout *layouts[] = {(const struct layout *)(void *)a, (const struct layout *)(void *)b,
                                      (const struct layout *)(void *)c, (const struct layout *)(void *)d};
    cublasStatus_t status = check((const struct desc *)(void *)desc, layouts[0], layouts[1], layouts[2]);
    *ret_n = 0;
    if (status || wanted < 1 || p->workspace < WORKSPACE)
        return status ? status : CUBLAS_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < 4; i++)
        if (p->align[i] % least_align || !rows_aligned(layouts[i]))
            return CUBLAS_STATUS_NOT_SUPPORTED;
    for (size_t i = 0; i < ALGORITHMS && *ret_n < wanted; i++)
        if ((algorithms[i].scheme & ~p->schemes) == 0) {
            memset(&ret[*ret_n], 0, sizeof(ret[0]));
            ret[*ret_n].algo = algo_of(&algorithms[i]);
            ret[*ret_n].workspaceSize = WORKSPACE;
            ++*ret_n;
        }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *ret)
{
    cublasStatus_t status = check((const struct desc *)(void *)desc, (const struct layout *)(void *)a,
                                  (const struct layout *)(void *)b, (const struct layout *)(void *)c);
    ret->state = status ? status : algorithm_of(algo) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
    ret->workspaceSize = WORKSPACE;
    return ret->state;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *ret,
                                                    size_t bytes, size_t *ret_written)
{
    const struct algorithm *a = algorithm_of(algo);
    if (!a || attribute != CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME || bytes != sizeof(a->scheme))
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(ret, &a->scheme, bytes);
    *ret_written = bytes;
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- computing ---- */

struct product {
    const struct algorithm *algorithm;
    struct desc desc;
    struct layout a, b, d;
    const void *a_data, *b_data, *c_data;
    void *d_data, *workspace;
    float alpha, beta;
};

static float get(const void *p, cudaDataType_t type, int64_t i)
{
    uint32_t bits;
    float x;
    if (type == CUDA_R_32F)
        return ((const float *)p)[i];
    bits = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

/* Rounds to nearest even; a NaN stays a NaN. */
static void put(void *p, cudaDataType_t type, int64_t i, double value)
{
    float x = (float)value;
    uint32_t bits;
    if (type == CUDA_R_32F) {
        ((float *)p)[i] = x;
        return;
    }
    memcpy(&bits, &x, sizeof(bits));
    ((uint16_t *)p)[i] = x != x ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static size_t bytes_of(const struct layout *l)
{
    return ((size_t)l->ld * (l->cols - 1) + l->rows) * elem_bytes(l->type);
}

/* Converts op(X) to float, column after column; `rows` rows. */
static float *unpack(const void *data, const struct layout *l, bool trans)
{
    uint64_t rows = trans ? l->cols : l->rows, cols = trans ? l->rows : l->cols;
    float *x = malloc(rows * cols * sizeof(*x));
    if (!x)
        abort();
    for (uint64_t j = 0; j < cols; j++)
        for (uint64_t i = 0; i < rows; i++)
            x[j * rows + i] = get(data, l->type, (int64_t)(trans ? i * (uint64_t)l->ld + j : j * (uint64_t)l->ld + i));
    return x;
}

/* The tanh form and its derivative. */
#define GELU_A 0.7978845608028654 /* sqrt(2 / pi) */
#define GELU_B 0.044715

/* A rough tanh keeps eleven bits. */
static double gelu_tanh(double x)
{
    int exponent;
    double t = tanh(GELU_A * (x + GELU_B * x * x * x)), part = frexp(t, &exponent);
    return rough ? ldexp(nearbyint(part * 2048) / 2048, exponent) : t;
}

static double gelu(double x)
{
    return 0.5 * x * (1 + gelu_tanh(x));
}

static double gelu_slope(double x)
{
    double t = gelu_tanh(x);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * GELU_A * (1 + 3 * GELU_B * x * x);
}

/* Applies the epilogue to one column of the result, x[i] for all rows, and stores it. */
static void finish_column(const struct product *p, const double *x, uint64_t j)
{
    const struct desc *d = &p->desc;
    const struct epilogue *e = epilogue_of(d);
    for (uint64_t i = 0; i < p->d.rows; i++) {
        int64_t at = (int64_t)(j * (uint64_t)p->d.ld + i), aux_at = (int64_t)(j * (uint64_t)d->aux_ld + i);
        double y = (double)p->alpha * x[i];
        if (p->beta != 0)
            y += (double)p->beta * (double)get(p->c_data, p->d.type, at);
        if (e->bias)
            y += (double)get(d->bias, p->d.type, (int64_t)i);
        if (e->aux && e->kind != CUBLASLT_EPILOGUE_DGELU) {
            put(d->aux, p->d.type, aux_at, y);
            y = gelu(y);
        } else if (e->aux) {
            y *= gelu_slope((double)get(d->aux, p->d.type, aux_at));
        }
        put(p->d_data, p->d.type, at, y);
    }
}

/* bias[i] = sum over k of op(A)[i, k], or of op(B)[k, i]. */
static void sum_operand(const struct product *p, const float *a, const float *b, uint64_t k)
{
    bool of_a = p->desc.epilogue == CUBLASLT_EPILOGUE_BGRADA;
    uint64_t n = of_a ? p->d.rows : p->d.cols;
    for (uint64_t i = 0; i < n; i++) {
        double sum = 0;
        for (uint64_t l = 0; l < k; l++)
            sum += (double)(of_a ? a[l * n + i] : b[i * k + l]);
        put(p->desc.bias, p->d.type, (int64_t)i, sum);
    }
}

static void check_memory(const struct product *p)
{
    const struct epilogue *e = epilogue_of(&p->desc);
    size_t elem = p->d.type == CUDA_R_32F ? 4 : 2;
    uint64_t vector = p->desc.epilogue == CUBLASLT_EPILOGUE_BGRADB ? p->d.cols : p->d.rows;
    const struct {
        const void *p;
        size_t bytes;
    } all[] = {
        {p->a_data, bytes_of(&p->a)},
        {p->b_data, bytes_of(&p->b)},
        {p->c_data, bytes_of(&p->d)},
        {p->d_data, bytes_of(&p->d)},
        {p->workspace, WORKSPACE},
        {e->bias || e->sum ? p->desc.bias : p->d_data, e->bias || e->sum ? vector * elem : 1},
        {e->aux ? p->desc.aux : p->d_data, e->aux ? ((size_t)p->desc.aux_ld * (p->d.cols - 1) + p->d.rows) * elem : 1},
    };
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        if (host_memory_of(all[i].p, all[i].bytes, "an operand of a product") != HOST_DEVICE)
            cuda_host_fail("operand %zu of a product at %p is not the device's memory", i, all[i].p);
}

/* Adds the terms of a column of the result with l in [begin, end), as the algorithm does. */
static void add_terms(const struct product *p, const float *a, const float *b, uint64_t m, uint64_t begin, uint64_t end,
                      double *x)
{
    for (uint64_t step = begin; step < end; step++) {
        uint64_t l = p->algorithm->backwards ? begin + end - 1 - step : step;
        for (uint64_t i = 0; i < m; i++) {
            x[i] += (double)a[l * m + i] * (double)b[l];
            if (p->algorithm->single)
                x[i] = (double)(float)x[i];
        }
    }
}

/* The value of a partial sum as it is stored before it is added to another. */
static double as_kept(const struct product *p, double x)
{
    uint32_t bits[1] = {0};
    if (p->algorithm->scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
        return (double)(float)x;
    put(bits, p->d.type, 0, x);
    return (double)get(bits, p->d.type, 0);
}

/* x[m] = a[m,k] b[k] */
static void add_column(const struct product *p, const float *a, const float *b, uint64_t m, uint64_t k, double *x,
                       double *part)
{
    uint64_t splits = (uint64_t)p->algorithm->splits;
    memset(x, 0, m * sizeof(*x));
    for (uint64_t split = 0; split < splits; split++) {
        memset(part, 0, m * sizeof(*part));
        add_terms(p, a, b, m, k * split / splits, k * (split + 1) / splits, part);
        for (uint64_t i = 0; i < m; i++)
            x[i] += splits > 1 ? as_kept(p, part[i]) : part[i];
    }
}

static void take_time(const struct product *p)
{
    char what[32];
    snprintf(what, sizeof(what), "algorithm %d", p->algorithm->id);
    host_pass_ms(host_planted_ms(what));
    snprintf(what, sizeof(what), "adding %d", p->algorithm->id);
    host_pass_ms(p->beta != 0 ? host_planted_ms(what) : 0);
    if (p->desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT)
        host_pass_ms(host_planted_ms("fused"));
}

static bool run_product(void *arg)
{
    const struct product *p = arg;
    if (host_sticky)
        return true;
    check_memory(p);
    uint64_t m = p->d.rows, n = p->d.cols, k = p->desc.trans_a ? p->a.rows : p->a.cols;
    float *a = unpack(p->a_data, &p->a, p->desc.trans_a != CUBLAS_OP_N);
    float *b = unpack(p->b_data, &p->b, p->desc.trans_b != CUBLAS_OP_N);
    double *x = malloc(2 * m * sizeof(*x));
    if (!x)
        abort();
    memset(p->workspace, 0xff, WORKSPACE);
    for (uint64_t j = 0; j < n; j++) {
        add_column(p, a, b + j * k, m, k, x, x + m);
        finish_column(p, x, j);
    }
    if (epilogue_of(&p->desc)->sum)
        sum_operand(p, a, b, k);
    take_time(p);
    free(x);
    free(b);
    free(a);
    return true;
}

static bool is_aligned(const void *p)
{
    return (uintptr_t)p % least_align == 0;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    struct product *p = malloc(sizeof(*p));
    if (!p)
        return CUBLAS_STATUS_ALLOC_FAILED;
    *p = (struct product){
        .algorithm = algo ? algorithm_of(algo) : NULL,
        .desc = *(const struct desc *)(void *)desc,
        .a = *(const struct layout *)(void *)a_layout,
        .b = *(const struct layout *)(void *)b_layout,
        .d = *(const struct layout *)(void *)d_layout,
        .a_data = a,
        .b_data = b,
        .c_data = c,
        .d_data = d,
        .workspace = workspace,
        .alpha = *(const float *)alpha,
        .beta = *(const float *)beta,
    };
    cublasStatus_t status = check(&p->desc, &p->a, &p->b, &p->d);
    if (!status && (!is_aligned(a) || !is_aligned(b) || !is_aligned(c) || !is_aligned(d)))
        status = CUBLAS_STATUS_NOT_SUPPORTED;
    if (status || workspace_bytes < WORKSPACE || !p->algorithm) {
        free(p);
        return status ? status : CUBLAS_STATUS_INVALID_VALUE;
    }
    host_lock();
    check_memory(p);
    host_counts.products++;
    host_submit(host_stream_of(stream, ((const struct handle *)(void *)handle)->device),
                &(struct host_work){"a product", run_product, free, p});
    host_unlock();
    return CUBLAS_STATUS_SUCCESS;
}
