/* Runs two steps of all ranks together, to their ends. Two, because an event may be from the step before.
 *
 * Every stream of every rank is a queue. An op runs when the events that it waits for are recorded; a collective runs
 * when it is at the head of a queue on every rank of its group. A post runs at once and buffers nothing: a send is
 * complete when the other rank has posted its receive. Push and wait run when everything that their rank has posted is
 * complete; a backend that gives all posts to its device as one operation behaves in this way. If no queue can move,
 * the programs deadlock, and the message names the op. Only ops that wait, record, post or need other ranks are in the
 * queues. */
#include "common/plan/check/check.h"

#include <stdlib.h>
#include <string.h>

struct queue_item {
    int action, op;
    int wait[OP_MAX_WAITS]; /* events; -1: none */
    int event;              /* -1 */
    int need[OP_MAX_WAITS]; /* which record of each event it waits for, counted from 1; 0: there is none yet, so it does
                               not wait */
    int records;            /* which record of its own event it makes */
    int message;            /* a post: its number in the step */
};

struct world_queue {
    struct queue_item *items;
    int n, cap, head;
};

/* A send or receive, in the order of the rank's posts to one peer. */
struct world_post {
    const struct op *op;
    int action, micro;
};

struct world_posts {
    struct world_post *posts;
    int n, cap, over; /* the first `over` have their counterparts */
};

struct rank_run {
    const struct program *p;
    const struct rank_facts *facts;
    int messages; /* number of posts of the step that is being queued */
    struct world_queue queues[STREAM_COUNT];
    int *recorded;                     /* by event: number of records so far */
    struct world_posts *sends, *recvs; /* by peer rank */
};

struct world_check {
    struct rank_run *runs;
    int n;
    struct why *why;
};

/* ---- set-up ---- */

static err_t queue_push(struct world_queue *q, const struct queue_item *item)
{
    if (q->n == q->cap) {
        int cap = q->cap ? 2 * q->cap : 64;
        struct queue_item *grown = realloc(q->items, (size_t)cap * sizeof(*grown));
        if (!grown)
            return ERR_NOMEM;
        q->items = grown;
        q->cap = cap;
    }
    q->items[q->n++] = *item;
    return OK;
}

static bool is_post(const struct op *op)
{
    return op->kind == OP_SEND || op->kind == OP_RECV;
}

/* Ops that may need all earlier posts of their rank to be complete. */
static bool needs_all_posts(const struct op *op)
{
    return op->kind == OP_PUSH || op->kind == OP_WAIT;
}

static err_t run_push(struct rank_run *r, int *count, int action, int op_index)
{
    const struct op *op = &r->p->ops[op_index];
    struct queue_item item = {.action = action, .op = op_index, .event = op->event};
    bool takes_part = check_is_collective(op) || is_post(op) || needs_all_posts(op) || op->event >= 0;
    for (int i = 0; i < OP_MAX_WAITS; i++) {
        item.wait[i] = op->wait[i] >= 0 ? op->wait[i] : -1;
        item.need[i] = item.wait[i] >= 0 ? count[item.wait[i]] : 0;
        takes_part |= item.wait[i] >= 0;
    }
    if (op->event >= 0)
        item.records = ++count[item.event];
    if (is_post(op))
        item.message = r->messages++;
    return takes_part ? queue_push(&r->queues[op->stream], &item) : OK;
}

static err_t run_init(struct rank_run *r, const struct program *p, const struct rank_facts *facts, int n)
{
    r->p = p;
    r->facts = facts;
    r->recorded = calloc((size_t)p->n_events + 1, sizeof(*r->recorded));
    r->sends = calloc((size_t)n, sizeof(*r->sends));
    r->recvs = calloc((size_t)n, sizeof(*r->recvs));
    int *count = calloc((size_t)p->n_events + 1, sizeof(*count));
    err_t e = r->recorded && count && r->sends && r->recvs ? OK : ERR_NOMEM;
    for (int step = 0; step < 2; step++) {
        r->messages = 0;
        for (int a = 0; a < p->n_actions; a++)
            for (int i = 0; i < p->actions[a].n_ops && !e; i++)
                e = run_push(r, count, a, p->actions[a].first_op + i);
    }
    free(count);
    return e;
}

static void posts_free(struct world_posts *posts, int n)
{
    for (int i = 0; i < n && posts; i++)
        free(posts[i].posts);
    free(posts);
}

static void run_fini(struct rank_run *r, int n)
{
    for (int s = 0; s < STREAM_COUNT; s++)
        free(r->queues[s].items);
    free(r->recorded);
    posts_free(r->sends, n);
    posts_free(r->recvs, n);
}

/* ---- queues ---- */

static const struct queue_item *queue_head(const struct rank_run *r, int stream)
{
    const struct world_queue *q = &r->queues[stream];
    return q->head < q->n ? &q->items[q->head] : NULL;
}

static bool waits_done(const struct rank_run *r, const struct queue_item *item)
{
    for (int i = 0; i < OP_MAX_WAITS; i++)
        if (item->wait[i] >= 0 && r->recorded[item->wait[i]] < item->need[i])
            return false;
    return true;
}

static void queue_pop(struct rank_run *r, int stream)
{
    const struct queue_item *item = queue_head(r, stream);
    if (item->event >= 0 && r->recorded[item->event] < item->records)
        r->recorded[item->event] = item->records;
    r->queues[stream].head++;
}

/* The buffer that names a collective or message, in messages and in comparisons between ranks. */
static const struct buffer *op_subject(const struct rank_run *r, const struct op *op)
{
    return &r->p->buffers[op->arg[op->kind == OP_TREE_REDUCE].buffer];
}

static int64_t item_extent(const struct rank_run *r, const struct queue_item *item, struct graph_dim d)
{
    int micro = r->p->actions[item->action].micro;
    return program_dim(r->p, d, micro >= 0 ? r->p->micros[micro].samples : r->p->max_samples);
}

/* ---- messages ---- */

static err_t post_push(struct world_posts *q, struct world_post post)
{
    if (q->n == q->cap) {
        int cap = q->cap ? 2 * q->cap : 16;
        struct world_post *grown = realloc(q->posts, (size_t)cap * sizeof(*grown));
        if (!grown)
            return ERR_NOMEM;
        q->posts = grown;
        q->cap = cap;
    }
    q->posts[q->n++] = post;
    return OK;
}

/* Compares the k-th send of `a` to `b` with the k-th receive of `b` from `a`: same microbatch, length and type. */
static err_t same_message(const struct world_check *w, int a, const struct world_post *send, int b,
                          const struct world_post *recv)
{
    const struct rank_run *from = &w->runs[a], *to = &w->runs[b];
    const struct queue_item x = {.action = send->action}, y = {.action = recv->action};
    struct check_at at = {to->p, recv->action, (int)(recv->op - to->p->ops)};
    const struct buffer *u = op_subject(from, send->op), *v = op_subject(to, recv->op);
    if (send->micro != recv->micro)
        return check_fail(&at, w->why, "receives %s of microbatch %d when rank %d sends %s of microbatch %d", v->name,
                          recv->micro, a, u->name, send->micro);
    if (item_extent(from, &x, send->op->m) != item_extent(to, &y, recv->op->m) || u->dtype != v->dtype)
        return check_fail(&at, w->why, "receives %lld elements of %s in %s when rank %d sends %lld of %s in %s",
                          (long long)item_extent(to, &y, recv->op->m), v->name, dtype_name(v->dtype), a,
                          (long long)item_extent(from, &x, send->op->m), u->name, dtype_name(u->dtype));
    return OK;
}

static err_t match_posts(const struct world_check *w, int a, int b)
{
    struct world_posts *s = &w->runs[a].sends[b], *r = &w->runs[b].recvs[a];
    err_t e = OK;
    while (s->over < s->n && r->over < r->n && !e) {
        e = same_message(w, a, &s->posts[s->over], b, &r->posts[r->over]);
        s->over++;
        r->over++;
    }
    return e;
}

static err_t run_post(const struct world_check *w, int rank, const struct queue_item *item)
{
    struct rank_run *r = &w->runs[rank];
    const struct op *op = &r->p->ops[item->op];
    int peer = r->p->groups[op->group].ranks[op->peer];
    bool send = op->kind == OP_SEND;
    err_t e = post_push(send ? &r->sends[peer] : &r->recvs[peer],
                        (struct world_post){op, item->action, r->facts->messages[item->message]});
    return e ? e : match_posts(w, send ? rank : peer, send ? peer : rank);
}

static bool posts_over(const struct rank_run *r, int n)
{
    for (int i = 0; i < n; i++)
        if (r->sends[i].over < r->sends[i].n || r->recvs[i].over < r->recvs[i].n)
            return false;
    return true;
}

/* ---- collectives ---- */

/* The stream of `r` whose head is a collective over this group that is ready to run; -1: none. All ranks have the same
 * list of groups. */
static int at_collective(const struct rank_run *r, int group)
{
    for (int s = 0; s < STREAM_COUNT; s++) {
        const struct queue_item *item = queue_head(r, s);
        if (item && check_is_collective(&r->p->ops[item->op]) && r->p->ops[item->op].group == group &&
            waits_done(r, item))
            return s;
    }
    return -1;
}

/* Collectives that exchange parts of one microbatch's tokens. Rows for experts come from other microbatches too, where
 * expert parallelism is folded over ranks with other samples. */
static bool of_one_micro(const struct program *p, const struct op *op)
{
    if (check_between_experts(p, op))
        return p->sharding.ep.share[AXIS_FSDP] == 1;
    return op->kind == OP_OWN_GATHER || op->kind == OP_OWN_SCATTER || op->kind == OP_GATHER || op->kind == OP_SHIFT;
}

static bool same_subject(const struct buffer *u, const struct buffer *v)
{
    return u->dtype == v->dtype && u->space == v->space && u->tensor == v->tensor &&
           (u->tensor >= 0 || !strcmp(u->name, v->name));
}

/* In a ring of own tokens, all ranks must pass on parts with the same distance to their owner; then each receiver gets
 * the part that it expects. A sum must be over the same columns on all ranks. */
static bool same_part(const struct part_fact *a, const struct part_fact *b)
{
    return a->away == b->away && a->lo == b->lo && a->hi == b->hi;
}

static bool same_call(const struct rank_run *a, const struct queue_item *x, const struct rank_run *b,
                      const struct queue_item *y)
{
    const struct op *p = &a->p->ops[x->op], *q = &b->p->ops[y->op];
    bool unit = p->kind == OP_UNIT_GATHER || p->kind == OP_UNIT_SCATTER, micro = of_one_micro(a->p, p);
    bool each = p->kind == OP_SHIFT || p->kind == OP_EXCHANGE || p->kind == OP_GATHER_TOKENS || p->kind == OP_BORROW ||
                p->kind == OP_GIVE_BACK; /* the ranks' numbers of elements differ */
    return p->kind == q->kind && p->reduce == q->reduce && p->unit == q->unit && p->round == q->round &&
           (unit || each || item_extent(a, x, p->m) == item_extent(b, y, q->m)) &&
           (!micro || a->p->actions[x->action].micro == b->p->actions[y->action].micro) &&
           same_part(&a->facts->parts[x->op], &b->facts->parts[y->op]) &&
           (unit || same_subject(op_subject(a, p), op_subject(b, q)));
}

static err_t same_collective(const struct rank_run *a, const struct queue_item *x, const struct rank_run *b,
                             const struct queue_item *y, struct why *why)
{
    const struct op *p = &a->p->ops[x->op], *q = &b->p->ops[y->op];
    if (same_call(a, x, b, y))
        return OK;
    struct check_at at = {b->p, y->action, y->op};
    return check_fail(&at, why,
                      "issues %s of %s (%lld) when rank %d issues %s of %s (%lld); all ranks of a group must issue "
                      "the same collectives in one order",
                      op_name(q->kind), op_subject(b, q)->name, (long long)item_extent(b, y, q->m), a->p->rank,
                      op_name(p->kind), op_subject(a, p)->name, (long long)item_extent(a, x, p->m));
}

/* Checks a shift: the sender's peer is this member, and both expect the same number of elements. */
static err_t check_shift(const struct world_check *w, const struct group *g, int member,
                         const struct queue_item *items[])
{
    const struct rank_run *r = &w->runs[g->ranks[member]];
    const struct op *op = &r->p->ops[items[member]->op];
    const struct rank_run *s = &w->runs[g->ranks[op->from]];
    const struct op *sent = &s->p->ops[items[op->from]->op];
    struct check_at at = {r->p, items[member]->action, items[member]->op};
    if (sent->peer != member)
        return check_fail(&at, w->why, "expects %s from rank %d, which sends it to rank %d",
                          r->p->buffers[op->arg[1].buffer].name, s->p->rank, g->ranks[sent->peer]);
    if (item_extent(s, items[op->from], sent->m) != item_extent(r, items[member], op->k))
        return check_fail(&at, w->why, "expects %lld elements from rank %d, which sends %lld",
                          (long long)item_extent(r, items[member], op->k), s->p->rank,
                          (long long)item_extent(s, items[op->from], sent->m));
    return OK;
}

/* Runs the collective at the head of rank r's stream if all of its group have reached it; *ret_moved. */
static err_t run_collective(const struct world_check *w, int r, int stream, bool *ret_moved)
{
    const struct queue_item *item = queue_head(&w->runs[r], stream);
    const struct op *op = &w->runs[r].p->ops[item->op];
    const struct group *g = &w->runs[r].p->groups[op->group];
    for (int i = 0; i < g->n; i++)
        if (at_collective(&w->runs[g->ranks[i]], op->group) < 0)
            return OK;
    const struct queue_item **items = calloc((size_t)g->n + 1, sizeof(*items));
    err_t e = items ? OK : ERR_NOMEM;
    for (int i = 0; i < g->n && !e; i++) {
        const struct rank_run *other = &w->runs[g->ranks[i]];
        items[i] = queue_head(other, at_collective(other, op->group));
        e = same_collective(&w->runs[r], item, other, items[i], w->why);
    }
    for (int i = 0; i < g->n && !e && op->kind == OP_SHIFT; i++)
        e = check_shift(w, g, i, items);
    for (int i = 0; i < g->n && !e; i++)
        queue_pop(&w->runs[g->ranks[i]], at_collective(&w->runs[g->ranks[i]], op->group));
    free(items);
    *ret_moved = true;
    return e;
}

/* ---- running all queues ---- */

/* Names an op that is stuck. A collective or message that other ranks do not reach is preferred, because waits for its
 * event are only a consequence. */
static err_t check_stuck(const struct world_check *w)
{
    const struct rank_run *run = NULL;
    const struct queue_item *found = NULL;
    bool alone = false;
    for (int r = 0; r < w->n && !alone; r++) {
        for (int s = 0; s < STREAM_COUNT && !alone; s++) {
            const struct queue_item *item = queue_head(&w->runs[r], s);
            alone = item && waits_done(&w->runs[r], item);
            if (!item || (found && !alone))
                continue;
            run = &w->runs[r];
            found = item;
        }
    }
    if (!found)
        return OK;
    struct check_at at = {run->p, found->action, found->op};
    const struct op *op = &run->p->ops[found->op];
    if (!alone)
        return check_fail(&at, w->why, "waits for ever for an event whose op never runs");
    if (needs_all_posts(op))
        return check_fail(&at, w->why,
                          "waits for ever for its messages: another rank does not post their counterparts, "
                          "and sends are not buffered");
    return check_fail(&at, w->why, "waits for ever on %s: not all ranks of its group issue it",
                      op_subject(run, op)->name);
}

/* Runs ops at the head of a stream as long as they need no other rank. */
static err_t run_alone(const struct world_check *w, int r, int s, bool *ret_moved)
{
    struct rank_run *run = &w->runs[r];
    const struct queue_item *item;
    err_t e = OK;
    while (!e && (item = queue_head(run, s)) && waits_done(run, item)) {
        const struct op *op = &run->p->ops[item->op];
        if (check_is_collective(op) || (needs_all_posts(op) && !posts_over(run, w->n)))
            break;
        if (is_post(op))
            e = run_post(w, r, item);
        queue_pop(run, s);
        *ret_moved = true;
    }
    return e;
}

static err_t run_all(const struct world_check *w)
{
    err_t e = OK;
    for (bool moved = true; moved && !e;) {
        moved = false;
        for (int r = 0; r < w->n && !e; r++) {
            for (int s = 0; s < STREAM_COUNT && !e; s++) {
                e = run_alone(w, r, s, &moved);
                const struct queue_item *item = queue_head(&w->runs[r], s);
                if (!e && item && waits_done(&w->runs[r], item) && check_is_collective(&w->runs[r].p->ops[item->op]))
                    e = run_collective(w, r, s, &moved);
            }
        }
    }
    return e ? e : check_stuck(w);
}

/* Checks that every post has its counterpart. */
static err_t check_left(const struct world_check *w)
{
    for (int r = 0; r < w->n; r++)
        if (!posts_over(&w->runs[r], w->n))
            return why_set(w->why, ERR_INVALID,
                           "rank %d: the step ends with messages that no other rank receives or sends", r);
    return OK;
}

err_t check_world(const struct program *programs, const struct rank_facts *facts, int n, struct why *why)
{
    struct world_check w = {calloc((size_t)(unsigned)n, sizeof(struct rank_run)), n, why};
    err_t e = w.runs ? OK : ERR_NOMEM;
    for (int r = 0; r < n && !e; r++)
        e = run_init(&w.runs[r], &programs[r], &facts[r], n);
    if (!e)
        e = run_all(&w);
    if (!e)
        e = check_left(&w);
    for (int r = 0; r < n && w.runs; r++)
        run_fini(&w.runs[r], n);
    free(w.runs);
    return e;
}
