/* A strategy is a search that may use some axes only. Its row shows what the courses' tables show, for this model on
 * this machine: memory by kind, speed, and the bytes that a worker exchanges. */
#include "client/planner/picture.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum axes { DP = 1, FSDP = 2, TP = 4, PP = 8, CP = 16, EP = 32, MODEL = TP | PP };

struct strategy {
    const char *name;
    unsigned axes;   /* that it may use */
    unsigned needed; /* that it must use, or it is not the strategy */
    int64_t zero;
    const char *when;
    /* Adds what it does for this job, in numbers. */
    void (*say)(FILE *f, const struct plan_found *found, const struct plan_found *whole, const struct plan_shape *s);
};

/* ---- sentences ---- */

static const char *bytes_text(double bytes, char ret[OUT_NUMBER])
{
    return out_bytes((int64_t)bytes, ret);
}

static double state_bytes(const struct plan_found *f)
{
    return f->bytes.params + f->bytes.grads + f->bytes.optimizer;
}

static double percent(double part, const struct plan_found *f)
{
    return 100 * part / f->time.seconds;
}

static void say_ddp(FILE *f, const struct plan_found *found, const struct plan_found *whole, const struct plan_shape *s)
{
    char a[OUT_NUMBER];
    fprintf(f, "each worker holds all %s of parameters, gradients and optimizer state; sums of gradients take %.1f %%",
            bytes_text(state_bytes(found), a), percent(found->time.grads, found));
}

/* "optimizer state from 50.2 GiB to 6.3 GiB" */
static void say_less(FILE *f, const char *what, double before, double after)
{
    char a[OUT_NUMBER], b[OUT_NUMBER];
    fprintf(f, "%s from %s to %s", what, bytes_text(before, a), bytes_text(after, b));
}

static void say_zero1(FILE *f, const struct plan_found *found, const struct plan_found *whole,
                      const struct plan_shape *s)
{
    say_less(f, "divides the optimizer state", whole->bytes.optimizer, found->bytes.optimizer);
    fprintf(f, "; communication takes %.1f %%", percent(planning_comm(&found->time), found));
}

static void say_zero2(FILE *f, const struct plan_found *found, const struct plan_found *whole,
                      const struct plan_shape *s)
{
    say_less(f, "divides gradients too", whole->bytes.grads, found->bytes.grads);
    fprintf(f, ", and reduces them in each microbatch (of %.0f): communication takes %.1f %%",
            plan_layout_micros(s, &found->layout), percent(planning_comm(&found->time), found));
}

static void say_zero3(FILE *f, const struct plan_found *found, const struct plan_found *whole,
                      const struct plan_shape *s)
{
    say_less(f, "divides parameters too", whole->bytes.params, found->bytes.params);
    fprintf(f, ", and gathers each layer twice in each microbatch (of %.0f): communication takes %.1f %%",
            plan_layout_micros(s, &found->layout), percent(planning_comm(&found->time), found));
}

static void say_tp(FILE *f, const struct plan_found *found, const struct plan_found *whole, const struct plan_shape *s)
{
    fprintf(f, "cuts each matrix over %" PRId64 " workers: ", found->layout.tp);
    say_less(f, "state", state_bytes(whole), state_bytes(found));
    fprintf(f, "; collectives of each layer take %.1f %%", percent(found->time.tp, found));
}

static void say_pp(FILE *f, const struct plan_found *found, const struct plan_found *whole, const struct plan_shape *s)
{
    fprintf(f, "puts %.0f layers on %" PRId64 " stages: ", s->layers, found->layout.pp);
    say_less(f, "state", state_bytes(whole), state_bytes(found));
    fprintf(f, "; the bubble takes %.1f %% with %.0f microbatches", percent(found->time.bubble, found),
            plan_layout_micros(s, &found->layout));
}

static void say_cp(FILE *f, const struct plan_found *found, const struct plan_found *whole, const struct plan_shape *s)
{
    fprintf(f,
            "cuts %.0f tokens over %" PRId64 " workers and divides activations only, not the %.1f GiB of state; the "
            "ring takes %.1f %%",
            s->seq, found->layout.cp, state_bytes(whole) / (1 << 30), percent(found->time.cp, found));
}

static void say_ep(FILE *f, const struct plan_found *found, const struct plan_found *whole, const struct plan_shape *s)
{
    fprintf(f, "divides %.0f experts over %" PRId64 " workers: ", s->experts, found->layout.ep);
    say_less(f, "parameters", whole->bytes.params, found->bytes.params);
    fprintf(f, "; the exchange of tokens takes %.1f %%", percent(found->time.ep, found));
}

static void say_3d(FILE *f, const struct plan_found *found, const struct plan_found *whole, const struct plan_shape *s)
{
    say_less(f, "tp and pp together divide the state", state_bytes(whole), state_bytes(found));
    fprintf(f, "; communication takes %.1f %%, the bubble %.1f %%", percent(planning_comm(&found->time), found),
            percent(found->time.bubble, found));
}

static const struct strategy strategies[] = {
    {"DDP", DP, DP, 0, "the model with its optimizer fits on one device; the least communication", say_ddp},
    {"ZeRO 1", DP | FSDP, FSDP, 1, "the optimizer state does not fit beside the rest; costs nothing more than DDP",
     say_zero1},
    {"ZeRO 2", DP | FSDP, FSDP, 2, "gradients do not fit either; they are reduced in every microbatch", say_zero2},
    {"ZeRO 3", DP | FSDP, FSDP, 3, "parameters do not fit; every layer is gathered when it is used", say_zero3},
    {"TP", DP | TP, TP, 0,
     "layers are wide and the links inside a node are fast; two collectives in each half of a layer", say_tp},
    {"PP", DP | PP, PP, 0, "links between nodes are slow; needs many microbatches, or stages idle", say_pp},
    {"CP", DP | CP, CP, 0, "sequences are so long that activations do not fit; keys and values go around a ring",
     say_cp},
    {"EP", DP | FSDP | EP, EP, 1, "a mixture's experts do not fit; tokens are exchanged in every such layer", say_ep},
    {"3D", DP | FSDP | TP | PP, MODEL, -1,
     "one axis alone is not enough: tp inside a node, pp between nodes, dp for the rest", say_3d},
};

#define N_STRATEGIES (sizeof(strategies) / sizeof(strategies[0]))

/* The best layout of a strategy, or the smallest where none fits. */
struct strategy_row {
    const struct strategy *s;
    bool any, fits;
    struct plan_found found;
};

struct strategies {
    const struct planning *p;
    struct strategy_row row[N_STRATEGIES];
    struct plan_found whole; /* each worker has everything */
    const struct strategy_row *best;
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

/* With 80 columns there is room for the memory by kind, which readers of --memory look for; titles are short for that.
 */
static const struct out_column columns[] = {{"NAME", false, 0},  {"PARAMS", true, 1}, {"GRADS", true, 1},
                                            {"OPTIM", true, 1},  {"ACTIV", true, 1},  {"ALL", true, 0},
                                            {"FITS", false, 0},  {"STEP", true, 2},   {"TOK/S", true, 4},
                                            {"BUBBLE", true, 5}, {"COMM", true, 3},   {"LAYOUT", false, OUT_CUT}};

static void set_bytes(struct out_table *t, int row, int column, double bytes)
{
    char a[OUT_NUMBER];
    out_table_set(t, row, column, "%s", out_bytes((int64_t)bytes, a));
}

static void add_row(struct out_table *t, const struct planning *p, const struct strategy_row *r)
{
    char a[OUT_NUMBER], text[256];
    const struct plan_found *f = &r->found;
    const int row = out_table_row(t);
    out_table_set(t, row, 0, "%s", r->s->name);
    if (!r->any) {
        out_table_set(t, row, 11, "not possible here");
        return;
    }
    set_bytes(t, row, 1, f->bytes.params);
    set_bytes(t, row, 2, f->bytes.grads);
    set_bytes(t, row, 3, f->bytes.optimizer);
    set_bytes(t, row, 4, f->bytes.activations + f->bytes.buffers);
    set_bytes(t, row, 5, f->bytes.total);
    out_table_set(t, row, 6, "%s", r->fits ? "yes" : "no");
    t->row_color[row] = r->fits ? OUT_GREEN : OUT_RED;
    out_table_set(t, row, 7, "%.4g s", f->time.seconds);
    out_table_set(t, row, 8, "%s", out_count(planning_tokens_per_s(p, &f->time), a));
    out_table_set(t, row, 9, "%.1f %%", 100 * f->time.bubble / f->time.seconds);
    out_table_set(t, row, 10, "%.1f %%", 100 * planning_comm(&f->time) / f->time.seconds);
    out_table_set(t, row, 11, "%s", planner_layout_text(&f->layout, text, sizeof(text)));
}

/* Why there is no layout of a strategy. */
static const char *missing_text(const struct strategies *s, const struct strategy *of)
{
    const struct plan_shape *shape = &s->p->shape;
    if ((of->needed & EP) && !shape->experts)
        return "not possible: the model has no experts";
    if (s->p->search.workers == 1)
        return "not possible: there is one worker; --nodes takes more of them";
    return "not possible: no size of the axis divides both the model or its batch and the workers";
}

/* A smaller part than this prints as 0.0 %. */
#define AS_FAST 5e-4

static void print_verdict(FILE *f, const struct strategies *s, const struct strategy_row *r)
{
    char a[OUT_NUMBER];
    const double slower = r->fits ? r->found.time.seconds / s->best->found.time.seconds - 1 : 0;
    if (!r->fits)
        fprintf(f, "; needs %s more than there is", bytes_text(r->found.bytes.total - s->p->search.memory, a));
    else if (r == s->best)
        fprintf(f, "; fits, and is the fastest");
    else if (slower < AS_FAST)
        fprintf(f, "; fits, as fast as %s", s->best->s->name);
    else
        fprintf(f, "; fits, %.1f %% slower than %s", 100 * slower, s->best->s->name);
}

static void print_sentence(FILE *f, const struct strategies *s, const struct strategy_row *r)
{
    if (!r->any) {
        fprintf(f, "%s", missing_text(s, r->s));
        return;
    }
    r->s->say(f, &r->found, &s->whole, &s->p->shape);
    print_verdict(f, s, r);
}

static char *sentence_new(const struct strategies *s, const struct strategy_row *r)
{
    char *text = NULL;
    size_t len;
    FILE *f = open_memstream(&text, &len);
    if (!f)
        return NULL;
    print_sentence(f, s, r);
    if (fclose(f) == 0)
        return text;
    free(text);
    return NULL;
}

static json_t *row_json(const struct strategies *s, const struct strategy_row *r)
{
    json_t *row = r->any ? planning_found_json(s->p, &r->found) : json_object();
    char *text = sentence_new(s, r);
    json_object_set_new(row, "strategy", json_string(r->s->name));
    json_object_set_new(row, "when", json_string(r->s->when));
    json_object_set_new(row, "reason", text ? json_string(text) : NULL);
    json_object_set_new(row, "fits", json_boolean(r->fits));
    free(text);
    return row;
}

static err_t print_json(struct global *g, const struct strategies *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < N_STRATEGIES; i++)
        json_array_append_new(list, row_json(s, &s->row[i]));
    return out_json(list, g->format == OUT_JSONL);
}

static void print_header(const struct planning *p, const struct job_spec *job)
{
    char a[OUT_NUMBER], b[OUT_NUMBER];
    printf("job %s, %s parameters, on %s: %" PRId64 " workers with %s each\n", job->name,
           out_count(plan_shape_params(&p->shape, NULL), a), p->machine.name, p->search.workers,
           out_bytes((int64_t)p->search.memory, b));
}

/* The strategies are sorted by what they ask of a reader, so the first that fits is the simplest. */
static void print_advice(FILE *f, const struct strategies *s)
{
    const struct strategy_row *simple = NULL;
    int fits = 0;
    for (size_t i = N_STRATEGIES; i-- > 0;)
        if (s->row[i].fits) {
            simple = &s->row[i];
            fits++;
        }
    if (!simple)
        fprintf(f, "None fits: take more --nodes, or a --machine with more memory; --search shows what is enough\n");
    else if (fits == 1)
        fprintf(f, "Take %s: no other one fits\n", simple->s->name);
    else if (simple == s->best || s->best->found.time.seconds > 0.95 * simple->found.time.seconds)
        fprintf(f, "Take %s: it is the simplest that fits, and none is more than 5 %% faster\n", simple->s->name);
    else
        fprintf(f, "Take %s: it is %.0f %% faster than %s, the simplest that fits\n", s->best->s->name,
                100 * (1 - s->best->found.time.seconds / simple->found.time.seconds), simple->s->name);
}

static void print_text(const struct strategies *s, const struct job_spec *job)
{
    struct out_table t;
    struct out_page page;
    print_header(s->p, job);
    out_table_init(&t, columns, sizeof(columns) / sizeof(columns[0]));
    for (size_t i = 0; i < N_STRATEGIES; i++)
        add_row(&t, s->p, &s->row[i]);
    out_table_print(&t, stdout, 6);
    out_table_fini(&t);
    out_page_begin(&page);
    fprintf(page.f,
            "When to use which, for this job (percentages are parts of the step that computation does not hide):\n");
    for (size_t i = 0; i < N_STRATEGIES; i++) {
        fprintf(page.f, "  %-10s ", s->row[i].s->name);
        print_sentence(page.f, s, &s->row[i]);
        fputc('\n', page.f);
    }
    print_advice(page.f, s);
    fprintf(page.f, "Times are estimates; rates: %s\n", s->p->machine.source);
    out_page_end(&page, stdout);
}

/* What each worker would hold with data parallelism alone, with a microbatch of one sample. */
static void whole_find(struct planning *p, struct plan_found *ret)
{
    const struct plan_layout l = {.dp = p->search.workers,
                                  .fsdp = 1,
                                  .tp = 1,
                                  .cp = 1,
                                  .pp = 1,
                                  .ep = 1,
                                  .chunks = 1,
                                  .micro_batch = 1,
                                  .schedule = PIPE_1F1B};
    ret->layout = l;
    plan_step_bytes(&p->shape, &l, &ret->bytes);
    plan_step_time(&p->shape, &l, &p->machine, &p->search.overlap, &ret->time);
}

static err_t strategies_find(struct planning *p, struct strategies *ret)
{
    err_t err = OK;
    ret->p = p;
    whole_find(p, &ret->whole);
    for (size_t i = 0; !err && i < N_STRATEGIES; i++) {
        struct plan_results r = {0};
        struct strategy_row *row = &ret->row[i];
        p->search.allow = belongs;
        p->search.allow_arg = row->s = &strategies[i];
        err = plan_search(&p->search, &r);
        row->fits = r.n_fit > 0;
        row->any = r.n_fit || r.n_unfit;
        if (row->any)
            row->found = row->fits ? r.fit[0] : r.unfit[0];
        if (row->fits && (!ret->best || row->found.time.seconds < ret->best->found.time.seconds))
            ret->best = row;
        plan_results_fini(&r);
    }
    return err;
}

static err_t draw(const struct strategies *s, const char *path, const struct job_spec *job, struct why *why)
{
    struct picture_strategy list[N_STRATEGIES];
    for (size_t i = 0; i < N_STRATEGIES; i++)
        list[i] = (struct picture_strategy){s->row[i].s->name, s->row[i].any ? &s->row[i].found : NULL, s->row[i].fits};
    return planner_picture_strategies(path, s->p, job, list, N_STRATEGIES, why);
}

err_t planner_strategies(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why)
{
    struct planning p;
    struct strategies s = {0};
    err_t err = planning_init(&p, a, job, why);
    if (err)
        return err;
    err = strategies_find(&p, &s);
    if (!err && g->format != OUT_TEXT)
        err = print_json(g, &s);
    else if (!err)
        print_text(&s, job);
    if (!err && a->picture)
        err = draw(&s, a->picture, job, why);
    planning_fini(&p);
    return err;
}
