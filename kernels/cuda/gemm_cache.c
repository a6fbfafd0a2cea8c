/* See gemm_cache.h.
 *
 * cuBLASLt guarantees that one version of it gives the same bits on every run on GPUs of the same kind with the same
 * number of multiprocessors, as long as algorithm and workspace are the same. Both are fixed here. */
#include "kernels/cuda/gemm_cache.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS 512 /* a power of two */
#define FULL 384

struct gemm_cache {
    int used;
    struct gemm_entry slots[SLOTS];
};

struct gemm_cache *gemm_cache_new(void)
{
    return calloc(1, sizeof(struct gemm_cache));
}

static void entry_clear(struct gemm_entry *e)
{
    if (e->c)
        cublasLtMatrixLayoutDestroy(e->c);
    if (e->b)
        cublasLtMatrixLayoutDestroy(e->b);
    if (e->a)
        cublasLtMatrixLayoutDestroy(e->a);
    if (e->desc)
        cublasLtMatmulDescDestroy(e->desc);
    memset(e, 0, sizeof(*e));
}

void gemm_cache_clear(struct gemm_cache *c)
{
    for (int i = 0; i < SLOTS; i++)
        entry_clear(&c->slots[i]);
    c->used = 0;
}

void gemm_cache_free(struct gemm_cache *c)
{
    if (c)
        gemm_cache_clear(c);
    free(c);
}

/* FNV-1a */
static uint64_t hash_of(const struct gemm_key *key)
{
    const unsigned char *p = (const unsigned char *)key;
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < sizeof(*key); i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h ^ h >> 32;
}

static struct gemm_entry *slot_of(struct gemm_cache *c, const struct gemm_key *key)
{
    uint64_t i = hash_of(key);
    while (c->slots[i % SLOTS].used && memcmp(&c->slots[i % SLOTS].key, key, sizeof(*key)) != 0)
        i++;
    return &c->slots[i % SLOTS];
}

static cublasStatus_t make_desc(struct gemm_entry *e, const void *vector, const void *aux)
{
    const struct gemm_key *k = &e->key;
    const cublasOperation_t first = k->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = k->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const struct {
        cublasLtMatmulDescAttributes_t attr;
        const void *value;
        size_t bytes;
        bool wanted;
    } rows[] = {
        {CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first), true},
        {CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second), true},
        {CUBLASLT_MATMUL_DESC_EPILOGUE, &k->epilogue, sizeof(k->epilogue), true},
        {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof(vector), vector != NULL},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &aux, sizeof(aux), aux != NULL},
        {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &k->ldc, sizeof(k->ldc), aux != NULL},
    };
    cublasStatus_t status = cublasLtMatmulDescCreate(&e->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && status == CUBLAS_STATUS_SUCCESS; i++)
        if (rows[i].wanted)
            status = cublasLtMatmulDescSetAttribute(e->desc, rows[i].attr, rows[i].value, rows[i].bytes);
    return status;
}

/* A row-major matrix is its column-major transpose: C^T = op(B)^T op(A)^T, so B is the first operand. */
static cublasStatus_t make_layouts(struct gemm_entry *e)
{
    const struct gemm_key *k = &e->key;
    const cudaDataType_t type = (cudaDataType_t)k->type, c_type = (cudaDataType_t)k->c_type;
    cublasStatus_t status = cublasLtMatrixLayoutCreate(&e->a, type, (uint64_t)(k->trans_b ? k->k : k->n),
                                                       (uint64_t)(k->trans_b ? k->n : k->k), k->ldb);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutCreate(&e->b, type, (uint64_t)(k->trans_a ? k->m : k->k),
                                            (uint64_t)(k->trans_a ? k->k : k->m), k->lda);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatrixLayoutCreate(&e->c, c_type, (uint64_t)k->n, (uint64_t)k->m, k->ldc);
    return status;
}

/* How the parts of a product that is split along k may be added.
 *
 * COMPUTE_TYPE writes the parts in float32 to the workspace and adds them in a separate step. OUTPUT_TYPE does the same
 * in the result's type: if that is float32 the arithmetic is the same, in bfloat16 every part would be rounded. INPLACE
 * adds each part to the result, in the result's type. The manual states that counters in the workspace "guarantee
 * sequentiality": no two parts are added at the same time, but their order is not specified. A user has reported split
 * products that differ between runs (NVIDIA/CUDALibrarySamples#243), so INPLACE is not allowed. */
static uint32_t schemes_of(const struct gemm_key *k)
{
    return CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
           (k->c_type == CUDA_R_32F ? (uint32_t)CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE : 0);
}

static cublasStatus_t make_preference(const struct gemm_key *k, cublasLtMatmulPreference_t *ret)
{
    const uint32_t schemes = schemes_of(k);
    const size_t workspace = GEMM_WORKSPACE;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attr;
        const void *value;
        size_t bytes;
    } rows[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace)},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof(schemes)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &k->b_align, sizeof(k->b_align)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &k->a_align, sizeof(k->a_align)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &k->c_align, sizeof(k->c_align)},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &k->c_align, sizeof(k->c_align)},
    };
    cublasStatus_t status = cublasLtMatmulPreferenceCreate(ret);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && status == CUBLAS_STATUS_SUCCESS; i++)
        status = cublasLtMatmulPreferenceSetAttribute(*ret, rows[i].attr, rows[i].value, rows[i].bytes);
    return status;
}

/* Whether an algorithm, as described by GetHeuristic or AlgoCheck, is within our limits. */
static bool fits(const cublasLtMatmulHeuristicResult_t *r)
{
    return r->state == CUBLAS_STATUS_SUCCESS && r->workspaceSize <= GEMM_WORKSPACE;
}

cublasStatus_t gemm_cache_propose(struct cuda_dev *d, const struct gemm_entry *e, struct gemm_candidates *ret)
{
    cublasLtMatmulHeuristicResult_t results[GEMM_CANDIDATES];
    cublasLtMatmulPreference_t preference = NULL;
    int n = 0;
    cublasStatus_t status = make_preference(&e->key, &preference);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = cublasLtMatmulAlgoGetHeuristic(d->blaslt, e->desc, e->a, e->b, e->c, e->c, preference, GEMM_CANDIDATES,
                                                results, &n);
    if (preference)
        cublasLtMatmulPreferenceDestroy(preference);
    ret->n = 0;
    if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE)
        return CUBLAS_STATUS_SUCCESS;
    for (int i = 0; i < n && status == CUBLAS_STATUS_SUCCESS; i++)
        if (fits(&results[i]))
            ret->algo[ret->n++] = results[i].algo;
    return status;
}

bool gemm_cache_accepts(struct cuda_dev *d, const struct gemm_entry *e, const cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t r;
    uint32_t scheme = 0;
    size_t written = 0;
    memset(&r, 0, sizeof(r));
    if (cublasLtMatmulAlgoCheck(d->blaslt, e->desc, e->a, e->b, e->c, e->c, algo, &r) != CUBLAS_STATUS_SUCCESS ||
        !fits(&r))
        return false;
    cublasStatus_t status = cublasLtMatmulAlgoConfigGetAttribute(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                                                 sizeof(scheme), &written);
    return status == CUBLAS_STATUS_SUCCESS && (scheme & ~schemes_of(&e->key)) == 0;
}

cublasStatus_t gemm_cache_find(struct cuda_dev *d, const struct gemm_key *key, const void *vector, const void *aux,
                               struct gemm_entry **ret)
{
    struct gemm_cache *c = d->gemms;
    struct gemm_entry *e = slot_of(c, key);
    if (e->used) {
        *ret = e;
        return CUBLAS_STATUS_SUCCESS;
    }
    if (c->used == FULL) {
        gemm_cache_clear(c);
        e = slot_of(c, key);
    }
    e->key = *key;
    cublasStatus_t status = make_desc(e, vector, aux);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layouts(e);
    if (status != CUBLAS_STATUS_SUCCESS) {
        entry_clear(e);
        return status;
    }
    e->used = true;
    c->used++;
    *ret = e;
    return CUBLAS_STATUS_SUCCESS;
}
