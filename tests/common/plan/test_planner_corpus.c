/* The closed form against steps that others measured (tests/plan-corpus). The constants are those of the machine files,
 * from data sheets and from measurements of single operations; none was fitted to the rows that it is judged by. One
 * exception is stated: how long Megatron of 2022 takes to issue an operation from Python (device.call_us) was chosen on
 * the rows of vtrain-single with a hidden size of 1024, which are reported, and judged on all others.
 *
 * DTD_CORPUS_TABLE=1 prints the rows of docs/internals/planner.md, and `tests/docs/corpus --update . PROGRAM` writes
 * them into it. DTD_CORPUS_ROWS=1 prints each row of a corpus with the parts of its forecast. */
#include "common/base/file.h"
#include "common/plan/search/interval.h"
#include "common/plan/search/step_time.h"
#include "tests/lib/test.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#define MAX_ROWS 2048
#define MEGATRON_2022 "device.call_us=58"

struct row {
    struct plan_shape shape;
    struct plan_layout layout;
    double ms, predicted_ms, gib, states_gib;
    bool once_per_node;
    bool exchanges; /* all-to-alls of experts run beside the computation of another microbatch */
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
    double keep_bytes, grad_bytes, update_bytes, accumulate_bytes, loss_bytes;
    bool even_stages;
};

static const struct program programs[] = {
    {"vtrain", 6, 2, 82, 6, 60, true}, {"narayanan", 6, 2, 66, 6, 60, true}, {"korthikanti", 6, 4, 66, 0, 60, true},
    {"llama3", 6, 4, 0, 0, 0, true},   {"simumax", 4, 4, 66, 0, 0, true},    {"megatron", 4, 4, 66, 0, 60, true},
    {"mpt", 4, 4, 66, 0, 60, true},    {"qwen3", 4, 4, 66, 0, 0, false},
};

static const struct program *program_of(const char *line)
{
    for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)
        if (strncmp(line, programs[i].source, strcspn(line, ",")) == 0)
            return &programs[i];
    fail_msg("%.20s: no program has this name", line);
    return NULL;
}

/* A column of a file; its header names it. An absent one has the value of `absent`. */
enum column {
    LAYERS,
    DIM,
    HEADS,
    KV_HEADS,
    HEAD_DIM,
    FFN,
    FFN_MATRICES,
    VOCAB,
    SEQ,
    EXPERTS,
    EXPERTS_PER_TOKEN,
    EXPERT_FFN,
    EXPERT_LAYERS,
    WORKERS,
    TP,
    CP,
    EP,
    PP,
    DP,
    FSDP,
    ZERO,
    CHUNKS,
    MICRO_BATCH,
    BATCH,
    SP,
    TIED,
    DROPOUT,
    STATES,
    RESHARD,
    FUSED,
    OVERLAP,
    DEDUPLICATED,
    MS,
    GIB,
    N_COLUMNS,
};

static const struct {
    const char *name;
    double absent;
} columns[N_COLUMNS] = {
    [LAYERS] = {"layers", 0},
    [DIM] = {"dim", 0},
    [HEADS] = {"heads", 0},
    [KV_HEADS] = {"kv_heads", 0},
    [HEAD_DIM] = {"head_dim", 0},
    [FFN] = {"ffn", 0},
    [FFN_MATRICES] = {"ffn_matrices", 0},
    [VOCAB] = {"vocab", 0},
    [SEQ] = {"seq", 0},
    [EXPERTS] = {"experts", 0},
    [EXPERTS_PER_TOKEN] = {"experts_per_token", 0},
    [EXPERT_FFN] = {"expert_ffn", 0},
    [EXPERT_LAYERS] = {"expert_layers", 0},
    [WORKERS] = {"workers", 0},
    [TP] = {"tp", 1},
    [CP] = {"cp", 1},
    [EP] = {"ep", 1},
    [PP] = {"pp", 1},
    [DP] = {"dp", 1},
    [FSDP] = {"fsdp", 1},
    [ZERO] = {"zero", 0},
    [CHUNKS] = {"chunks", 1},
    [MICRO_BATCH] = {"micro_batch", 1},
    [BATCH] = {"batch", 0},
    [SP] = {"sp", 0},
    [TIED] = {"tied", -1},
    [DROPOUT] = {"dropout", -1},
    [STATES] = {"states", 0},
    [RESHARD] = {"reshard", 1},
    [FUSED] = {"fused", 0},
    [OVERLAP] = {"overlap", 0},
    [DEDUPLICATED] = {"deduplicated", 0},
    [MS] = {"ms", 0},
    [GIB] = {"gib", 0},
};

static const struct {
    const char *name;
    enum recompute recompute;
} recomputes[] = {{"none", RECOMPUTE_NONE},
                  {"attention", RECOMPUTE_ATTENTION},
                  {"pointwise", RECOMPUTE_POINTWISE},
                  {"full", RECOMPUTE_FULL}};

/* Reads the cells of a line that the header names. */
static void cells_parse(const char *header, const char *line, double x[N_COLUMNS], enum recompute *recompute)
{
    for (int i = 0; i < N_COLUMNS; i++)
        x[i] = columns[i].absent;
    for (const char *h = header, *at = line; *h; h += strcspn(h, ","), h += *h == ',') {
        size_t name = strcspn(h, ","), len = strcspn(at, ",");
        for (int i = 0; i < N_COLUMNS; i++)
            if (strlen(columns[i].name) == name && strncmp(columns[i].name, h, name) == 0)
                x[i] = strtod(at, NULL);
        for (size_t i = 0; name == 9 && strncmp(h, "recompute", 9) == 0 && i < 4; i++)
            if (strlen(recomputes[i].name) == len && strncmp(recomputes[i].name, at, len) == 0)
                *recompute = recomputes[i].recompute;
        at += len + (at[len] == ',');
    }
}

static void row_parse(const char *header, const char *line, struct row *ret)
{
    double x[N_COLUMNS];
    enum recompute recompute = RECOMPUTE_NONE;
    const struct program *p = program_of(line);
    cells_parse(header, line, x, &recompute);
    const bool fused = x[FUSED] > 0;
    *ret = (struct row){.shape = {.layers = x[LAYERS],
                                  .dim = x[DIM],
                                  .heads = x[HEADS],
                                  .kv_heads = x[KV_HEADS],
                                  .head_dim = x[HEAD_DIM] > 0 ? x[HEAD_DIM] : x[DIM] / x[HEADS],
                                  .ffn = x[FFN],
                                  .ffn_matrices = x[FFN_MATRICES],
                                  .vocab = x[VOCAB],
                                  .seq = x[SEQ],
                                  .experts = x[EXPERTS],
                                  .experts_per_token = x[EXPERTS_PER_TOKEN],
                                  .expert_ffn = x[EXPERT_FFN],
                                  .expert_layers = x[EXPERT_LAYERS],
                                  .global_batch = x[BATCH],
                                  .even_experts = true,
                                  .tied = x[TIED] < 0 ? !fused : x[TIED] > 0,
                                  .fused_attention = fused,
                                  .dropout = x[DROPOUT] < 0 ? !fused : x[DROPOUT] > 0,
                                  .even_stages = p->even_stages,
                                  .type_bytes = 2,
                                  .keep_bytes = p->keep_bytes,
                                  .state_bytes = 8,
                                  .grad_bytes = p->grad_bytes,
                                  .update_bytes = p->update_bytes,
                                  .accumulate_bytes = p->accumulate_bytes,
                                  .loss_bytes = p->loss_bytes},
                        .layout = {.tp = (int64_t)x[TP],
                                   .cp = (int64_t)x[CP],
                                   .pp = (int64_t)x[PP],
                                   .dp = (int64_t)x[DP],
                                   .fsdp = (int64_t)x[FSDP],
                                   .ep = (int64_t)x[EP],
                                   .zero = (int64_t)x[ZERO],
                                   .chunks = (int64_t)x[CHUNKS],
                                   .micro_batch = (int64_t)x[MICRO_BATCH],
                                   .sp = x[SP] > 0,
                                   .reshard = x[RESHARD] > 0,
                                   .schedule = x[CHUNKS] > 1 ? PIPE_INTERLEAVED : PIPE_1F1B,
                                   .recompute = recompute},
                        .ms = x[MS],
                        .gib = x[GIB],
                        .states_gib = x[STATES],
                        .once_per_node = x[DEDUPLICATED] > 0,
                        .exchanges = x[OVERLAP] > 0};
    assert_int_equal(plan_layout_workers(&ret->layout), (int64_t)x[WORKERS]);
}

static void corpus_load(const char *name, struct corpus *ret)
{
    char file[128], path[4096], *save = NULL;
    const char *header = NULL;
    struct buf text = {0};
    snprintf(file, sizeof(file), "tests/plan-corpus/%s.csv", name);
    source_path(file, path);
    assert_ok(file_read(path, 1 << 20, &text));
    assert_ok(buf_append(&text, "", 1));
    ret->n = 0;
    for (char *line = strtok_r((char *)text.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (strncmp(line, "source,", 7) == 0)
            header = line;
        else if (line[0] != '#' && header && ret->n < MAX_ROWS)
            row_parse(header, line, &ret->rows[ret->n++]);
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
    printf("more,%.1f,%.1f,%.1f\n", t->cp * 1e3, t->ep * 1e3, t->wait * 1e3);
}

static void predict(struct corpus *c, const struct machine *m, const struct plan_overlap *overlap)
{
    for (int i = 0; i < c->n; i++) {
        struct plan_overlap with = *overlap;
        struct plan_time t;
        with.exchanges = c->rows[i].exchanges;
        with.once_per_node = c->rows[i].once_per_node;
        plan_step_time(&c->rows[i].shape, &c->rows[i].layout, m, &with, &t);
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

static bool no_context(const struct row *r)
{
    return r->layout.cp == 1;
}

static bool context(const struct row *r)
{
    return r->layout.cp > 1;
}

/* What Megatron keeps otherwise: it has a rank's part of parameters and gradients once, this project's compiler twice,
 * and its optimizer's state is cut over cp too. */
static double megatron_bytes(const struct row *r)
{
    const struct plan_layout *l = &r->layout;
    struct plan_bytes b;
    plan_step_bytes(&r->shape, l, &b);
    double piece = b.optimizer / r->shape.state_bytes, cp = (double)l->cp;
    double twice = l->zero ? piece * (r->shape.type_bytes + r->shape.grad_bytes) : 0;
    double state = piece * (r->shape.state_bytes + r->shape.keep_bytes);
    return b.total - twice - state * (1 - 1 / cp);
}

static double memory_error(const struct corpus *c, const char *name, bool (*take)(const struct row *r))
{
    double sum = 0;
    int n = 0;
    for (int i = 0; i < c->n; i++)
        if (take(&c->rows[i])) {
            sum += 100 * fabs(megatron_bytes(&c->rows[i]) / (1 << 30) / c->rows[i].gib - 1);
            n++;
        }
    assert_true(n > 0);
    if (getenv("DTD_CORPUS_TABLE"))
        printf("memory| %s | %d | %.1f |\n", name, n, sum / n);
    return sum / n;
}

/* Llama models of few layers on 8 B200. Megatron also keeps gradients of weights in bfloat16 that no one reads while it
 * sums in float32, up to 5 GiB in these models, and buffers of the layer in work: the forecast is below each row. With
 * context parallelism its attention exchanges heads, not keys and values. */
TEST(few_layers_on_b200)
{
    const struct plan_overlap none = {0};
    struct machine m;
    machine_load("b200", NULL, NULL, &m);
    corpus_load("simumax", &corpus);
    predict(&corpus, &m, &none);
    assert_true(error_of(&corpus, "SimuMax, Llama on 8 B200", no_context) <= 10);
    error_of(&corpus, "SimuMax, with context parallelism", context);
    assert_true(memory_error(&corpus, "SimuMax, Llama on 8 B200", no_context) <= 6);
    assert_true(memory_error(&corpus, "SimuMax, with context parallelism", context) <= 7);
    machine_fini(&m);
}

/* The states without activations are what a rank has allocated between steps. */
TEST(memory_of_megatron)
{
    corpus_load("megatron-memory", &corpus);
    assert_true(memory_error(&corpus, "Megatron-LM, 7B with tp 4 on 8 H100", all) <= 7);
    struct row *r = &corpus.rows[0];
    struct plan_bytes b;
    plan_step_bytes(&r->shape, &r->layout, &b);
    double twice = b.optimizer / r->shape.state_bytes * (r->shape.type_bytes + r->shape.grad_bytes);
    double states = (b.params + b.grads + b.optimizer - twice) / (1 << 30);
    assert_true(fabs(states / r->states_gib - 1) < 0.03);
}

/* Five layouts of one job. The order of the first four is right and the fastest one is found. The last one was measured
 * with older software; its forecast is a third too low, and its source does not explain it. */
TEST(layouts_of_a_mixture)
{
    const struct plan_overlap streams = {.gradients = true, .parameters = true};
    struct machine m;
    machine_load("h100", NULL, NULL, &m);
    corpus_load("qwen3", &corpus);
    predict(&corpus, &m, &streams);
    error_of(&corpus, "Qwen3-235B-A22B, 256 H100", all);
    assert_true(regret_of(&corpus, "Qwen3-235B-A22B, 256 H100") <= 2);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 4; k++)
            if (corpus.rows[i].ms < corpus.rows[k].ms)
                assert_true(corpus.rows[i].predicted_ms < corpus.rows[k].predicted_ms);
    machine_fini(&m);
}

static bool short_seq(const struct row *r)
{
    return r->shape.seq <= 2048;
}

static bool long_seq(const struct row *r)
{
    return r->shape.seq > 2048;
}

/* The only rows with all parameters cut (FSDP). MPT's attention adds a bias and is a kernel of 2023: its longest
 * sequences, in which little else counts, take up to twice the forecast. */
TEST(mpt_with_fsdp)
{
    const struct plan_overlap streams = {.gradients = true, .parameters = true};
    struct machine h100, a100;
    machine_load("h100", NULL, NULL, &h100);
    machine_load("a100", NULL, NULL, &a100);
    corpus_load("mpt-h100", &corpus);
    predict(&corpus, &h100, &streams);
    assert_true(error_of(&corpus, "MPT with FSDP, 8 to 512 H100: up to 2,048 tokens", short_seq) <= 10);
    error_of(&corpus, "MPT with FSDP, 8 H100: 4,096 tokens and more", long_seq);
    corpus_load("mpt-a100", &corpus);
    predict(&corpus, &a100, &streams);
    assert_true(error_of(&corpus, "MPT with FSDP, 8 A100: up to 2,048 tokens", short_seq) <= 15);
    error_of(&corpus, "MPT with FSDP, 8 A100: 4,096 tokens and more", long_seq);
    machine_fini(&h100);
    machine_fini(&a100);
}

/* ---- the interval of a forecast ---- */

/* Ratios of measured to forecast times. */
static double ratios[MAX_ROWS];

static int ratios_add(const char *name, const char *machine, const char *more, const struct plan_overlap *overlap,
                      bool (*take)(const struct row *r), int n)
{
    struct machine m;
    machine_load(machine, strcmp(machine, "a100") == 0 ? MEGATRON_2022 : NULL, more, &m);
    corpus_load(name, &corpus);
    predict(&corpus, &m, overlap);
    for (int i = 0; i < corpus.n; i++)
        if (take(&corpus.rows[i]))
            ratios[n++] = corpus.rows[i].ms / corpus.rows[i].predicted_ms;
    machine_fini(&m);
    return n;
}

/* The default interval is the inner nine tenths of all rows out-of-sample, to two places. */
TEST(nine_of_ten_steps_are_in_the_interval)
{
    const struct plan_overlap cut = {.cut_messages = true}, none = {0};
    const struct plan_overlap streams = {.gradients = true, .parameters = true, .messages = true};
    struct machine m;
    machine_load("h100", NULL, NULL, &m);
    const struct plan_interval of = plan_forecast_interval(&m, 1), of_5 = plan_forecast_interval(&m, 5);
    int n = ratios_add("vtrain-multi", "a100", "network.bandwidth_gb=100", &cut, all, 0), inside = 0;
    n = ratios_add("vtrain-single", "a100", NULL, &cut, large, n);
    n = ratios_add("megatron", "a100", NULL, &cut, all, n);
    n = ratios_add("narayanan", "a100", NULL, &cut, all, n);
    n = ratios_add("llama3", "h100", NULL, &streams, all, n);
    n = ratios_add("mpt-h100", "h100", NULL, &streams, all, n);
    n = ratios_add("mpt-a100", "a100", NULL, &streams, all, n);
    n = ratios_add("simumax", "b200", NULL, &none, all, n);
    n = ratios_add("qwen3", "h100", NULL, &(struct plan_overlap){.gradients = true, .parameters = true}, all, n);
    qsort(ratios, (size_t)n, sizeof(*ratios), by_size);
    for (int i = 0; i < n; i++)
        inside += ratios[i] >= of.low && ratios[i] <= of.high;
    if (getenv("DTD_CORPUS_TABLE"))
        printf("interval| all rows out-of-sample | %d | %.2f | %.2f |\n", n, ratios[n / 20], ratios[n * 19 / 20]);
    assert_true(fabs(ratios[n / 20] - of.low) < 0.006 && fabs(ratios[n * 19 / 20] - of.high) < 0.006);
    assert_true(inside >= 0.89 * n);
    assert_true(fabs(of_5.low - 5 * of.low) < 1e-12 && fabs(of_5.high - 5 * of.high) < 1e-12);
    machine_fini(&m);
}

/* ---- collectives ---- */

struct reduction {
    char machine[8];
    int64_t ranks;
    double bytes, us;
};

static struct reduction reductions[256];

static int reductions_load(void)
{
    char path[4096], *save = NULL;
    struct buf text = {0};
    int n = 0;
    source_path("tests/plan-corpus/collectives.csv", path);
    assert_ok(file_read(path, 1 << 20, &text));
    assert_ok(buf_append(&text, "", 1));
    for (char *line = strtok_r((char *)text.data, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
        if (line[0] != '#' && n < 256 &&
            sscanf(line, "%7[^,],%" SCNd64 ",%lf,%lf", reductions[n].machine, &reductions[n].ranks,
                   &reductions[n].bytes, &reductions[n].us) == 4)
            n++;
    buf_fini(&text);
    return n;
}

static double reduction_error(const char *name, const char *machine, int64_t low, int64_t high, double least)
{
    static double errors[256];
    double sum = 0, bias = 0;
    struct machine m;
    int all_rows = reductions_load(), n = 0;
    machine_load(machine, NULL, NULL, &m);
    for (int i = 0; i < all_rows; i++) {
        const struct reduction *r = &reductions[i];
        if (strcmp(r->machine, machine) != 0 || r->ranks < low || r->ranks > high || r->bytes < least)
            continue;
        double e = 100 * (plan_collective_time(&m, PLAN_REDUCE, r->bytes, r->ranks, 1) * 1e6 / r->us - 1);
        errors[n++] = fabs(e);
        sum += fabs(e);
        bias += e;
    }
    assert_true(n > 0);
    qsort(errors, (size_t)n, sizeof(*errors), by_size);
    if (getenv("DTD_CORPUS_TABLE"))
        printf("collective| %s | %d | %.1f | %.1f | %+.1f |\n", name, n, sum / n, errors[n - 1], bias / n);
    machine_fini(&m);
    return sum / n;
}

TEST(reductions_that_others_measured)
{
    assert_true(reduction_error("2 to 8 A100 of a node, 1 MiB to 1 GiB", "a100", 2, 8, 0) <= 11);
    assert_true(reduction_error("8 H200, 32 KiB to 16 GiB (in-sample)", "h200", 8, 8, 0) <= 6);
    assert_true(reduction_error("8 B200, 32 KiB to 16 GiB (in-sample)", "b200", 8, 8, 0) <= 10);
    assert_true(reduction_error("4 x 8 B200 with EFA, 128 MiB to 16 GiB", "b200", 32, 32, 128 << 20) <= 20);
}
