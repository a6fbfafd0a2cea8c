/* A measured step has the program's actions in the program's order: what a rank's trace says is held against its
 * program, op by op, on every rank of a pipeline; and none begins before what it waits for is over. */
#include "tests/parity/rank.h"

static bool waits(const struct op *op)
{
    int n = 0;
    for (int i = 0; i < OP_MAX_WAITS; i++)
        n += op->wait[i] >= 0;
    return n > 0;
}

/* The boxes that the program has when every op takes some time; ends behind the last with a box that none matches. */
static int expected(const struct program *p, struct forecast_box *ret)
{
    int n = 0;
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        for (int k = 0; a->kind != ACT_SNAPSHOT && k < a->n_ops; k++) {
            const struct op *op = &p->ops[a->first_op + k], *before = k ? op - 1 : NULL;
            if (!before || before->stream != op->stream || waits(op))
                ret[n++] = (struct forecast_box){i, a->kind, op->stream, a->chunk, a->micro, 0, 0};
        }
    }
    return n;
}

#define SAY(...) (fprintf(stderr, __VA_ARGS__), 1)

static int compare(const struct engine *e, const struct engine_trace *t)
{
    double last[STREAM_COUNT] = {0};
    struct forecast_box *want = calloc((size_t)t->cap, sizeof(*want));
    int n = expected(&e->train, want), bad = n != t->n ? SAY("%d boxes, the program has %d\n", t->n, n) : 0;
    for (int i = 0; i < n && !bad; i++) {
        const struct forecast_box *b = &t->boxes[i], *w = &want[i];
        if (b->action != w->action || b->kind != w->kind || b->stream != w->stream || b->chunk != w->chunk ||
            b->micro != w->micro)
            bad = SAY("box %d is of action %d (%s), not of %d (%s)\n", i, b->action, action_name(b->kind), w->action,
                      action_name(w->kind));
        if (b->start < last[b->stream] || b->end < b->start)
            bad = SAY("box %d: %g to %g, behind %g\n", i, b->start, b->end, last[b->stream]);
        last[b->stream] = b->end;
    }
    free(want);
    return bad;
}

/* What waits is no box: one that begins behind a wait begins behind what it waits for. `boxes` are the program's. */
static int early(const struct program *p, const struct forecast_box *boxes)
{
    double *over = calloc((size_t)p->n_events + 1, sizeof(*over)); /* by event, at least */
    int bad = 0, at = -1;
    for (int i = 0; i < p->n_actions && !bad; i++) {
        const struct action *a = &p->actions[i];
        for (int k = 0; a->kind != ACT_SNAPSHOT && k < a->n_ops && !bad; k++) {
            const struct op *op = &p->ops[a->first_op + k], *next = k + 1 < a->n_ops ? op + 1 : NULL;
            at += k == 0 || op[-1].stream != op->stream || waits(op);
            const struct forecast_box *box = &boxes[at];
            for (int w = 0; w < OP_MAX_WAITS && !bad; w++)
                if (op->wait[w] >= 0 && box->start < over[op->wait[w]])
                    bad = SAY("%s in action %d begins %g s early\n", op_name(op->kind), i,
                              over[op->wait[w]] - box->start);
            if (op->event >= 0)
                over[op->event] = !next || next->stream != op->stream || waits(next) ? box->end : box->start;
        }
    }
    free(over);
    return bad;
}

/* Every op is counted, on whatever thread it ran. */
static int miscounted(const struct program *p, const struct engine_profile *profile)
{
    int64_t n = 0;
    for (int i = 0; i < p->n_actions; i++)
        n += p->actions[i].kind == ACT_SNAPSHOT ? 0 : p->actions[i].n_ops;
    for (int k = 0; k < OP_KIND_COUNT; k++)
        n -= profile->calls[k];
    return n ? SAY("%d ops are not counted\n", (int)n) : 0;
}

static int trace_rank(void *arg, int fd, int rank)
{
    struct parity_rank r = {0};
    struct engine_trace trace = {0};
    struct engine_profile profile = {.trace = &trace};
    struct engine_result result;
    struct why why = {""};
    err_t err = parity_rank_open(&r, arg, fd, rank, &why);
    trace.cap = engine_trace_room(&r.e);
    trace.boxes = calloc((size_t)trace.cap + 1, sizeof(*trace.boxes));
    err = err ? err : parity_rank_step(&r, &result, &why); /* not this one */
    err = err ? err : engine_profile_start(&r.e, &profile, &why);
    err = err ? err : parity_rank_step(&r, &result, &why);
    engine_profile_stop(&r.e);
    err = err ? err : parity_rank_step(&r, &result, &why); /* nor this one */
    int bad = err ? SAY("rank %d: %s %s\n", rank, err_name(err), why.text) : compare(&r.e, &trace);
    bad = bad || early(&r.e.train, trace.boxes) || miscounted(&r.e.train, &profile);
    free(trace.boxes);
    parity_rank_close(&r);
    return bad;
}

static void traced(const char *yaml, const char *const *sets)
{
    struct parity_model m;
    parity_model_init(&m, yaml, sets);
    parity_fork((int)m.job.parallel.workers, trace_rank, &m);
    parity_model_fini(&m);
}

#define TRACED(yaml, ...) traced(yaml, (const char *const[]){__VA_ARGS__, NULL})

TEST(a_measured_pipeline_has_the_programs_actions_in_its_order)
{
    TRACED(parity_llama, "parallel.workers=2", "parallel.pp=2", "train.global_batch=8");
    TRACED(parity_gpt2, "parallel.workers=2", "parallel.pp=2", "parallel.schedule=zb-h1", "train.global_batch=8");
}

TEST(what_a_communication_thread_does_stands_in_the_programs_order)
{
    TRACED(parity_llama, "parallel.workers=2", "parallel.tp=2", "run.comm_thread=on");
    TRACED(parity_llama, "parallel.workers=2", "parallel.fsdp=2", "parallel.zero=3", "run.comm_thread=on");
    TRACED(parity_llama, "parallel.workers=2", "parallel.pp=2", "train.global_batch=8", "run.comm_thread=on");
}

TEST(collectives_of_a_cut_layer_are_boxes_of_their_own)
{
    TRACED(parity_llama, "parallel.workers=2", "parallel.tp=2");
}
