/* The slots of a schedule as actions, with exchanges between them (pipeline_exchange.c). A job without a pipeline has a
 * schedule of one rank.
 *
 * Replicas have different numbers of microbatches, by one at most, but follow the same schedule, that of the replica
 * with most. Where a replica has no microbatch for a slot, it skips the slot and its messages; where the ranks of an
 * fsdp group gather and scatter in every list, the rank joins with an action of collectives only.
 *
 * A microbatch uses the lowest free instance of its chunk's buffers from its forward to the end of its backward. */
#include "common/plan/compile/pipeline_exchange.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- the schedule ---- */

static int most_micros(const struct job_spec *job, const struct mesh *m, enum program_mode mode)
{
    int64_t ranks = (int64_t)m->size[AXIS_DP] * m->size[AXIS_FSDP];
    int64_t micros = (job->train.global_batch + job->train.micro_batch - 1) / job->train.micro_batch;
    return mode_generates(mode) ? 1 : (int)((micros + ranks - 1) / ranks);
}

static err_t rows_new(struct schedule *s, int slots)
{
    s->rows = calloc((size_t)s->ranks, sizeof(*s->rows));
    for (int r = 0; s->rows && r < s->ranks; r++) {
        s->rows[r].slots = calloc((size_t)slots + 1, sizeof(struct slot));
        if (!s->rows[r].slots)
            return ERR_NOMEM;
    }
    return s->rows ? OK : ERR_NOMEM;
}

static void append_slot(struct schedule *s, int rank, enum slot_kind kind, int chunk, int micro)
{
    struct schedule_row *row = &s->rows[rank];
    assert(row->slots); /* rows_new */
    row->slots[row->n++] = (struct slot){kind, chunk, micro};
}

/* One rank: forward and backward alternate. */
static err_t schedule_one_rank(struct schedule *s, bool train)
{
    err_t e = rows_new(s, 2 * s->micros);
    for (int m = 0; m < s->micros && !e; m++) {
        append_slot(s, 0, SLOT_FORWARD, 0, m);
        if (train)
            append_slot(s, 0, SLOT_BACKWARD, 0, m);
    }
    return e;
}

/* In the order of the interleaved schedule: microbatches in groups of as many as there are ranks, a group through one
 * chunk after another. */
static void append_groups(struct schedule *s, int rank)
{
    for (int group = 0; group < s->micros; group += s->ranks)
        for (int chunk = 0; chunk < s->chunks; chunk++)
            for (int m = group; m < group + s->ranks && m < s->micros; m++)
                append_slot(s, rank, SLOT_FORWARD, chunk, m);
}

/* In a V the first chunk is ahead by the ranks that the first microbatch passes until it comes back. */
static void append_v(struct schedule *s, int rank)
{
    const int ahead = 2 * (s->ranks - rank) - 1;
    for (int i = 0; i < ahead + s->micros; i++) {
        if (i >= ahead)
            append_slot(s, rank, SLOT_FORWARD, 1, i - ahead);
        if (i < s->micros)
            append_slot(s, rank, SLOT_FORWARD, 0, i);
    }
}

static err_t schedule_forwards(struct schedule *s)
{
    err_t e = rows_new(s, s->micros * s->chunks);
    for (int r = 0; r < s->ranks && !e; r++)
        (s->placement == PLACE_V ? append_v : append_groups)(s, r);
    return e;
}

/* The canonical tree needs the leaves of every gradient in ascending order. */
static err_t check_ascending(const struct schedule *s, struct why *why)
{
    int next[SLOT_KIND_COUNT][SCHEDULE_MAX_CHUNKS];
    for (int r = 0; r < s->ranks; r++) {
        memset(next, 0, sizeof(next));
        for (int i = 0; i < s->rows[r].n; i++) {
            const struct slot *slot = &s->rows[r].slots[i];
            if (slot->kind != SLOT_FORWARD && slot->micro != next[slot->kind][slot->chunk]++)
                return why_set(why, ERR_INVALID,
                               "parallel.schedule_csv: train.numerics canonical adds gradients in the order of "
                               "microbatches, but rank %d, slot %d is the %s of chunk %d on microbatch %d when %d is "
                               "next",
                               r, i, slot_name(slot->kind), slot->chunk, slot->micro,
                               next[slot->kind][slot->chunk] - 1);
        }
    }
    return OK;
}

static err_t read_csv(const struct job_spec *job, struct schedule *ret, struct why *why)
{
    const char *text = job->parallel.schedule_csv ? job->parallel.schedule_csv : "";
    return schedule_read_csv(text, strlen(text), "parallel.schedule_csv", ret, why);
}

/* The placement of the job's training schedule, which evaluation and generation share. */
static err_t placement_of(const struct job_spec *job, enum pipe_placement *ret, struct why *why)
{
    struct schedule s = {.placement = PLACE_LOOP};
    err_t e = OK;
    if (job->parallel.schedule == PIPE_FILE)
        e = read_csv(job, &s, why);
    *ret = job->parallel.schedule == PIPE_FILE ? s.placement
                                               : schedule_placement((enum schedule_kind)job->parallel.schedule);
    schedule_fini(&s);
    return e;
}

/* parallel.schedule_csv, checked against the job's pipeline. */
static err_t schedule_from_csv(const struct job_spec *job, const struct schedule *want, struct schedule *ret,
                               struct why *why)
{
    struct schedule s = {0};
    err_t e = read_csv(job, &s, why);
    if (!e && s.ranks != want->ranks)
        e = why_set(why, ERR_INVALID, "parallel.schedule_csv has %d lines; parallel.pp is %d: a line for each rank",
                    s.ranks, want->ranks);
    else if (!e && s.chunks != want->chunks)
        e = why_set(why, ERR_INVALID, "parallel.schedule_csv has %d chunks per rank; parallel.chunks is %d: write %d",
                    s.chunks, want->chunks, s.chunks);
    else if (!e && s.micros != want->micros)
        e = why_set(why, ERR_INVALID,
                    "parallel.schedule_csv has %d microbatches; train.global_batch and train.micro_batch make %d for "
                    "each replica",
                    s.micros, want->micros);
    e = e ? e : schedule_check(&s, NULL, why);
    if (!e && job->train.numerics == NUMERICS_CANONICAL)
        e = check_ascending(&s, why);
    if (e)
        schedule_fini(&s);
    else
        *ret = s;
    return e;
}

err_t pipeline_schedule(const struct job_spec *job, const struct mesh *mesh, enum program_mode mode,
                        struct schedule *ret, struct why *why)
{
    struct schedule s = {.ranks = mesh->size[AXIS_PP],
                         .chunks = job->parallel.chunks > 1 ? (int)job->parallel.chunks : 1,
                         .micros = most_micros(job, mesh, mode)};
    bool train = mode == MODE_TRAIN;
    err_t e = OK;
    if (s.ranks > 1)
        e = schedule_check_size(s.ranks, s.chunks, s.micros, why);
    if (!e && s.ranks > 1 && train) {
        if (job->parallel.schedule == PIPE_FILE)
            return schedule_from_csv(job, &s, ret, why);
        return schedule_build((enum schedule_kind)job->parallel.schedule, s.ranks, s.chunks, s.micros, ret, why);
    }
    if (!e && s.ranks > 1)
        e = placement_of(job, &s.placement, why);
    e = e ? e : s.ranks > 1 ? schedule_forwards(&s) : schedule_one_rank(&s, train);
    if (e == ERR_NOMEM) {
        schedule_fini(&s);
        return why_set(why, e, "no memory for a schedule of %d ranks", s.ranks);
    }
    *ret = s;
    return e;
}

err_t pipeline_order_init(const struct job_spec *job, enum program_mode mode, struct pipeline_order *ret,
                          struct why *why)
{
    struct pipeline_order o = {.mode = mode};
    err_t e = plan_mesh(job, &o.mesh, why);
    e = e ? e : pipeline_schedule(job, &o.mesh, mode, &o.schedule, why);
    if (!e && o.schedule.ranks > 1)
        e = schedule_posts_init(&o.posts, &o.schedule, why);
    if (!e && o.schedule.ranks > 1 && mode == MODE_TRAIN && job->parallel.post_validation)
        o.ahead = schedule_ahead(&o.schedule, &o.posts);
    if (e)
        pipeline_order_fini(&o);
    else
        *ret = o;
    return e;
}

void pipeline_order_fini(struct pipeline_order *o)
{
    schedule_posts_fini(&o->posts);
    schedule_fini(&o->schedule);
}

/* ---- slots ---- */

struct pipeline {
    const struct schedule *schedule;
    int *slot; /* by slot of this rank's row: the instance that its microbatch uses; -1: none */
    int slots[SCHEDULE_MAX_CHUNKS];
    struct pipeline_chunk *chunks;
    int n, rounds; /* this rank's microbatches; the same with those that it only joins */
};

static const struct schedule_row *row_of(const struct compiler *c)
{
    return &c->pipeline->schedule->rows[c->p->sharding.coord[AXIS_PP]];
}

/* Assigns instances. `held` and `taken` have room for one chunk's microbatches and instances. */
static void assign_chunk(struct pipeline *k, const struct schedule_row *row, int chunk, int *held, bool *taken)
{
    int at = 0; /* all instances below are taken */
    for (int i = 0; i < row->n; i++) {
        const struct slot *slot = &row->slots[i];
        if (slot->chunk != chunk || slot->micro >= k->rounds)
            continue;
        if (slot->kind == SLOT_FORWARD) {
            while (taken[at])
                at++;
            held[slot->micro] = at;
            taken[at] = true;
            k->slots[chunk] = at >= k->slots[chunk] ? at + 1 : k->slots[chunk];
        }
        k->slot[i] = held[slot->micro];
        if (slot->kind == SLOT_BACKWARD || slot->kind == SLOT_WEIGHT) {
            taken[held[slot->micro]] = false;
            at = held[slot->micro] < at ? held[slot->micro] : at;
        }
    }
}

/* Without a backward no value outlives its forward, so one instance is enough. */
static void assign_instances(struct compiler *c)
{
    struct pipeline *k = c->pipeline;
    const struct schedule_row *row = row_of(c);
    int *held = calloc((size_t)k->schedule->micros + 1, sizeof(*held));
    bool *taken = calloc((size_t)k->schedule->micros + 1, sizeof(*taken));
    k->slot = calloc((size_t)row->n + 1, sizeof(*k->slot));
    if (!held || !taken || !k->slot)
        c->err = ERR_NOMEM;
    for (int i = 0; i < k->schedule->chunks; i++)
        k->slots[i] = 1;
    for (int chunk = 0; chunk < k->schedule->chunks && c->p->mode == MODE_TRAIN && !c->err; chunk++) {
        memset(taken, 0, (size_t)k->schedule->micros * sizeof(*taken));
        assign_chunk(k, row, chunk, held, taken);
    }
    free(held);
    free(taken);
}

static void set_input_slots(struct compiler *c)
{
    const struct pipeline *k = c->pipeline;
    bool many = k->schedule->chunks > 1;
    c->input_slots = many ? c->p->n_micros : k->slots[0];
    c->input_index = many ? SLOT_MICRO : SLOT_ACTION;
}

void pipeline_init(struct compiler *c)
{
    struct pipeline *k = c->pipeline = calloc(1, sizeof(*k));
    if (!k) {
        c->err = ERR_NOMEM;
        return;
    }
    k->schedule = &c->order->schedule;
    k->n = c->p->end_micro - c->p->first_micro;
    k->rounds = zero_rounds(c);
    assign_instances(c);
    set_input_slots(c);
    k->chunks = calloc((size_t)k->schedule->chunks, sizeof(*k->chunks));
    if (!k->chunks)
        c->err = ERR_NOMEM;
}

void pipeline_fini(struct compiler *c)
{
    struct pipeline *k = c->pipeline;
    if (!k)
        return;
    free(k->slot);
    free(k->chunks);
    free(k);
}

/* ---- actions ---- */

/* The action of the exchange before slot i, with the slot's instance. */
static void exchange_action(struct compiler *c, struct exchanges *x, int i)
{
    const struct pipeline *k = c->pipeline;
    const struct schedule_row *row = row_of(c);
    struct op_range ops = exchange_before(c, x, i);
    struct action a = {.kind = ACT_EXCHANGE, .micro = -1, .unit = -1};
    if (!ops.n)
        return;
    if (i < row->n && k->slot[i] >= 0) {
        a.chunk = row->slots[i].chunk;
        a.slot = k->slot[i];
    }
    compile_action(c, a, ops);
}

static const struct {
    enum action_kind kind, join;
    enum chunk_list list;
} slot_actions[SLOT_KIND_COUNT] = {
    [SLOT_FORWARD] = {ACT_FORWARD, ACT_GATHER, LIST_FORWARD},
    [SLOT_BACKWARD] = {ACT_BACKWARD, ACT_REDUCE, LIST_BACKWARD},
    [SLOT_INPUT] = {ACT_INPUT, ACT_GATHER, LIST_INPUT},
    [SLOT_WEIGHT] = {ACT_WEIGHT, ACT_REDUCE, LIST_WEIGHT},
};

static void run_list(struct compiler *c, int i, const struct slot *slot, enum slot_kind kind)
{
    struct pipeline *k = c->pipeline;
    struct pipeline_chunk *chunk = &k->chunks[slot->chunk];
    bool here = slot->micro < k->n; /* this replica has the microbatch */
    enum chunk_list list = slot_actions[kind].list;
    struct op_range ops = here ? chunk->lists[list][chunk->runs[list] > 0] : chunk->joins[list][chunk->runs[list] > 0];
    if (slot->micro >= k->rounds || (!here && !ops.n))
        return;
    chunk->runs[list]++;
    compile_action(c,
                   (struct action){.kind = here ? slot_actions[kind].kind : slot_actions[kind].join,
                                   .chunk = slot->chunk,
                                   .micro = here ? c->p->first_micro + slot->micro : -1,
                                   .slot = k->slot[i],
                                   .unit = -1},
                   ops);
}

/* If a schedule splits some backwards of a chunk, all of them are compiled as halves; a whole one runs both. */
static void slot_action(struct compiler *c, int i, const struct slot *slot)
{
    if (slot->kind == SLOT_BACKWARD && c->pipeline->chunks[slot->chunk].split) {
        run_list(c, i, slot, SLOT_INPUT);
        run_list(c, i, slot, SLOT_WEIGHT);
        return;
    }
    run_list(c, i, slot, slot->kind);
}

static void run_row(struct compiler *c)
{
    const struct pipeline *k = c->pipeline;
    const struct schedule_row *row = row_of(c);
    struct exchanges *x = k->schedule->ranks > 1 ? exchanges_new(c, k->chunks, k->n) : NULL;
    for (int i = 0; i <= row->n && !c->err; i++) {
        if (i > 0 && i == compile_ahead(c)) {
            c->p->n_ahead = c->p->n_actions;
            compile_zeroes(c);
        }
        if (x)
            exchange_action(c, x, i);
        if (i < row->n && !c->err)
            slot_action(c, i, &row->slots[i]);
    }
    exchanges_free(x);
}

static bool has_split(const struct schedule_row *row, int chunk)
{
    for (int i = 0; i < row->n; i++)
        if (row->slots[i].kind == SLOT_INPUT && row->slots[i].chunk == chunk)
            return true;
    return false;
}

/* A rank without microbatches compiles its lists too, to derive what it joins and which gradients are shares. */
void pipeline_emit(struct compiler *c)
{
    struct pipeline *k = c->pipeline;
    struct program *p = c->p;
    int ops = p->n_ops, buffers = p->n_buffers;
    for (int i = 0; i < k->schedule->chunks && !c->err; i++) {
        struct pipeline_chunk_spec want = {
            .chunk = i, .slots = k->slots[i], .rounds = k->rounds, .split = has_split(row_of(c), i)};
        chunk_compile(c, &want, &k->chunks[i]);
    }
    for (int i = 0; i < k->schedule->chunks && k->n < k->rounds && !c->err; i++)
        chunk_join(c, &k->chunks[i]);
    p->logits_buffer = k->n && !c->err ? c->act[c->g->logits] : -1;
    if (k->n == 0 && !c->err)
        chunks_forget(c, k->chunks, k->schedule->chunks, ops, buffers);
    if (!c->err)
        run_row(c);
}
