/* The parts of a recording that follow from the program alone.
 *
 * A message has no tag: the messages of one rank to another stay in order over all groups. So both ends count those of
 * a step in the order of the program, and equal numbers are the same message. A wait names the buffer of its message;
 * at most one message per buffer is in flight, so the last post with this address is the one. */
#include "common/plan/estimate/recorded.h"

#include <stdlib.h>
#include <string.h>

#define MAX_POSTS 64 /* in flight at once: COMM_POSTS of worker/comm/comm.h */

struct flight {
    enum buffer_space space;
    int64_t at;
    int call;
};

struct filler {
    const struct program *p;
    struct recorded *r;
    int64_t *sent, *received; /* by rank: messages of the step so far */
    struct flight flights[MAX_POSTS];
    int n_flights;
};

static int64_t samples_of(const struct program *p, const struct action *a)
{
    return a->micro >= 0 && a->micro < p->n_micros ? p->micros[a->micro].samples : p->max_samples;
}

static int64_t address(const struct program *p, const struct action *a, const struct op_operand *arg)
{
    const struct buffer *b = &p->buffers[arg->buffer];
    int64_t slot = b->slot_index == SLOT_ACTION ? a->slot : b->slot_index == SLOT_MICRO && a->micro >= 0 ? a->micro : 0;
    return b->offset + slot * b->slot_bytes +
           (program_dim(p, arg->offset, samples_of(p, a)) + arg->col) * (int64_t)dtype_bytes(b->dtype);
}

static void post(struct filler *f, const struct action *a, const struct op *op, int call)
{
    struct recorded_call *c = &f->r->calls[call];
    int64_t *count = op->kind == OP_SEND ? f->sent : f->received;
    c->role = op->kind == OP_SEND ? ROLE_SEND : ROLE_RECV;
    c->peer = f->p->groups[op->group].ranks[op->peer];
    c->message = count[c->peer]++;
    if (f->n_flights < MAX_POSTS)
        f->flights[f->n_flights++] =
            (struct flight){f->p->buffers[op->arg[0].buffer].space, address(f->p, a, &op->arg[0]), call};
}

static void complete(struct filler *f, const struct action *a, const struct op *op, struct recorded_call *c)
{
    const enum buffer_space space = f->p->buffers[op->arg[0].buffer].space;
    const int64_t at = address(f->p, a, &op->arg[0]);
    int i = f->n_flights - 1;
    while (i >= 0 && (f->flights[i].space != space || f->flights[i].at != at))
        i--;
    if (i < 0)
        return; /* posted in the step before */
    const struct recorded_call *of = &f->r->calls[f->flights[i].call];
    c->role = of->role == ROLE_SEND ? ROLE_WAIT_SEND : ROLE_WAIT_RECV;
    c->peer = of->peer;
    c->message = of->message;
    c->group = of->group;
    f->flights[i] = f->flights[--f->n_flights];
}

static int64_t unit_elements(const struct program *p, const struct op *op, bool all)
{
    const struct group *g = &p->groups[op->group];
    const struct fsdp_unit *u = &p->units[op->unit];
    int64_t sum = 0;
    for (int i = 0; i < u->n; i++)
        for (int k = 0; k < g->n; k++)
            sum += all || g->ranks[k] == p->rank ? u->parts[i].counts[k] : 0;
    return sum;
}

static int64_t own_tokens(const struct program *p, const struct op *op, int64_t tokens)
{
    const struct group *g = &p->groups[op->group];
    int64_t lo = 0, hi = 0;
    for (int k = 0; k < g->n; k++)
        if (g->ranks[k] == p->rank)
            layout_split(tokens, g->n, k, &lo, &hi);
    return hi - lo;
}

static void volume(const struct program *p, const struct op *op, int64_t samples, struct recorded_call *c)
{
    const int64_t m = program_dim(p, op->m, samples), n = program_dim(p, op->n, samples),
                  k = program_dim(p, op->k, samples);
    c->dtype = op->arg[0].buffer >= 0 ? p->buffers[op->arg[0].buffer].dtype : p->dtype;
    switch (op->kind) {
    case OP_ALL_REDUCE:
    case OP_TREE_REDUCE:
        c->in = c->out = m;
        break;
    case OP_OWN_GATHER:
        c->in = own_tokens(p, op, m) * n;
        c->out = m * n;
        break;
    case OP_OWN_SCATTER:
        c->in = m * n;
        c->out = own_tokens(p, op, m) * n;
        break;
    case OP_GATHER:
        c->in = m;
        c->out = m * p->groups[op->group].n;
        break;
    case OP_UNIT_GATHER:
    case OP_UNIT_SCATTER:
        c->in = unit_elements(p, op, op->kind == OP_UNIT_SCATTER);
        c->out = unit_elements(p, op, op->kind == OP_UNIT_GATHER);
        break;
    case OP_SEND:
        c->in = m;
        break;
    case OP_RECV:
        c->out = m;
        break;
    case OP_WAIT:
        c->in = c->role == ROLE_WAIT_SEND ? m : 0;
        c->out = c->role == ROLE_WAIT_RECV ? m : 0;
        break;
    case OP_SHIFT:
        c->in = m;
        c->out = k;
        break;
    default: /* rows of experts: their number is known only in the step */
        break;
    }
}

static void fill_call(struct filler *f, int action, const struct op *op, int call)
{
    const struct action *a = &f->p->actions[action];
    struct recorded_call *c = &f->r->calls[call];
    *c = (struct recorded_call){
        .action = action, .kind = op->kind, .stream = op->stream, .layer = op->layer, .group = op->group, .peer = -1};
    if (op->kind == OP_SEND || op->kind == OP_RECV)
        post(f, a, op, call);
    else if (op->kind == OP_WAIT)
        complete(f, a, op, c);
    else if (op->kind == OP_PUSH)
        c->role = ROLE_PUSH;
    volume(f->p, op, samples_of(f->p, a), c);
}

static err_t copy_groups(const struct program *p, struct recorded *r)
{
    r->groups = calloc((size_t)p->n_groups + 1, sizeof(*r->groups));
    for (int i = 0; r->groups && i < p->n_groups; i++) {
        const struct group *g = &p->groups[i];
        struct recorded_group *to = &r->groups[i];
        *to = (struct recorded_group){.axes = g->axes, .n = g->n, .ranks = calloc((size_t)g->n, sizeof(int))};
        r->n_groups = i + 1;
        if (!to->ranks)
            return ERR_NOMEM;
        memcpy(to->ranks, g->ranks, (size_t)g->n * sizeof(int));
        for (int a = 0; a < AXIS_COUNT; a++)
            to->axes &= p->mesh.size[a] == 1 ? ~(1u << a) : ~0u;
    }
    return r->groups ? OK : ERR_NOMEM;
}

static int count_calls(const struct program *p)
{
    int n = 0;
    for (int i = 0; i < p->n_actions; i++)
        n += p->actions[i].n_ops;
    return n;
}

err_t recorded_program(const struct program *p, struct recorded *r, int **ret_first)
{
    const size_t world = (size_t)mesh_workers(&p->mesh);
    const int n = count_calls(p);
    struct filler f = {
        .p = p, .r = r, .sent = calloc(world, sizeof(int64_t)), .received = calloc(world, sizeof(int64_t))};
    int *first = calloc((size_t)p->n_actions + 1, sizeof(*first));
    err_t err = copy_groups(p, r);
    r->actions = calloc((size_t)p->n_actions + 1, sizeof(*r->actions));
    r->calls = calloc((size_t)n + 1, sizeof(*r->calls));
    if (!f.sent || !f.received || !first || !r->actions || !r->calls)
        err = ERR_NOMEM;
    for (int i = 0; !err && i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        r->actions[r->n_actions++] = (struct recorded_action){a->kind, a->micro, a->chunk};
        first[i] = r->n_calls;
        for (int k = 0; k < a->n_ops; k++, r->n_calls++)
            fill_call(&f, i, &p->ops[a->first_op + k], r->n_calls);
    }
    free(f.sent);
    free(f.received);
    if (!err && ret_first)
        *ret_first = first;
    else
        free(first);
    return err;
}
