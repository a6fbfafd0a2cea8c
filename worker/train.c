/* One epoch:   spec -> data -> device -> engine -> staged data -> comm -> state (load or initial values) -> READY ->
 * steps -> DONE
 *
 * Any error ends the epoch for this rank: it aborts the comm, so that no other rank waits for it, reports the error to
 * control, and waits for the next epoch. Errors that a restart cannot fix (in the spec, the data or the checkpoint, or
 * a loss that is not a number) are fatal; others (a peer that did not join, out of memory) are not.
 *
 * The device belongs to the process: it stays open between epochs, but everything on it is created anew. After a device
 * has failed, later epochs cannot use it either; then the process exits and control starts another one.
 *
 * The ranks receive STOP and PROFILE during different steps. After each step they agree on the maximum of their
 * requests, so that all stop after the same step, or record the same steps. */
#include "worker/train.h"

#include "common/base/caller.h"
#include "common/base/clock.h"
#include "common/base/cpus.h"
#include "common/base/log.h"
#include "common/base/ports.h"
#include "common/data/mixture.h"
#include "common/plan/models/build.h"
#include "kernels/core_peak.h"
#include "kernels/kernels.h"
#include "worker/device.h"
#include "worker/numa.h"
#include "worker/recorder.h"
#include "worker/share.h"
#include "worker/staged.h"
#include "worker/state.h"
#include "worker/timeline.h"
#include "worker/usage.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ARRIVE_MS                                                                                      \
    120000 /* limit for all ranks to join; their nodes may open GPUs and read data at different speeds \
            */
#define STAGE_BYTES_PER_MS 50000 /* 50 MB/s, of a busy file system: nodes stage at different speeds */

/* A prepared set for evaluations, cut into samples; set NULL: the job has none. */
struct split {
    struct data_set *set;
    struct data_view *view;
    int64_t n;
};

struct train {
    const struct train_config *config;
    const struct link_epoch *epoch;
    struct worker_device *device;
    struct arena *arena;
    struct job_spec job;
    struct graph graph;
    struct engine engine;
    struct comm *comm;
    struct comm_group *all;
    int64_t own_bytes[ENGINE_AXIS_SETS]; /* this rank's bytes in the step in which `traffic` was summed; -1: none yet */
    struct traffic traffic;              /* bytes of a step, summed over all ranks */
    struct train_state state;
    struct recorder recorder;
    struct usage_meter usage;
    int64_t agree_ns;  /* of the current step: waiting for the other ranks in agree() */
    double token_flop; /* FLOPs of a training token */
    double peak_flops; /* of one worker, per second; 0: not known */
    struct mixture data;
    struct split valid, test;
    int64_t staged_bytes; /* of the copy for which other nodes may still wait */
    struct core_share *share;
    int numa_node;              /* as in comm_config */
    double part_ms[LOAD_PARTS]; /* durations of the parts of epoch_begin */
    err_t load_error;           /* of the checkpoint that the epoch begins with */
    bool fatal;                 /* an error of the current stage is fatal: it would happen again after a restart */
};

/* ---- data ---- */

static err_t train_sample(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    const struct train *t = arg;
    return mixture_sample(&t->data, index, ret_ids, ret_targets);
}

static err_t train_begins(void *arg, int64_t index, int32_t *ret)
{
    const struct train *t = arg;
    return mixture_begins(&t->data, index, ret);
}

static err_t train_count(void *arg, int64_t index, int64_t *ret)
{
    const struct train *t = arg;
    return mixture_count(&t->data, index, ret);
}

static struct engine_feed train_feed(struct train *t)
{
    return (struct engine_feed){.sample = train_sample,
                                .begins = train_begins,
                                .count = mixture_masks(&t->data) ? train_count : NULL,
                                .arg = t};
}

static err_t open_split(const struct train *t, const char *hash, const char *what, struct split *ret, struct why *why)
{
    err_t err = data_open(t->job.data.cache, hash, &ret->set, why);
    if (err)
        return why_prefix(why, err, "%s data", what);
    err = view_open(ret->set, &t->job.data, t->job.train.seq, t->job.model.labels, &ret->view, why);
    if (err)
        return why_prefix(why, err, "%s data", what);
    ret->n = view_samples(ret->view);
    return OK;
}

static err_t open_data(struct train *t, struct why *why)
{
    const struct job_data *d = &t->job.data;
    err_t err = mixture_open(&t->job, &t->data, why);
    if (!err && t->job.train.eval_every > 0 && d->valid_hash[0])
        err = open_split(t, d->valid_hash, "validation", &t->valid, why);
    if (!err && d->test_hash[0])
        err = open_split(t, d->test_hash, "test", &t->test, why);
    if (err)
        return err;
    const int64_t vocab = data_vocab(t->data.sources[0].set);
    if (t->job.model.vocab == 0)
        t->job.model.vocab = vocab;
    if (t->job.model.vocab < vocab)
        return why_set(why, ERR_INVALID,
                       "model.vocab is %" PRId64 ", but the data has %" PRId64 " different tokens; use 0",
                       t->job.model.vocab, vocab);
    return OK;
}

/* ---- setup ---- */

/* `mine`: number of cores on which this worker may run; `share`: this worker's share when the job's workers on this
 * node divide the node's cores, at most `mine`. */
struct cores {
    long mine, share;
};

static struct cores count_cores(const struct train *t)
{
    struct cores c = {1, 1};
    int usable = cpus_usable(NULL, 0);
    if (!usable)
        return c;
    const int *node_of = t->epoch->node_of;
    const int rank = t->epoch->rank;
    long here = 1;
    for (int r = 0; r < t->epoch->world; r++)
        here += r != rank && (!node_of || node_of[r] == node_of[rank]);
    c.mine = usable;
    c.share = sysconf(_SC_NPROCESSORS_ONLN) / here;
    c.share = c.share < c.mine ? c.share : c.mine;
    return c;
}

/* The worker's share of the cores. If there are more workers than cores, they are not bound and get one thread each.
 * Canonical numerics also get one thread, because a matmul that is split differently may round differently. */
static int choose_threads(const struct train *t)
{
    if (t->job.run.threads > 0)
        return (int)t->job.run.threads;
    const struct cores c = count_cores(t);
    return t->job.train.numerics != NUMERICS_CANONICAL && c.share == c.mine ? (int)c.mine : 1;
}

/* The comm thread gets a core if the worker may run on one that its compute threads do not use. With run.threads there
 * is none, because workers are then bound to that number of cores. */
static bool choose_comm_thread(const struct train *t, int threads)
{
    const enum comm_thread_kind kind = t->job.run.comm_thread;
    if (t->job.run.device != DEVICE_CPU || t->epoch->world < 2)
        return false;
    return kind == COMM_THREAD_AUTO ? count_cores(t).share > threads : kind == COMM_THREAD_ON;
}

static err_t read_spec(struct train *t, struct why *why)
{
    const struct link_epoch *ep = t->epoch;
    err_t err = job_parse("the job's spec", ep->spec_yaml, strlen(ep->spec_yaml), NULL, 0, &t->job, why);
    if (err)
        return err;
    (void)umask((mode_t)job_umask(&t->job));
    caller_limits_apply_text(t->job.run.limits);
    link_set_orphan_seconds(t->config->link, t->job.run.orphan_seconds);
    struct job_parallel *p = &t->job.parallel;
    int64_t least = p->min_workers ? p->min_workers : p->workers;
    if (ep->world < least || ep->world > p->workers || ep->world % job_replica_workers(&t->job))
        return why_set(why, ERR_INVALID, "the epoch has %d workers, but the job's layout needs %" PRId64 " to %" PRId64,
                       ep->world, least, p->workers);
    p->workers = ep->world; /* the number for which there are slots now */
    return OK;
}

/* The arena is pinned for the device with which it was last used, so it is freed before that device is closed. */
static err_t open_device(struct train *t, struct why *why)
{
    if (t->device->dev && t->device->kind != t->job.run.device)
        arena_fini(t->arena);
    return worker_device_need(t->device, &t->job, why);
}

static err_t make_engine(struct train *t, struct why *why)
{
    err_t err = graph_build(&t->job.model, t->job.train.seq, &t->graph, why);
    if (err)
        return err;
    const int threads = choose_threads(t);
    const struct engine_config config = {.dev = t->device->dev,
                                         .job = &t->job,
                                         .graph = &t->graph,
                                         .rank = t->epoch->rank,
                                         .world = t->epoch->world,
                                         .threads = threads,
                                         .comm_thread = choose_comm_thread(t, threads),
                                         .eval = t->valid.set || t->test.set,
                                         .cancel = link_cancel(t->config->link)};
    err = engine_init(&t->engine, &config, why);
    return err ? err : worker_device_fits(t->device, &t->engine, why);
}

/* Memory of the node that this worker will take. */
static int64_t memory_need(const struct train *t)
{
    const bool cpu = t->job.run.device == DEVICE_CPU;
    return (cpu ? (int64_t)engine_device_bytes(&t->engine) : 0) + (int64_t)t->engine.train.arena_bytes;
}

/* Not earlier, because only the engine determines how much memory is left. */
static err_t stage_data(struct train *t, struct why *why)
{
    if (strcmp(t->job.data.stage, "none") == 0)
        return OK;
    struct link_stage ask = {.world = t->epoch->world, .need_bytes = memory_need(t)};
    struct data_set **sets = calloc((size_t)t->data.n + 2, sizeof(*sets));
    if (!sets)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    for (int i = 0; i < t->data.n; i++)
        sets[i] = t->data.sources[i].set;
    sets[t->data.n] = t->valid.set;
    sets[t->data.n + 1] = t->test.set;
    err_t err = staged_use(t->config->link, &ask, sets, t->data.n + 2, why);
    free(sets);
    t->staged_bytes = ask.bytes;
    if (err)
        t->fatal = err == ERR_CORRUPT;
    return err;
}

/* The job's ports, else those of the node. */
static const char *ports_of(const struct train *t)
{
    return t->job.run.ports && t->job.run.ports[0] ? t->job.run.ports : getenv(PORTS_ENV);
}

/* The fabric of this node, which other ranks find in the rendezvous, else the address by which its daemon is known. */
static const char *address_of(const struct train *t)
{
    const char *fabric = getenv(FABRIC_ENV);
    return fabric && fabric[0] ? fabric : t->epoch->address;
}

static err_t open_comm(struct train *t, struct why *why)
{
    const struct link_epoch *ep = t->epoch;
    const struct comm_config config = {.backend = worker_device_comm(&t->job),
                                       .fd = t->config->segment_fd,
                                       .dev = t->device->dev,
                                       .store = link_store(t->config->link),
                                       .rank = ep->rank,
                                       .world = ep->world,
                                       .numa_node = t->numa_node,
                                       .epoch = ep->epoch,
                                       .shared_bytes = engine_shared_bytes(&t->engine),
                                       .timeout_ms = ARRIVE_MS + t->staged_bytes / STAGE_BYTES_PER_MS,
                                       .cancel = link_cancel(t->config->link),
                                       .node_of = ep->node_of,
                                       .secret = ep->secret,
                                       .secret_bytes = sizeof(ep->secret),
                                       .address = address_of(t),
                                       .ports = ports_of(t)};
    t->fatal = false;
    err_t err = comm_open(&config, &t->comm, why);
    t->fatal = err == ERR_UNSUPPORTED; /* a backend that is not installed */
    if (err)
        return err;
    link_set_comm(t->config->link, t->comm);
    if (comm_note(t->comm)[0])
        log_info("comm backend=%s note=\"%s\"", config.backend, comm_note(t->comm));
    int *ranks = calloc((size_t)ep->world, sizeof(*ranks));
    for (int i = 0; ranks && i < ep->world; i++)
        ranks[i] = i;
    err = ranks ? comm_group_new(t->comm, ranks, ep->world, &t->all) : ERR_NOMEM;
    free(ranks);
    if (err)
        return why_set(why, err, "cannot create the group of all ranks: %s",
                       comm_why(t->comm)[0] ? comm_why(t->comm) : err_text(err));
    return OK;
}

/* The checkpoint with which the epoch begins; "": none. */
static const char *first_checkpoint(const struct train *t)
{
    return t->epoch->resume_path[0] ? t->epoch->resume_path : t->job.checkpoint.resume_from;
}

static err_t make_memory(struct train *t, struct why *why)
{
    err_t err = engine_start(&t->engine, t->comm, why);
    err = err ? err : state_init(&t->state, t->config->link, &t->engine, t->arena, why);
    return !err && first_checkpoint(t)[0] ? arena_wait(t->arena, why) : err;
}

static err_t make_state(struct train *t, struct why *why)
{
    const struct job_checkpoint *c = &t->job.checkpoint;
    const char *path = first_checkpoint(t);
    bool fresh = c->optimizer == OPTIMIZER_FRESH && strcmp(path, c->resume_from) == 0; /* its own steps are whole */
    t->fatal = true;
    if (!path[0])
        return engine_fill_state(&t->engine, why);
    t->load_error = state_load(&t->state, path, t->epoch->resume_step, fresh, why);
    return t->load_error;
}

struct train_stage {
    err_t (*run)(struct train *t, struct why *why);
    enum load_part part;
};

static const struct train_stage stages[] = {
    {read_spec, LOAD_DATA},     /* job file */
    {open_data, LOAD_DATA},     /* prepared data */
    {open_device, LOAD_DATA},   /* processor or GPU */
    {make_engine, LOAD_PLAN},   /* the program of this rank */
    {stage_data, LOAD_DATA},    /* a nearer copy of it */
    {open_comm, LOAD_JOIN},     /* all ranks meet */
    {make_memory, LOAD_MEMORY}, /* as the program needs it */
    {make_state, LOAD_STATE},   /* parameters and optimizer state */
};

static err_t epoch_begin(struct train *t, struct why *why)
{
    err_t err = OK;
    t->fatal = true;
    for (size_t i = 0; !err && i < sizeof(stages) / sizeof(stages[0]); i++) {
        int64_t start = clock_mono_ns();
        err = stages[i].run(t, why);
        t->part_ms[stages[i].part] += (double)(clock_mono_ns() - start) * 1e-6;
    }
    return err;
}

/* ---- steps ---- */

static bool due(int64_t step, int64_t every, int64_t last)
{
    return every > 0 && (step % every == 0 || step == last);
}

/* A split is read in order. */
static err_t split_sample(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    const struct split *s = arg;
    return view_sample(s->view, index, ret_ids, ret_targets);
}

static err_t split_begins(void *arg, int64_t index, int32_t *ret)
{
    const struct split *s = arg;
    return view_begins(s->view, index, ret);
}

static err_t split_count(void *arg, int64_t index, int64_t *ret)
{
    const struct split *s = arg;
    return view_count(s->view, index, ret);
}

/* Evaluates at most `batches` global batches of the split; 0: all of it. */
static err_t evaluate(struct train *t, struct split *split, int64_t batches, double *ret, struct why *why)
{
    const struct job_train *j = &t->job.train;
    const struct engine_feed feed = {.sample = split_sample,
                                     .begins = split_begins,
                                     .count = view_masks(split->view) ? split_count : NULL,
                                     .arg = split};
    int64_t end = split->n;
    if (batches > 0 && batches < end / j->global_batch)
        end = batches * j->global_batch;
    return engine_eval(&t->engine, &feed, 0, end, ret, why);
}

/* NAN: not evaluated at this step. The test split is evaluated only after the last step, so nothing is chosen by it. */
struct losses {
    double valid, test;
};

static err_t evaluate_splits(struct train *t, struct losses *l, struct why *why)
{
    const struct job_train *j = &t->job.train;
    const int64_t step = t->engine.step;
    err_t err = OK;
    if (t->valid.set && due(step, j->eval_every, j->steps))
        err = evaluate(t, &t->valid, j->eval_batches, &l->valid, why);
    if (!err && t->test.set && step == j->steps)
        err = evaluate(t, &t->test, 0, &l->test, why);
    return err;
}

static void report(struct train *t, const struct engine_result *r, double step_s, const struct losses *l)
{
    const struct job_train *j = &t->job.train;
    struct metric m = metric_none;
    m.step = t->engine.step;
    m.loss = r->loss;
    m.valid_loss = l->valid;
    m.test_loss = l->test;
    m.grad_norm = r->grad_norm;
    m.lr = r->lr;
    if (mixture_masks(&t->data))
        m.targets = r->targets;
    m.tokens_per_s = (double)(j->global_batch * j->seq) / step_s;
    m.step_s = step_s;
    if (r->routers.n) {
        m.expert_load = r->routers.load;
        m.expert_entropy = r->routers.entropy;
        m.expert_gap = r->routers.gap;
        m.expert_dropped = r->routers.dropped;
        m.expert_rounds = r->routers.rounds;
        m.aux_loss = t->job.model.aux_loss > 0 ? r->routers.aux : NAN;
        m.z_loss = t->job.model.z_loss > 0 ? r->routers.z : NAN;
    }
    m.workers = t->epoch->world;
    if (t->peak_flops > 0)
        m.mfu = t->token_flop * m.tokens_per_s / ((double)t->epoch->world * t->peak_flops);
    m.skipped = r->skipped;
    m.traffic = t->traffic;
    if (t->epoch->rank == 0)
        link_report_metric(t->config->link, &m);
}

static err_t agree(struct train *t, int64_t *x, enum reduce_op op, struct why *why)
{
    const int64_t start = clock_mono_ns();
    err_t err = comm_agree(t->all, x, op);
    t->agree_ns += clock_mono_ns() - start;
    return err ? why_set(why, err, err == ERR_CANCELED ? "the epoch has ended" : "the workers cannot agree: %s",
                         comm_why(t->comm))
               : OK;
}

/* Sums the bytes that all ranks have counted. */
static err_t count_traffic(struct train *t, const struct engine_result *r, struct why *why)
{
    unsigned there = 0;
    err_t err = OK;
    for (int a = 0; a < AXIS_COUNT; a++)
        there |= t->engine.train.mesh.size[a] > 1 ? 1u << a : 0;
    t->traffic.n = 0;
    memcpy(t->own_bytes, r->axis_bytes, sizeof(t->own_bytes));
    for (unsigned axes = 1; !err && axes < ENGINE_AXIS_SETS; axes++) {
        int64_t bytes = r->axis_bytes[axes];
        if (axes & ~there)
            continue;
        err = agree(t, &bytes, REDUCE_SUM, why);
        traffic_add(&t->traffic, axes, bytes);
    }
    return err;
}

/* What ranks agree on after a step, in ascending order: nothing, a profile (its id and its number of steps, so that a
 * rank that has not received the command has both), the kinds of a stop, and RECOUNT. */
#define ASK_STOP ((int64_t)1 << 60)
#define ASK_RECOUNT (ASK_STOP + LINK_STOP_AND_SAVE + 1)
#define ASK_STEPS (LINK_PROFILE_STEPS + 1) /* a profile is id * ASK_STEPS + steps */
_Static_assert(LINK_PROFILE_IDS <= ((uint64_t)1 << 60) / ASK_STEPS, "a profile comes before a stop");

static int64_t request_of(const struct train *t)
{
    const enum link_stop_kind stop = link_stop_asked(t->config->link);
    const struct link_profile p = link_profile_asked(t->config->link);
    if (stop != LINK_GO_ON)
        return ASK_STOP + (int64_t)stop;
    return p.steps && p.id > t->recorder.served && !t->recorder.on ? (int64_t)p.id * ASK_STEPS + p.steps : 0;
}

/* All ranks do after this step what the maximum of their requests demands. A rank whose byte counts differ from those
 * in the step in which they were last summed (at first: the first step of the epoch) sends ASK_RECOUNT instead; then
 * all ranks sum the counts again and exchange their requests once more. */
static err_t agree_to_go_on(struct train *t, const struct engine_result *r, int64_t *ret, struct why *why)
{
    const int64_t asked = request_of(t), from = recorder_now(&t->recorder);
    int64_t request = memcmp(t->own_bytes, r->axis_bytes, sizeof(t->own_bytes)) != 0 ? ASK_RECOUNT : asked;
    err_t err = agree(t, &request, REDUCE_MAX, why);
    if (!err && request == ASK_RECOUNT) {
        request = asked;
        err = count_traffic(t, r, why);
        err = err ? err : agree(t, &request, REDUCE_MAX, why);
    }
    recorder_host(&t->recorder, HOST_AGREE, t->engine.step, from);
    *ret = err ? 0 : request;
    return err;
}

static enum link_stop_kind stop_of(int64_t request)
{
    return request > ASK_STOP ? (enum link_stop_kind)(request - ASK_STOP) : LINK_GO_ON;
}

/* ---- profiles ---- */

static struct recorder_place place_of(const struct train *t)
{
    const struct link_epoch *ep = t->epoch;
    return (struct recorder_place){.job = t->config->job,
                                   .epoch = ep->epoch,
                                   .rank = ep->rank,
                                   .world = ep->world,
                                   .node_of = ep->node_of,
                                   .folder = t->job.checkpoint.dir};
}

/* After the last step that is to be recorded, or that the epoch makes. */
static err_t end_profile(struct train *t, struct why *why)
{
    const struct recorder_place place = place_of(t);
    err_t err = recorder_end(&t->recorder, &t->engine, t->all, &place, why);
    if (!err)
        link_report_profiled(t->config->link, t->recorder.served, t->recorder.why.text);
    recorder_drop(&t->recorder, &t->engine);
    return err;
}

/* What all ranks agreed on after a step, if it concerns profiles. `last`: no step follows. */
static err_t serve_profile(struct train *t, int64_t request, bool last, struct why *why)
{
    const struct recorder_place place = place_of(t);
    if (t->recorder.on && (last || t->engine.step >= t->recorder.last))
        return end_profile(t, why);
    if (last || t->recorder.on || !request || request >= ASK_STOP)
        return OK;
    return recorder_begin(&t->recorder, &t->engine, t->all, (uint64_t)(request / ASK_STEPS), (int)(request % ASK_STEPS),
                          &place, why);
}

/* Whether the step after the one that comes now follows it with nothing in between. A save only reads the state, and a
 * stop ends the epoch; ranks that then have begun another step leave it. */
static bool next_is_step(const struct train *t)
{
    const struct job_train *j = &t->job.train;
    const int64_t step = t->engine.step + 1;
    return step < j->steps && !(t->valid.set && due(step, j->eval_every, j->steps));
}

/* Runs the step run.timeline_step, with a timeline. A step that is recorded has none, because an engine has one
 * profile; the recording contains it. */
static err_t timed_step(struct train *t, const struct engine_feed *feed, struct engine_result *ret, struct why *why)
{
    const struct link_epoch *ep = t->epoch;
    struct timeline line;
    err_t err = timeline_begin(&line, &t->engine, t->all, ep->rank, ep->node_of, why);
    err = err ? err : engine_step(&t->engine, feed, ret, why);
    timeline_end(&line, &t->engine, t->job.checkpoint.dir, ep->epoch, ep->rank, ep->world, !err);
    return err;
}

/* Evaluations are no part of a step here: they are rare, and would make some windows differ from others. */
static void report_usage(struct train *t, const struct usage_step *step)
{
    struct usage_report u;
    if (usage_meter_add(&t->usage, step, &u))
        link_report_usage(t->config->link, &u);
}

static err_t run_engine(struct train *t, struct engine_result *ret, struct why *why)
{
    const struct engine_feed feed = train_feed(t);
    const bool timed = t->job.run.timeline_step == t->engine.step + 1;
    if (timed && t->recorder.on)
        log_warn("timeline none step=%" PRId64 " why=\"dtctl profile records the step\"", t->engine.step + 1);
    t->engine.next_is_step = next_is_step(t);
    usage_meter_before(&t->usage);
    err_t err = timed && !t->recorder.on ? timed_step(t, &feed, ret, why) : engine_step(&t->engine, &feed, ret, why);
    if (!err)
        usage_meter_after(&t->usage);
    return err;
}

static err_t poll_state(struct train *t, struct why *why)
{
    const int64_t from = recorder_now(&t->recorder);
    err_t err = state_poll(&t->state, why);
    recorder_host(&t->recorder, HOST_POLL, t->engine.step, from);
    return err;
}

static err_t save(struct train *t, double loss, int64_t *ret_ns, struct why *why)
{
    const int64_t from = clock_mono_ns();
    err_t err = state_save(&t->state, loss, why);
    recorder_host(&t->recorder, HOST_SAVE, t->engine.step, from);
    *ret_ns = clock_mono_ns() - from;
    return err;
}

/* After the step itself: what it is evaluated by, its report, and its save. */
static err_t end_step(struct train *t, const struct engine_result *r, int64_t step_ns, bool *ret_saved,
                      bool stop_and_save, struct why *why)
{
    const struct job_spec *j = &t->job;
    const int64_t step = t->engine.step;
    struct losses l = {.valid = NAN, .test = NAN};
    int64_t from = recorder_now(&t->recorder), save_ns = 0;
    err_t err = evaluate_splits(t, &l, why);
    if (err)
        return err;
    if (!isnan(l.valid) || !isnan(l.test))
        recorder_host(&t->recorder, HOST_EVAL, step, from);
    from = recorder_now(&t->recorder);
    report(t, r, (double)step_ns * 1e-9, &l);
    recorder_host(&t->recorder, HOST_REPORT, step, from);
    *ret_saved = due(step, j->checkpoint.every, j->train.steps) || step == j->train.steps || stop_and_save;
    if (*ret_saved)
        err = save(t, t->valid.set ? l.valid : r->loss, &save_ns, why);
    if (!err)
        report_usage(t, &(struct usage_step){step_ns + save_ns, t->agree_ns, save_ns});
    return err;
}

static err_t one_step(struct train *t, bool *ret_saved, enum link_stop_kind *ret_stop, struct why *why)
{
    struct engine_result r;
    const int64_t start = clock_mono_ns();
    int64_t request = 0;
    t->agree_ns = 0;
    if (!t->job.run.threads)
        core_share_follow(t->share, t->engine.config.threads);
    recorder_step_begin(&t->recorder);
    err_t err = run_engine(t, &r, why);
    err = err ? err : agree_to_go_on(t, &r, &request, why);
    err = err ? err : poll_state(t, why);
    if (err)
        return err;
    *ret_stop = stop_of(request);
    err = end_step(t, &r, clock_mono_ns() - start, ret_saved, *ret_stop == LINK_STOP_AND_SAVE, why);
    if (err)
        return err;
    recorder_step_end(&t->recorder, &t->engine);
    return serve_profile(t, request, *ret_stop != LINK_GO_ON || t->engine.step == t->job.train.steps, why);
}

static err_t finish(struct train *t, bool saved, struct why *why)
{
    if (!saved)
        return OK;
    err_t err = state_save_finish(&t->state, t->job.run.orphan_seconds * 1000, why);
    if (!err || err == ERR_CANCELED)
        return err;
    t->fatal = true;
    if (err == ERR_OWNED)
        return why_prefix(why, err, "all steps are done, but step %" PRId64 " could not be saved", t->engine.step);
    return why_prefix(why, err,
                      "all steps are done, but step %" PRId64
                      " could not be saved in %s; free space there and continue "
                      "with `dtctl resume %s`",
                      t->engine.step, t->job.checkpoint.dir, t->config->job);
}

/* Only rank 0 reports the share of the peak. */
static double cpu_peak(const struct train *t)
{
    const int threads = t->engine.config.threads > 0 ? t->engine.config.threads : 1;
    return t->epoch->rank == 0 ? threads * kern_core_flops((enum dtype)t->job.train.dtype, 3) : 0;
}

static void begin_usage(struct train *t)
{
    struct dev_facts facts = {.uuid = ""};
    struct why why = {""};
    if (dev_facts(t->device->dev, &facts, &why))
        log_warn("usage of the device is not measured why=\"%s\"", why.text);
    const bool cpu = t->job.run.device == DEVICE_CPU;
    const int64_t arena_bytes = cpu ? (int64_t)t->engine.train.arena_bytes : 0;
    const struct usage_config config = {.engine = &t->engine,
                                        .ranks = t->epoch->world,
                                        .planned_bytes = (int64_t)engine_device_bytes(&t->engine) + arena_bytes,
                                        .gpu = facts.uuid,
                                        .sample_every = USAGE_SAMPLE_EVERY};
    usage_meter_init(&t->usage, &config);
    t->token_flop = graph_flops_per_token(&t->graph, &t->job.model, t->job.train.seq, true);
    t->peak_flops = cpu ? cpu_peak(t) : plan_peak_flops(&t->job, facts.model);
}

/* Once per job: by rank 0 in its first epoch. */
static void report_slow_bfloat16(const struct train *t)
{
    if (t->job.train.dtype == DT_BF16 && t->job.run.device == DEVICE_CPU && t->epoch->rank == 0 &&
        t->epoch->epoch == 1 && !kern_multiplies_bfloat16())
        log_info("bfloat16 saves memory but no time: this processor has neither AVX512_BF16 nor AMX");
}

static err_t run_steps(struct train *t, struct why *why)
{
    enum link_stop_kind stop = LINK_GO_ON;
    bool saved = false;
    memset(t->own_bytes, 0xff, sizeof(t->own_bytes));
    log_info("ready step=%" PRId64 " threads=%d comm_thread=%s", t->engine.step, t->engine.config.threads,
             t->engine.comm_thread ? "on" : "off");
    report_slow_bfloat16(t);
    begin_usage(t);
    link_report_ready(t->config->link, t->engine.step, t->part_ms);
    while (t->engine.step < t->job.train.steps && stop == LINK_GO_ON) {
        err_t err = one_step(t, &saved, &stop, why);
        if (err) {
            t->fatal = err == ERR_INVALID || err == ERR_CORRUPT; /* not a number; a damaged shard */
            return err;
        }
    }
    return finish(t, saved, why);
}

/* ---- an epoch ---- */

/* Errors after the end of an epoch are not reported: they follow from the end, which aborts running collectives. */
static void epoch_end(struct train *t, err_t err, const struct why *why)
{
    struct link *l = t->config->link;
    bool over = err == ERR_CANCELED || err == ERR_STALE || atomic_load(link_cancel(l));
    if (err && t->comm)
        comm_abort(t->comm);
    if (!err)
        link_report_done(l, t->engine.step);
    else if (!over)
        link_report_failed(l, t->engine.step, t->fatal, t->load_error, why->text[0] ? why->text : err_text(err));
    if (err)
        log_at(over ? LOG_INFO : LOG_ERROR, "epoch left epoch=%" PRIu64 " step=%" PRId64 " error=%s why=\"%s\"",
               t->epoch->epoch, t->engine.step, err_name(err), why->text);
    link_set_comm(l, NULL);
    recorder_drop(&t->recorder, &t->engine);
    state_fini(&t->state);
    comm_group_free(t->all);
    usage_meter_fini(&t->usage);
    engine_fini(&t->engine);
    comm_close(t->comm);
    mixture_close(&t->data);
    view_close(t->valid.view);
    view_close(t->test.view);
    data_close(t->valid.set);
    data_close(t->test.set);
    graph_fini(&t->graph);
    job_fini(&t->job);
}

/* Returns false when the device has failed and the process must exit. */
static bool run_epoch(const struct train_config *config, const struct link_epoch *epoch, struct worker_device *device,
                      struct arena *arena, struct core_share *share, int numa_node)
{
    struct why why = {""};
    struct train *t = calloc(1, sizeof(*t));
    if (!t) {
        link_report_failed(config->link, 0, false, OK, "out of memory");
        return true;
    }
    t->config = config;
    t->epoch = epoch;
    t->device = device;
    t->arena = arena;
    t->share = share;
    t->numa_node = numa_node;
    log_info("epoch begins epoch=%" PRIu64 " rank=%d world=%d resume_step=%" PRId64, epoch->epoch, epoch->rank,
             epoch->world, epoch->resume_step);
    err_t err = epoch_begin(t, &why);
    if (!err)
        err = run_steps(t, &why);
    epoch_end(t, err, &why);
    free(t);
    return !err || !worker_device_lost(device);
}

/* Before anything is allocated. */
static void bind_memory(struct numa *n)
{
    numa_init(n);
    err_t err = numa_interleave(n);
    if (n->n_nodes > 1)
        log_info("the worker's cores are in several NUMA nodes, memory is %s nodes=%d",
                 err ? "in the node of the thread that first writes to it" : "taken from them in turn", n->n_nodes);
}

err_t train_serve(const struct train_config *config)
{
    struct worker_device device = {.index = config->device};
    struct arena arena = {.fd = config->arena_fd};
    struct core_share share;
    struct numa numa;
    struct link_epoch epoch;
    err_t err = OK;
    core_share_init(&share);
    bind_memory(&numa);
    while (!err && (err = link_next(config->link, &epoch)) == OK) {
        err = run_epoch(config, &epoch, &device, &arena, &share, numa.home) ? OK : ERR_INTERNAL;
        link_leave(config->link);
        link_epoch_fini(&epoch);
    }
    if (err == ERR_CLOSED)
        err = OK;
    log_info("exits why=\"%s\"", !err ? "ended by control" : err == ERR_INTERNAL ? "device failed" : err_text(err));
    arena_fini(&arena);
    worker_device_close(&device);
    return err;
}
