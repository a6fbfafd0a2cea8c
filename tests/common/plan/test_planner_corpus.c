/* The closed form against steps that others measured (tests/plan-corpus). The constants are those of the machine files,
 * from data sheets and from measurements of single operations; none was fitted to the rows that it is judged by. One
 * exception is stated: how long Megatron of 2022 takes to issue an operation from Python (device.call_us) was chosen on
 * the rows of vtrain-single with a hidden size of 1024, which are reported, and judged on all others.
 *
 * DTD_CORPUS_TABLE=1 prints the rows of docs/internals/planner.md. */
#include "common/base/file.h"
#include "common/plan/search/step_time.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>

#define MAX_ROWS 2048
#define MEGATRON_2022 "device.call_us=63"

struct row {
    struct plan_shape shape;
    struct plan_layout layout;
    double ms, predicted_ms;
};

struct corpus {
    struct row rows[MAX_ROWS];
    int n;
};

static void source_path(const char *file, char ret[4096])
{
    const char *source = getenv("DTD_SOURCE");
    if (!source)
        TEST_SKIP("DTD_SOURCE is not set");
    snprintf(ret, 4096, "%s/%s", source, file);
}

static void machine_load(const char *name, const char *set, const char *more, struct machine *ret)
{
    char file[128], path[4096];
    const char *sets[2] = {set, more};
    struct why why = {0};
    snprintf(file, sizeof(file), "deploy/machines/%s.yaml", name);
    source_path(file, path);
    err_t err = machine_read(path, sets, !!set + !!more, ret, &why);
    if (err)
        fail_msg("%s", why.text);
}

static void row_parse(char *line, struct row *ret)
{
    double x[20] = {0};
    char recompute[16] = "";
    char *at = line + strcspn(line, ",") + 1;
    for (int i = 0; i < 19; i++) {
        if (i == 15)
            snprintf(recompute, sizeof(recompute), "%.*s", (int)strcspn(at, ","), at);
        else
            x[i] = strtod(at, NULL);
        at += strcspn(at, ",") + 1;
    }
    const bool fused = x[17] > 0;
    *ret = (struct row){.shape = {.layers = x[0],
                                  .dim = x[1],
                                  .heads = x[2],
                                  .kv_heads = x[3],
                                  .head_dim = x[1] / x[2],
                                  .ffn = x[4],
                                  .ffn_matrices = x[5],
                                  .vocab = x[6],
                                  .seq = x[7],
                                  .global_batch = x[14],
                                  .tied = !fused,
                                  .fused_attention = fused,
                                  .dropout = !fused,
                                  .even_stages = true,
                                  .type_bytes = 2,
                                  .keep_bytes = 6,
                                  .state_bytes = 8,
                                  .grad_bytes = 4},
                        .layout = {.tp = (int64_t)x[9],
                                   .pp = (int64_t)x[10],
                                   .dp = (int64_t)x[11],
                                   .fsdp = 1,
                                   .cp = 1,
                                   .ep = 1,
                                   .chunks = (int64_t)x[12],
                                   .micro_batch = (int64_t)x[13],
                                   .sp = x[16] > 0,
                                   .schedule = x[12] > 1 ? PIPE_INTERLEAVED : PIPE_1F1B,
                                   .recompute = recompute[0] == 'f'   ? RECOMPUTE_FULL
                                                : recompute[0] == 'a' ? RECOMPUTE_ATTENTION
                                                                      : RECOMPUTE_NONE},
                        .ms = x[18]};
    assert_int_equal(plan_layout_workers(&ret->layout), (int64_t)x[8]);
}

static void corpus_load(const char *name, struct corpus *ret)
{
    char file[128], path[4096], *save = NULL;
    struct buf text = {0};
    snprintf(file, sizeof(file), "tests/plan-corpus/%s.csv", name);
    source_path(file, path);
    assert_ok(file_read(path, 1 << 20, &text));
    assert_ok(buf_append(&text, "", 1));
    ret->n = 0;
    for (char *line = strtok_r((char *)text.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (line[0] != '#' && strncmp(line, "source", 6) != 0 && ret->n < MAX_ROWS)
            row_parse(line, &ret->rows[ret->n++]);
    buf_fini(&text);
}

static void predict(struct corpus *c, const struct machine *m, const struct plan_overlap *overlap)
{
    for (int i = 0; i < c->n; i++) {
        struct plan_time t;
        plan_step_time(&c->rows[i].shape, &c->rows[i].layout, m, overlap, &t);
        c->rows[i].predicted_ms = t.seconds * 1e3;
    }
}

static bool all(const struct row *r)
{
    return r != NULL;
}

static bool small(const struct row *r)
{
    return r->shape.dim == 1024;
}

static bool large(const struct row *r)
{
    return r->shape.dim != 1024;
}

static bool in_node(const struct row *r)
{
    return r->layout.tp <= 8;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The mean absolute error in percent of the rows that `take` accepts. */
static double error_of(const struct corpus *c, const char *name, bool (*take)(const struct row *r))
{
    static double errors[MAX_ROWS];
    double sum = 0, bias = 0;
    int n = 0;
    for (int i = 0; i < c->n; i++) {
        const struct row *r = &c->rows[i];
        if (!take(r))
            continue;
        double e = 100 * (r->predicted_ms / r->ms - 1);
        errors[n++] = fabs(e);
        sum += fabs(e);
        bias += e;
    }
    assert_true(n > 0);
    qsort(errors, (size_t)n, sizeof(*errors), by_size);
    if (getenv("DTD_CORPUS_TABLE"))
        printf("| %s | %d | %.1f | %.1f | %.1f | %.1f | %+.1f |\n", name, n, sum / n, errors[n / 2], errors[n * 9 / 10],
               errors[n - 1], bias / n);
    return sum / n;
}

static bool same_sweep(const struct row *a, const struct row *b)
{
    return a->shape.dim == b->shape.dim && a->shape.layers == b->shape.layers &&
           a->shape.global_batch == b->shape.global_batch &&
           plan_layout_workers(&a->layout) == plan_layout_workers(&b->layout);
}

/* Of each sweep (same model, batch and GPUs) the layout with the least predicted time: how much slower it was measured
 * than the fastest. The mean in percent; sweeps of fewer than 4 layouts are left out. */
static double regret_of(const struct corpus *c, const char *name)
{
    double sum = 0, worst = 0;
    int sweeps = 0;
    for (int i = 0; i < c->n; i++) {
        const struct row *first = &c->rows[i], *chosen = first;
        double best = first->ms;
        int n = 0;
        bool seen = false;
        for (int k = 0; k < c->n; k++) {
            const struct row *r = &c->rows[k];
            if (!same_sweep(first, r))
                continue;
            seen |= k < i;
            n++;
            best = fmin(best, r->ms);
            chosen = r->predicted_ms < chosen->predicted_ms ? r : chosen;
        }
        if (seen || n < 4)
            continue;
        sum += 100 * (chosen->ms / best - 1);
        worst = fmax(worst, 100 * (chosen->ms / best - 1));
        sweeps++;
    }
    if (getenv("DTD_CORPUS_TABLE"))
        printf("| %s: regret | %d sweeps | %.2f | | | %.1f | |\n", name, sweeps, sum / sweeps, worst);
    return sum / sweeps;
}

static struct corpus corpus;

TEST(vtrain_multi_node)
{
    const struct plan_overlap none = {0};
    struct machine m;
    machine_load("a100", MEGATRON_2022, "network.bandwidth_gb=100", &m);
    corpus_load("vtrain-multi", &corpus);
    predict(&corpus, &m, &none);
    assert_true(error_of(&corpus, "vTrain, 64 to 512 A100", all) <= 10);
    error_of(&corpus, "of them tp <= 8", in_node);
    assert_true(regret_of(&corpus, "vTrain, 64 to 512 A100") <= 2);
    machine_fini(&m);
}

TEST(vtrain_single_node)
{
    const struct plan_overlap none = {0};
    struct machine m;
    machine_load("a100", MEGATRON_2022, NULL, &m);
    corpus_load("vtrain-single", &corpus);
    predict(&corpus, &m, &none);
    error_of(&corpus, "vTrain, 2 to 8 A100: hidden 1024 (in-sample)", small);
    assert_true(error_of(&corpus, "vTrain, 2 to 8 A100: hidden 2048", large) <= 12);
    assert_true(error_of(&corpus, "both", all) <= 10);
    regret_of(&corpus, "vTrain, 2 to 8 A100");
    machine_fini(&m);
}

TEST(megatron_on_selene)
{
    const struct plan_overlap none = {0};
    struct machine m;
    machine_load("a100", MEGATRON_2022, NULL, &m);
    corpus_load("megatron", &corpus);
    predict(&corpus, &m, &none);
    assert_true(error_of(&corpus, "Korthikanti, 8 to 512 A100", all) <= 10);
    corpus_load("narayanan", &corpus);
    predict(&corpus, &m, &none);
    assert_true(error_of(&corpus, "Narayanan, 32 to 3072 A100", all) <= 10);
    machine_fini(&m);
}

TEST(llama_3)
{
    const struct plan_overlap streams = {true, true, true};
    struct machine m;
    machine_load("h100", NULL, NULL, &m);
    corpus_load("llama3", &corpus);
    predict(&corpus, &m, &streams);
    error_of(&corpus, "Llama 3 405B, 8192 and 16384 H100", all);
    /* Calibrated on 8192 GPUs by one factor, the step on 16384 is predicted. */
    double factor = corpus.rows[0].ms / corpus.rows[0].predicted_ms;
    double error = 100 * (factor * corpus.rows[1].predicted_ms / corpus.rows[1].ms - 1);
    if (getenv("DTD_CORPUS_TABLE"))
        printf("| Llama 3: 16384 after calibration on 8192 | 1 | %.1f | | | | %+.1f |\n", fabs(error), error);
    assert_true(fabs(error) <= 8);
    machine_fini(&m);
}
