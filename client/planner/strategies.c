/* A strategy is a search that may use some axes only. Its row shows what the courses' tables show, for this model on
 * this machine: memory by kind, speed, and the bytes that a worker exchanges. */
#include "client/planner/internal.h"

#include <inttypes.h>
#include <stdio.h>

enum axes { DP = 1, FSDP = 2, TP = 4, PP = 8, CP = 16, EP = 32, MODEL = TP | PP };

struct strategy {
    const char *name;
    unsigned axes;   /* that it may use */
    unsigned needed; /* that it must use, or it is not the strategy */
    int64_t zero;
    const char *when;
};

static const struct strategy strategies[] = {
    {"DDP", DP, DP, 0, "the model with its optimizer fits on one device; the least communication"},
    {"ZeRO 1", DP | FSDP, FSDP, 1, "the optimizer state does not fit beside the rest; costs nothing more than DDP"},
    {"ZeRO 2", DP | FSDP, FSDP, 2, "gradients do not fit either; they are reduced in every microbatch"},
    {"ZeRO 3", DP | FSDP, FSDP, 3, "parameters do not fit; every layer is gathered when it is used"},
    {"TP", DP | TP, TP, 0,
     "layers are wide and the links inside a node are fast; two collectives in each half of a layer"},
    {"PP", DP | PP, PP, 0, "links between nodes are slow; needs many microbatches, or stages idle"},
    {"CP", DP | CP, CP, 0, "sequences are so long that activations do not fit; keys and values go around a ring"},
    {"EP", DP | FSDP | EP, EP, 1, "a mixture's experts do not fit; tokens are exchanged in every such layer"},
    {"3D", DP | FSDP | TP | PP, MODEL, -1,
     "one axis alone is not enough: tp inside a node, pp between nodes, dp for the rest"},
};

static unsigned axes_of(const struct plan_layout *l)
{
    return (l->dp > 1 ? DP : 0) | (l->fsdp > 1 ? FSDP : 0) | (l->tp > 1 ? TP : 0) | (l->pp > 1 ? PP : 0) |
           (l->cp > 1 ? CP : 0) | (l->ep > 1 ? EP : 0);
}

static bool belongs(const void *arg, const struct plan_layout *l)
{
    const struct strategy *s = arg;
    const unsigned axes = axes_of(l);
    return !(axes & ~s->axes) && (axes & s->needed) == s->needed && (s->zero < 0 || l->fsdp == 1 || l->zero == s->zero);
}

static const struct out_column columns[] = {
    {"STRATEGY", false, 0},   {"PARAMS", true, 2}, {"GRADS", true, 2}, {"OPTIMIZER", true, 2},
    {"ACTIVATIONS", true, 2}, {"ALL", true, 0},    {"FITS", false, 0}, {"STEP", true, 0},
    {"TOK/S", true, 0},       {"BUBBLE", true, 3}, {"COMM", true, 1},  {"LAYOUT", false, OUT_CUT}};

static void set_bytes(struct out_table *t, int row, int column, double bytes)
{
    char a[OUT_NUMBER];
    out_table_set(t, row, column, "%s", out_bytes((int64_t)bytes, a));
}

static void add_row(struct out_table *t, const struct planning *p, const struct strategy *s,
                    const struct plan_results *r)
{
    char a[OUT_NUMBER], text[256];
    const struct plan_found *f = r->n_fit ? r->fit : r->n_unfit ? r->unfit : NULL;
    const int row = out_table_row(t);
    out_table_set(t, row, 0, "%s", s->name);
    if (!f) {
        out_table_set(t, row, 11, "not possible here");
        return;
    }
    set_bytes(t, row, 1, f->bytes.params);
    set_bytes(t, row, 2, f->bytes.grads);
    set_bytes(t, row, 3, f->bytes.optimizer);
    set_bytes(t, row, 4, f->bytes.activations + f->bytes.buffers);
    set_bytes(t, row, 5, f->bytes.total);
    out_table_set(t, row, 6, "%s", r->n_fit ? "yes" : "no");
    out_table_set(t, row, 7, "%.4g s", f->time.seconds);
    out_table_set(t, row, 8, "%s", out_count(planning_tokens_per_s(p, &f->time), a));
    out_table_set(t, row, 9, "%.1f %%", 100 * f->time.bubble / f->time.seconds);
    out_table_set(t, row, 10, "%.1f %%", 100 * planning_comm(&f->time) / f->time.seconds);
    out_table_set(t, row, 11, "%s", planner_layout_text(&f->layout, text, sizeof(text)));
}

static json_t *row_json(const struct planning *p, const struct strategy *s, const struct plan_results *r)
{
    const struct plan_found *f = r->n_fit ? r->fit : r->n_unfit ? r->unfit : NULL;
    json_t *row = f ? planning_found_json(p, f) : json_object();
    json_object_set_new(row, "strategy", json_string(s->name));
    json_object_set_new(row, "when", json_string(s->when));
    json_object_set_new(row, "fits", json_boolean(r->n_fit > 0));
    return row;
}

static void print_header(const struct planning *p, const struct job_spec *job)
{
    char a[OUT_NUMBER], b[OUT_NUMBER];
    printf("job %s, %s parameters, on %s: %" PRId64 " workers with %s each\n", job->name,
           out_count(plan_shape_params(&p->shape, NULL), a), p->machine.name, p->search.workers,
           out_bytes((int64_t)p->search.memory, b));
}

err_t planner_strategies(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why)
{
    struct planning p;
    struct out_table t;
    json_t *list = json_array();
    err_t err = planning_init(&p, a, job, why);
    if (err)
        return err;
    out_table_init(&t, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; !err && i < sizeof(strategies) / sizeof(strategies[0]); i++) {
        struct plan_results r = {0};
        p.search.allow = belongs;
        p.search.allow_arg = &strategies[i];
        err = plan_search(&p.search, &r);
        if (!err) {
            add_row(&t, &p, &strategies[i], &r);
            json_array_append_new(list, row_json(&p, &strategies[i], &r));
        }
        plan_results_fini(&r);
    }
    if (!err && g->format != OUT_TEXT) {
        err = out_json(json_incref(list), g->format == OUT_JSONL);
    } else if (!err) {
        print_header(&p, job);
        out_table_print(&t, stdout, -1);
        printf("Rates: %s\n", p.machine.source);
        printf("When to use which:\n");
        for (size_t i = 0; i < sizeof(strategies) / sizeof(strategies[0]); i++)
            printf("  %-7s %s\n", strategies[i].name, strategies[i].when);
    }
    json_decref(list);
    out_table_fini(&t);
    planning_fini(&p);
    return err;
}
