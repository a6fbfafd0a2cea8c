/* The closed form against steps that others measured (tests/plan-corpus). The constants are those of the machine files,
 * from data sheets and from measurements of single operations; none was fitted to the rows that it is judged by. One
 * exception is stated: how long Megatron of 2022 takes to issue an operation from Python (device.call_us) was chosen on
 * the rows of vtrain-single with a hidden size of 1024, which are reported, and judged on all others.
 *
 * DTD_CORPUS_TABLE=1 prints the rows of docs/internals/planner.md, and `tests/docs/corpus --update . PROGRAM` writes
 * them into it. DTD_CORPUS_ROWS=1 prints each row of a corpus with the parts of its forecast. */
#include "common/base/file.h"
#include "common/plan/search/step_time.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>

#define MAX_ROWS 2048
#define MEGATRON_2022 "device.call_us=58"

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

/* What the programs of the corpora move in memory, from their sources, in bytes.
 *
 * Megatron's optimizer: gradients become float32 (6), are unscaled (8), measured (4) and clipped (8); Adam reads 16 and
 * writes 12; the parameters are copied to float16 (6), gradients zeroed (2) and divided by the number of replicas (4).
 * DeepSpeed: overflow check in float32 (10), float32 copy (6), flat copy (8), norm (4), unscaling (8), Adam (28), copy
 * to float16 (6), and around the reduction flat copy, division and copy back (12). Both sum gradients of 2 bytes
 * (DeepSpeed; Megatron without --accumulate-allreduce-grads-in-fp32) and add those of a further microbatch by a kernel
 * of its own (read twice, written once), which Megatron of 2022 fuses into the product. Megatron's loss converts logits
 * to float32 and makes 5 passes over them forward and 3 backward. */
struct program {
    const char *source;
    double grad_bytes, update_bytes, accumulate_bytes, loss_bytes;
};

static const struct program programs[] = {
    {"vtrain", 2, 82, 6, 60},
    {"narayanan", 2, 66, 6, 60},
    {"korthikanti", 4, 66, 0, 60},
    {"llama3", 4, 0, 0, 0},
};

static const struct program *program_of(const char *line)
{
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)
        if (strncmp(line, programs[i].source, strcspn(line, ",")) == 0)
            return &programs[i];
    fail_msg("%.20s: no program has this name", line);
    return NULL;
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
    const struct program *p = program_of(line);
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
                                  .grad_bytes = p->grad_bytes,
                                  .update_bytes = p->update_bytes,
                                  .accumulate_bytes = p->accumulate_bytes,
                                  .loss_bytes = p->loss_bytes},
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

/* A row of a sheet for the study of errors: the layout, the times in ms, and the forecast's parts. */
static void row_print(const struct row *r, const struct plan_time *t)
{
    const struct plan_layout *l = &r->layout;
    printf("row,%.0f,%.0f,%.0f,%d,%d,%d,%d,%d,%d,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f,%.1f\n", r->shape.dim,
           r->shape.layers, r->shape.global_batch, (int)plan_layout_workers(l), (int)l->tp, (int)l->pp, (int)l->dp,
           (int)l->micro_batch, (int)l->recompute, r->ms, r->predicted_ms, t->compute * 1e3, t->tp * 1e3, t->pp * 1e3,
           t->bubble * 1e3, t->params * 1e3, t->grads * 1e3, t->update * 1e3);
}

static void predict(struct corpus *c, const struct machine *m, const struct plan_overlap *overlap)
{
    for (int i = 0; i < c->n; i++) {
        struct plan_time t;
        plan_step_time(&c->rows[i].shape, &c->rows[i].layout, m, overlap, &t);
        c->rows[i].predicted_ms = t.seconds * 1e3;
        if (getenv("DTD_CORPUS_ROWS"))
            row_print(&c->rows[i], &t);
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

static bool keeps_most(const struct row *r)
{
    return r->layout.recompute == RECOMPUTE_ATTENTION;
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
        printf("time| %s | %d | %.1f | %.1f | %.1f | %.1f | %+.1f |\n", name, n, sum / n, errors[n / 2],
               errors[n * 9 / 10], errors[n - 1], bias / n);
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
        printf("regret| %s | %d | %.1f | %.1f |\n", name, sweeps, sum / sweeps, worst);
    return sum / sweeps;
}

static struct corpus corpus;

TEST(vtrain_multi_node)
{
    const struct plan_overlap none = {.cut_messages = true};
    struct machine m;
    machine_load("a100", MEGATRON_2022, "network.bandwidth_gb=100", &m);
    corpus_load("vtrain-multi", &corpus);
    predict(&corpus, &m, &none);
    assert_true(error_of(&corpus, "vTrain, 64 to 512 A100", all) <= 8);
    assert_true(error_of(&corpus, "of them tp <= 8", in_node) <= 8);
    assert_true(regret_of(&corpus, "vTrain, 64 to 512 A100") <= 2);
    machine_fini(&m);
}

TEST(vtrain_single_node)
{
    const struct plan_overlap none = {.cut_messages = true};
    struct machine m;
    machine_load("a100", MEGATRON_2022, NULL, &m);
    corpus_load("vtrain-single", &corpus);
    predict(&corpus, &m, &none);
    error_of(&corpus, "vTrain, 2 to 8 A100: hidden 1024 (in-sample)", small);
    assert_true(error_of(&corpus, "vTrain, 2 to 8 A100: hidden 2048", large) <= 10);
    assert_true(error_of(&corpus, "both", all) <= 8);
    regret_of(&corpus, "vTrain, 2 to 8 A100");
    machine_fini(&m);
}

TEST(megatron_on_selene)
{
    const struct plan_overlap none = {.cut_messages = true};
    struct machine m;
    machine_load("a100", MEGATRON_2022, NULL, &m);
    corpus_load("megatron", &corpus);
    predict(&corpus, &m, &none);
    assert_true(error_of(&corpus, "Korthikanti, 8 to 512 A100", all) <= 3.5);
    corpus_load("narayanan", &corpus);
    predict(&corpus, &m, &none);
    assert_true(error_of(&corpus, "Narayanan, 32 to 3072 A100", all) <= 5);
    machine_fini(&m);
}

/* Korthikanti et al. 2022, table 4 (as GiB in Calculon's validator): activations of the first stage with selective
 * recomputation and sequence parallelism. */
TEST(activations_of_megatron)
{
    static const double gib[] = {9.56, 12.35, 23.08, 26.56};
    double sum = 0;
    int n = 0;
    corpus_load("megatron", &corpus);
    for (int i = 0; i < corpus.n; i++) {
        struct plan_bytes b;
        if (!keeps_most(&corpus.rows[i]))
            continue;
        plan_step_bytes(&corpus.rows[i].shape, &corpus.rows[i].layout, &b);
        sum += fabs(b.activations / (1 << 30) / gib[n++] - 1);
    }
    assert_int_equal(n, 4);
    if (getenv("DTD_CORPUS_TABLE"))
        printf("memory| Korthikanti: activations of the first stage | %d | %.1f |\n", n, 100 * sum / n);
    assert_true(sum / n <= 0.02);
}

TEST(llama_3)
{
    const struct plan_overlap streams = {.gradients = true, .parameters = true, .messages = true};
    struct machine m;
    machine_load("h100", NULL, NULL, &m);
    corpus_load("llama3", &corpus);
    predict(&corpus, &m, &streams);
    error_of(&corpus, "Llama 3 405B, 8192 and 16384 H100", all);
    /* Calibrated on 8192 GPUs by one factor, the step on 16384 is predicted. */
    double factor = corpus.rows[0].ms / corpus.rows[0].predicted_ms;
    double error = 100 * (factor * corpus.rows[1].predicted_ms / corpus.rows[1].ms - 1);
    if (getenv("DTD_CORPUS_TABLE"))
        printf("time| Llama 3: 16384 after calibration on 8192 | 1 | %.1f | | | | %+.1f |\n", fabs(error), error);
    assert_true(fabs(error) <= 2);
    machine_fini(&m);
}
