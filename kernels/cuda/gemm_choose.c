/* Chooses the algorithm of a product, and whether its epilogue is fused (gemm_product.h).
 *
 * Timing must not disturb the result of a product. A product that overwrites c can run any number of times before the
 * real run. One that adds to c, or to sums, is timed on separate memory of the same size, which is freed at once. If
 * there is not enough memory, nothing is timed and the first proposal is used.
 *
 * Times are noisy, and a choice is permanent. Another candidate therefore replaces cuBLASLt's preferred one, and the
 * separate form replaces the fused one, only if it is faster by more than the noise. */
#include "kernels/cuda/gemm_file.h"
#include "kernels/cuda/gemm_inner.h"

#include "common/base/log.h"

#include <math.h>
#include <string.h>

#define ROUNDS 3      /* the fastest round counts, because others may use the GPU or its memory in the meantime */
#define CALLS 4       /* calls per round, so that launch overhead does not dominate small products */
#define FASTER 0.98   /* times between runs of one algorithm differ by about 1 % */
#define MEMORY_PART 2 /* at most 1/MEMORY_PART of the free memory is used for timing */

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == GEMM_ALGO_WORDS * sizeof(uint64_t),
               "the file stores the algorithm as words");

/* ---- trials ---- */

/* A product whose outputs may be overwritten. */
struct trial {
    struct gemm_product p;
    struct kern_gemm g;
    void *memory;
    struct gemm_entry *e;
    cudaEvent_t from, to;
};

/* Allocates `bytes` in the trial's memory with the alignment of `like`. With memory NULL it only adds up the size. */
static void *place(char *memory, size_t *used, const void *like, size_t bytes)
{
    size_t at = (*used + GEMM_ALIGN_MOST - 1) / GEMM_ALIGN_MOST * GEMM_ALIGN_MOST + (uintptr_t)like % GEMM_ALIGN_MOST;
    *used = at + bytes;
    return memory + at;
}

/* The separate form adds to its sums; the fused form writes them to scratch memory. */
static size_t lay_out(const struct gemm_product *p, struct kern_gemm *g, char *memory)
{
    const size_t c_elem = p->c_type == CUDA_R_32F ? 4 : 2;
    size_t used = 0;
    if (p->add)
        g->c = place(memory, &used, p->g->c, (size_t)((g->m - 1) * g->ldc + g->n) * c_elem);
    if (g->a_sum)
        g->a_sum = place(memory, &used, p->g->a_sum, (size_t)g->m * sizeof(float));
    if (g->b_sum)
        g->b_sum = place(memory, &used, p->g->b_sum, (size_t)g->n * sizeof(float));
    return used;
}

/* Allocates and frees in stream order, because cudaFree would wait for the whole device, and so for messages that a
 * peer sends only after it has received ours. ERR_LIMIT, recorded nowhere: there is not enough free memory. */
static err_t trial_memory(struct kern_stream *s, struct trial *t)
{
    size_t bytes = lay_out(&t->p, &t->g, NULL), unused, total;
    if (bytes == 0)
        return OK;
    if (CUDA_CHECK(s, cudaMemGetInfo(&unused, &total)) != OK)
        return cuda_stream_of(s)->err;
    if (bytes > unused / MEMORY_PART || cudaMallocAsync(&t->memory, bytes, cuda_stream_of(s)->handle) != cudaSuccess) {
        cudaGetLastError();
        t->memory = NULL;
        return ERR_LIMIT;
    }
    lay_out(&t->p, &t->g, t->memory);
    return CUDA_CHECK(s, cudaMemsetAsync(t->memory, 0, bytes, cuda_stream_of(s)->handle));
}

static void trial_end(struct kern_stream *s, struct trial *t)
{
    if (t->from)
        cudaEventDestroy(t->from);
    if (t->to)
        cudaEventDestroy(t->to);
    if (t->memory)
        cudaFreeAsync(t->memory, cuda_stream_of(s)->handle);
}

static err_t trial_begin(struct kern_stream *s, const struct gemm_product *p, struct trial *t)
{
    memset(t, 0, sizeof(*t));
    t->p = *p;
    t->g = *p->g;
    err_t err = trial_memory(s, t);
    err = err ? err : CUDA_CHECK(s, cudaEventCreate(&t->from));
    err = err ? err : CUDA_CHECK(s, cudaEventCreate(&t->to));
    t->p.g = &t->g;
    if (err)
        trial_end(s, t);
    return err;
}

/* ---- timing ---- */

typedef err_t trial_fn(struct kern_stream *s, struct trial *t);

/* ERR_UNSUPPORTED, recorded nowhere, when cuBLASLt cannot run the algorithm. */
static err_t run_algorithm(struct kern_stream *s, struct trial *t)
{
    void *workspace = gemm_workspace(s, &t->p);
    if (!workspace)
        return cuda_stream_of(s)->err;
    cublasStatus_t status = gemm_queue(s, &t->p, t->e, 1, t->p.add ? 1 : 0, workspace);
    return status == CUBLAS_STATUS_SUCCESS ? OK : ERR_UNSUPPORTED;
}

static err_t run_apart(struct kern_stream *s, struct trial *t)
{
    return t->p.apart(s, &t->g);
}

static err_t time_round(struct kern_stream *s, struct trial *t, trial_fn *run, double *ret_us)
{
    cudaStream_t stream = cuda_stream_of(s)->handle;
    float ms = 0;
    err_t err = CUDA_CHECK(s, cudaEventRecord(t->from, stream));
    for (int i = 0; i < CALLS && !err; i++)
        err = run(s, t);
    err = err ? err : CUDA_CHECK(s, cudaEventRecord(t->to, stream));
    err = err ? err : CUDA_CHECK(s, cudaEventSynchronize(t->to));
    err = err ? err : CUDA_CHECK(s, cudaEventElapsedTime(&ms, t->from, t->to));
    *ret_us = (double)ms * 1e3 / CALLS;
    return err;
}

/* Times a call, after a first call that does all one-time work. */
static err_t time_calls(struct kern_stream *s, struct trial *t, trial_fn *run, double *ret_us)
{
    err_t err = run(s, t);
    *ret_us = INFINITY;
    for (int i = 0; i < ROUNDS && !err; i++) {
        double us = 0;
        err = time_round(s, t, run, &us);
        *ret_us = us < *ret_us ? us : *ret_us;
    }
    return err;
}

static void take_algo(struct gemm_entry *e, const cublasLtMatmulAlgo_t *algo)
{
    e->algo = *algo;
    e->state = GEMM_ALGO;
}

/* Stores the fastest algorithm in the entry; returns infinity if cuBLASLt cannot run any of them. */
static err_t time_candidates(struct kern_stream *s, struct trial *t, const struct gemm_candidates *c, double *ret_us)
{
    int best = -1;
    *ret_us = INFINITY;
    for (int i = 0; i < c->n; i++) {
        double us;
        t->e->algo = c->algo[i];
        err_t err = time_calls(s, t, run_algorithm, &us);
        if (err != OK && err != ERR_UNSUPPORTED)
            return err;
        if (err == OK && us < *ret_us * FASTER) {
            *ret_us = us;
            best = i;
        }
    }
    if (best >= 0)
        take_algo(t->e, &c->algo[best]);
    else
        t->e->state = GEMM_NONE;
    return OK;
}

/* Times the separate form first, because choosing its algorithms may move the entry. */
static err_t time_forms(struct kern_stream *s, struct trial *t, const struct gemm_candidates *c, double *ret_us)
{
    double apart = INFINITY;
    err_t err = t->p.apart ? time_calls(s, t, run_apart, &apart) : OK;
    err = err ? err : (gemm_workspace(s, &t->p) ? OK : cuda_stream_of(s)->err);
    err = err ? err : gemm_entry_of(s, &t->p, &t->e);
    err = err ? err : time_candidates(s, t, c, ret_us);
    if (err || !(apart < *ret_us * FASTER))
        return err;
    *ret_us = apart;
    t->e->state = GEMM_NONE;
    return OK;
}

/* ---- choosing ---- */

/* Takes the file's choice for the entry. */
static bool take_kept(struct cuda_dev *d, struct gemm_entry *e)
{
    struct gemm_choice *c;
    while (d->algorithms && (c = gemm_file_find(d->algorithms, &e->key))) {
        cublasLtMatmulAlgo_t algo;
        memcpy(&algo, c->algo, sizeof(algo));
        if (c->apart && e->key.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
            e->state = GEMM_NONE;
            return true;
        }
        if (!c->apart && gemm_cache_accepts(d, e, &algo)) {
            take_algo(e, &algo);
            return true;
        }
        gemm_file_refuse(d->algorithms, c, "cuBLASLt cannot compute the product that way");
    }
    return false;
}

/* Adds the choice to the file, or takes the choice of another process that was first. A product that cuBLASLt cannot
 * compute at all is not recorded. */
static void record_choice(struct cuda_dev *d, struct gemm_entry *e, double us)
{
    struct gemm_choice c;
    if (e->state == GEMM_NONE && e->key.epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        return;
    memset(&c, 0, sizeof(c));
    c.key = e->key;
    c.us = isfinite(us) ? us : 0;
    c.apart = e->state == GEMM_NONE;
    if (!c.apart)
        memcpy(c.algo, &e->algo, sizeof(c.algo));
    if (gemm_file_add(d->algorithms, &c))
        take_kept(d, e);
}

/* Times on outputs that may be overwritten. ERR_LIMIT, recorded nowhere: there is no memory for them. */
static err_t choose_by_time(struct kern_stream *s, const struct gemm_product *p, const struct gemm_candidates *c,
                            double *ret_us)
{
    struct trial t;
    err_t err = trial_begin(s, p, &t);
    if (err)
        return err;
    err = time_forms(s, &t, c, ret_us);
    trial_end(s, &t);
    return err;
}

static bool timing_is_wanted(struct cuda_dev *d)
{
    if (d->algorithms && gemm_file_takes(d->algorithms))
        gemm_file_refresh(d->algorithms);
    return d->algorithms && gemm_file_takes(d->algorithms);
}

static void tell_none(const struct gemm_entry *e)
{
    if (e->key.epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        log_warn("gemm cuBLASLt has no algorithm, a slower kernel of dtd's own is used m=%lld n=%lld k=%lld lda=%lld "
                 "ldb=%lld ldc=%lld a_align=%u b_align=%u c_align=%u",
                 (long long)e->key.m, (long long)e->key.n, (long long)e->key.k, (long long)e->key.lda,
                 (long long)e->key.ldb, (long long)e->key.ldc, e->key.a_align, e->key.b_align, e->key.c_align);
}

/* A fused GELU must be exact, even if it is faster than the separate form. */
static err_t check_gelu(struct kern_stream *s, struct gemm_product *p, struct gemm_entry *e)
{
    bool exact = true;
    err_t err = e->state == GEMM_ALGO ? gemm_gelu_is_exact(s, p, e, &exact) : OK;
    if (err || exact)
        return err;
    log_info("gemm cuBLASLt's GELU is not exact enough, a kernel of dtd's own is used epilogue=%u m=%lld n=%lld k=%lld",
             e->key.epilogue, (long long)e->key.m, (long long)e->key.n, (long long)e->key.k);
    e->state = GEMM_NONE;
    return OK;
}

/* Chooses by timing, or takes the first proposal. */
static err_t choose_algorithm(struct kern_stream *s, struct gemm_product *p, const struct gemm_candidates *c,
                              bool timed, struct gemm_entry **e, double *ret_us)
{
    err_t err = timed ? choose_by_time(s, p, c, ret_us) : ERR_LIMIT;
    if (err && err != ERR_LIMIT)
        return err;
    bool first = err == ERR_LIMIT;
    err = gemm_workspace(s, p) ? gemm_entry_of(s, p, e) : cuda_stream_of(s)->err;
    if (!err && first)
        take_algo(*e, &c->algo[0]);
    return err ? err : check_gelu(s, p, *e);
}

err_t gemm_choose(struct kern_stream *s, struct gemm_product *p, struct gemm_entry **e)
{
    struct cuda_dev *d = cuda_dev_of(s);
    struct gemm_candidates c = {0};
    double us = 0;
    if (take_kept(d, *e))
        return OK;
    cublasStatus_t status = gemm_cache_propose(d, *e, &c);
    if (status != CUBLAS_STATUS_SUCCESS)
        return gemm_blas_failed(s, p->g, status, "cublasLtMatmulAlgoGetHeuristic", __FILE__, __LINE__);
    bool timed = c.n > 0 && timing_is_wanted(d);
    if (timed && take_kept(d, *e)) /* another process was first */
        return OK;
    (*e)->state = GEMM_NONE;
    err_t err = c.n > 0 ? choose_algorithm(s, p, &c, timed, e, &us) : OK;
    if (!err && (*e)->state == GEMM_NONE)
        tell_none(*e);
    if (!err && timed)
        record_choice(d, *e, us);
    return err;
}
