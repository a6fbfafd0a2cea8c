/* A schedule's slots as actions, and between them exchanges. One rank is a pipeline of one.
 *
 * Replicas differ in their number of microbatches, by one at most, but follow one schedule, that of the replica with
 * most: where a microbatch is not there its slots and transfers are left out, or, where ranks of an fsdp group gather
 * and scatter in every list, the rank joins with an action of collectives only.
 *
 * Between two slots all that is sent and received is posted in one action (schedule_posts), which waits for as little
 * as it can: for what the next slot takes, and, where it sends, for the message whose buffer it takes again. So a rank
 * that is late holds up who needs it and nobody else. What is sent is copied out of the chunk, whose next microbatch
 * may overwrite it; what is received right before its slot goes straight to its place; what comes earlier lands in a
 * buffer of its own and is copied, so that an instance of a chunk's activations begins with its forward and not with
 * the arrival of its input. Messages have the size of a full microbatch, whatever the last one has: those of an
 * exchange are of different microbatches.
 *
 * A microbatch holds a slot of its chunk, the lowest that is free, from its forward to the end of its backward. */
#include "common/plan/compile.h"
#include "common/plan/mutant.h"

#include "common/plan/stages.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the schedule ---- */

static const enum schedule_kind kinds[] = {
    [PIPE_1F1B] = SCHEDULE_1F1B,
    [PIPE_GPIPE] = SCHEDULE_GPIPE,
    [PIPE_INTERLEAVED] = SCHEDULE_INTERLEAVED,
    [PIPE_ZB_H1] = SCHEDULE_ZB_H1,
};

static int most_micros(const struct job_spec *job, const struct mesh *m, enum program_mode mode)
{
    int64_t ranks = (int64_t)m->size[AXIS_DP] * m->size[AXIS_FSDP];
    int64_t micros = (job->train.global_batch + job->train.micro_batch - 1) / job->train.micro_batch;
    return mode == MODE_GENERATE ? 1 : (int)((micros + ranks - 1) / ranks);
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

static void put(struct schedule *s, int rank, enum slot_kind kind, int chunk, int micro)
{
    struct schedule_row *row = &s->rows[rank];
    assert(row->slots); /* rows_new */
    row->slots[row->n++] = (struct slot){kind, chunk, micro};
}

/* One rank: forward and backward in turns. */
static err_t alone(struct schedule *s, bool train)
{
    err_t e = rows_new(s, 2 * s->micros);
    for (int m = 0; m < s->micros && !e; m++) {
        put(s, 0, SLOT_FORWARD, 0, m);
        if (train)
            put(s, 0, SLOT_BACKWARD, 0, m);
    }
    return e;
}

/* Forwards only, in the order of the interleaved schedule: as many microbatches as ranks pass chunk after chunk. */
static err_t forwards(struct schedule *s)
{
    err_t e = rows_new(s, s->micros * s->chunks);
    for (int r = 0; r < s->ranks && !e; r++)
        for (int group = 0; group < s->micros; group += s->ranks)
            for (int chunk = 0; chunk < s->chunks; chunk++)
                for (int m = group; m < group + s->ranks && m < s->micros; m++)
                    put(s, r, SLOT_FORWARD, chunk, m);
    return e;
}

/* The tree wants the leaves of every gradient in ascending order. */
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

/* What a person wrote must be a schedule of this job's pipeline. */
static err_t from_text(const struct job_spec *job, const struct schedule *want, struct schedule *ret, struct why *why)
{
    const char *text = job->parallel.schedule_csv ? job->parallel.schedule_csv : "";
    struct schedule s = {0};
    err_t e = schedule_read_csv(text, strlen(text), "parallel.schedule_csv", &s, why);
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

err_t compile_schedule(const struct job_spec *job, const struct mesh *mesh, enum program_mode mode,
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
            return from_text(job, &s, ret, why);
        return schedule_build(kinds[job->parallel.schedule], s.ranks, s.chunks, s.micros, ret, why);
    }
    e = e ? e : s.ranks > 1 ? forwards(&s) : alone(&s, train);
    if (e == ERR_NOMEM) {
        schedule_fini(&s);
        return why_set(why, e, "no memory for a schedule of %d ranks", s.ranks);
    }
    *ret = s;
    return e;
}

/* ---- slots ---- */

/* Where a received value waits for its slot. */
struct landing {
    int buffer;
    bool taken;
};

/* Sends of one size that are under way at most. One lets a rank be a slot ahead of who takes its values; in the
 * interleaved schedule, where neighbours do forwards and backwards in turns, two lose nothing (tests/common/plan). */
#define MAX_SENDS 2
#define MAX_OUTBOXES (2 * MAX_SENDS)
/* Where a value lies that is sent. */
struct outbox {
    int buffer, since; /* since: the exchange that it was posted in, -1: it is free */
};

/* What goes over between two slots: buffers, and peers as indices in the pp group. All zero where there is none. */
#define MAX_MESSAGES 16
#define MAX_FLYING 32 /* receives that nobody has waited for: all of an exchange that makes them more are waited for \
                       */
struct message {
    int peer, buffer;
};
struct copy {
    int from, to;
};
struct exchange {
    int n_frees, n_sends, n_recvs, n_takes, n_lands;
    int free[1]; /* the message that must be over first: a send takes its buffer */
    struct copy leave;
    struct message send[1], recv[MAX_MESSAGES];
    int take[MAX_MESSAGES + 1]; /* messages that must be over at the end: receives; behind the last slot all sends */
    struct copy land;
};

struct known_exchange {
    struct exchange what;
    struct op_range ops;
};

struct pipeline {
    struct schedule schedule;
    struct schedule_posts posts; /* of several ranks */
    int *slot;                   /* by slot of this rank's row: the instance that its microbatch holds; -1: none */
    int slots[SCHEDULE_MAX_CHUNKS];
    struct chunk *chunks;
    int *position; /* by rank, forward or not, chunk and microbatch: its slot in the row */
    int *landed;   /* by slot of the row: the landing that its input is in; -1 */
    bool *flies;   /* by slot of the row: its input has been posted and not been waited for */
    struct landing *landings;
    int n_landings;
    struct outbox outbox[MAX_OUTBOXES];
    int n_outboxes;
    int flying; /* receives that have been posted and not been waited for */
    struct known_exchange *exchanges;
    int n_exchanges;
    int n, rounds; /* this rank's microbatches; those in which it acts */
};

static const struct schedule_row *row_of(const struct compiler *c)
{
    return &c->pipeline->schedule.rows[c->p->place.coord[AXIS_PP]];
}

/* Deals slots; `held` and `taken` are room for one chunk's microbatches and slots. */
static void deal_chunk(struct pipeline *k, const struct schedule_row *row, int chunk, int *held, bool *taken)
{
    for (int i = 0; i < row->n; i++) {
        const struct slot *slot = &row->slots[i];
        if (slot->chunk != chunk || slot->micro >= k->rounds)
            continue;
        if (slot->kind == SLOT_FORWARD) {
            int at = 0;
            while (taken[at])
                at++;
            held[slot->micro] = at;
            taken[at] = true;
            k->slots[chunk] = at >= k->slots[chunk] ? at + 1 : k->slots[chunk];
        }
        k->slot[i] = held[slot->micro];
        if (slot->kind == SLOT_BACKWARD || slot->kind == SLOT_WEIGHT)
            taken[held[slot->micro]] = false;
    }
}

/* Without a backward nothing is kept: one instance will do. */
static void deal_slots(struct compiler *c)
{
    struct pipeline *k = c->pipeline;
    const struct schedule_row *row = row_of(c);
    int *held = calloc((size_t)k->schedule.micros + 1, sizeof(*held));
    bool *taken = calloc((size_t)k->schedule.micros + 1, sizeof(*taken));
    k->slot = calloc((size_t)row->n + 1, sizeof(*k->slot));
    if (!held || !taken || !k->slot)
        c->err = ERR_NOMEM;
    for (int i = 0; i < k->schedule.chunks; i++)
        k->slots[i] = 1;
    for (int chunk = 0; chunk < k->schedule.chunks && c->p->mode == MODE_TRAIN && !c->err; chunk++) {
        memset(taken, 0, (size_t)k->schedule.micros * sizeof(*taken));
        deal_chunk(k, row, chunk, held, taken);
    }
    free(held);
    free(taken);
}

static int *position_at(const struct pipeline *k, int rank, bool forward, int chunk, int micro)
{
    const struct schedule *s = &k->schedule;
    return &k->position[((size_t)(rank * 2 + forward) * (size_t)s->chunks + (size_t)chunk) * (size_t)s->micros +
                        (size_t)micro];
}

static void find_positions(struct compiler *c)
{
    struct pipeline *k = c->pipeline;
    const struct schedule *s = &k->schedule;
    k->position = calloc((size_t)s->ranks * 2 * (size_t)s->chunks * (size_t)s->micros + 1, sizeof(*k->position));
    if (!k->position)
        c->err = ERR_NOMEM;
    for (int r = 0; r < s->ranks && !c->err; r++)
        for (int i = 0; i < s->rows[r].n; i++) {
            const struct slot *slot = &s->rows[r].slots[i];
            if (slot->kind != SLOT_WEIGHT)
                *position_at(k, r, slot->kind == SLOT_FORWARD, slot->chunk, slot->micro) = i;
        }
}

static void find_inputs(struct compiler *c)
{
    const struct pipeline *k = c->pipeline;
    bool many = k->schedule.chunks > 1;
    c->input_slots = many ? c->p->n_micros : k->slots[0];
    c->input_index = many ? SLOT_MICRO : SLOT_ACTION;
}

void compile_pipeline(struct compiler *c)
{
    struct pipeline *k = c->pipeline = calloc(1, sizeof(*k));
    if (!k) {
        c->err = ERR_NOMEM;
        return;
    }
    c->err = compile_schedule(c->job, &c->p->mesh, c->p->mode, &k->schedule, c->why);
    if (!c->err && k->schedule.ranks > 1)
        c->err = schedule_posts_init(&k->posts, &k->schedule, c->why);
    if (c->err)
        return;
    k->n = c->p->end_micro - c->p->first_micro;
    k->rounds = compile_rounds(c);
    deal_slots(c);
    find_positions(c);
    find_inputs(c);
    k->landed = malloc(((size_t)row_of(c)->n + 1) * sizeof(*k->landed));
    k->flies = calloc((size_t)row_of(c)->n + 1, sizeof(*k->flies));
    k->chunks = calloc((size_t)k->schedule.chunks, sizeof(*k->chunks));
    if (!k->landed || !k->flies || !k->chunks)
        c->err = ERR_NOMEM;
    for (int i = 0; k->landed && i < row_of(c)->n; i++)
        k->landed[i] = -1;
}

void compile_pipeline_fini(struct compiler *c)
{
    struct pipeline *k = c->pipeline;
    if (!k)
        return;
    schedule_fini(&k->schedule);
    schedule_posts_fini(&k->posts);
    free(k->slot);
    free(k->chunks);
    free(k->position);
    free(k->landed);
    free(k->flies);
    free(k->landings);
    free(k->exchanges);
    free(k);
}

/* ---- exchanges ---- */

/* Whether this rank computes slot i: its microbatch is there. */
static bool is_here(const struct compiler *c, const struct slot *slot)
{
    return slot->micro < c->pipeline->n;
}

/* A buffer of the size of b that holds no received value. */
static int landing_new(struct compiler *c, int b)
{
    struct pipeline *k = c->pipeline;
    for (int i = 0; i < k->n_landings; i++)
        if (!k->landings[i].taken && c->p->buffers[k->landings[i].buffer].bytes == c->p->buffers[b].bytes) {
            k->landings[i].taken = true;
            return i;
        }
    struct landing *grown = realloc(k->landings, ((size_t)k->n_landings + 1) * sizeof(*grown));
    if (!grown) {
        c->err = ERR_NOMEM;
        return -1;
    }
    k->landings = grown;
    struct buffer landing = c->p->buffers[b];
    landing.slots = 1;
    landing.slot_bytes = 0;
    landing.slot_index = SLOT_ONE;
    snprintf(landing.name, sizeof(landing.name), "received.%d", k->n_landings);
    k->landings[k->n_landings] = (struct landing){compile_buffer(c, &landing), !MUTANT(LANDING_SHARED)};
    return k->n_landings++;
}

/* Where slot i of this rank wants what it takes from another rank. */
static int input_of(const struct compiler *c, const struct slot *slot)
{
    const struct chunk *chunk = &c->pipeline->chunks[slot->chunk];
    return slot->kind == SLOT_FORWARD ? chunk->input : chunk->output_grad;
}

static int output_of(const struct compiler *c, const struct slot *slot)
{
    const struct chunk *chunk = &c->pipeline->chunks[slot->chunk];
    return slot->kind == SLOT_FORWARD ? chunk->output : chunk->input_grad;
}

struct arrival {
    int slot, peer, order; /* order: of the slot that makes it, in its rank's row */
};

static int by_sender(const void *x, const void *y)
{
    const struct arrival *a = x, *b = y;
    return a->peer != b->peer ? a->peer - b->peer : a->order - b->order;
}

static void receive(struct compiler *c, struct exchange *e, const struct arrival *a, int i)
{
    struct pipeline *k = c->pipeline;
    int to = input_of(c, &row_of(c)->slots[a->slot]);
    if (e->n_recvs == MAX_MESSAGES) {
        c->err = why_set(c->why, ERR_LIMIT, "the schedule receives more than %d values at once", MAX_MESSAGES);
        return;
    }
    if (a->slot != i) {
        k->landed[a->slot] = landing_new(c, to);
        to = c->err ? -1 : k->landings[k->landed[a->slot]].buffer;
    }
    e->recv[e->n_recvs++] = (struct message){a->peer, to};
    if (k->flying == MAX_FLYING) {
        e->take[e->n_takes++] = to;
        return;
    }
    k->flies[a->slot] = true;
    k->flying++;
}

/* Room for what b has, free or the one that has been under way for longest. */
static struct outbox *outbox_for(struct compiler *c, int b)
{
    struct pipeline *k = c->pipeline;
    struct outbox *oldest = NULL;
    int alike = 0;
    for (int i = 0; i < k->n_outboxes; i++) {
        struct outbox *o = &k->outbox[i];
        if (c->p->buffers[o->buffer].bytes != c->p->buffers[b].bytes)
            continue;
        oldest = oldest && oldest->since <= o->since ? oldest : o;
        alike++;
    }
    if ((oldest && oldest->since < 0) || alike == MAX_SENDS)
        return oldest;
    if (k->n_outboxes == MAX_OUTBOXES) {
        c->err = why_set(c->why, ERR_LIMIT, "the stages send values of more than %d sizes", MAX_OUTBOXES / MAX_SENDS);
        return NULL;
    }
    struct outbox *o = &k->outbox[k->n_outboxes];
    *o = (struct outbox){compile_sent(c, b, k->n_outboxes), -1};
    k->n_outboxes++;
    return c->err ? NULL : o;
}

static void find_sends(struct compiler *c, struct exchange *e, int i)
{
    const struct pipeline *k = c->pipeline;
    const struct slot *slot = i ? &row_of(c)->slots[i - 1] : NULL;
    struct schedule_work to;
    int rank = c->p->place.coord[AXIS_PP];
    if (!slot || !is_here(c, slot) || !schedule_target(&k->schedule, rank, slot, &to) || to.rank == rank)
        return;
    int from = MUTANT(SENT_TO_ITSELF_LATER) && input_of(c, slot) >= 0 ? input_of(c, slot) : output_of(c, slot);
    struct outbox *o = outbox_for(c, from);
    if (!o)
        return;
    if (o->since >= 0 && !MUTANT(SENT_OVER_A_SEND))
        e->free[e->n_frees++] = o->buffer;
    o->since = i;
    e->leave = (struct copy){from, o->buffer};
    e->send[e->n_sends++] = (struct message){to.rank, o->buffer};
}

/* Behind the last slot every send is waited for. */
static void find_last(const struct compiler *c, struct exchange *e)
{
    struct pipeline *k = c->pipeline;
    for (int n = k->n_outboxes; n > 0; n--) {
        struct outbox *oldest = NULL;
        for (int i = 0; i < k->n_outboxes; i++)
            if (k->outbox[i].since >= 0 && (!oldest || k->outbox[i].since < oldest->since))
                oldest = &k->outbox[i];
        if (!oldest)
            return;
        e->take[e->n_takes++] = oldest->buffer;
        oldest->since = -1;
    }
}

/* What comes before slot i; `next` is where in the list of all arrivals of this rank those of slot i begin. */
static int find_recvs(struct compiler *c, struct exchange *e, const struct arrival *arrivals, const int *before, int n,
                      int next, int i)
{
    for (; next < n && before[next] == i && !c->err; next++)
        receive(c, e, &arrivals[next], i);
    return next;
}

/* What the next slot takes must be here. */
static void find_input(struct compiler *c, struct exchange *e, int i)
{
    struct pipeline *k = c->pipeline;
    const struct slot *slot = &row_of(c)->slots[i];
    struct landing *l = k->landed[i] < 0 ? NULL : &k->landings[k->landed[i]];
    if (k->flies[i]) {
        e->take[e->n_takes++] = l ? l->buffer : input_of(c, slot);
        k->flying--;
    }
    if (!l)
        return;
    l->taken = false;
    e->n_lands = 1;
    e->land = (struct copy){l->buffer, input_of(c, slot)};
}

/* Elements of one instance, all of it. */
static struct graph_dim all_of(const struct compiler *c, int b)
{
    const struct buffer *buffer = &c->p->buffers[b];
    int64_t size = (int64_t)dtype_bytes(buffer->dtype);
    assert(size > 0);
    return dim_one(buffer->bytes / size);
}

static struct op *emit_comm(struct compiler *c, enum op_kind kind, int buffer)
{
    struct op *op = compile_op(c, kind, -1);
    op->stream = STREAM_COMM;
    if (!c->err && buffer >= 0) {
        op->m = all_of(c, buffer);
        op_arg(op, 0, buffer);
    }
    return op;
}

static void emit_message(struct compiler *c, enum op_kind kind, const struct message *m, int group)
{
    struct op *op = emit_comm(c, kind, m->buffer);
    op->group = group;
    op->peer = m->peer;
}

static void emit_copy(struct compiler *c, const struct copy *copy)
{
    struct op *op = compile_op(c, OP_COPY, -1);
    op->m = c->err ? dim_one(0) : all_of(c, copy->to);
    op_arg(op, 0, copy->from);
    op_arg(op, 1, copy->to);
}

static struct op_range emit_exchange(struct compiler *c, const struct exchange *e)
{
    int first = c->p->n_ops, group = compile_group(c, 1u << AXIS_PP);
    for (int i = 0; i < e->n_frees; i++)
        emit_comm(c, OP_WAIT, e->free[i]);
    for (int i = 0; i < e->n_sends; i++) {
        emit_copy(c, &e->leave);
        emit_message(c, OP_SEND, &e->send[i], group);
    }
    for (int i = 0; i < e->n_recvs; i++)
        emit_message(c, OP_RECV, &e->recv[i], group);
    if (e->n_sends + e->n_recvs)
        emit_comm(c, OP_PUSH, -1);
    for (int i = 0; i < e->n_takes; i++)
        emit_comm(c, OP_WAIT, e->take[i]);
    for (int i = 0; i < e->n_lands; i++)
        emit_copy(c, &e->land);
    return (struct op_range){first, c->p->n_ops - first};
}

/* The list of an exchange: what has been exchanged before is the same list. */
static struct op_range exchange_ops(struct compiler *c, const struct exchange *e)
{
    struct pipeline *k = c->pipeline;
    for (int i = 0; i < k->n_exchanges; i++)
        if (!memcmp(&k->exchanges[i].what, e, sizeof(*e)))
            return k->exchanges[i].ops;
    struct known_exchange *grown = realloc(k->exchanges, ((size_t)k->n_exchanges + 1) * sizeof(*grown));
    if (!grown) {
        c->err = ERR_NOMEM;
        return (struct op_range){0};
    }
    k->exchanges = grown;
    k->exchanges[k->n_exchanges] = (struct known_exchange){*e, emit_exchange(c, e)};
    return k->exchanges[k->n_exchanges++].ops;
}

static void exchange_action(struct compiler *c, const struct exchange *e, int i)
{
    const struct pipeline *k = c->pipeline;
    const struct schedule_row *row = row_of(c);
    struct action a = {.kind = ACT_EXCHANGE, .micro = -1, .unit = -1};
    if (i < row->n && k->slot[i] >= 0) {
        a.chunk = row->slots[i].chunk;
        a.slot = k->slot[i];
    }
    compile_action(c, a, exchange_ops(c, e));
}

/* ---- actions ---- */

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
    struct chunk *chunk = &k->chunks[slot->chunk];
    bool here = is_here(c, slot);
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

/* A chunk whose schedule splits some backwards has no others: a whole one is its halves. */
static void slot_action(struct compiler *c, int i, const struct slot *slot)
{
    if (slot->kind == SLOT_BACKWARD && c->pipeline->chunks[slot->chunk].split) {
        run_list(c, i, slot, SLOT_INPUT);
        run_list(c, i, slot, SLOT_WEIGHT);
        return;
    }
    run_list(c, i, slot, slot->kind);
}

/* All that this rank receives, in the order of exchanges, in each in the order of posts. Returns their number. */
static int find_arrivals(struct compiler *c, struct arrival *ret, int *before)
{
    const struct pipeline *k = c->pipeline;
    const struct schedule_row *row = row_of(c);
    int rank = c->p->place.coord[AXIS_PP], n = 0;
    int *count = calloc((size_t)row->n + 2, sizeof(*count));
    if (!count || k->schedule.ranks == 1) {
        c->err = count ? c->err : ERR_NOMEM;
        free(count);
        return 0;
    }
    const int *at = k->posts.ranks[rank].receive;
    for (int i = 0; i < row->n; i++)
        if (at[i] >= 0 && is_here(c, &row->slots[i]))
            count[at[i] + 1]++;
    for (int i = 0; i < row->n; i++)
        count[i + 1] += count[i];
    for (int i = 0; i < row->n; i++) {
        struct schedule_work from;
        if (at[i] < 0 || !is_here(c, &row->slots[i]) || !schedule_source(&k->schedule, rank, &row->slots[i], &from))
            continue;
        int order = *position_at(k, from.rank, from.kind == SLOT_FORWARD, from.chunk, from.micro);
        before[count[at[i]]] = at[i];
        ret[count[at[i]]++] = (struct arrival){i, from.rank, order};
        n++;
    }
    for (int i = 0, end; i < n; i = end) {
        for (end = i; end < n && before[end] == before[i];)
            end++;
        qsort(ret + i, (size_t)(end - i), sizeof(*ret), by_sender);
    }
    free(count);
    return n;
}

static void run_row(struct compiler *c)
{
    const struct schedule_row *row = row_of(c);
    struct arrival *arrivals = calloc((size_t)row->n + 1, sizeof(*arrivals));
    int *before = calloc((size_t)row->n + 1, sizeof(*before)), next = 0, n = 0;
    if (!arrivals || !before)
        c->err = ERR_NOMEM;
    else
        n = find_arrivals(c, arrivals, before);
    for (int i = 0; i <= row->n && !c->err; i++) {
        struct exchange e;
        memset(&e, 0, sizeof(e)); /* compared as bytes */
        find_sends(c, &e, i);
        next = find_recvs(c, &e, arrivals, before, n, next, i);
        if (i < row->n)
            find_input(c, &e, i);
        else
            find_last(c, &e);
        if (!c->err && e.n_sends + e.n_recvs + e.n_takes + e.n_lands)
            exchange_action(c, &e, i);
        if (i < row->n && !c->err)
            slot_action(c, i, &row->slots[i]);
    }
    free(arrivals);
    free(before);
}

static bool has_split(const struct schedule_row *row, int chunk)
{
    for (int i = 0; i < row->n; i++)
        if (row->slots[i].kind == SLOT_INPUT && row->slots[i].chunk == chunk)
            return true;
    return false;
}

/* A rank without microbatches compiles its lists too: they tell what it joins, and which gradients are shares. */
void compile_micros(struct compiler *c)
{
    struct pipeline *k = c->pipeline;
    struct program *p = c->p;
    int ops = p->n_ops, buffers = p->n_buffers;
    for (int i = 0; i < k->schedule.chunks && !c->err; i++) {
        struct chunk_want want = {
            .chunk = i, .slots = k->slots[i], .rounds = k->rounds, .split = has_split(row_of(c), i)};
        chunk_compile(c, &want, &k->chunks[i]);
    }
    for (int i = 0; i < k->schedule.chunks && k->n < k->rounds && !c->err; i++)
        chunk_join(c, &k->chunks[i]);
    p->logits_buffer = k->n && !c->err ? c->act[c->g->logits] : -1;
    if (k->n == 0 && !c->err)
        chunks_forget(c, k->chunks, k->schedule.chunks, ops, buffers);
    if (!c->err)
        run_row(c);
}
