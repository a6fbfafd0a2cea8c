/* The forecast runs every rank's program and reports each op with its times. From this report follow the moves (the
 * ops with a group) and the lives of buffers, by the rules of compile/memory_plan.c: within an action a buffer is live
 * from its first to its last use, and before it from the action that wrote it, if the first use reads. So the bytes
 * that are live at a moment never exceed the plan's, and no two live buffers share bytes. */
#include "client/explain/explain.h"

#include "common/base/dtype.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The life of one instance that is not over yet. */
struct open_life {
    int action; /* the last one that used it; -1: not used yet */
    double start, end;
};

/* A post whose counterpart has not been met. */
struct open_post {
    int from, to;
    bool send;
    double at, takes;
    int micro; /* of a send: what its rank has computed last */
    bool gradient;
    struct explain_move move; /* of a recv: the message */
};

/* Where the forecast has the ops of an action on a stream, and where the measured step has them. */
struct extent {
    double from, until, did_from, did_until;
    bool planned, did;
};

struct place {
    int first;      /* instance in explain_run.lives */
    int part, next; /* its first part, the next part of the same run; -1 */
};

struct explain_run {
    struct explain *x;
    const struct plan_rates *rates;
    struct extent **extents;  /* by rank, then by action and stream; NULL: no measured step */
    double stretch;           /* measured seconds per second of the forecast */
    struct open_life **lives; /* by rank, then by instance */
    struct place **places;    /* by rank, then by buffer */
    struct open_post *posts;
    int n_posts, cap_posts;
    const struct action **last; /* by rank: its last action with a microbatch, whose result the next send has */
    int members;                /* of the collective that is being reported: members still to come */
    err_t err;
};

static void *grow(struct explain_run *k, void *all, int n, int *cap, size_t size)
{
    if (n < *cap)
        return all;
    int to = *cap ? 2 * *cap : 64;
    void *grown = realloc(all, (size_t)to * size);
    if (!grown)
        k->err = ERR_NOMEM;
    else
        *cap = to;
    return grown ? grown : all;
}

/* ---- kinds ---- */

/* By the names that compile/buffers.c and context_parallel.c give. */
static bool is_gradient(const struct buffer *b)
{
    size_t n = strlen(b->name);
    return (n > 5 && strcmp(b->name + n - 5, ".grad") == 0) || strstr(b->name, ".d_kv.");
}

static enum explain_kind kind_of(const struct explain *x, const struct buffer *b)
{
    static const enum explain_kind spaces[SPACE_COUNT] = {
        [SPACE_PARAM] = EXPLAIN_PARAM, [SPACE_OPT] = EXPLAIN_OPT,     [SPACE_GRAD] = EXPLAIN_GRAD,
        [SPACE_WORK] = EXPLAIN_ACT,    [SPACE_SENT] = EXPLAIN_BUFFER, [SPACE_SHARED] = EXPLAIN_ACT,
        [SPACE_HOST] = EXPLAIN_BUFFER, [SPACE_CACHE] = EXPLAIN_BUFFER};
    bool work = b->space == SPACE_WORK || b->space == SPACE_SHARED;
    if (work && b->tensor >= 0 && x->graph->tensors[b->tensor].kind == GT_PARAM)
        return is_gradient(b) ? EXPLAIN_GRAD : EXPLAIN_PARAM;
    return work && b->tensor < 0 ? EXPLAIN_BUFFER : spaces[b->space];
}

/* The part of which unit the buffer is; -1: of none. */
static int unit_part_of(const struct explain *x, const struct program *p, int buffer, enum explain_kind kind)
{
    const struct buffer *b = &p->buffers[buffer];
    if (b->tensor < 0 || x->graph->tensors[b->tensor].kind != GT_PARAM || b->space == SPACE_PARAM ||
        (kind != EXPLAIN_PARAM && kind != EXPLAIN_GRAD))
        return -1;
    enum explain_part part = kind == EXPLAIN_PARAM                     ? EXPLAIN_WHOLE
                             : p->grad_buffer[b->tensor] == buffer     ? EXPLAIN_LOCAL
                             : p->sharding.param[b->tensor].pieces > 1 ? EXPLAIN_SUM
                                                                       : EXPLAIN_LOCAL;
    return x->graph->tensors[b->tensor].unit * EXPLAIN_PARTS + (int)part;
}

/* ---- lives ---- */

static void life_end(struct explain_run *k, int rank, int buffer, int instance, const struct open_life *l)
{
    struct explain_rank *r = &k->x->ranks[rank];
    const struct program *p = &k->x->programs[rank];
    r->lives = grow(k, r->lives, r->n_lives, &r->cap_lives, sizeof(*r->lives));
    if (!k->err)
        r->lives[r->n_lives++] =
            (struct explain_life){buffer, instance, kind_of(k->x, &p->buffers[buffer]), l->start, l->end};
}

static void use_instance(struct explain_run *k, int rank, int action, int buffer, int instance, char mode, double start,
                         double end)
{
    struct open_life *l = &k->lives[rank][k->places[rank][buffer].first + instance];
    if (l->action != action && (mode == 'w' || l->action < 0)) {
        if (l->action >= 0)
            life_end(k, rank, buffer, instance, l);
        *l = (struct open_life){action, mode == 'w' ? start : 0, end};
    }
    l->action = action;
    l->end = end > l->end ? end : l->end;
}

/* Whether the buffer has a value only in parts of the step. Parameters, moments and what lies in SPACE_WORK as long as
 * the program have theirs all the time. */
static bool has_lives(const struct buffer *b)
{
    return b->space == SPACE_GRAD || b->space == SPACE_SENT ||
           ((b->space == SPACE_WORK || b->space == SPACE_SHARED) && !b->planned);
}

static void use_buffer(struct explain_run *k, int rank, int action, int buffer, char mode, double start, double end)
{
    const struct program *p = &k->x->programs[rank];
    const struct buffer *b = &p->buffers[buffer];
    const struct action *a = &p->actions[action];
    for (int i = k->places[rank][buffer].part; i >= 0; i = k->places[rank][i].next)
        use_buffer(k, rank, action, i, mode, start, end);
    if (k->places[rank][buffer].part >= 0 || !has_lives(b))
        return;
    bool all = b->slot_index == SLOT_TREE || (b->slot_index == SLOT_MICRO && a->micro < 0);
    int only = b->slot_index == SLOT_ACTION ? a->slot : b->slot_index == SLOT_MICRO ? a->micro : 0;
    for (int i = all ? 0 : only; i < b->slots && (all || i == only); i++)
        use_instance(k, rank, action, buffer, i, mode, start, end);
}

/* ---- moves ---- */

static int unit_of(const struct explain *x, const struct program *p, const struct action *a, const struct op *op)
{
    const struct buffer *b = &p->buffers[op->arg[0].buffer];
    if (op->unit >= 0 && (op->kind == OP_UNIT_GATHER || op->kind == OP_UNIT_SCATTER))
        return op->unit;
    if (a->unit >= 0)
        return a->unit;
    return b->tensor >= 0 && x->graph->tensors[b->tensor].kind == GT_PARAM ? x->graph->tensors[b->tensor].unit : -1;
}

static struct explain_move move_of(struct explain_run *k, int rank, int action, const struct op *op, int n)
{
    const struct program *p = &k->x->programs[rank];
    const struct action *a = &p->actions[action];
    struct explain_move m = {.kind = op->kind,
                             .what = kind_of(k->x, &p->buffers[op->arg[0].buffer]),
                             .n = n,
                             .ranks = calloc((size_t)n, sizeof(*m.ranks)),
                             .in = calloc((size_t)n, sizeof(*m.in)),
                             .gradient = is_gradient(&p->buffers[op->arg[0].buffer]),
                             .back = op->kind == OP_EXCHANGE && (op->flags & OPF_INVERSE),
                             .axes = p->groups[op->group].axes,
                             .unit = unit_of(k->x, p, a, op),
                             .layer = op->layer,
                             .micro = a->micro};
    if (!m.ranks || !m.in)
        k->err = ERR_NOMEM;
    return m;
}

static void move_fini(struct explain_move *m)
{
    free(m->ranks);
    free(m->in);
}

static void move_add(struct explain_run *k, struct explain_move m)
{
    k->x->moves = grow(k, k->x->moves, k->x->n_moves, &k->x->cap_moves, sizeof(*k->x->moves));
    if (k->err)
        move_fini(&m);
    else
        k->x->moves[k->x->n_moves++] = m;
}

static int64_t wire_of(const struct explain_run *k, int rank, int action, const struct op *op)
{
    const struct program *p = &k->x->programs[rank];
    const int micro = p->actions[action].micro;
    return plan_op_wire(p, op, micro >= 0 ? p->micros[micro].samples : p->max_samples);
}

static void add_member(struct explain_run *k, int rank, int action, const struct op *op, double start, double end)
{
    const struct group *g = &k->x->programs[rank].groups[op->group];
    if (!k->members) {
        struct explain_move m = move_of(k, rank, action, op, g->n);
        if (!k->err && op->kind == OP_SHIFT)
            m.turn = (op->from + g->n) % g->n;
        k->members = g->n;
        m.start = start;
        move_add(k, m);
    }
    if (k->err)
        return;
    struct explain_move *m = &k->x->moves[k->x->n_moves - 1];
    int i = g->n - k->members--;
    m->ranks[i] = rank;
    m->in[i] = wire_of(k, rank, action, op);
    m->start = start > m->start ? start : m->start;
    m->end = end > m->end ? end : m->end;
}

/* As posts_end in the forecast: a message starts when both have posted. */
static void message_add(struct explain_run *k, const struct open_post *send, const struct open_post *recv)
{
    struct explain_move m = recv->move;
    m.micro = send->micro;
    m.gradient = send->gradient;
    double takes = send->takes > recv->takes ? send->takes : recv->takes;
    m.start = send->at > recv->at ? send->at : recv->at;
    m.end = m.start + takes;
    move_add(k, m);
}

static void add_post(struct explain_run *k, int rank, int action, const struct op *op, double at)
{
    const int peer = k->x->programs[rank].groups[op->group].ranks[op->peer];
    const bool send = op->kind == OP_SEND;
    const int64_t in = wire_of(k, rank, action, op);
    struct open_post post = {.from = send ? rank : peer, .to = send ? peer : rank, .send = send, .at = at};
    post.micro = k->last[rank] ? k->last[rank]->micro : -1;
    post.gradient = k->last[rank] && k->last[rank]->kind != ACT_FORWARD;
    post.takes = k->stretch * (k->rates->latency + (double)in / k->rates->link);
    if (!send) {
        post.move = move_of(k, rank, action, op, 2);
        if (k->err) {
            move_fini(&post.move);
            return;
        }
        post.move.ranks[0] = peer;
        post.move.ranks[1] = rank;
        post.move.in[1] = in;
    }
    for (int i = 0; i < k->n_posts; i++) {
        struct open_post other = k->posts[i];
        if (other.send == send || other.from != post.from || other.to != post.to)
            continue;
        memmove(&k->posts[i], &k->posts[i + 1], (size_t)(--k->n_posts - i) * sizeof(post));
        message_add(k, send ? &post : &other, send ? &other : &post);
        return;
    }
    k->posts = grow(k, k->posts, k->n_posts, &k->cap_posts, sizeof(*k->posts));
    if (k->err)
        move_fini(&post.move);
    else
        k->posts[k->n_posts++] = post;
}

/* ---- the measured step ---- */

static struct extent *extent_of(const struct explain_run *k, int rank, int action, enum op_stream stream)
{
    return &k->extents[rank][action * STREAM_COUNT + (int)stream];
}

static void note_extents(struct explain_run *k, int rank, const struct forecast_rank *r, bool did)
{
    for (int i = 0; i < r->n; i++) {
        const struct forecast_box *b = &r->boxes[i];
        if (b->action < 0 || b->action >= k->x->programs[rank].n_actions)
            continue;
        struct extent *e = extent_of(k, rank, b->action, b->stream);
        double *from = did ? &e->did_from : &e->from, *until = did ? &e->did_until : &e->until;
        bool *seen = did ? &e->did : &e->planned;
        *from = *seen && *from < b->start ? *from : b->start;
        *until = *seen && *until > b->end ? *until : b->end;
        *seen = true;
    }
}

/* The moment of the measured step that is at the same fraction of its action. An action that the forecast merged into
 * the box of another, or that took no time, has the whole step's fraction. */
static double when(const struct explain_run *k, int rank, int action, enum op_stream stream, double at)
{
    if (!k->extents)
        return at;
    const struct extent *e = extent_of(k, rank, action, stream);
    if (!e->planned || !e->did || e->until <= e->from)
        return e->did ? e->did_from : at * k->stretch;
    double part = (at - e->from) / (e->until - e->from);
    part = part < 0 ? 0 : part > 1 ? 1 : part;
    return e->did_from + part * (e->did_until - e->did_from);
}

static err_t extents_init(struct explain_run *k, const struct forecast *measured)
{
    k->stretch = k->x->forecast.seconds > 0 ? measured->seconds / k->x->forecast.seconds : 1;
    k->extents = calloc((size_t)k->x->n, sizeof(struct extent *));
    for (int r = 0; r < k->x->n && k->extents; r++) {
        k->extents[r] = calloc((size_t)k->x->programs[r].n_actions * STREAM_COUNT, sizeof(struct extent));
        if (!k->extents[r])
            return ERR_NOMEM;
        note_extents(k, r, &k->x->forecast.ranks[r], false);
        note_extents(k, r, &measured->ranks[r], true);
    }
    return k->extents ? OK : ERR_NOMEM;
}

/* ---- the report of the forecast ---- */

static void on_op(void *arg, int rank, int action, const struct op *op, double start, double end)
{
    struct explain_run *k = arg;
    const struct action *a = &k->x->programs[rank].actions[action];
    if (a->micro >= 0)
        k->last[rank] = a;
    const double from = when(k, rank, action, op->stream, start), until = when(k, rank, action, op->stream, end);
    for (int i = 0; op_mode(op, i) && !k->err; i++)
        if (op->arg[i].buffer >= 0)
            use_buffer(k, rank, action, op->arg[i].buffer, op_mode(op, i), from, until);
    if (k->err || op->group < 0 || op->arg[0].buffer < 0)
        return;
    if (op->kind == OP_SEND || op->kind == OP_RECV)
        add_post(k, rank, action, op, from);
    else
        add_member(k, rank, action, op, from, until);
}

/* ---- sums over time ---- */

static int change_order(const void *a, const void *b)
{
    const struct explain_change *x = a, *y = b;
    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return (x->key > y->key) - (x->key < y->key);
}

static void change_add(struct explain_run *k, struct explain_changes *c, double at, int key, int64_t bytes)
{
    c->all = grow(k, c->all, c->n, &c->cap, sizeof(*c->all));
    if (!k->err)
        c->all[c->n++] = (struct explain_change){at, key, bytes};
}

/* From differences to sums: one change per moment and key at which the sum differs. */
static err_t changes_sum(struct explain_changes *c, int keys)
{
    int64_t *now = calloc((size_t)keys, sizeof(*now)), *last = calloc((size_t)keys, sizeof(*last));
    int n = 0;
    if (!now || !last) {
        free(now);
        free(last);
        return ERR_NOMEM;
    }
    if (c->n)
        qsort(c->all, (size_t)c->n, sizeof(*c->all), change_order);
    for (int i = 0; i < c->n; i++) {
        const struct explain_change x = c->all[i];
        now[x.key] += x.bytes;
        if (i + 1 < c->n && c->all[i + 1].at == x.at && c->all[i + 1].key == x.key)
            continue;
        if (now[x.key] != last[x.key])
            c->all[n++] = (struct explain_change){x.at, x.key, last[x.key] = now[x.key]};
    }
    c->n = n;
    free(now);
    free(last);
    return OK;
}

static int64_t peak_of(const struct explain_changes *c)
{
    int64_t now[EXPLAIN_KINDS] = {0}, sum = 0, peak = 0;
    for (int i = 0; i < c->n; i++) {
        sum += c->all[i].bytes - now[c->all[i].key];
        now[c->all[i].key] = c->all[i].bytes;
        if ((i + 1 == c->n || c->all[i + 1].at != c->all[i].at) && sum > peak)
            peak = sum;
    }
    return peak;
}

static void add_constants(struct explain_run *k, int rank)
{
    const struct program *p = &k->x->programs[rank];
    struct explain_changes *c = &k->x->ranks[rank].memory;
    change_add(k, c, 0, EXPLAIN_PARAM, p->space_bytes[SPACE_PARAM]);
    change_add(k, c, 0, EXPLAIN_OPT, p->space_bytes[SPACE_OPT]);
    change_add(k, c, 0, EXPLAIN_BUFFER, p->space_bytes[SPACE_HOST]);
    for (int b = 0; b < p->n_buffers; b++) {
        const struct buffer *x = &p->buffers[b];
        if (k->places[rank][b].part >= 0 || has_lives(x) || (x->space != SPACE_WORK && x->space != SPACE_SHARED))
            continue;
        for (int i = 0; i < x->slots; i++)
            life_end(k, rank, b, i, &(struct open_life){0, 0, k->x->seconds});
    }
}

/* Ends all lives, and sums them. A value that the step reads before it writes it is there until the next step. */
static err_t rank_sum(struct explain_run *k, int rank)
{
    const struct program *p = &k->x->programs[rank];
    struct explain_rank *r = &k->x->ranks[rank];
    for (int b = 0; b < p->n_buffers; b++)
        for (int i = 0; i < p->buffers[b].slots; i++) {
            const struct open_life *l = &k->lives[rank][k->places[rank][b].first + i];
            if (l->action >= 0)
                life_end(k, rank, b, i, l);
        }
    add_constants(k, rank);
    for (int i = 0; i < r->n_lives && !k->err; i++) {
        const struct explain_life *l = &r->lives[i];
        const int key = unit_part_of(k->x, p, l->buffer, l->kind);
        const int64_t bytes = p->buffers[l->buffer].bytes;
        if (l->end <= l->start)
            continue;
        change_add(k, &r->memory, l->start, (int)l->kind, bytes);
        change_add(k, &r->memory, l->end, (int)l->kind, -bytes);
        if (key >= 0) {
            change_add(k, &r->units, l->start, key, bytes);
            change_add(k, &r->units, l->end, key, -bytes);
        }
    }
    for (int s = 0; s < SPACE_COUNT; s++)
        r->reserved[s] = plan_space_reserved(p->space_bytes[s]);
    k->err = k->err ? k->err : changes_sum(&r->memory, EXPLAIN_KINDS);
    k->err = k->err ? k->err : changes_sum(&r->units, k->x->graph->n_units * EXPLAIN_PARTS);
    r->peak = peak_of(&r->memory);
    return k->err;
}

static int move_order(const void *a, const void *b)
{
    const struct explain_move *x = a, *y = b;
    return (x->start > y->start) - (x->start < y->start);
}

/* ---- set-up ---- */

/* Returns the number of instances. */
static int places_init(struct place *places, const struct program *p)
{
    int instances = 0;
    for (int b = 0; b < p->n_buffers; b++) {
        places[b] = (struct place){instances, -1, -1};
        instances += p->buffers[b].slots;
    }
    for (int b = 0; b < p->n_buffers; b++) {
        const int run = p->buffers[b].run;
        if (run >= 0) {
            places[b].next = places[run].part;
            places[run].part = b;
        }
    }
    return instances;
}

static err_t lives_init(struct explain_run *k)
{
    const int n = k->x->n;
    k->lives = calloc((size_t)n, sizeof(struct open_life *));
    k->places = calloc((size_t)n, sizeof(struct place *));
    k->last = calloc((size_t)n, sizeof(struct action *));
    for (int r = 0; r < n && k->lives && k->places; r++) {
        k->places[r] = calloc((size_t)k->x->programs[r].n_buffers + 1, sizeof(struct place));
        const int instances = k->places[r] ? places_init(k->places[r], &k->x->programs[r]) : 0;
        k->lives[r] = calloc((size_t)instances + 1, sizeof(struct open_life));
        if (!k->lives[r] || !k->places[r])
            return ERR_NOMEM;
        for (int i = 0; i < instances; i++)
            k->lives[r][i].action = -1;
    }
    return k->lives && k->places && k->last ? OK : ERR_NOMEM;
}

static void run_fini(struct explain_run *k)
{
    for (int r = 0; r < k->x->n; r++) {
        if (k->lives)
            free(k->lives[r]);
        if (k->places)
            free(k->places[r]);
        if (k->extents)
            free(k->extents[r]);
    }
    for (int i = 0; i < k->n_posts; i++)
        move_fini(&k->posts[i].move);
    free(k->lives);
    free(k->places);
    free(k->last);
    free(k->extents);
    free(k->posts);
}

/* With a measured step, a first forecast gives the place of each op in its action. */
static err_t run_all(struct explain_run *k, const struct forecast *measured, struct why *why)
{
    struct explain *x = k->x;
    const struct forecast_watch watch = {on_op, k};
    err_t err = lives_init(k);
    if (!err && measured) {
        err = plan_forecast(x->programs, x->n, k->rates, &x->forecast, why);
        err = err ? err : extents_init(k, measured);
        forecast_fini(&x->forecast);
    }
    err = err ? err : plan_forecast_watched(x->programs, x->n, k->rates, &watch, &x->forecast, why);
    err = err ? err : k->err;
    if (err)
        return err;
    x->did = measured ? measured : &x->forecast;
    x->seconds = x->did->seconds;
    for (int r = 0; r < x->n && !err; r++)
        err = rank_sum(k, r);
    if (x->n_moves)
        qsort(x->moves, (size_t)x->n_moves, sizeof(*x->moves), move_order);
    return err;
}

err_t explain_init(const struct program *programs, const struct graph *g, int n, const struct plan_rates *rates,
                   const struct forecast *measured, struct explain *ret, struct why *why)
{
    struct explain x = {.programs = programs, .graph = g, .n = n};
    struct explain_run k = {.x = &x, .rates = rates, .stretch = 1};
    x.ranks = calloc((size_t)n, sizeof(*x.ranks));
    err_t err = x.ranks ? run_all(&k, measured, why) : ERR_NOMEM;
    run_fini(&k);
    if (err) {
        explain_fini(&x);
        return err == ERR_NOMEM ? why_set(why, err, "out of memory for the animation of %d ranks", n) : err;
    }
    *ret = x;
    if (!measured)
        ret->did = &ret->forecast;
    return OK;
}

void explain_fini(struct explain *x)
{
    for (int r = 0; r < x->n && x->ranks; r++) {
        free(x->ranks[r].lives);
        free(x->ranks[r].memory.all);
        free(x->ranks[r].units.all);
    }
    for (int i = 0; i < x->n_moves; i++)
        move_fini(&x->moves[i]);
    free(x->ranks);
    free(x->moves);
    forecast_fini(&x->forecast);
    memset(x, 0, sizeof(*x));
}

const char *explain_unit_name(const struct graph *g, int unit, char *text, size_t size)
{
    int layer = -1, t = 0;
    while (t < g->n_tensors && (g->tensors[t].kind != GT_PARAM || g->tensors[t].unit != unit))
        t++;
    if (t < g->n_tensors && sscanf(g->tensors[t].name, "layers.%d.", &layer) == 1)
        snprintf(text, size, "%slayer %d", g->tensors[t].experts > 0 ? "experts of " : "", layer);
    else
        snprintf(text, size, "%s", unit ? "head" : "embedding");
    return text;
}

bool explain_has(const struct explain *x, int rank, int tensor, int unit)
{
    const struct graph_tensor *t = &x->graph->tensors[tensor];
    return t->kind == GT_PARAM && t->unit == unit && x->programs[rank].sharding.param[tensor].held;
}
