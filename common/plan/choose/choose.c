/* The search in closed form proposes layouts, the best first; the first one that the rules of job files accept and that
 * fits by its exact memory is taken. A layout is kept as overrides of keys, so that a record of the log reads like a
 * command line, and a key that a later version adds needs no new field. */
#include "common/plan/choose/choose.h"

#include "common/plan/models/build.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A search keeps the fastest variant of each mesh. If it does not fit by its exact memory, a smaller variant may, so
 * the search is repeated with less memory. Below the last part even an estimate that is much too low fits. Most choices
 * need the first search and one compilation. */
static const double memory_parts[] = {1, 0.9, 0.8, 0.7, 0.55};
#define N_MEMORY_PARTS (int)(sizeof(memory_parts) / sizeof(memory_parts[0]))
#define TRIES_PER_SEARCH 8
/* Between nodes whose machine file has no network: 10 Gbit/s Ethernet, which is the least that clusters have. */
#define ASSUMED_NETWORK_GB 1.25
#define ASSUMED_NETWORK_US 50
/* What is compiled here: the nodes of the graph that all ranks of a replica execute in a step. So many take a tenth of
 * a second and some 40 MB, which the leader, who chooses for all users, can afford. Of larger layouts the estimate
 * counts, with its error. */
#define MOST_WORK 2e8
#define ESTIMATE_ERROR 0.12
#define MAX_SETS 24

/* ---- the machine ---- */

struct plan_overlap planner_overlap(const struct machine *m)
{
    const bool streams = !m->device.one_thread;
    return (struct plan_overlap){.gradients = streams, .parameters = streams, .messages = streams};
}

double planner_memory(const struct machine *m)
{
    const double bytes = m->device.memory_gib * (double)(1 << 30);
    return m->device.one_thread ? 0.9 * bytes : bytes - 2.0 * (1 << 30) - 0.02 * bytes;
}

/* A worker on processors computes with its share of the node's cores; workers that share a GPU take turns. */
void plan_machine_share(const struct job_spec *job, const struct plan_place *place, struct machine *m)
{
    const double here = (double)place->per_node;
    double share = m->device.one_thread ? (double)m->device.per_node / here : 1 / (double)job->run.workers_per_gpu;
    m->device.memory_gib *= share;
    if (m->device.one_thread && job->run.threads)
        share = (double)job->run.threads;
    else if (m->device.one_thread && share > 1)
        share = (double)(int64_t)share; /* threads are whole cores */
    m->device.bandwidth_gb *= share;
    m->device.bf16_tflops *= share;
    m->device.f32_tflops *= share;
    m->device.f64_tflops *= share;
    m->device.per_node = place->per_node;
    if (place->nodes > 1 && m->network.bandwidth_gb == 0) {
        m->network.bandwidth_gb = ASSUMED_NETWORK_GB;
        m->network.latency_us = ASSUMED_NETWORK_US;
    }
}

/* ---- fixed keys ---- */

/* With this scope the microbatch is part of the loss, so that another one would train another model; and canonical
 * sums begin in a microbatch. */
static int64_t kept_micro_batch(const struct job_spec *job)
{
    const bool kept = job_keeps(job, "micro_batch") || job->train.numerics == NUMERICS_CANONICAL ||
                      (job->model.experts && job->model.aux_scope == AUX_MICRO_BATCH);
    const int64_t n = job->train.micro_batch, batch = job->train.global_batch;
    return kept ? (n < batch ? n : batch) : 0;
}

/* Canonical results are equal on any number of workers, but not where a layer's sums are cut over ranks. */
static bool keeps_sums(const struct job_spec *job, const struct plan_layout *l)
{
    return job->train.numerics != NUMERICS_CANONICAL ||
           ((l->tp == 1 || job_keeps(job, "tp")) && (l->cp == 1 || job_keeps(job, "cp")));
}

/* Without a pipeline, schedule and chunks mean nothing. */
static bool keeps_fixed(const void *arg, const struct plan_layout *l)
{
    const struct job_spec *job = arg;
    const struct job_parallel *p = &job->parallel;
    const struct {
        const char *name;
        int64_t have, want;
    } rows[] = {{"tp", l->tp, p->tp},
                {"cp", l->cp, p->cp},
                {"pp", l->pp, p->pp},
                {"ep", l->ep, p->ep},
                {"fsdp", l->fsdp, p->fsdp},
                {"zero", l->zero, p->zero},
                {"schedule", l->pp > 1 ? l->schedule : p->schedule, p->schedule},
                {"chunks", l->pp > 1 ? l->chunks : p->chunks, p->chunks},
                {"recompute", l->recompute, p->recompute}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (job_keeps(job, rows[i].name) && rows[i].have != rows[i].want)
            return false;
    return (p->sp || l->tp == 1) && keeps_sums(job, l);
}

void plan_search_fix(struct plan_search *search, const struct job_spec *job)
{
    search->micro_batch = kept_micro_batch(job);
    search->chunks = job_keeps(job, "chunks") ? job->parallel.chunks : 0;
    search->allow = keeps_fixed;
    search->allow_arg = job;
}

/* ---- layouts as text ---- */

static void print_layout(const struct plan_layout *l, char ret[PLAN_CHOICE_LAYOUT])
{
    snprintf(ret, PLAN_CHOICE_LAYOUT,
             "parallel.tp=%" PRId64 " parallel.cp=%" PRId64 " parallel.pp=%" PRId64 " parallel.ep=%" PRId64
             " parallel.fsdp=%" PRId64 " parallel.zero=%" PRId64 " parallel.schedule=%s parallel.chunks=%" PRId64
             " parallel.recompute=%s train.micro_batch=%" PRId64,
             l->tp, l->cp, l->pp, l->ep, l->fsdp, l->zero, job_schedule_row(l->schedule)->name,
             l->pp > 1 ? l->chunks : 1, planner_recompute_word(l->recompute), l->micro_batch);
}

void plan_choice_set(const struct plan_layout *l, struct job_spec *job)
{
    const bool sp = job->parallel.sp, reshard = job->parallel.reshard;
    plan_layout_apply(l, job);
    job->parallel.sp = sp;
    job->parallel.reshard = reshard;
}

void plan_choice_copy(const struct job_spec *from, struct job_spec *to)
{
    struct plan_layout l;
    plan_layout_of(from, &l);
    plan_choice_set(&l, to);
}

/* A node's share of the workers need not be whole now, so run.nodes goes: the workers have their places already. */
err_t plan_choice_apply(const char *yaml, const char *layout, int64_t workers, struct job_spec *ret, struct why *why)
{
    char copy[PLAN_CHOICE_LAYOUT], count[48], *rest = NULL;
    const char *sets[MAX_SETS] = {"parallel.auto=false",    "parallel.fixed=[]", "parallel.machine=\"\"",
                                  "parallel.min_workers=0", "run.nodes=0",       count};
    int n = 6;
    if (strlen(layout) >= sizeof(copy))
        return why_set(why, ERR_CORRUPT, "the layout of the epoch is too long");
    snprintf(copy, sizeof(copy), "%s", layout);
    snprintf(count, sizeof(count), "parallel.workers=%" PRId64, workers);
    for (char *word = strtok_r(copy, " ", &rest); word && n < MAX_SETS; word = strtok_r(NULL, " ", &rest))
        sets[n++] = word;
    return job_parse("the job's layout", yaml, strlen(yaml), sets, n, ret, why);
}

/* ---- the choice ---- */

struct chooser {
    const struct job_spec *job;
    const char *yaml;
    struct graph graph;
    struct plan_search search;
    struct plan_results results;
    double memory;            /* bytes that a worker may use; search.memory is a part of it */
    struct plan_layout least; /* of the layouts that a compilation ruled out, the one that needs least memory */
    double least_bytes;       /* 0: there is none */
    int refused;              /* layouts that the rules or the compiler ruled out */
    char refusal[sizeof(((struct why *)0)->text)];
};

static bool is_compiled(const struct chooser *c, const struct plan_layout *l)
{
    const double replica = (double)(plan_layout_workers(l) / l->dp);
    const double work = replica / (double)l->pp * c->graph.n_nodes * (plan_layout_micros(c->search.shape, l) + 4);
    return replica <= PLAN_COMPILED_WORKERS && work <= MOST_WORK;
}

/* Whether the layout fits. One that dtd does not have is no error: the closed form looks at more than the compiler
 * accepts. */
static bool try_layout(struct chooser *c, const struct plan_found *f, struct plan_choice *ret)
{
    struct job_spec job = {0};
    struct why why = {0};
    double bytes = (1 + ESTIMATE_ERROR) * f->bytes.total;
    print_layout(&f->layout, ret->layout);
    err_t err = plan_choice_apply(c->yaml, ret->layout, c->search.workers, &job, &why);
    if (!err && is_compiled(c, &f->layout))
        err = planner_exact(&job, &c->graph, &f->layout, &bytes, &why);
    job_fini(&job);
    c->refused += err != OK;
    if (err)
        snprintf(c->refusal, sizeof(c->refusal), "%s", why.text);
    const bool fits = !err && bytes <= c->memory;
    if (!err && !fits && (c->least_bytes == 0 || bytes < c->least_bytes)) {
        c->least = f->layout;
        c->least_bytes = bytes;
    }
    return fits;
}

static void explain(const struct chooser *c, int best, struct plan_choice *ret)
{
    char a[160], b[160];
    const struct plan_results *r = &c->results;
    const int next = best + 1;
    size_t n = (size_t)snprintf(ret->why, sizeof(ret->why), "%s: %.3g s a step",
                                planner_layout_text(&r->fit[best].layout, a, sizeof(a)), r->fit[best].time.seconds);
    if (next < r->n_fit && n < sizeof(ret->why))
        snprintf(ret->why + n, sizeof(ret->why) - n, "; next best %s: %.3g s",
                 planner_layout_text(&r->fit[next].layout, b, sizeof(b)), r->fit[next].time.seconds);
}

static err_t lack_memory(const struct chooser *c, const struct plan_layout *l, double bytes, struct why *why)
{
    char text[160];
    const double gib = 1 << 30;
    return why_set(why, ERR_LIMIT,
                   "the model does not fit into %.3g GiB per worker on %" PRId64
                   " workers: the layout that needs least needs %.3g GiB more (%s). Take more nodes, or devices with "
                   "more memory",
                   c->memory / gib, c->search.workers, (bytes - c->memory) / gib,
                   planner_layout_text(l, text, sizeof(text)));
}

/* The results are those of the search with least memory, so a layout that was compiled needs least, if there is one. */
static err_t nothing_fits(const struct chooser *c, struct why *why)
{
    const struct plan_results *r = &c->results;
    if (c->least_bytes > 0)
        return lack_memory(c, &c->least, c->least_bytes, why);
    if (c->refused)
        return why_set(why, ERR_NOTFOUND,
                       "dtd has none of the layouts of %" PRId64
                       " workers that fit; the last one was refused because: %s",
                       c->search.workers, c->refusal);
    if (r->n_unfit)
        return lack_memory(c, &r->unfit->layout, r->unfit->bytes.total, why);
    return why_set(why, ERR_NOTFOUND,
                   "no layout has %" PRId64 " workers%s: change parallel.workers, or raise train.global_batch (%.0f)",
                   c->search.workers, c->job->parallel.n_fixed ? " and the keys of parallel.fixed" : "",
                   c->search.shape->global_batch);
}

/* One search, with a part of the memory. False: none of its first layouts fits. */
static bool search_once(struct chooser *c, double part, struct plan_choice *ret, err_t *ret_err)
{
    struct plan_choice choice = {0};
    plan_results_fini(&c->results);
    c->search.memory = part * c->memory;
    *ret_err = plan_search(&c->search, &c->results);
    for (int i = 0; !*ret_err && i < c->results.n_fit && i < TRIES_PER_SEARCH; i++)
        if (try_layout(c, &c->results.fit[i], &choice)) {
            choice.found = c->results.fit[i];
            explain(c, i, &choice);
            *ret = choice;
            return true;
        }
    return false;
}

static err_t choose(struct chooser *c, struct plan_choice *ret, struct why *why)
{
    err_t err = graph_build(&c->job->model, c->job->train.seq, &c->graph, why);
    for (int i = 0; !err && i < N_MEMORY_PARTS; i++) {
        if (search_once(c, memory_parts[i], ret, &err))
            return OK;
        if (!c->results.n_fit) /* with less memory none fits either */
            break;
    }
    return err ? err : nothing_fits(c, why);
}

err_t plan_choose(const struct job_spec *job, const struct machine *machine, const struct plan_place *place,
                  struct plan_choice *ret, struct why *why)
{
    struct machine m = *machine; /* borrows its strings */
    struct plan_shape shape;
    struct buf yaml = {0};
    plan_machine_share(job, place, &m);
    plan_shape_of(job, &shape);
    struct chooser c = {.job = job,
                        .search = {.shape = &shape,
                                   .machine = &m,
                                   .overlap = planner_overlap(&m),
                                   .memory = planner_memory(&m),
                                   .workers = place->workers,
                                   .goal = PLAN_TIME}};
    c.memory = c.search.memory;
    plan_search_fix(&c.search, job);
    err_t err = job_print(job, &yaml);
    err = err ? err : buf_append(&yaml, "", 1);
    c.yaml = (const char *)yaml.data;
    err = err ? why_set(why, err, "%s", err_text(err)) : choose(&c, ret, why);
    plan_results_fini(&c.results);
    graph_fini(&c.graph);
    buf_fini(&yaml);
    return err;
}
