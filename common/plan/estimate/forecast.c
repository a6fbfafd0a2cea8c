/* Runs every rank's program as far as it can; an op that needs other ranks stops it until they have arrived. Times are
 * kept per stream, so the order in which ranks take turns does not change the result. */
#include "common/plan/estimate/forecast.h"

#include "common/plan/estimate/cost.h"
#include "common/plan/estimate/table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Multiply-adds in bfloat16 are those of a core with AVX512_BF16, which does twice as many as in float32; a core
 * without it does as many as in float32. The job, not the machine that plans it, determines the forecast. */
static double core_flops(enum dtype dtype)
{
    return dtype == DT_F64 ? 30e9 : dtype == DT_BF16 ? 120e9 : 60e9;
}

/* CPU: one core of a few years ago per worker, with its share of a node's memory bandwidth. GPU: one of the H100's
 * class, with links inside a node. */
struct plan_rates plan_rates_of(const struct job_spec *job)
{
    const enum dtype dtype = (enum dtype)job->train.dtype;
    if (job->run.device == DEVICE_CPU)
        return (struct plan_rates){.flops = core_flops(dtype),
                                   .memory = 10e9,
                                   .link = 5e9,
                                   .latency = 20e-6,
                                   .one_thread = job->run.comm_thread != COMM_THREAD_ON};
    return (struct plan_rates){.flops = dtype == DT_BF16 ? 500e12 : 40e12,
                               .memory = 2.5e12,
                               .link = 200e9,
                               .latency = 10e-6,
                               .one_call = true};
}

/* By the makers' data sheets, without sparsity. A name that contains another one precedes it. */
static const struct {
    const char *model;
    double bf16, f32;
} gpu_peaks[] = {
    {"B200", 2250e12, 80e12},     {"B100", 1800e12, 60e12},  {"H200", 989e12, 67e12},  {"H100 NVL", 835e12, 60e12},
    {"H100 PCIe", 756e12, 51e12}, {"H100", 989e12, 67e12},   {"H800", 989e12, 67e12},  {"A100", 312e12, 19.5e12},
    {"A800", 312e12, 19.5e12},    {"L40S", 362e12, 91.6e12}, {"L40", 181e12, 90.5e12}, {"A40", 149.7e12, 37.4e12},
    {"L4", 121e12, 30.3e12},      {"A30", 165e12, 10.3e12},  {"A10", 125e12, 31.2e12}, {"RTX 4090", 165.2e12, 82.6e12},
    {"RTX 3090", 71e12, 35.6e12},
};

/* "NVIDIA A100-SXM4-80GB" names A100, and "NVIDIA RTX A4000" does not name A40. */
static bool names_model(const char *gpu, const char *model)
{
    const char *at = strstr(gpu, model);
    const char after = at ? at[strlen(model)] : 'x';
    return after == '\0' || after == ' ' || after == '-';
}

double plan_peak_flops(const struct job_spec *job, const char *gpu)
{
    const enum dtype dtype = (enum dtype)job->train.dtype;
    for (size_t i = 0; i < sizeof(gpu_peaks) / sizeof(gpu_peaks[0]); i++)
        if (names_model(gpu, gpu_peaks[i].model))
            return dtype == DT_BF16 ? gpu_peaks[i].bf16 : dtype == DT_F32 ? gpu_peaks[i].f32 : 0;
    return 0;
}

/* A message: the time of its post and its duration. */
struct message {
    double posted, takes;
};

struct messages {
    struct message *all; /* in the order of posts */
    int n, cap;
};

/* A post for which its rank has not waited: the n-th to or from a peer. */
struct pending_post {
    int peer, nth, buffer;
    bool send;
};

struct runner {
    const struct program *p;
    int turn, action, op;                /* turn: actions before this one; action: its index in program.actions */
    double stream[STREAM_COUNT], *event; /* event: time of its last record */
    struct messages *sends, *recvs;      /* by peer */
    struct pending_post *pending;
    int n_pending, cap_pending;
};

struct forecast_run {
    struct runner *ranks;
    int n;
    const struct plan_rates *rates;
    struct forecast *f;
    const struct forecast_watch *watch; /* NULL: none */
    err_t err;
};

/* The action that a rank runs as its i-th in one of many steps. With post-validation the update comes before the
 * actions that run ahead, and these before those that validate. */
static int action_at(const struct program *p, int i)
{
    if (!p->validate)
        return i;
    const int update = program_find(p, ACT_UPDATE, p->validate), own = p->validate - p->n_ahead;
    if (i < own)
        return i + p->n_ahead;
    if (i == own)
        return update;
    if (i <= p->validate)
        return i - own - 1;
    return i <= update ? i - 1 : i;
}

static const struct op *next_op(struct runner *r)
{
    const struct program *p = r->p;
    assert(p);
    while (r->turn < p->n_actions) {
        const struct action *a = &p->actions[r->action = action_at(p, r->turn)];
        if (r->op < a->n_ops && !action_is_rare(a->kind))
            return &p->ops[a->first_op + r->op];
        r->turn++;
        r->op = 0;
    }
    return NULL;
}

static int64_t samples_of(const struct runner *r)
{
    int micro = r->p->actions[r->action].micro;
    return micro >= 0 ? r->p->micros[micro].samples : r->p->max_samples;
}

static double starts_at(const struct runner *r, const struct op *op)
{
    double t = r->stream[op->stream];
    for (int i = 0; i < OP_MAX_WAITS; i++)
        if (op->wait[i] >= 0 && r->event[op->wait[i]] > t)
            t = r->event[op->wait[i]];
    return t;
}

/* ---- boxes ---- */

static struct forecast_box *box_new(struct forecast_run *k, struct forecast_rank *r)
{
    if (r->n == r->cap) {
        int cap = r->cap ? 2 * r->cap : 64;
        struct forecast_box *grown = realloc(r->boxes, (size_t)cap * sizeof(*grown));
        if (!grown) {
            k->err = ERR_NOMEM;
            return NULL;
        }
        r->boxes = grown;
        r->cap = cap;
    }
    return &r->boxes[r->n++];
}

/* Adjacent ops of one action on a stream share a box; a wait between them starts a new one. */
static void add_to_box(struct forecast_run *k, int rank, const struct op *op, double start, double end)
{
    const struct action *a = &k->ranks[rank].p->actions[k->ranks[rank].action];
    struct forecast_rank *r = &k->f->ranks[rank];
    if (end <= start)
        return;
    for (int i = r->n - 1; i >= 0 && i >= r->n - STREAM_COUNT; i--) {
        struct forecast_box *b = &r->boxes[i];
        if (b->stream == op->stream && b->kind == a->kind && b->micro == a->micro && b->chunk == a->chunk &&
            start - b->end < 1e-12) {
            b->end = end;
            return;
        }
    }
    struct forecast_box *b = box_new(k, r);
    if (b)
        *b = (struct forecast_box){k->ranks[rank].action, a->kind, op->stream, a->chunk, a->micro, start, end};
}

/* Completes the op and moves the rank to the next. */
static void finish_op(struct forecast_run *k, int rank, const struct op *op, double start, double end)
{
    struct runner *r = &k->ranks[rank];
    add_to_box(k, rank, op, start, end);
    if (k->watch)
        k->watch->op(k->watch->arg, rank, r->action, op, start, end);
    for (int s = 0; s < STREAM_COUNT; s++)
        if (s == (int)op->stream || k->rates->one_thread)
            r->stream[s] = end;
    if (op->event >= 0)
        r->event[op->event] = end;
    r->op++;
}

/* ---- ops ---- */

/* Counts the bytes by those of the group's axes whose size is not 1. */
static void count_bytes(struct forecast_run *k, const struct runner *r, const struct op *op)
{
    unsigned axes = r->p->groups[op->group].axes, there = 0;
    for (int a = 0; a < AXIS_COUNT; a++)
        there |= r->p->mesh.size[a] > 1 ? 1u << a : 0;
    k->f->bytes[axes & there] += plan_op_wire(r->p, op, samples_of(r));
}

/* Measured seconds of the op; negative: none. */
static double table_seconds(const struct forecast_run *k, const struct runner *r, const struct op *op)
{
    const struct plan_rates *rates = k->rates;
    const double own = rates->seconds ? rates->seconds(rates->arg, r->p->rank, r->action, op) : -1;
    if (own >= 0 || !rates->table)
        return own;
    return plan_table_seconds(rates->table, r->p, op, samples_of(r), (enum table_figure)rates->figure);
}

static double wire_seconds(const struct forecast_run *k, const struct runner *r, const struct op *op)
{
    const double measured = table_seconds(k, r, op);
    if (measured >= 0)
        return measured;
    return k->rates->latency + (double)plan_op_wire(r->p, op, samples_of(r)) / k->rates->link;
}

static double compute_seconds(const struct forecast_run *k, const struct runner *r, const struct op *op)
{
    struct op_cost cost;
    const double measured = table_seconds(k, r, op);
    if (measured >= 0)
        return measured;
    plan_op_cost(r->p, op, samples_of(r), &cost);
    double flops = cost.flops / k->rates->flops, bytes = cost.bytes / k->rates->memory;
    return flops > bytes ? flops : bytes;
}

static bool is_collective(const struct op *op)
{
    return op->group >= 0 && op->kind != OP_SEND && op->kind != OP_RECV;
}

/* Runs a collective if all members have reached it: it starts when the last one arrives and takes as long as the
 * slowest needs. */
static bool run_collective(struct forecast_run *k, int rank)
{
    const struct op *op = next_op(&k->ranks[rank]);
    const struct group *g = &k->ranks[rank].p->groups[op->group];
    double start = 0, takes = 0;
    for (int i = 0; i < g->n; i++) {
        struct runner *r = &k->ranks[g->ranks[i]];
        const struct op *other = next_op(r);
        if (!other || !is_collective(other) || other->group != op->group)
            return false;
        double at = starts_at(r, other), wire = wire_seconds(k, r, other);
        start = at > start ? at : start;
        takes = wire > takes ? wire : takes;
    }
    for (int i = 0; i < g->n; i++) {
        struct runner *r = &k->ranks[g->ranks[i]];
        const struct op *other = next_op(r);
        count_bytes(k, r, other);
        finish_op(k, g->ranks[i], other, start, start + takes);
    }
    return true;
}

static void message_push(struct forecast_run *k, struct messages *q, struct message m)
{
    if (q->n == q->cap) {
        int cap = q->cap ? 2 * q->cap : 16;
        struct message *grown = realloc(q->all, (size_t)cap * sizeof(*grown));
        if (!grown) {
            k->err = ERR_NOMEM;
            return;
        }
        q->all = grown;
        q->cap = cap;
    }
    q->all[q->n++] = m;
}

static void run_post(struct forecast_run *k, int rank, const struct op *op)
{
    struct runner *r = &k->ranks[rank];
    int peer = r->p->groups[op->group].ranks[op->peer];
    bool send = op->kind == OP_SEND;
    struct messages *q = send ? &r->sends[peer] : &r->recvs[peer];
    double at = starts_at(r, op);
    if (r->n_pending == r->cap_pending) {
        int cap = r->cap_pending ? 2 * r->cap_pending : 16;
        struct pending_post *grown = realloc(r->pending, (size_t)cap * sizeof(*grown));
        if (!grown) {
            k->err = ERR_NOMEM;
            return;
        }
        r->pending = grown;
        r->cap_pending = cap;
    }
    r->pending[r->n_pending++] = (struct pending_post){peer, q->n, op->arg[0].buffer, send};
    message_push(k, q, (struct message){at, wire_seconds(k, r, op)});
    count_bytes(k, r, op);
    finish_op(k, rank, op, at, at);
}

/* The time at which the rank's posts on the buffer (-1: all posts) are complete; false while a peer has not posted the
 * counterpart of one. */
static bool posts_end(const struct forecast_run *k, int rank, int buffer, double *end)
{
    const struct runner *r = &k->ranks[rank];
    for (int i = 0; i < r->n_pending; i++) {
        const struct pending_post *x = &r->pending[i];
        if (buffer >= 0 && x->buffer != buffer)
            continue;
        const struct messages *here = x->send ? &r->sends[x->peer] : &r->recvs[x->peer];
        const struct messages *there = x->send ? &k->ranks[x->peer].recvs[rank] : &k->ranks[x->peer].sends[rank];
        if (there->n <= x->nth)
            return false;
        const struct message *a = &here->all[x->nth], *b = &there->all[x->nth];
        double both = (a->posted > b->posted ? a->posted : b->posted) + (a->takes > b->takes ? a->takes : b->takes);
        *end = both > *end ? both : *end;
    }
    return true;
}

static bool wait_for(struct forecast_run *k, int rank, const struct op *op)
{
    struct runner *r = &k->ranks[rank];
    double start = starts_at(r, op), end = start;
    int kept = 0;
    if (!posts_end(k, rank, op->arg[0].buffer, &end))
        return false;
    for (int i = 0; i < r->n_pending; i++)
        if (r->pending[i].buffer != op->arg[0].buffer)
            r->pending[kept++] = r->pending[i];
    r->n_pending = kept;
    finish_op(k, rank, op, start, end);
    return true;
}

static bool run_push_op(struct forecast_run *k, int rank, const struct op *op)
{
    double start = starts_at(&k->ranks[rank], op), end = start;
    if (k->rates->one_call && !posts_end(k, rank, -1, &end))
        return false;
    finish_op(k, rank, op, start, end);
    return true;
}

/* Runs the rank's next op; false if it has to wait. */
static bool run_next_op(struct forecast_run *k, int rank, const struct op *op)
{
    struct runner *r = &k->ranks[rank];
    if (is_collective(op))
        return run_collective(k, rank);
    if (op->kind == OP_WAIT)
        return wait_for(k, rank, op);
    if (op->kind == OP_PUSH)
        return run_push_op(k, rank, op);
    if (op->kind == OP_SEND || op->kind == OP_RECV) {
        run_post(k, rank, op);
        return true;
    }
    double start = starts_at(r, op);
    finish_op(k, rank, op, start, start + compute_seconds(k, r, op));
    return true;
}

static err_t run_all(struct forecast_run *k, struct why *why)
{
    bool moved = true, left = false;
    while (moved && !k->err) {
        moved = left = false;
        for (int r = 0; r < k->n && !k->err; r++) {
            const struct op *op;
            while (!k->err && (op = next_op(&k->ranks[r])) && run_next_op(k, r, op))
                moved = true;
            left |= next_op(&k->ranks[r]) != NULL;
        }
    }
    if (k->err)
        return why_set(why, k->err, "out of memory for the forecast of %d ranks", k->n);
    return left ? why_set(why, ERR_INVALID, "the ranks wait for each other") : OK;
}

/* ---- set-up ---- */

static err_t runner_init(struct runner *r, const struct program *p, int n)
{
    r->p = p;
    r->event = calloc((size_t)p->n_events + 1, sizeof(*r->event));
    r->sends = calloc((size_t)n, sizeof(*r->sends));
    r->recvs = calloc((size_t)n, sizeof(*r->recvs));
    return r->event && r->sends && r->recvs ? OK : ERR_NOMEM;
}

static void runner_fini(struct runner *r, int n)
{
    for (int i = 0; i < n && r->sends && r->recvs; i++) {
        free(r->sends[i].all);
        free(r->recvs[i].all);
    }
    free(r->event);
    free(r->sends);
    free(r->recvs);
    free(r->pending);
}

void forecast_fini(struct forecast *f)
{
    for (int r = 0; r < f->n && f->ranks; r++)
        free(f->ranks[r].boxes);
    free(f->ranks);
    memset(f, 0, sizeof(*f));
}

/* ---- sums ---- */

static int next_compute(const struct forecast_rank *r, int i)
{
    while (i < r->n && r->boxes[i].stream != STREAM_COMPUTE)
        i++;
    return i;
}

/* The time in which the comm stream has a box and the compute stream has none. */
static double exposed_of(const struct forecast_rank *r)
{
    double exposed = 0;
    int c = next_compute(r, 0);
    for (int i = 0; i < r->n; i++) {
        const struct forecast_box *b = &r->boxes[i];
        if (b->stream != STREAM_COMM)
            continue;
        double from = b->start;
        for (; c < r->n && r->boxes[c].start < b->end; c = next_compute(r, c + 1)) {
            const struct forecast_box *beside = &r->boxes[c];
            if (beside->start > from)
                exposed += beside->start - from;
            from = beside->end > from ? beside->end : from;
            if (beside->end > b->end)
                break; /* it may cover the next one too */
        }
        exposed += b->end > from ? b->end - from : 0;
    }
    return exposed;
}

void forecast_sum(struct forecast *f)
{
    double busy = 0, exposed = 0;
    f->seconds = 0;
    for (int r = 0; r < f->n; r++) {
        struct forecast_rank *k = &f->ranks[r];
        k->busy = 0;
        k->exposed = exposed_of(k);
        for (int i = 0; i < k->n; i++) {
            k->busy += k->boxes[i].stream == STREAM_COMPUTE ? k->boxes[i].end - k->boxes[i].start : 0;
            f->seconds = k->boxes[i].end > f->seconds ? k->boxes[i].end : f->seconds;
        }
        busy += k->busy;
        exposed += k->exposed;
    }
    f->bubble = f->seconds > 0 ? 1 - busy / (f->seconds * f->n) : 0;
    f->exposed = f->seconds > 0 ? exposed / (f->seconds * f->n) : 0;
}

err_t plan_forecast(const struct program *programs, int n, const struct plan_rates *rates, struct forecast *ret,
                    struct why *why)
{
    return plan_forecast_watched(programs, n, rates, NULL, ret, why);
}

err_t plan_forecast_watched(const struct program *programs, int n, const struct plan_rates *rates,
                            const struct forecast_watch *watch, struct forecast *ret, struct why *why)
{
    struct forecast f = {.n = n, .ranks = calloc((size_t)n, sizeof(*f.ranks))};
    struct runner *ranks = calloc((size_t)n, sizeof(*ranks));
    struct forecast_run k = {ranks, n, rates, &f, watch, OK};
    err_t e = OK;
    if (!f.ranks || !ranks) {
        free(f.ranks);
        free(ranks);
        return why_set(why, ERR_NOMEM, "out of memory for the forecast of %d ranks", n);
    }
    for (int r = 0; r < n && !e; r++)
        e = runner_init(&ranks[r], &programs[r], n);
    if (!e)
        e = run_all(&k, why);
    for (int r = 0; r < n; r++)
        runner_fini(&ranks[r], n);
    free(ranks);
    forecast_sum(&f);
    if (e)
        forecast_fini(&f);
    else
        *ret = f;
    return e;
}
