/* Random triples of a layout, a model with experts and a router, each against one worker: every rank of the job in one
 * process, in float64 (world.h). Draws that a job file may not contain are skipped. The seed is fixed; DTD_EXPERTS_SEED
 * sets another, and DTD_EXPERTS_CASES another number of cases. */
#include "common/base/rng.h"
#include "common/conf/job.h"
#include "common/plan/compile/compile.h"
#include "tests/common/plan/world.h"

#include <stdlib.h>

struct draw {
    uint64_t seed, n;
};

/* A number of 0 .. below - 1. */
static int64_t pick(struct draw *d, int64_t below)
{
    return (int64_t)(rng_uniform(d->seed, 7, d->n++) * (double)below);
}

static bool coin(struct draw *d)
{
    return pick(d, 2);
}

static void draw_model(struct draw *d, struct job_model *m)
{
    m->layers = 2 + pick(d, 3);
    m->heads = coin(d) ? 4 : 6;
    m->kv_heads = m->heads / 2;
    m->dim = 4 * m->heads;
    m->ffn = 12 + pick(d, 9);
    m->tied = coin(d);
    m->experts = 1 + pick(d, 9);
    m->experts_per_token = 1 + pick(d, m->experts < 4 ? m->experts : 4);
    m->expert_ffn = 7 + pick(d, 6);
    m->shared_experts = pick(d, 3);
    m->shared_gate = m->shared_experts && coin(d);
    m->moe_every = 1 + pick(d, 2);
    m->dense_layers = pick(d, 2);
    m->router = (enum router_kind)pick(d, 4);
    m->router_norm = coin(d);
    m->router_bias = coin(d);
    m->router_scale = coin(d) ? 1 : 2.5;
    m->router_groups = 1 + pick(d, 3);
    m->router_groups_kept = 1 + pick(d, m->router_groups);
    m->router_group_best = 1 + pick(d, 2);
    m->aux_loss = coin(d) ? 0.25 : 0;
    m->z_loss = coin(d) ? 0.02 : 0;
    m->aux_scope = (enum aux_scope)pick(d, 3);
    m->expert_bias = coin(d) ? 0.03 : 0;
    m->expert_capacity = coin(d) ? 0.25 * (1 + pick(d, 6)) : 0;
    m->expert_drop = coin(d) ? DROP_PROBABILITY : DROP_POSITION;
}

static void draw_layout(struct draw *d, struct job_parallel *p)
{
    p->fsdp = 1 + pick(d, 4);
    p->tp = 1 + pick(d, 4);
    p->cp = coin(d) ? 1 : 2 + 2 * pick(d, 2);
    p->pp = 1 + pick(d, 2);
    p->workers = p->fsdp * p->tp * p->cp * p->pp * (1 + pick(d, 2));
    p->zero = pick(d, 4);
    p->sp = coin(d);
    p->recompute = (enum recompute)pick(d, 5);
    p->schedule = (enum pipe_schedule)pick(d, PIPE_FILE);
    p->chunks = p->pp > 1 && job_schedule_row(p->schedule)->most > 1 ? 2 : 1;
    const int64_t folds[] = {1, p->tp, p->tp * p->cp, p->tp * p->cp * p->fsdp, 2, 4};
    p->ep = folds[pick(d, 6)];
}

/* False: a job file may not contain it. */
static bool legal(const struct job_spec *job)
{
    const struct job_model *m = &job->model;
    struct graph g;
    struct mesh mesh;
    struct why why;
    if ((m->router == ROUTER_SWITCH && m->experts_per_token > 1) || (m->router_norm && m->experts_per_token == 1))
        return false; /* the job file's own rules (common/conf/job_rules.c) */
    if (job->parallel.workers > 8 || plan_mesh(job, &mesh, &why))
        return false;
    if (graph_build(m, job->train.seq, &g, &why))
        return false;
    struct pipeline_order order;
    struct sharding s;
    err_t e = pipeline_order_init(job, MODE_TRAIN, &order, &why);
    assert_ok(e);
    e = sharding_init(&s, &g, &mesh, 0, plan_sharding_choice(job, &order), &why);
    pipeline_order_fini(&order);
    if (!e)
        sharding_fini(&s);
    graph_fini(&g);
    return !e;
}

static bool draw_job(struct draw *d, struct job_spec *job)
{
    *job = job_small(ARCH_LLAMA, 1);
    draw_model(d, &job->model);
    draw_layout(d, &job->parallel);
    job->train.seq = 6 + pick(d, 4);
    job->train.micro_batch = 1 + pick(d, 3);
    job->train.global_batch = job->train.micro_batch * (1 + pick(d, 5)) + pick(d, 2);
    return legal(job);
}

static void print_job(int number, const struct job_spec *job)
{
    const struct job_model *m = &job->model;
    const struct job_parallel *p = &job->parallel;
    print_message(
        "case %d: workers %d fsdp %d zero %d cp %d tp %d sp %d pp %d ep %d %s recompute %d tied %d; experts %d of "
        "%d, router %d norm %d groups %d/%d best %d shared %d every %d dense %d aux %g scope %d z %g bias %g capacity "
        "%g %d; batch %d "
        "by %d, seq %d\n",
        number, (int)p->workers, (int)p->fsdp, (int)p->zero, (int)p->cp, (int)p->tp, p->sp, (int)p->pp, (int)p->ep,
        job_schedule_row(p->schedule)->name, (int)p->recompute, m->tied, (int)m->experts_per_token, (int)m->experts,
        (int)m->router, m->router_norm, (int)m->router_groups_kept, (int)m->router_groups, (int)m->router_group_best,
        (int)m->shared_experts, (int)m->moe_every, (int)m->dense_layers, m->aux_loss, (int)m->aux_scope, m->z_loss,
        m->expert_bias, m->expert_capacity, (int)m->expert_drop, (int)job->train.global_batch,
        (int)job->train.micro_batch, (int)job->train.seq);
}

static uint64_t number_of(const char *name, uint64_t other)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : other;
}

TEST(random_layouts_models_and_routers_are_one_worker)
{
    struct draw d = {.seed = number_of("DTD_EXPERTS_SEED", 20261126)};
    const int cases = (int)number_of("DTD_EXPERTS_CASES", 500);
    int parallel = 0, divided = 0;
    for (int i = 0; i < cases;) {
        struct job_spec job;
        if (!draw_job(&d, &job))
            continue;
        print_job(i, &job);
        world_compare(&job);
        parallel += job.parallel.workers > 1;
        divided += job.parallel.ep > 1;
        i++;
    }
    print_message("%d cases, %d of several workers, %d with expert parallelism\n", cases, parallel, divided);
    assert_true(cases < 100 || divided > cases / 10);
}
