/* The loops over meshes are bounded by the machine (tp stays within a few nodes), the model (pp by its layers) and the
 * batch (a replica needs a sample), so that a search over 16,384 workers looks at some hundred thousand layouts. */
#include "common/plan/search/search.h"

#include "common/mesh/mesh.h"
#include "common/plan/models/build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Ranks of tensor parallelism that are worth a look: its collectives are within each layer, so beyond two nodes they
 * only lose. */
#define MAX_TP_NODES 2
#define MAX_MICRO_BATCH 64

struct searcher {
    const struct plan_search *search;
    struct plan_results *results;
    struct plan_found best, least; /* of the mesh at hand */
    bool has_best, has_least;
    err_t err;
};

/* ---- variants of a mesh ---- */

static double goal_of(const struct searcher *k, const struct plan_found *f)
{
    return k->search->goal == PLAN_MEMORY ? f->bytes.total : f->time.seconds;
}

static void look(struct searcher *k, const struct plan_layout *l)
{
    const struct plan_search *s = k->search;
    struct plan_found f = {.layout = *l};
    if (s->allow && !s->allow(s->allow_arg, l))
        return;
    plan_step_bytes(s->shape, l, &f.bytes);
    k->results->looked++;
    bool fits = f.bytes.total <= s->memory;
    if (!fits && k->has_least && f.bytes.total >= k->least.bytes.total)
        return;
    plan_step_time(s->shape, l, s->machine, &s->overlap, &f.time);
    if (!k->has_least || f.bytes.total < k->least.bytes.total) {
        k->least = f;
        k->has_least = true;
    }
    if (fits && (!k->has_best || goal_of(k, &f) < goal_of(k, &k->best))) {
        k->best = f;
        k->has_best = true;
    }
}

/* A backward pass in halves keeps what recomputation would save, so that it only loses time there. */
static void look_at_recomputes(struct searcher *k, struct plan_layout l)
{
    const bool split = l.pp > 1 && (l.schedule == PIPE_ZB_H1 || l.schedule == PIPE_ZB_V);
    static const enum recompute hows[] = {RECOMPUTE_NONE, RECOMPUTE_POINTWISE, RECOMPUTE_ATTENTION, RECOMPUTE_EXPERTS,
                                          RECOMPUTE_FULL};
    for (size_t i = 0; i < (split ? 1 : sizeof(hows) / sizeof(hows[0])); i++) {
        if (hows[i] == RECOMPUTE_EXPERTS && !k->search->shape->experts)
            continue;
        l.recompute = hows[i];
        look(k, &l);
    }
}

static void look_at_schedules(struct searcher *k, struct plan_layout l)
{
    static const struct {
        enum pipe_schedule schedule;
        int64_t fewest, most;
    } rows[] = {{PIPE_1F1B, 1, 1}, {PIPE_INTERLEAVED, 2, 16}, {PIPE_ZB_H1, 1, 1}, {PIPE_ZB_V, 2, 2}};
    const struct plan_shape *s = k->search->shape;
    const int64_t only = l.pp > 1 ? k->search->chunks : 0;
    for (size_t i = 0; i < (l.pp > 1 ? sizeof(rows) / sizeof(rows[0]) : 1); i++)
        for (int64_t chunks = only > rows[i].fewest ? only : rows[i].fewest;
             chunks <= rows[i].most && (double)(chunks * l.pp) <= s->layers; chunks *= 2) {
            if (rows[i].schedule == PIPE_INTERLEAVED && fmod(plan_layout_micros(s, &l), (double)l.pp) != 0)
                break; /* microbatches go through a chunk in rounds of pp */
            l.schedule = rows[i].schedule;
            l.chunks = chunks;
            look_at_recomputes(k, l);
        }
}

static void look_at_variants(struct searcher *k, struct plan_layout l)
{
    const double replicas = (double)(l.dp * l.fsdp), batch = k->search->shape->global_batch;
    const int64_t only = k->search->micro_batch, most = only ? only : MAX_MICRO_BATCH;
    l.sp = l.tp > 1;
    l.reshard = true;
    for (l.micro_batch = only ? only : 1; l.micro_batch <= most && (double)l.micro_batch * replicas <= batch;
         l.micro_batch *= 2)
        for (l.zero = l.fsdp > 1 ? 1 : 0; l.zero <= (l.fsdp > 1 ? 3 : 0); l.zero++)
            look_at_schedules(k, l);
}

/* ---- meshes ---- */

static err_t keep(struct plan_found **list, int *n, const struct plan_found *f)
{
    if (*n == PLAN_SEARCH_MESHES)
        return OK;
    if (!*list)
        *list = malloc(PLAN_SEARCH_MESHES * sizeof(**list));
    if (!*list)
        return ERR_NOMEM;
    (*list)[(*n)++] = *f;
    return OK;
}

static void look_at_mesh(struct searcher *k, const struct plan_layout *l)
{
    k->has_best = k->has_least = false;
    look_at_variants(k, *l);
    struct plan_results *r = k->results;
    if (k->has_best)
        k->err = k->err ? k->err : keep(&r->fit, &r->n_fit, &k->best);
    else if (k->has_least)
        k->err = k->err ? k->err : keep(&r->unfit, &r->n_unfit, &k->least);
}

/* Experts are divided over all ranks of tp, then cp, then a part of fsdp (mesh_fold_init). */
static void look_at_experts(struct searcher *k, struct plan_layout l)
{
    const double experts = k->search->shape->experts;
    l.ep = 1;
    look_at_mesh(k, &l);
    for (int64_t part = 1; experts > 0 && part <= l.fsdp; part++) {
        l.ep = l.tp * l.cp * part;
        if (l.fsdp % part == 0 && l.ep > 1 && (double)l.ep <= experts && fmod(experts, (double)l.ep) == 0)
            look_at_mesh(k, &l);
    }
}

static void look_at_replicas(struct searcher *k, struct plan_layout l, int64_t replicas)
{
    if ((double)replicas > k->search->shape->global_batch)
        return;
    for (l.fsdp = 1; l.fsdp <= replicas; l.fsdp++) {
        if (replicas % l.fsdp)
            continue;
        l.dp = replicas / l.fsdp;
        look_at_experts(k, l);
    }
}

static void look_at_all(struct searcher *k)
{
    const struct plan_shape *s = k->search->shape;
    const int64_t workers = k->search->workers, max_tp = MAX_TP_NODES * k->search->machine->device.per_node;
    struct plan_layout l = {0};
    for (l.tp = 1; l.tp <= max_tp && (double)l.tp <= s->heads; l.tp++) {
        if (workers % l.tp || fmod(s->heads, (double)l.tp) || fmod(s->kv_heads, (double)l.tp))
            continue;
        for (l.cp = 1; (double)l.cp <= s->seq / 2 && l.tp * l.cp <= workers; l.cp *= 2)
            for (l.pp = 1; (double)l.pp <= s->layers && l.tp * l.cp * l.pp <= workers; l.pp++)
                if (workers % (l.tp * l.cp * l.pp) == 0)
                    look_at_replicas(k, l, workers / (l.tp * l.cp * l.pp));
    }
}

static int by_time(const void *a, const void *b)
{
    double x = ((const struct plan_found *)a)->time.seconds, y = ((const struct plan_found *)b)->time.seconds;
    return (x > y) - (x < y);
}

static int by_memory(const void *a, const void *b)
{
    double x = ((const struct plan_found *)a)->bytes.total, y = ((const struct plan_found *)b)->bytes.total;
    return (x > y) - (x < y);
}

err_t plan_search(const struct plan_search *search, struct plan_results *ret)
{
    struct plan_results r = {0};
    struct searcher k = {.search = search, .results = &r};
    look_at_all(&k);
    if (k.err) {
        plan_results_fini(&r);
        return k.err;
    }
    if (r.n_fit)
        qsort(r.fit, (size_t)r.n_fit, sizeof(*r.fit), search->goal == PLAN_MEMORY ? by_memory : by_time);
    if (r.n_unfit)
        qsort(r.unfit, (size_t)r.n_unfit, sizeof(*r.unfit), by_memory);
    *ret = r;
    return OK;
}

void plan_results_fini(struct plan_results *r)
{
    free(r->fit);
    free(r->unfit);
    memset(r, 0, sizeof(*r));
}

/* ---- jobs ---- */

static double count_expert_layers(const struct job_model *m)
{
    double n = 0;
    for (int64_t i = 0; m->experts && i < m->layers; i++)
        n += i >= m->dense_layers && (i + 1) % m->moe_every == 0;
    return n;
}

void plan_shape_of(const struct job_spec *job, struct plan_shape *ret)
{
    const struct job_model m = graph_model(&job->model);
    const double type = (double)dtype_bytes((enum dtype)job->train.dtype);
    const double wide = type == 8 ? 8 : 4;
    *ret = (struct plan_shape){
        .layers = (double)m.layers,
        .dim = (double)m.dim,
        .heads = (double)m.heads,
        .kv_heads = (double)m.kv_heads,
        .head_dim = (double)job_head_dim(&m),
        .ffn = (double)m.ffn,
        .vocab = (double)m.vocab,
        .seq = (double)job->train.seq,
        .ffn_matrices = m.arch == ARCH_LLAMA && !m.ffn_plain ? 3 : 2,
        .window = m.window && !m.window_period && !m.window_from ? (double)m.window : 0,
        .experts = (double)m.experts,
        .experts_per_token = (double)m.experts_per_token,
        .expert_ffn = (double)m.expert_ffn,
        .shared_ffn = (double)(m.shared_experts * m.expert_ffn),
        .expert_layers = count_expert_layers(&m),
        .even_experts = job->parallel.expert_load == EXPERT_LOAD_BALANCED,
        .tied = m.tied,
        .fused_attention = true,
        .dropout = job->train.dropout > 0,
        .saves_in_memory = job->run.device == DEVICE_CPU,
        .type_bytes = type,
        .keep_bytes = wide,
        .state_bytes = 2 * wide,
        .grad_bytes = wide,
        .global_batch = (double)job->train.global_batch,
    };
}

void plan_layout_of(const struct job_spec *job, struct plan_layout *ret)
{
    const struct job_parallel *p = &job->parallel;
    *ret = (struct plan_layout){.dp = p->workers / (p->fsdp * p->tp * p->cp * p->pp),
                                .fsdp = p->fsdp,
                                .tp = p->tp,
                                .cp = p->cp,
                                .pp = p->pp,
                                .ep = p->ep,
                                .zero = p->zero,
                                .chunks = p->chunks,
                                .micro_batch = job->train.micro_batch,
                                .sp = p->sp && p->tp > 1,
                                .reshard = p->reshard,
                                .recompute = p->recompute,
                                .schedule = p->schedule};
}

void plan_layout_apply(const struct plan_layout *l, struct job_spec *job)
{
    struct job_parallel *p = &job->parallel;
    p->workers = plan_layout_workers(l);
    p->fsdp = l->fsdp;
    p->tp = l->tp;
    p->cp = l->cp;
    p->pp = l->pp;
    p->ep = l->ep;
    p->zero = l->zero;
    p->chunks = l->pp > 1 ? l->chunks : 1;
    p->sp = true;
    p->reshard = l->reshard;
    p->recompute = l->recompute;
    p->schedule = l->schedule;
    job->train.micro_batch = l->micro_batch;
}
