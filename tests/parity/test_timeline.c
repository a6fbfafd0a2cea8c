/* A measured step has the program's actions in the program's order. On every rank of a pipeline the trace is compared
 * with the program, op by op, and no op may begin before the end of the ops for which it waits. */
#include "tests/parity/rank.h"

static bool waits(const struct op *op)
{
    int n = 0;
    for (int i = 0; i < OP_MAX_WAITS; i++)
        n += op->wait[i] >= 0;
    return n > 0;
}

/* The boxes of the program if every op takes some time. `ret` ends after the last box, with one that matches none. */
static int expected_boxes(const struct program *p, struct forecast_box *ret)
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

#define FAIL_WITH(...) (fprintf(stderr, __VA_ARGS__), 1)

static int compare(const struct engine *e, const struct engine_trace *t)
{
    double last[STREAM_COUNT] = {0};
    struct forecast_box *want = calloc((size_t)t->cap, sizeof(*want));
    int n = expected_boxes(&e->train, want), bad = n != t->n ? FAIL_WITH("%d boxes, the program has %d\n", t->n, n) : 0;
    for (int i = 0; i < n && !bad; i++) {
        const struct forecast_box *b = &t->boxes[i], *w = &want[i];
        if (b->action != w->action || b->kind != w->kind || b->stream != w->stream || b->chunk != w->chunk ||
            b->micro != w->micro)
            bad = FAIL_WITH("box %d is of action %d (%s), not of %d (%s)\n", i, b->action, action_name(b->kind),
                            w->action, action_name(w->kind));
        if (b->start < last[b->stream] || b->end < b->start)
            bad = FAIL_WITH("box %d: %g to %g, behind %g\n", i, b->start, b->end, last[b->stream]);
        last[b->stream] = b->end;
    }
    free(want);
    return bad;
}

/* Waits have no box. A box after a wait must begin after the end of the ops for which it waits. `boxes` are the
 * program's. */
static int count_early(const struct program *p, const struct forecast_box *boxes)
{
    double *over = calloc((size_t)p->n_events + 1, sizeof(*over)); /* by event; at least 1 element */
    int bad = 0, at = -1;
    for (int i = 0; i < p->n_actions && !bad; i++) {
        const struct action *a = &p->actions[i];
        for (int k = 0; a->kind != ACT_SNAPSHOT && k < a->n_ops && !bad; k++) {
            const struct op *op = &p->ops[a->first_op + k], *next = k + 1 < a->n_ops ? op + 1 : NULL;
            at += k == 0 || op[-1].stream != op->stream || waits(op);
            const struct forecast_box *box = &boxes[at];
            for (int w = 0; w < OP_MAX_WAITS && !bad; w++)
                if (op->wait[w] >= 0 && box->start < over[op->wait[w]])
                    bad = FAIL_WITH("%s in action %d begins %g s early\n", op_name(op->kind), i,
                                    over[op->wait[w]] - box->start);
            if (op->event >= 0)
                over[op->event] = !next || next->stream != op->stream || waits(next) ? box->end : box->start;
        }
    }
    free(over);
    return bad;
}

/* Every op is counted, on whichever thread it ran. */
static int count_miscounted(const struct program *p, const struct engine_profile *profile)
{
    int64_t n = 0;
    for (int i = 0; i < p->n_actions; i++)
        n += p->actions[i].kind == ACT_SNAPSHOT ? 0 : p->actions[i].n_ops;
    for (int k = 0; k < OP_KIND_COUNT; k++)
        n -= profile->calls[k];
    return n ? FAIL_WITH("%d ops are not counted\n", (int)n) : 0;
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
    err = err ? err : parity_rank_step(&r, &result, &why); /* not traced */
    err = err ? err : engine_profile_start(&r.e, &profile, &why);
    err = err ? err : parity_rank_step(&r, &result, &why);
    engine_profile_stop(&r.e);
    err = err ? err : parity_rank_step(&r, &result, &why); /* not traced */
    int bad = err ? FAIL_WITH("rank %d: %s %s\n", rank, err_name(err), why.text) : compare(&r.e, &trace);
    bad = bad || count_early(&r.e.train, trace.boxes) || count_miscounted(&r.e.train, &profile);
    free(trace.boxes);
    parity_rank_close(&r);
    return bad;
}

static void check_trace(const char *yaml, const char *const *sets)
{
    struct parity_model m;
    parity_model_init(&m, yaml, sets);
    parity_fork((int)m.job.parallel.workers, trace_rank, &m);
    parity_model_fini(&m);
}

#define TRACED(yaml, ...) check_trace(yaml, (const char *const[]){__VA_ARGS__, NULL})

TEST(a_measured_pipeline_has_the_programs_actions_in_its_order)
{
    TRACED(parity_llama, "parallel.workers=2", "parallel.pp=2", "train.global_batch=8");
    TRACED(parity_gpt2, "parallel.workers=2", "parallel.pp=2", "parallel.schedule=zb-h1", "train.global_batch=8");
}

TEST(ops_of_a_communication_thread_are_in_program_order)
{
    TRACED(parity_llama, "parallel.workers=2", "parallel.tp=2", "run.comm_thread=on");
    TRACED(parity_llama, "parallel.workers=2", "parallel.fsdp=2", "parallel.zero=3", "run.comm_thread=on");
    TRACED(parity_llama, "parallel.workers=2", "parallel.pp=2", "train.global_batch=8", "run.comm_thread=on");
}

TEST(collectives_of_a_cut_layer_are_boxes_of_their_own)
{
    TRACED(parity_llama, "parallel.workers=2", "parallel.tp=2");
}
