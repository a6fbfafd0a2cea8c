/* Messages between pipeline stages. All messages between two slots of a rank are posted in one action, an exchange
 * (schedule_posts chooses it). It waits for as little as possible: for the input of the next slot, and, before a send,
 * for the earlier message in the same buffer. A late rank therefore delays only the ranks that need its values.
 *
 *   chunk's output --copy--> sent.0 --send--> .. --recv--> chunk's input                        right before its slot
 *                                                --recv--> received.0 --copy--> chunk's input    earlier
 *   between two chunks of one rank: the same without sent.0 and messages
 *
 * A sent value is copied out of the chunk's buffers, because the next microbatch may overwrite them. A value that
 * arrives earlier than right before its slot has a buffer of its own, so that an instance of a chunk's activations is
 * live from its forward on and not from the arrival of its input. All messages have the size of a full microbatch, also
 * the last one's, because the messages of an exchange belong to different microbatches. */
#include "common/plan/compile/pipeline_exchange.h"

#include "common/plan/mutant.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEP_SENDS 2 /* most sends of one exchange: schedule_posts sends a slot's value at most two slots later */
/* Four per size (max_alike), for values of two sizes: one passes to the next stage, one to the previous. */
#define MAX_SEND_BUFFERS 8
#define MAX_MESSAGES 16 /* receives of one exchange; only a schedule from a file has so many */
/* Most receives without a wait. Those of an exchange that would exceed it are waited for in the exchange. */
#define MAX_POSTED 32

/* A buffer for a received value until its slot. */
struct receive_buffer {
    int buffer;
    bool taken;
};

/* A buffer for a value that is sent. */
struct send_buffer {
    int buffer, since; /* since: the exchange in which it was posted, -1: it is free */
};

/* A receive: the slot of the row that reads the value, the exchange, the sender, which may be this rank, and the slot
 * of the sender's row that makes the value (order). */
struct arrival {
    int slot, before, peer, order;
};

/* Buffers, and peers as indices in the pp group. Unused entries are zero, because exchanges are compared as bytes. */
struct posted_message {
    int peer, buffer;
};
struct value_copy {
    int from, to;
};
struct exchange {
    int n_frees, n_sends, n_keeps, n_recvs, n_takes, n_copies_in;
    int free[STEP_SENDS]; /* messages that must complete first, because sends reuse their buffers */
    struct value_copy leave[STEP_SENDS], keep[STEP_SENDS]; /* into messages; to another chunk of this rank */
    struct posted_message send[STEP_SENDS], recv[MAX_MESSAGES];
    int take[MAX_MESSAGES + 1]; /* messages that must complete in it: receives; after the last slot all sends */
    struct value_copy copy_in;
};

struct known_exchange {
    struct exchange what;
    struct op_range ops;
    int next; /* the exchange that followed it the last time */
};

struct exchanges {
    const struct schedule *schedule;
    const struct schedule_row *row;
    const struct pipeline_chunk *chunks;
    int rank, micros;
    struct arrival *arrivals; /* in the order of exchanges, in each in the order of posts */
    int n_arrivals, next;     /* next: the first that has not been posted */
    const int *sent;          /* by slot of the row: the slot before which its output is sent */
    int *buffer_of;           /* by slot of the row: index in receive_buffers of its input; -1: none */
    bool *posted;             /* by slot of the row: its receive has been posted and not been waited for */
    int n_posted;
    struct receive_buffer *receive_buffers;
    int n_receive_buffers;
    struct send_buffer send_buffer[MAX_SEND_BUFFERS];
    int n_send_buffers, max_alike; /* max_alike: most sends of one size in flight */
    struct known_exchange *known;
    int n_known, last; /* last: index of the previous exchange in known */
};

/* Whether this rank computes the slot: its replica has the microbatch. */
static bool is_here(const struct exchanges *x, const struct slot *slot)
{
    return slot->micro < x->micros;
}

/* The buffer of the value that the slot reads from another rank. */
static int input_of(const struct exchanges *x, const struct slot *slot)
{
    const struct pipeline_chunk *chunk = &x->chunks[slot->chunk];
    return slot->kind == SLOT_FORWARD ? chunk->input : chunk->output_grad;
}

static int output_of(const struct exchanges *x, const struct slot *slot)
{
    const struct pipeline_chunk *chunk = &x->chunks[slot->chunk];
    return slot->kind == SLOT_FORWARD ? chunk->output : chunk->input_grad;
}

/* ---- receives ---- */

static int in_order(const void *x, const void *y)
{
    const struct arrival *a = x, *b = y;
    if (a->before != b->before)
        return a->before - b->before;
    return a->peer != b->peer ? a->peer - b->peer : a->order - b->order;
}

static err_t find_arrivals(struct exchanges *x, const struct schedule_rank_posts *posts)
{
    x->arrivals = calloc((size_t)x->row->n + 1, sizeof(*x->arrivals));
    if (!x->arrivals)
        return ERR_NOMEM;
    for (int i = 0; i < x->row->n; i++) {
        struct schedule_work from;
        const struct slot *slot = &x->row->slots[i];
        if (posts->receive[i] >= 0 && is_here(x, slot) && schedule_source(x->schedule, x->rank, slot, &from))
            x->arrivals[x->n_arrivals++] = (struct arrival){i, posts->receive[i], from.rank, posts->made[i]};
    }
    bool sorted = true; /* true for most schedules */
    for (int i = 1; i < x->n_arrivals; i++)
        sorted &= in_order(&x->arrivals[i - 1], &x->arrivals[i]) <= 0;
    if (!sorted)
        qsort(x->arrivals, (size_t)x->n_arrivals, sizeof(*x->arrivals), in_order);
    return OK;
}

struct exchanges *exchanges_new(struct compiler *c, const struct pipeline_chunk *chunks, int micros)
{
    const int rank = c->p->sharding.coord[AXIS_PP];
    const struct schedule *schedule = &c->order->schedule;
    const struct schedule_rank_posts *posts = &c->order->posts.ranks[rank];
    struct exchanges *x = calloc(1, sizeof(*x));
    if (!x) {
        c->err = ERR_NOMEM;
        return NULL;
    }
    *x = (struct exchanges){.schedule = schedule,
                            .row = &schedule->rows[rank],
                            .sent = posts->send,
                            .chunks = chunks,
                            .rank = rank,
                            .micros = micros};
    /* The sends of two exchanges. With one, a rank may be one step ahead of the receiver, which would be enough if
     * messages progressed all the time; the second is for a receiver that makes progress only between two steps. */
    x->max_alike = 2 * (schedule->chunks > 1 ? STEP_SENDS : 1);
    x->buffer_of = malloc(((size_t)x->row->n + 1) * sizeof(*x->buffer_of));
    x->posted = calloc((size_t)x->row->n + 1, sizeof(*x->posted));
    for (int i = 0; x->buffer_of && i < x->row->n; i++)
        x->buffer_of[i] = -1;
    c->err = x->buffer_of && x->posted ? find_arrivals(x, posts) : ERR_NOMEM;
    if (!c->err)
        return x;
    exchanges_free(x);
    return NULL;
}

void exchanges_free(struct exchanges *x)
{
    if (!x)
        return;
    free(x->arrivals);
    free(x->buffer_of);
    free(x->posted);
    free(x->receive_buffers);
    free(x->known);
    free(x);
}

/* ---- one exchange ---- */

/* A free buffer of the size of b for a received value. */
static int receive_buffer_new(struct compiler *c, struct exchanges *x, int b)
{
    for (int i = 0; i < x->n_receive_buffers; i++)
        if (!x->receive_buffers[i].taken &&
            c->p->buffers[x->receive_buffers[i].buffer].bytes == c->p->buffers[b].bytes) {
            x->receive_buffers[i].taken = true;
            return i;
        }
    struct receive_buffer *grown = realloc(x->receive_buffers, ((size_t)x->n_receive_buffers + 1) * sizeof(*grown));
    if (!grown) {
        c->err = ERR_NOMEM;
        return -1;
    }
    x->receive_buffers = grown;
    struct buffer received = c->p->buffers[b];
    received.slots = 1;
    received.slot_bytes = 0;
    received.slot_index = SLOT_ONE;
    snprintf(received.name, sizeof(received.name), "received.%d", x->n_receive_buffers);
    x->receive_buffers[x->n_receive_buffers] =
        (struct receive_buffer){compile_buffer(c, &received), !MUTANT(LANDING_SHARED)};
    return x->n_receive_buffers++;
}

/* The buffer in which a value arrives: that of its slot, or one of its own where the slot is not the next. */
static int arrival_buffer(struct compiler *c, struct exchanges *x, const struct arrival *a)
{
    const int input = input_of(x, &x->row->slots[a->slot]);
    if (a->slot == a->before)
        return input;
    x->buffer_of[a->slot] = receive_buffer_new(c, x, input);
    return c->err ? -1 : x->receive_buffers[x->buffer_of[a->slot]].buffer;
}

/* Adds the copy of a value from another chunk of this rank. */
static void keep(struct compiler *c, struct exchanges *x, struct exchange *e, const struct arrival *a)
{
    const struct slot *slot = &x->row->slots[a->order];
    const int from = MUTANT(KEPT_INPUT) ? input_of(x, slot) : output_of(x, slot);
    assert(e->n_keeps < STEP_SENDS); /* schedule_posts: as for sends */
    e->keep[e->n_keeps++] = (struct value_copy){from, arrival_buffer(c, x, a)};
}

static void receive(struct compiler *c, struct exchanges *x, struct exchange *e, const struct arrival *a)
{
    if (e->n_recvs == MAX_MESSAGES) {
        c->err = why_set(c->why, ERR_LIMIT,
                         "the schedule receives more than %d values between two slots of a rank; in "
                         "parallel.schedule_csv use received values sooner",
                         MAX_MESSAGES);
        return;
    }
    const int to = arrival_buffer(c, x, a);
    e->recv[e->n_recvs++] = (struct posted_message){a->peer, to};
    if (x->n_posted == MAX_POSTED) {
        e->take[e->n_takes++] = to;
        return;
    }
    x->posted[a->slot] = true;
    x->n_posted++;
}

/* A send buffer of the size of b: a free one, a new one, or else the one whose message was posted first. */
static struct send_buffer *send_buffer_for(struct compiler *c, struct exchanges *x, int b)
{
    struct send_buffer *oldest = NULL;
    int alike = 0;
    for (int i = 0; i < x->n_send_buffers; i++) {
        struct send_buffer *o = &x->send_buffer[i];
        if (c->p->buffers[o->buffer].bytes != c->p->buffers[b].bytes)
            continue;
        oldest = oldest && oldest->since <= o->since ? oldest : o;
        alike++;
    }
    if ((oldest && oldest->since < 0) || alike == x->max_alike)
        return oldest;
    if (x->n_send_buffers == MAX_SEND_BUFFERS) {
        c->err = why_set(c->why, ERR_LIMIT, "the stages send values of more than %d sizes; set parallel.pp to 1",
                         MAX_SEND_BUFFERS);
        return NULL;
    }
    struct send_buffer *o = &x->send_buffer[x->n_send_buffers];
    *o = (struct send_buffer){compile_sent_buffer(c, b, x->n_send_buffers), -1};
    x->n_send_buffers++;
    return c->err ? NULL : o;
}

/* Adds the send of the slot's output, if another rank reads it. */
static void send(struct compiler *c, struct exchanges *x, struct exchange *e, const struct slot *slot, int i)
{
    struct schedule_work to;
    if (!is_here(x, slot) || !schedule_target(x->schedule, x->rank, slot, &to) || to.rank == x->rank)
        return;
    int from = MUTANT(SENT_TO_ITSELF_LATER) && input_of(x, slot) >= 0 ? input_of(x, slot) : output_of(x, slot);
    struct send_buffer *o = send_buffer_for(c, x, from);
    if (!o)
        return;
    if (o->since >= 0 && !MUTANT(SENT_OVER_A_SEND))
        e->free[e->n_frees++] = o->buffer;
    o->since = i;
    e->leave[e->n_sends] = (struct value_copy){from, o->buffer};
    e->send[e->n_sends++] = (struct posted_message){to.rank, o->buffer};
}

/* Adds the wait for slot i's input, and its copy out of the receive buffer. */
static void take_input(struct exchanges *x, struct exchange *e, int i)
{
    const int input = input_of(x, &x->row->slots[i]);
    struct receive_buffer *l = x->buffer_of[i] < 0 ? NULL : &x->receive_buffers[x->buffer_of[i]];
    if (x->posted[i]) {
        e->take[e->n_takes++] = l ? l->buffer : input;
        x->n_posted--;
    }
    if (!l)
        return;
    l->taken = false;
    e->n_copies_in = 1;
    e->copy_in = (struct value_copy){l->buffer, input};
}

static struct send_buffer *oldest_send(struct exchanges *x)
{
    struct send_buffer *oldest = NULL;
    for (int i = 0; i < x->n_send_buffers; i++)
        if (x->send_buffer[i].since >= 0 && (!oldest || x->send_buffer[i].since < oldest->since))
            oldest = &x->send_buffer[i];
    return oldest;
}

/* After the last slot: adds waits for all sends. */
static void take_sends(struct exchanges *x, struct exchange *e)
{
    struct send_buffer *o;
    while ((o = oldest_send(x))) {
        e->take[e->n_takes++] = o->buffer;
        o->since = -1;
    }
}

/* ---- ops of an exchange ---- */

/* Elements of one instance of buffer b. */
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

static void emit_message(struct compiler *c, enum op_kind kind, const struct posted_message *m, int group)
{
    struct op *op = emit_comm(c, kind, m->buffer);
    op->group = group;
    op->peer = m->peer;
}

static void emit_copy(struct compiler *c, const struct value_copy *copy)
{
    struct op *op = compile_op(c, OP_COPY, -1);
    op->m = c->err ? dim_one(0) : all_of(c, copy->to);
    op_arg(op, 0, copy->from);
    op_arg(op, 1, copy->to);
}

static struct op_range emit(struct compiler *c, const struct exchange *e)
{
    int first = c->p->n_ops, group = compile_group(c, 1u << AXIS_PP);
    for (int i = 0; i < e->n_frees; i++)
        emit_comm(c, OP_WAIT, e->free[i]);
    for (int i = 0; i < e->n_sends; i++) {
        emit_copy(c, &e->leave[i]);
        emit_message(c, OP_SEND, &e->send[i], group);
    }
    for (int i = 0; i < e->n_keeps; i++)
        emit_copy(c, &e->keep[i]);
    for (int i = 0; i < e->n_recvs; i++)
        emit_message(c, OP_RECV, &e->recv[i], group);
    if (e->n_sends + e->n_recvs)
        emit_comm(c, OP_PUSH, -1);
    for (int i = 0; i < e->n_takes; i++)
        emit_comm(c, OP_WAIT, e->take[i]);
    for (int i = 0; i < e->n_copies_in; i++)
        emit_copy(c, &e->copy_in);
    return (struct op_range){first, c->p->n_ops - first};
}

/* Its index in `known`; n_known: it is new. Schedules repeat, so the search starts where it most often ends. */
static int find_known(const struct exchanges *x, const struct exchange *e)
{
    int from = x->n_known ? x->known[x->last].next : 0;
    for (int i = from; i < x->n_known; i++)
        if (!memcmp(&x->known[i].what, e, sizeof(*e)))
            return i;
    for (int i = 0; i < from; i++)
        if (!memcmp(&x->known[i].what, e, sizeof(*e)))
            return i;
    return x->n_known;
}

/* Emits the ops of the exchange; an exchange that occurred before has the same list. */
static struct op_range ops_of(struct compiler *c, struct exchanges *x, const struct exchange *e)
{
    const int i = find_known(x, e);
    if (i == x->n_known) {
        struct known_exchange *grown = realloc(x->known, ((size_t)x->n_known + 1) * sizeof(*grown));
        if (!grown) {
            c->err = ERR_NOMEM;
            return (struct op_range){0};
        }
        x->known = grown;
        x->known[x->n_known++] = (struct known_exchange){*e, emit(c, e), 0};
    }
    x->known[x->last].next = i;
    x->last = i;
    return x->known[i].ops;
}

struct op_range exchange_before(struct compiler *c, struct exchanges *x, int i)
{
    struct exchange e;
    memset(&e, 0, sizeof(e)); /* compared as bytes */
    for (int k = i < STEP_SENDS ? 0 : i - STEP_SENDS; k < i; k++)
        if (x->sent[k] == i)
            send(c, x, &e, &x->row->slots[k], i);
    for (; x->next < x->n_arrivals && x->arrivals[x->next].before == i && !c->err; x->next++) {
        const struct arrival *a = &x->arrivals[x->next];
        (a->peer == x->rank ? keep : receive)(c, x, &e, a);
    }
    if (i < x->row->n)
        take_input(x, &e, i);
    else
        take_sends(x, &e);
    bool any = e.n_sends + e.n_keeps + e.n_recvs + e.n_takes + e.n_copies_in > 0;
    return any && !c->err ? ops_of(c, x, &e) : (struct op_range){0};
}
