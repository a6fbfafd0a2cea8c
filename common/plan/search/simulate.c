/* The order in which slots can be computed is the same for all replicas, so it is found once: the slots sorted by their
 * start in a play without noise. Pipelines that meet only at the end of a step are played one after another, in units
 * of at least LANES ranks per stage: a unit goes once through the list, and each operation is a loop over its ranks.
 * Those that meet within slots (zero 2 and 3, experts) are one unit.
 *
 * A slot's ends are one row of a unit. A row is free again after its last reader, so that a unit needs few of them. */
#include "common/plan/search/simulate.h"

#include "common/plan/search/draw.h"
#include "common/plan/search/simulate_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LANES 64 /* enough for a loop over a unit's ranks to be faster than its overhead */

#define X(id, key, name) {key, name},
static const struct {
    const char *key, *name;
} part_rows[] = {PLAN_PART_LIST(X)};
#undef X

const char *plan_part_name(enum plan_part part)
{
    return part_rows[part].name;
}

const char *plan_part_key(enum plan_part part)
{
    return part_rows[part].key;
}

/* ---- the list ---- */

static int by_start(const void *a, const void *b)
{
    const struct step_item *x = a, *y = b;
    if (x->start != y->start)
        return x->start < y->start ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank - y->rank;
    return x->slot - y->slot;
}

/* Where the value of (stage, microbatch) is computed, as an index of the list; forwards and gradients apart. */
static size_t value_at(const struct schedule *s, const struct schedule_work *w)
{
    size_t stage = (size_t)schedule_stage(s, w->rank, w->chunk), list = w->kind == SLOT_FORWARD ? 0 : 1;
    return (list * (size_t)(s->ranks * s->chunks) + stage) * (size_t)s->micros + (size_t)w->micro;
}

static void link_items(struct stepper *k, int *last, int *made)
{
    const struct schedule *s = k->step->schedule;
    for (int i = 0; i < k->n; i++) {
        struct step_item *it = &k->items[i];
        const struct slot *slot = &s->rows[it->rank].slots[it->slot];
        const bool final = slot->micro == s->micros - 1;
        struct schedule_work from, self = {it->rank, slot->kind, slot->chunk, slot->micro};
        bool reads = schedule_source(s, it->rank, slot, &from);
        it->before = last[it->rank];
        it->source = reads ? made[value_at(s, &from)] : -1;
        it->comes = reads && from.rank != it->rank;
        it->scale = final ? k->step->cost.last_scale : 1;
        it->ops = plan_operations_slot(k->ops, schedule_stage(s, it->rank, slot->chunk), slot->kind, final);
        last[it->rank] = i;
        if (slot->kind != SLOT_WEIGHT)
            made[value_at(s, &self)] = i;
    }
    for (int r = 0; r < s->ranks; r++)
        k->items[last[r]].ends = true;
}

/* Gives each item a row that no other item uses before its last reader. `until` and `unused` have room for n. */
static void give_rows(struct stepper *k, int *until, int *unused)
{
    int n_unused = 0;
    for (int i = 0; i < k->n; i++) {
        until[i] = i;
        if (k->items[i].before >= 0)
            until[k->items[i].before] = i;
        if (k->items[i].source >= 0)
            until[k->items[i].source] = i;
    }
    for (int i = 0; i < k->n; i++) {
        const int inputs[] = {k->items[i].before, k->items[i].source, i};
        k->items[i].row = n_unused ? unused[--n_unused] : k->n_rows++;
        for (int j = 0; j < 3; j++)
            if (inputs[j] >= 0 && until[inputs[j]] == i) {
                until[inputs[j]] = -1; /* an item may be both inputs */
                unused[n_unused++] = k->items[inputs[j]].row;
            }
    }
}

static err_t order_items(struct stepper *k, struct why *why)
{
    const struct schedule *s = k->step->schedule;
    const struct schedule_cost ones = {.seconds = {1, 1, 1, 1}, .latency = 0, .last_scale = 1};
    struct schedule_times times = {0};
    err_t err = schedule_simulate(s, &ones, &times, why);
    for (int r = 0; !err && r < s->ranks; r++)
        k->n += s->rows[r].n;
    k->items = err ? NULL : calloc((size_t)k->n + 1, sizeof(*k->items));
    if (!err && !k->items)
        err = ERR_NOMEM;
    for (int r = 0, n = 0; !err && r < s->ranks; r++)
        for (int i = 0; i < s->rows[r].n; i++)
            k->items[n++] = (struct step_item){.rank = r, .slot = i, .start = times.ranks[r].spans[i].start};
    if (!err)
        qsort(k->items, (size_t)k->n, sizeof(*k->items), by_start);
    schedule_times_fini(&times);
    return err;
}

static err_t list_items(struct stepper *k, struct why *why)
{
    const struct schedule *s = k->step->schedule;
    const size_t values = 2 * (size_t)(s->ranks * s->chunks) * (size_t)s->micros;
    err_t err = order_items(k, why);
    if (err)
        return err;
    int *last = malloc((size_t)s->ranks * sizeof(*last)), *made = malloc(values * sizeof(*made));
    int *until = malloc((size_t)k->n * sizeof(*until)), *unused = malloc((size_t)k->n * sizeof(*unused));
    if (last && made && until && unused) {
        memset(last, -1, (size_t)s->ranks * sizeof(*last));
        memset(made, -1, values * sizeof(*made));
        link_items(k, last, made);
        give_rows(k, until, unused);
    } else {
        err = ERR_NOMEM;
    }
    free(last);
    free(made);
    free(until);
    free(unused);
    return err;
}

/* ---- operations on the ranks of a unit ---- */

static void run(struct stepper *k, double base, double *restrict busy)
{
    const float sigma = (float)k->noise->operation;
    const float *restrict factor = k->factor;
    double *restrict t = k->time;
    for (int64_t at = 0; at < k->lanes; at += DRAW_WINDOW) {
        const int64_t n = k->lanes - at < DRAW_WINDOW ? k->lanes - at : DRAW_WINDOW;
        const float *restrict z = sigma > 0 ? draw_window(k->normals, &k->state) : k->normals;
        for (int64_t i = at; i < at + n; i++) {
            const float f = factor[i] + sigma * z[i - at];
            const double d = base * (double)(f > 0 ? f : 0);
            t[i] += d;
            busy[i] += d;
        }
    }
}

/* A visit of each group of a unit: its first lane, the last one and the distance between two of its lanes. */
static inline int64_t group_end(const struct stepper *k, int64_t first, int64_t n, int64_t stride)
{
    const int64_t end = first + n * stride;
    return end < k->lanes ? end : k->lanes;
}

static inline double latest_of(const double *t, int64_t first, int64_t end, int64_t stride)
{
    double latest = t[first];
    for (int64_t i = first + stride; i < end; i += stride)
        latest = t[i] > latest ? t[i] : latest;
    return latest;
}

static void meet(struct stepper *k, const struct plan_op *op, double *restrict own, double *restrict wait)
{
    const int64_t n = k->ops->groups[op->group].n, stride = k->ops->groups[op->group].stride;
    double *restrict t = k->time;
    for (int64_t block = 0; block < k->lanes; block += n * stride)
        for (int64_t first = block; first < block + stride; first++) {
            const int64_t end = group_end(k, first, n, stride);
            const double latest = latest_of(t, first, end, stride);
            for (int64_t i = first; i < end; i += stride) {
                wait[i] += latest - t[i];
                own[i] += op->seconds;
                t[i] = latest + op->seconds;
            }
        }
}

/* The queue of a rank and its events have two rows: when they end, and when they would if no rank of a group ever came
 * later than this one. */
static double *queue_of(struct stepper *k, int rank)
{
    return k->queues + rank * 2 * k->lanes;
}

static double *event_of(struct stepper *k, int rank, int number)
{
    return k->events + (rank * PLAN_EVENTS + number) * 2 * k->lanes;
}

static void queue(struct stepper *k, const struct plan_op *op, int rank, double *own)
{
    const int64_t n = k->ops->groups[op->group].n, stride = k->ops->groups[op->group].stride;
    double *queued = queue_of(k, rank), *alone = queued + k->lanes;
    for (int64_t i = 0; i < k->lanes; i++) {
        queued[i] = queued[i] > k->time[i] ? queued[i] : k->time[i];
        alone[i] = (alone[i] > k->time[i] ? alone[i] : k->time[i]) + op->seconds;
        k->time[i] += op->tax;
        own[i] += op->tax;
    }
    for (int64_t block = 0; block < k->lanes; block += n * stride)
        for (int64_t first = block; first < block + stride; first++) {
            const int64_t end = group_end(k, first, n, stride);
            const double over = latest_of(queued, first, end, stride) + op->seconds;
            for (int64_t i = first; i < end; i += stride)
                queued[i] = over;
        }
    if (op->number >= 0)
        memcpy(event_of(k, rank, op->number), queued, 2 * (size_t)k->lanes * sizeof(*queued));
}

static void await(struct stepper *k, const struct plan_op *op, int rank, double *own, double *wait)
{
    const double *event = event_of(k, rank, op->number);
    for (int64_t i = 0; i < k->lanes; i++) {
        const double now = k->time[i], all = event[i] > now ? event[i] - now : 0,
                     mine = event[k->lanes + i] > now ? event[k->lanes + i] - now : 0;
        own[i] += mine;
        wait[i] += all - mine;
        k->time[i] += all;
    }
}

static void do_operation(struct stepper *k, const struct step_item *it, const struct plan_op *op, int64_t at)
{
    double *own = k->parts[PLAN_TP + op->group] + at, *wait = k->parts[PLAN_WAIT_TP + op->group] + at;
    switch (op->kind) {
    case PLAN_OP_RUN:
        run(k, op->seconds * it->scale, k->parts[PLAN_COMPUTE] + at);
        break;
    case PLAN_OP_MEET:
        meet(k, op, own, wait);
        break;
    case PLAN_OP_QUEUE:
        queue(k, op, it->rank, op->number < 0 ? k->parts[PLAN_GRADS] + at : own);
        break;
    case PLAN_OP_AWAIT:
        await(k, op, it->rank, own, wait);
        break;
    case PLAN_OP_READY:
        plan_sums_ready(k, op, it->rank, at);
        break;
    }
}

/* ---- play ---- */

static void begin_item(struct stepper *k, const struct step_item *it, int64_t at)
{
    const double *before = it->before < 0 ? NULL : k->rows + k->items[it->before].row * k->lanes;
    const double *source = it->source < 0 ? NULL : k->rows + k->items[it->source].row * k->lanes;
    const double delay = it->comes ? k->step->cost.latency + k->ops->latency_s : 0,
                 message = it->comes ? k->ops->message_s : 0;
    double *wait = k->parts[PLAN_WAIT_PIPELINE] + at, *own = k->parts[PLAN_MESSAGES] + at;
    for (int64_t i = 0; i < k->lanes; i++) {
        const double from = before ? before[i] : 0;
        double start = from;
        if (source && source[i] + delay > start)
            start = source[i] + delay;
        wait[i] += start - from;
        own[i] += message;
        k->time[i] = start + message;
    }
}

static void draw_factors(struct stepper *k, int64_t at)
{
    const float jitter = (float)k->noise->jitter;
    for (int64_t from = 0; from < k->lanes; from += DRAW_WINDOW) {
        const int64_t n = k->lanes - from < DRAW_WINDOW ? k->lanes - from : DRAW_WINDOW;
        const float *z = jitter > 0 ? draw_window(k->normals, &k->state) : k->normals;
        for (int64_t i = from; i < from + n; i++)
            k->factor[i] = k->speed[at + i] + jitter * z[i - from];
    }
}

/* Pipelines `first` and the next ones, of which the unit has lanes / peers. */
static void play_unit(struct stepper *k, int64_t first)
{
    memset(k->queues, 0, (size_t)(k->step->schedule->ranks * 2 * k->lanes) * sizeof(*k->queues));
    memset(k->events, 0, (size_t)(k->step->schedule->ranks * PLAN_EVENTS * 2 * k->lanes) * sizeof(*k->events));
    for (int i = 0; i < k->n; i++) {
        const struct step_item *it = &k->items[i];
        const int64_t at = (it->rank * k->replicas + first) * k->step->peers;
        begin_item(k, it, at);
        draw_factors(k, at);
        for (int op = 0; op < it->ops->n; op++)
            do_operation(k, it, &it->ops->ops[op], at);
        memcpy(k->rows + it->row * k->lanes, k->time, (size_t)k->lanes * sizeof(*k->rows));
        if (it->ends)
            memcpy(k->ends + at, k->time, (size_t)k->lanes * sizeof(*k->ends));
        k->slots += k->lanes;
        k->operations += it->ops->n * k->lanes;
    }
    for (int r = 0; r < k->step->schedule->ranks; r++)
        plan_sums_queued(k, r, (r * k->replicas + first) * k->step->peers);
}

static double play_step(struct stepper *k)
{
    const int64_t unit = k->unit;
    plan_sums_begin(k);
    k->slots = k->operations = 0;
    for (int64_t first = 0; first < k->replicas; first += unit) {
        k->lanes = (k->replicas - first < unit ? k->replicas - first : unit) * k->step->peers;
        play_unit(k, first);
    }
    return plan_sums_end(k) + k->step->end_s;
}

/* ---- devices ---- */

struct ranked_device {
    float speed;
    int64_t at;
};

static int slower_first(const void *a, const void *b)
{
    const struct ranked_device *x = a, *y = b;
    if (x->speed != y->speed)
        return x->speed > y->speed ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static err_t replace_slowest(struct stepper *k, int64_t n, int64_t *ret_replaced)
{
    const int64_t most = (int64_t)ceil(k->noise->replaced * (double)n);
    struct ranked_device *ranked = most > 0 ? malloc((size_t)n * sizeof(*ranked)) : NULL;
    *ret_replaced = most;
    if (most == 0)
        return OK;
    if (!ranked)
        return ERR_NOMEM;
    for (int64_t i = 0; i < n; i++)
        ranked[i] = (struct ranked_device){k->speed[i], i};
    qsort(ranked, (size_t)n, sizeof(*ranked), slower_first);
    for (int64_t i = 0; i < most; i++)
        k->speed[ranked[i].at] = 1;
    free(ranked);
    return OK;
}

static void draw_devices(struct stepper *k, int64_t n)
{
    const struct plan_noise *noise = k->noise;
    for (int64_t i = 0; i < n; i++) {
        const float z = k->normals[draw_bits(&k->state) >> 49];
        const bool straggler = draw_share(&k->state) < noise->stragglers;
        k->speed[i] = fmaxf(0, 1 + (float)noise->spread * z) * (float)(straggler ? 1 + noise->slowdown : 1);
    }
}

/* ---- results ---- */

static void note_replicas(const struct stepper *k, struct plan_step_result *r)
{
    r->fastest = INFINITY;
    r->mean = r->slowest = 0;
    for (int64_t p = 0; p < k->replicas; p++) {
        double end = 0;
        for (int rank = 0; rank < k->step->schedule->ranks; rank++)
            for (int64_t i = 0; i < k->step->peers; i++)
                end = fmax(end, k->ends[(rank * k->replicas + p) * k->step->peers + i]);
        r->fastest = fmin(r->fastest, end);
        r->slowest = fmax(r->slowest, end);
        r->mean += end / (double)k->replicas;
    }
}

static void mean_parts(const struct stepper *k, double steps, double *ret)
{
    const int64_t n = k->step->schedule->ranks * k->replicas * k->step->peers;
    for (int part = 0; part < PLAN_PARTS; part++) {
        ret[part] = 0;
        for (int64_t i = 0; i < n; i++)
            ret[part] += k->parts[part][i] / (steps * (double)n);
    }
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void note_times(double *times, int n, struct plan_step_result *r)
{
    qsort(times, (size_t)n, sizeof(*times), by_size);
    for (int i = 0; i < n; i++)
        r->seconds += times[i] / n;
    r->p50 = times[(n - 1) / 2];
    r->p99 = times[(int)ceil(0.99 * n) - 1];
    r->longest = times[n - 1];
}

static void copy_ranks(const struct stepper *k, int steps)
{
    const int64_t n = k->step->schedule->ranks * k->replicas * k->step->peers;
    for (int part = 0; part < PLAN_PARTS; part++)
        for (int64_t i = 0; i < n; i++)
            k->step->ranks[part * n + i] = k->parts[part][i] / steps;
}

/* ---- one simulation ---- */

static err_t stepper_rooms(struct stepper *k)
{
    const struct plan_step *s = k->step;
    const int64_t ranks = s->schedule->ranks, joined = k->ops->joined, peers = s->peers;
    const int64_t few = (LANES + joined * peers - 1) / (joined * peers) * joined;
    k->unit = few < k->replicas ? few : k->replicas;
    const size_t all = (size_t)(ranks * k->replicas * peers), lanes = (size_t)(k->unit * peers);
    k->rows = malloc((size_t)k->n_rows * lanes * sizeof(*k->rows));
    k->time = malloc(lanes * sizeof(*k->time));
    k->factor = malloc(lanes * sizeof(*k->factor));
    k->queues = malloc((size_t)ranks * 2 * lanes * sizeof(*k->queues));
    k->events = malloc((size_t)ranks * PLAN_EVENTS * 2 * lanes * sizeof(*k->events));
    k->speed = malloc(all * sizeof(*k->speed));
    k->ends = malloc(all * sizeof(*k->ends));
    k->solo = malloc(all * sizeof(*k->solo));
    k->parts[0] = calloc(PLAN_PARTS * all, sizeof(**k->parts));
    for (int part = 1; part < PLAN_PARTS && k->parts[0]; part++)
        k->parts[part] = k->parts[0] + (size_t)part * all;
    bool made =
        k->rows && k->time && k->factor && k->queues && k->events && k->speed && k->ends && k->solo && k->parts[0];
    return made ? plan_sums_init(k) : ERR_NOMEM;
}

static void stepper_free_rooms(struct stepper *k)
{
    free(k->rows);
    free(k->time);
    free(k->factor);
    free(k->queues);
    free(k->events);
    free(k->speed);
    free(k->ends);
    free(k->solo);
    free(k->parts[0]);
    plan_sums_fini(k);
}

/* All pipelines that meet within slots are alike without noise, and so are those that do not. */
static err_t play_quiet(struct stepper *k, struct plan_step_result *r)
{
    static const struct plan_noise none;
    const struct plan_noise *noise = k->noise;
    k->noise = &none;
    k->replicas = k->ops->joined;
    err_t err = stepper_rooms(k);
    if (!err) {
        draw_devices(k, k->step->schedule->ranks * k->replicas * k->step->peers);
        r->quiet = play_step(k);
        mean_parts(k, 1, r->quiet_parts);
    }
    stepper_free_rooms(k);
    k->noise = noise;
    return err ? err : k->err;
}

static err_t play_steps(struct stepper *k, int steps, struct plan_step_result *r)
{
    double *times = malloc((size_t)steps * sizeof(*times));
    k->replicas = k->step->replicas;
    k->state = draw_start(k->noise->seed);
    err_t err = times ? stepper_rooms(k) : ERR_NOMEM;
    if (!err) {
        const int64_t n = k->step->schedule->ranks * k->replicas * k->step->peers;
        draw_devices(k, n);
        k->err = replace_slowest(k, n, &r->replaced);
        for (int i = 0; i < steps && !k->err; i++)
            times[i] = play_step(k);
        note_times(times, steps, r);
        note_replicas(k, r);
        mean_parts(k, steps, r->parts);
        r->slots = k->slots;
        r->operations = k->operations;
        if (k->step->ranks)
            copy_ranks(k, steps);
        err = k->err;
    }
    stepper_free_rooms(k);
    free(times);
    return err;
}

/* Without operations: each kind of slot is one, after which the ranks of a stage meet. */
static void cost_as_operations(struct stepper *k)
{
    for (int kind = 0; kind < SLOT_KIND_COUNT; kind++) {
        k->cost_ops[kind][0] = (struct plan_op){.kind = PLAN_OP_RUN, .seconds = k->step->cost.seconds[kind]};
        k->cost_ops[kind][1] = (struct plan_op){.kind = PLAN_OP_MEET, .group = PLAN_GROUP_TP};
        for (int last = 0; last < 2; last++)
            k->cost_slots[2 * kind + last] = (struct plan_slot){.ops = k->cost_ops[kind], .n = 2};
    }
    k->cost_operations = (struct plan_operations){.stages = 1, .slots = k->cost_slots, .joined = 1};
    for (int g = 0; g < PLAN_GROUPS; g++)
        k->cost_operations.groups[g].n = k->cost_operations.groups[g].stride = 1;
    k->cost_operations.groups[PLAN_GROUP_TP].n = k->step->peers;
}

err_t plan_simulate(const struct plan_step *step, const struct plan_noise *noise, struct plan_step_result *ret,
                    struct why *why)
{
    struct stepper *k = calloc(1, sizeof(*k));
    struct plan_step_result r = {0};
    if (!k)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    k->step = step;
    k->noise = noise;
    k->ops = step->operations ? step->operations : &k->cost_operations;
    cost_as_operations(k);
    draw_fill(k->normals);
    err_t err = list_items(k, why);
    k->state = 1;
    err = err ? err : play_quiet(k, &r);
    err = err ? err : play_steps(k, step->steps > 1 ? step->steps : 1, &r);
    if (!err)
        *ret = r;
    free(k->items);
    free(k);
    return err;
}
