/* `parallel: auto` at dtctl: what the leader cannot find out later is written into the spec, the machine and the number
 * of workers. Then the layout of all workers, and of the fewest, is chosen here as the leader chooses it, so that a job
 * that fits nowhere is refused before it is submitted. */
#include "client/planner/planner.h"

#include "client/client.h"
#include "client/follow.h"
#include "client/spec.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- the nodes ---- */

struct nodes {
    struct client_cluster cluster;
    struct client_node self;
};

static err_t nodes_call(struct client *c, void *arg, struct why *why)
{
    struct nodes *n = arg;
    err_t err = client_node_get(c, &n->self, why);
    if (err)
        return err;
    err = client_cluster_status(c, &n->cluster, why);
    if (err)
        client_node_fini(&n->self);
    return err;
}

/* The name of the machine file of this kind of GPU ("NVIDIA H100 80GB HBM3": h100); NULL: there is none. */
static const char *machine_of_gpu(const char *model)
{
    for (const struct planner_file *f = planner_files; f->name; f++)
        if (strcasestr(model, f->name))
            return f->name;
    return NULL;
}

/* Slots of a node for workers of the job. */
static int64_t slots_of(const struct job_spec *job, const struct client_node_use *use)
{
    const int64_t n = job->run.device == DEVICE_CUDA ? use->gpus * job->run.workers_per_gpu : use->slots;
    return n > 0 ? n : 0;
}

static int64_t count_slots(const struct job_spec *job, const struct nodes *n, int64_t *ret_most)
{
    const int64_t self = slots_of(job, &n->self.use);
    int64_t sum = 0, most = 0;
    for (int i = 0; i < n->cluster.n_node; i++) {
        const struct client_cluster_node *c = &n->cluster.node[i];
        const int64_t slots = c->drained[0] ? 0 : slots_of(job, &c->use);
        sum += slots;
        most = slots > most ? slots : most;
    }
    *ret_most = n->cluster.n_node ? most : self;
    return n->cluster.n_node ? sum : self;
}

/* Workers for all slots, in whole units of the fixed keys. */
static void take_all_workers(struct job_spec *job, int64_t slots)
{
    const int64_t unit = job_replica_workers(job), most = slots < JOB_MAX_WORKERS ? slots : JOB_MAX_WORKERS;
    job->parallel.workers = most / unit > 0 ? most / unit * unit : unit;
}

err_t planner_auto_nodes(struct global *g, struct job_spec *job, struct why *why)
{
    struct nodes n = {0};
    struct job_parallel *p = &job->parallel;
    if (!p->automatic)
        return OK;
    err_t err = follow_call(g, nodes_call, &n, why);
    if (err)
        return err;
    const int64_t slots = count_slots(job, &n, &p->node_slots);
    const char *gpu = n.self.gpus > 0 ? machine_of_gpu(n.self.gpu_model) : NULL;
    if (p->all_workers)
        take_all_workers(job, slots);
    if (job->run.device == DEVICE_CUDA && !p->machine[0] && gpu)
        err = spec_text_set(&p->machine, gpu);
    client_cluster_fini(&n.cluster);
    client_node_fini(&n.self);
    return err ? why_set(why, err, "%s", err_text(err)) : OK;
}

/* ---- the machine ---- */

/* Replaces the name in the spec by the text that it stands for. */
static err_t machine_resolve(struct job_spec *job, struct machine *ret, struct why *why)
{
    struct job_parallel *p = &job->parallel;
    struct buf text = {0};
    err_t err = OK;
    if (!strchr(p->machine, '\n')) {
        err = planner_machine_text(p->machine[0] ? p->machine : NULL, job, &text, why);
        err = err ? err : spec_text_set(&p->machine, (const char *)text.data);
        buf_fini(&text);
    }
    err = err ? err : machine_parse("parallel.machine", p->machine, strlen(p->machine), NULL, 0, ret, why);
    return err ? why_prefix(why, err, "parallel.machine") : OK;
}

/* ---- the layout ---- */

/* As the scheduler places workers: on as few nodes as have the slots. */
static struct plan_place place_of(const struct job_spec *job, const struct machine *m, int64_t workers)
{
    const struct job_parallel *p = &job->parallel;
    const int64_t gpus = job->run.device == DEVICE_CUDA ? job->run.workers_per_gpu : 1;
    int64_t most = p->node_slots ? p->node_slots : m->device.per_node * gpus;
    if (job->run.nodes)
        most = (p->workers + job->run.nodes - 1) / job->run.nodes;
    const int64_t nodes = (workers + most - 1) / most;
    return (struct plan_place){.workers = workers, .nodes = nodes, .per_node = (workers + nodes - 1) / nodes};
}

static err_t choose_for(const struct job_spec *job, const struct machine *m, int64_t workers, struct plan_choice *ret,
                        struct why *why)
{
    const struct plan_place place = place_of(job, m, workers);
    return plan_choose(job, m, &place, ret, why);
}

/* The leader leaves out numbers of workers on which the model does not fit; the job needs one from min_workers on. */
static err_t fewest_choose(const struct job_spec *job, const struct machine *m, struct why *why)
{
    const struct job_parallel *p = &job->parallel;
    struct plan_choice ignored = {0};
    if (!p->min_workers || p->min_workers == p->workers)
        return OK;
    const int64_t unit = job_replica_workers(job), least = (p->min_workers + unit - 1) / unit * unit;
    err_t err = choose_for(job, m, least < p->workers ? least : p->workers, &ignored, why);
    return err ? why_prefix(why, err, "with parallel.min_workers (%" PRId64 ")", p->min_workers) : OK;
}

/* For a number of slots without a layout, because the batch or the model cannot be divided by it, the next smaller
 * numbers are tried, and of many slots their halves. */
#define NEXT_TRIES 16

/* The reason of the first number that lacks nothing but memory is the most useful one. */
static err_t most_choose(struct job_spec *job, const struct machine *m, struct plan_choice *ret, struct why *why)
{
    int64_t *n = &job->parallel.workers;
    const int64_t unit = job_replica_workers(job);
    struct why next = {0};
    err_t err = choose_for(job, m, *n, ret, why), kept = err;
    for (int i = 0; (err == ERR_LIMIT || err == ERR_NOTFOUND) && *n > unit; i++) {
        *n = i < NEXT_TRIES || *n / 2 < unit ? *n - unit : *n / 2 / unit * unit;
        err = choose_for(job, m, *n, ret, &next);
        if (err == ERR_LIMIT && kept == ERR_NOTFOUND) {
            *why = next;
            kept = err;
        }
    }
    return err ? kept : OK;
}

/* The job continues on what is left of the nodes, as far as it fits: at least so many workers, in steps of two. */
static void fewest_find(struct job_spec *job, const struct machine *m)
{
    struct job_parallel *p = &job->parallel;
    struct plan_choice ignored = {0};
    struct why why = {0};
    int64_t n = job_replica_workers(job);
    while (!p->min_workers && n < p->workers && choose_for(job, m, n, &ignored, &why))
        n *= 2;
    if (!p->min_workers)
        p->min_workers = n < p->workers ? n : p->workers;
}

static err_t layout_choose(struct job_spec *job, const struct machine *m, struct plan_choice *ret, struct why *why)
{
    struct job_parallel *p = &job->parallel;
    err_t err = OK;
    if (!p->all_workers)
        return choose_for(job, m, p->workers, ret, why);
    if (!p->node_slots) /* no daemon was asked */
        take_all_workers(job, m->device.per_node * (m->nodes ? m->nodes : 1));
    err = most_choose(job, m, ret, why);
    if (!err)
        fewest_find(job, m);
    p->all_workers = false;
    return err;
}

err_t planner_auto_complete(struct job_spec *job, struct plan_choice *ret, struct why *why)
{
    struct machine m = {0};
    err_t err = machine_resolve(job, &m, why);
    if (err)
        return err;
    err = layout_choose(job, &m, ret, why);
    err = err ? err : fewest_choose(job, &m, why);
    machine_fini(&m);
    if (!err)
        plan_choice_set(&ret->found.layout, job);
    return err ? why_prefix(why, err == ERR_LIMIT || err == ERR_NOTFOUND ? ERR_INVALID : err, "parallel.auto") : OK;
}
