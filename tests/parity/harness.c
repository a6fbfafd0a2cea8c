/* A rank is a forked process that ends by _exit. Its messages go to stderr, and its result is its status. */
#include "tests/parity/harness.h"

#include "tests/parity/rank.h"

#include "common/base/rng.h"
#include "common/plan/models/build.h"

#include <sys/mman.h>
#include <sys/wait.h>

#define ARENA_BYTES \
    ((size_t)40 << 10) /* small on purpose, so that a load takes several rounds and splits large tensors */

const char parity_llama[] =
    "name: parity\n"
    "model: {arch: llama, dim: 48, layers: 2, heads: 6, kv_heads: 2, ffn: 80, vocab: 300}\n"
    "data: {train: [/nothing], tokenizer: words}\n"
    "train: {steps: 40, seq: 12, global_batch: 7, micro_batch: 2, lr: 1.0e-2, warmup: 3, verify_every: 1,\n"
    "        schedule: cosine, clip: 0.5, numerics: proof}\n"
    "checkpoint: {dir: /nowhere}\n";
const char parity_gpt2[] =
    "name: parity\n"
    "model: {arch: gpt2, dim: 32, layers: 2, heads: 4, vocab: 300}\n"
    "data: {train: [/nothing], tokenizer: words}\n"
    "train: {steps: 40, seq: 12, global_batch: 7, micro_batch: 2, lr: 1.0e-2, warmup: 3, verify_every: 1,\n"
    "        schedule: linear, clip: 0.5, numerics: proof}\n"
    "checkpoint: {dir: /nowhere}\n";

/* The course's model, with its dropout, whose random numbers do not depend on the layout. */
const char parity_transformer[] =
    "name: parity\n"
    "model: {arch: transformer, dim: 32, layers: 2, heads: 8, ffn: 72, vocab: 300}\n"
    "data: {train: [/nothing], tokenizer: words}\n"
    "train: {steps: 40, seq: 12, global_batch: 7, micro_batch: 2, lr: 1.0e-2, warmup: 3, verify_every: 1,\n"
    "        schedule: wsd, decay: 30, clip: 0.5, dropout: 0.1, numerics: proof}\n"
    "checkpoint: {dir: /nowhere}\n";

void parity_model_init(struct parity_model *m, const char *yaml, const char *const *sets)
{
    struct why why;
    int n = 0;
    while (sets && sets[n])
        n++;
    if (job_parse("parity.yaml", yaml, strlen(yaml), sets, n, &m->job, &why) ||
        graph_build(&m->job.model, m->job.train.seq, &m->graph, &why))
        fail_msg("%s", why.text);
}

void parity_model_fini(struct parity_model *m)
{
    graph_fini(&m->graph);
    job_fini(&m->job);
}

static bool counts(const struct parity_feed *f, int64_t index, int64_t i)
{
    const bool some = index % 5 != 0 && rng_uniform(7, 3, (uint64_t)(index * f->seq + i)) < 0.6;
    return f->mask == PARITY_ALL || (f->mask == PARITY_SOME && some) || (f->mask == PARITY_OTHERS && !some);
}

err_t parity_count(void *arg, int64_t index, int64_t *ret)
{
    const struct parity_feed *f = arg;
    *ret = f->labels > 0;
    for (int64_t i = 0; i < f->seq && !f->labels; i++)
        *ret += counts(f, index, i);
    return OK;
}

err_t parity_sample(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    const struct parity_feed *f = arg;
    int64_t token = (int64_t)(rng_uniform(7, 1, (uint64_t)index) * (double)f->vocab);
    for (int64_t i = 0; i < f->seq; i++) {
        double dice = rng_uniform(7, 2, (uint64_t)(index * f->seq + i));
        ret_ids[i] = (int32_t)token;
        token = dice < 0.8 ? (token * 3 + 1) % f->vocab : (int64_t)(dice * (double)f->vocab);
        ret_targets[i] = !f->labels && counts(f, index, i) ? (int32_t)token : -1;
    }
    if (f->labels)
        ret_targets[(index % 4 ? 1 + index * 5 % f->seq : f->seq) - 1] = (int32_t)(index * 7 % f->labels);
    return OK;
}

struct parity_feed parity_feed_of(const struct job_spec *job)
{
    return (struct parity_feed){.seq = job->train.seq, .vocab = job->model.vocab, .labels = job->model.labels};
}

struct engine_feed parity_engine_feed(struct parity_feed *f)
{
    const bool all = f->mask == PARITY_ALL && !f->labels;
    return (struct engine_feed){.sample = parity_sample, .arg = f, .count = all ? NULL : parity_count};
}

struct dev *test_cpu(void)
{
    static struct dev *dev;
    if (!dev)
        assert_int_equal(dev_open("cpu", 0, &dev, NULL), OK);
    return dev;
}

/* ---- one rank ---- */

static double element_as_double(const void *data, int64_t i, enum dtype dtype)
{
    return dtype == DT_F64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

/* Where this rank's piece of tensor t begins. For gradients it is the buffer that the update reads: with ZeRO, that of
 * the piece. */
static const void *piece_data(const struct engine *e, enum parity_what what, int t)
{
    const struct program *p = &e->train;
    if (what != PARITY_GRAD)
        return engine_buffer(e, p, p->param_buffer[t]);
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        if (op->kind != OP_ADAMW || op->arg[0].buffer != p->param_buffer[t])
            continue;
        const struct buffer *b = &p->buffers[op->arg[3].buffer];
        int64_t at = program_dim(p, op->arg[3].offset, p->max_samples) + op->arg[3].col;
        return (const uint8_t *)engine_buffer(e, p, op->arg[3].buffer) + (size_t)at * dtype_bytes(b->dtype);
    }
    fprintf(stderr, "no rank updates %s\n", e->config.graph->tensors[t].name);
    abort();
}

static int64_t collect_box(const struct sharding_box *b, const void *data, enum dtype dtype, int64_t cols, double *to,
                           bool differ)
{
    const int64_t width = b->box.ndim > 1 ? b->box.size[1] : 1, col0 = b->box.ndim > 1 ? b->box.offset[1] : 0;
    int64_t n = 0;
    for (int64_t i = 0; i < b->box.size[0]; i++)
        for (int64_t k = 0; k < width; k++) {
            double x = element_as_double(data, b->offset + i * b->stride + k, dtype);
            double *at = to + (b->box.offset[0] + i) * cols + col0 + k;
            if (differ)
                n += memcmp(at, &x, sizeof(x)) != 0;
            else
                *at = x;
        }
    return n;
}

int64_t parity_collect(const struct engine *e, enum parity_what what, double *to, bool differ)
{
    const struct program *p = &e->train;
    const struct graph *g = e->config.graph;
    int64_t n = 0;
    for (int t = 0; t < g->n_tensors; t++) {
        const struct graph_tensor *x = &g->tensors[t];
        const struct sharding_param *q = &p->sharding.param[t];
        struct sharding_box boxes[SHARDING_MAX_BOXES];
        if (x->kind != (what == PARITY_STATE ? GT_STATE : GT_PARAM))
            continue;
        int64_t cols = x->ndim > 1 ? x->dim[1].factor : 1;
        int parts = q->held ? sharding_boxes(&p->sharding, g, t, q->lo, q->hi, boxes) : 0;
        for (int i = 0; i < parts; i++)
            n += collect_box(&boxes[i], piece_data(e, what, t), x->exact ? DT_F64 : p->wide, cols, to, differ);
        to += x->dim[0].factor * cols;
    }
    return n;
}

static double first_value(const struct parity_model *m, const struct graph_tensor *x, int64_t index)
{
    uint64_t seed = m->job.train.seed;
    double value = x->init == INIT_ONE ? 1 : 0;
    if (x->init == INIT_NORMAL)
        value = x->init_std * rng_normal(seed, rng_stream(x->name), (uint64_t)index);
    return m->job.train.dtype == DT_F64 ? value : (double)(float)value;
}

void parity_first_params(const struct parity_model *m, double *to)
{
    for (int t = 0; t < m->graph.n_tensors; t++) {
        const struct graph_tensor *x = &m->graph.tensors[t];
        int64_t n = x->kind == GT_PARAM ? x->dim[0].factor * (x->ndim > 1 ? x->dim[1].factor : 1) : 0;
        for (int64_t i = 0; i < n; i++)
            *to++ = first_value(m, x, i);
    }
}

static int load_state(struct engine *e, struct store *store)
{
    uint8_t *arena = malloc(ARENA_BYTES);
    for (int optimizer = 0; optimizer < 2; optimizer++) {
        struct snapshot s;
        if (snapshot_plan_load(e, optimizer, &s) || snapshot_fit(&s, ARENA_BYTES))
            return 1;
        for (int first = 0, end; first < s.n; first = end) {
            end = snapshot_place(&s, first, ARENA_BYTES);
            store_read(store, &s, arena, first, end);
            if (snapshot_restore(&s, e, arena, first, end, NULL))
                return 1;
        }
        e->updates = optimizer ? (int64_t)s.updates : 0;
        snapshot_fini(&s);
    }
    free(arena);
    e->step = store_scalars(store)[0];
    e->position = store_scalars(store)[1];
    return 0;
}

static int save_state(struct engine *e, struct store *store)
{
    struct snapshot s;
    if (snapshot_plan_save(e, &s))
        return 1;
    uint8_t *arena = malloc(s.bytes);
    if (snapshot_copy(&s, e, arena) || snapshot_wait(e, NULL))
        return 1;
    store_write(store, &s, arena);
    snapshot_fini(&s);
    free(arena);
    if (e->config.rank == 0) {
        store_scalars(store)[0] = e->step;
        store_scalars(store)[1] = e->position;
    }
    return 0;
}

static err_t run_steps(struct engine *e, int64_t last, const struct parity_options *o, struct parity_result *r,
                       struct why *why)
{
    struct parity_feed data = parity_feed_of(e->config.job);
    const struct engine_feed feed = o && o->feed ? *o->feed : parity_engine_feed(&data);
    bool first = true;
    double valid = 0;
    err_t err = o && o->before ? o->before(o->arg, e, why) : OK;
    while (!err && e->step < last) {
        struct engine_result one;
        if (o && o->each)
            o->each(o->arg, e);
        e->next_is_step = e->step + 1 < last && !(o && o->pause && (e->step + 1) % o->pause == 0);
        err = engine_step(e, &feed, &one, why);
        if (!err && e->config.rank == 0) {
            r->loss[e->step - 1] = one.loss;
            r->norm[e->step - 1] = one.grad_norm;
        }
        if (!err && first)
            parity_collect(e, PARITY_GRAD, r->grad, false);
        first = false;
        if (!err && o && o->evaluate && e->step % o->evaluate == 0)
            err = engine_eval(e, &feed, 500, 500 + 2 * e->config.job->train.global_batch, &valid, why);
        if (!err && o && o->save_at == e->step && save_state(e, o->save))
            err = ERR_INTERNAL;
    }
    if (e->config.rank == 0) {
        r->ahead = e->ahead.updates;
        r->repeated = e->ahead.repeated;
    }
    if (!err)
        err = engine_eval(e, &feed, 1000, 1000 + 3 * e->config.job->train.global_batch - 2, &valid, why);
    if (e->config.rank == 0)
        r->valid = valid;
    return err;
}

/* All ranks write their parameters to the same place; a rank that then reads other bits has a replica that differs. */
static int compare_replicas(struct engine *e, struct comm_group *all, struct parity_result *r)
{
    parity_collect(e, PARITY_PARAM, r->param, false);
    parity_collect(e, PARITY_STATE, r->state, false);
    if (comm_barrier(all))
        return 1;
    if (parity_collect(e, PARITY_PARAM, r->param, true) || parity_collect(e, PARITY_STATE, r->state, true))
        __atomic_fetch_add(&r->replicas_differ, 1, __ATOMIC_SEQ_CST);
    return 0;
}

int parity_run_rank(const struct parity_model *m, int fd, uint64_t epoch, int rank, int64_t last,
                    const struct parity_options *o, struct parity_result *r, char *message)
{
    struct engine e;
    struct comm *comm = NULL;
    struct comm_group *all = NULL;
    struct dev *dev = o && o->open ? o->open() : test_cpu();
    struct why why = {""};
    int world = (int)m->job.parallel.workers, ranks[PARITY_MAX_WORKERS];
    const struct engine_config config = {.dev = dev,
                                         .job = &m->job,
                                         .graph = &m->graph,
                                         .rank = rank,
                                         .world = world,
                                         .eval = true,
                                         .comm_thread = m->job.run.comm_thread == COMM_THREAD_ON};
    if (engine_init(&e, &config, &why)) {
        snprintf(message, 512, "%.500s", why.text);
        return 1;
    }
    const struct parity_nodes *nodes = o ? o->nodes : NULL;
    static const uint8_t secret[32] = "an epoch's secret";
    struct memory_store_view view;
    const struct comm_config cc = {.backend = o && o->comm ? o->comm : "shm",
                                   .dev = dev,
                                   .fd = fd,
                                   .rank = rank,
                                   .world = world,
                                   .epoch = epoch,
                                   .shared_bytes = engine_shared_bytes(&e),
                                   .timeout_ms = 30000,
                                   .store = nodes ? memory_store_view_init(&view, nodes->store, epoch) : NULL,
                                   .node_of = nodes ? nodes->node_of : NULL,
                                   .secret = secret,
                                   .secret_bytes = sizeof(secret),
                                   .address = nodes ? nodes->address : NULL};
    for (int i = 0; i < world; i++)
        ranks[i] = i;
    err_t err = comm_open(&cc, &comm, &why);
    err = err ? err : comm_group_new(comm, ranks, world, &all);
    err = err ? err : engine_start(&e, comm, &why);
    err = err ? err : engine_fill_state(&e, &why);
    int rc = !err && o && o->load ? load_state(&e, o->load) : 0;
    err = err || rc ? err : run_steps(&e, last, o, r, &why);
    rc = err || rc ? 1 : compare_replicas(&e, all, r);
    rc = rc || !o || !o->save || o->save_at ? rc : save_state(&e, o->save);
    if (err)
        snprintf(message, 512, "%s %.480s", err_name(err), why.text);
    if (rc && comm)
        comm_abort(comm);
    comm_group_free(all);
    engine_fini(&e);
    comm_close(comm);
    if (o && o->open)
        o->close(dev);
    return rc;
}

/* ---- all ranks ---- */

struct run {
    const struct parity_model *m;
    int64_t last;
    const struct parity_options *o;
    struct parity_result *r;
};

static int run_rank(void *arg, int fd, int rank)
{
    const struct run *run = arg;
    char why[512] = "no sentence";
    int rc = parity_run_rank(run->m, fd, 1, rank, run->last, run->o, run->r, why);
    if (rc)
        fprintf(stderr, "rank %d: %s\n", rank, why);
    return rc;
}

struct parity_result *parity_result_new(const struct parity_model *m)
{
    size_t bytes = sizeof(struct parity_result) + 2 * (size_t)m->graph.n_params * sizeof(double);
    struct parity_result *r = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(r != MAP_FAILED);
    r->bytes = bytes;
    r->n = m->graph.n_params;
    int64_t states = 0;
    for (int t = 0; t < m->graph.n_tensors; t++)
        states += m->graph.tensors[t].kind == GT_STATE ? m->graph.tensors[t].dim[0].factor : 0;
    assert_true(states <= PARITY_MAX_STATES);
    r->grad = (double *)(r + 1);
    r->param = r->grad + r->n;
    return r;
}

struct parity_result *parity_run(const struct parity_model *m, int64_t last, const struct parity_options *options)
{
    struct parity_result *r = parity_result_new(m);
    assert_true(last <= PARITY_MAX_STEPS);
    parity_fork((int)m->job.parallel.workers, run_rank, &(struct run){m, last, options, r});
    assert_int_equal(r->replicas_differ, 0);
    return r;
}

void parity_result_free(struct parity_result *r)
{
    munmap(r, r->bytes);
}
