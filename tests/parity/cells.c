/* The job of a cell, and the lists of cells. Only `legal` defines which values can be combined; a cell that the job
 * file's checks refuse would fail the test. */
#include "tests/parity/cells.h"

#define MAX_TEXT 64
#define MAX_SETS 56

static const char *const model_names[CELL_MODELS] = {"llama", "gpt2", "transformer", "mixture",
                                                     "qwen",  "olmo", "neox",        "gemma"};
static const char *const model_texts[CELL_MODELS] = {parity_llama, parity_gpt2,  parity_transformer, parity_llama,
                                                     parity_llama, parity_llama, parity_llama,       parity_llama};
static const char *const sp_names[] = {"", " sp", " sp async"};
static const char *const routing_names[] = {"", " sparse", " balance"};
static const char *const recompute_names[] = {"none", "full", "pointwise", "attention", "experts"};

int cell_workers(const struct cell *c)
{
    int n = 1;
    for (int i = CELL_DP; i <= CELL_CP; i++)
        n *= c->factor[i];
    return n;
}

static int experts_of(const struct cell *c)
{
    const bool uneven = c->factor[CELL_UNEVEN];
    return c->factor[CELL_ROUTING] == ROUTING_SPARSE ? 33 : uneven ? 9 : 11;
}

/* 0: the layout has no such value. */
static int ep_of(const struct cell *c)
{
    const int *f = c->factor;
    const struct mesh m = {.size = {f[CELL_PP], f[CELL_DP], f[CELL_FSDP], f[CELL_CP], f[CELL_TP]}};
    int ep = 1, most = f[CELL_FSDP] * f[CELL_CP] * f[CELL_TP];
    for (int left = f[CELL_EP]; left > 0 && ep <= most;)
        left -= mesh_fold_init(&m, ++ep, NULL, NULL);
    return ep <= most && ep <= experts_of(c) ? ep : 0;
}

static const struct job_schedule_row *schedule_of(const struct cell *c)
{
    return job_schedule_row((enum pipe_schedule)c->factor[CELL_SCHEDULE]);
}

static int chunks_of(const struct cell *c)
{
    return schedule_of(c)->most > 1 ? 2 : 1;
}

/* Every second cell has workers with a communication thread, which must not change any number. */
static bool has_comm_thread(const struct cell *c)
{
    int sum = 0;
    for (int i = 0; i < CELL_FACTORS; i++)
        sum += c->factor[i];
    return cell_workers(c) > 1 && sum % 2;
}

static bool has_capacity(const struct cell *c)
{
    return c->factor[CELL_UNEVEN] || c->factor[CELL_ROUTING] == ROUTING_BALANCE;
}

/* Of the cells with expert parallelism, those whose tokens are gathered: neither experts with a capacity nor borrowed
 * ones allow that. */
static bool gathers_tokens(const struct cell *c)
{
    const int *f = c->factor;
    const bool legal = f[CELL_EP] && !f[CELL_LOAD] && !has_capacity(c);
    return legal && (f[CELL_ZERO] + f[CELL_RECOMPUTE] + f[CELL_ROUTING] + f[CELL_CP]) % 2;
}

/* Of the other cells without balance, those that compute rows of experts again, in whole backwards. */
static bool has_rounds(const struct cell *c)
{
    const int *f = c->factor;
    const bool again = f[CELL_RECOMPUTE] == RECOMPUTE_FULL || f[CELL_RECOMPUTE] == RECOMPUTE_EXPERTS;
    const enum pipe_schedule s = (enum pipe_schedule)f[CELL_SCHEDULE];
    const bool whole = s == PIPE_1F1B || s == PIPE_GPIPE || s == PIPE_INTERLEAVED;
    return f[CELL_EP] && !f[CELL_LOAD] && again && whole && !gathers_tokens(c);
}

void cell_name(const struct cell *c, char *ret, size_t size)
{
    static const char *const axes[] = {"dp", "fsdp", "tp", "pp", "cp", "zero"};
    size_t at = (size_t)snprintf(ret, size, "%s", model_names[c->model]);
    for (int i = CELL_DP; i <= CELL_ZERO; i++)
        if (c->factor[i] > (i != CELL_ZERO))
            at += (size_t)snprintf(ret + at, size - at, " %s %d", axes[i], c->factor[i]);
    if (c->factor[CELL_TP] > 1)
        at += (size_t)snprintf(ret + at, size - at, "%s", sp_names[c->factor[CELL_SP]]);
    if (c->factor[CELL_PP] > 1)
        at += (size_t)snprintf(ret + at, size - at, " %s", schedule_of(c)->name);
    if (c->factor[CELL_RECOMPUTE])
        at += (size_t)snprintf(ret + at, size - at, " recompute %s", recompute_names[c->factor[CELL_RECOMPUTE]]);
    if (c->factor[CELL_EP])
        at += (size_t)snprintf(ret + at, size - at, " ep %d", ep_of(c));
    snprintf(ret + at, size - at, "%s%s%s%s",
             c->factor[CELL_LOAD] ? " balanced"
             : gathers_tokens(c)  ? " all-gather"
             : has_rounds(c)      ? " in rounds"
                                  : "",
             routing_names[c->factor[CELL_ROUTING]], c->factor[CELL_UNEVEN] ? " uneven" : "",
             has_comm_thread(c) ? " comm thread" : "");
}

/* The pipeline determines the number of the model's layers. */
static int layers_of(const struct cell *c)
{
    int stages = c->factor[CELL_PP] * chunks_of(c);
    return (stages < 2 ? 2 : stages) + (c->factor[CELL_UNEVEN] ? 1 : 0);
}

bool cell_same(const struct cell *a, const struct cell *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* The pipeline's factor stays, because it determines the number of layers; it is not the layout of one worker. */
struct cell cell_alone(const struct cell *c)
{
    struct cell one = {.model = c->model, .factor = {1, 1, 1, 1, 1}};
    one.factor[CELL_UNEVEN] = c->factor[CELL_UNEVEN];
    one.factor[CELL_ROUTING] = c->factor[CELL_ROUTING];
    one.factor[CELL_ZERO] = -layers_of(c);
    return one;
}

/* ---- job of a cell ---- */

struct sets {
    char text[MAX_SETS][MAX_TEXT];
    const char *list[MAX_SETS + 1];
    int n;
};

static void set_key(struct sets *s, const char *key, int64_t value)
{
    assert_true(s->n < MAX_SETS);
    snprintf(s->text[s->n], MAX_TEXT, "%s=%lld", key, (long long)value);
    s->list[s->n] = s->text[s->n];
    s->n++;
}

static void set_word(struct sets *s, const char *key, const char *value)
{
    assert_true(s->n < MAX_SETS);
    snprintf(s->text[s->n], MAX_TEXT, "%s=%s", key, value);
    s->list[s->n] = s->text[s->n];
    s->n++;
}

/* Every kind of router, with both losses, biases of the choice and shared experts; uneven: with the router of
 * DeepSeek-V3 and a first layer without experts. Numbers of experts that no degree divides. */
static void set_experts(struct sets *s, const struct cell *c)
{
    const bool uneven = c->factor[CELL_UNEVEN], sparse = c->factor[CELL_ROUTING] == ROUTING_SPARSE;
    const bool balance = c->factor[CELL_ROUTING] == ROUTING_BALANCE;
    set_key(s, "model.experts", experts_of(c));
    set_key(s, "model.experts_per_token", sparse ? 1 : 2);
    set_key(s, "model.expert_ffn", sparse ? 7 : uneven ? 11 : 12);
    set_key(s, "model.shared_experts", uneven ? 1 : 2);
    set_word(s, "model.shared_gate", uneven ? "false" : "true");
    set_word(s, "model.router", uneven ? "sigmoid" : "softmax");
    set_word(s, "model.router_norm", uneven && !sparse ? "true" : "false");
    set_key(s, "model.router_groups", uneven ? 3 : 1);
    set_key(s, "model.router_groups_kept", uneven ? 2 : 1);
    set_key(s, "model.router_group_best", uneven ? 2 : 1);
    set_key(s, "model.dense_layers", uneven);
    set_word(s, "model.aux_loss", balance ? "20" : "0.1");
    set_word(s, "model.aux_scope", uneven ? "micro_batch" : "sample");
    set_word(s, "model.z_loss", "0.01");
    set_word(s, "model.expert_bias", uneven ? "0.02" : "0.003");
    set_word(s, "model.expert_capacity", !has_capacity(c) ? "0" : uneven ? "0.9" : "1");
    set_word(s, "model.expert_drop", uneven || !balance ? "position" : "probability");
}

/* GPT-NeoX; uneven: Phi-2 with a layer that does not rotate. */
static void set_neox(struct sets *s, bool uneven)
{
    set_word(s, "model.norm", "layer");
    set_word(s, "model.branches", uneven ? "one_norm" : "parallel");
    set_word(s, "model.ffn_plain", "true");
    set_word(s, "model.activation", uneven ? "gelu" : "gelu_erf");
    set_word(s, "model.qkv_bias", "true");
    set_word(s, "model.out_bias", "true");
    set_word(s, "model.ffn_bias", "true");
    set_word(s, "model.head_bias", uneven ? "true" : "false");
    set_word(s, "model.rope_part", "0.67");
    set_word(s, "model.rope_layers", uneven ? "10" : "1");
}

/* Gemma 3 with the soft-cap of Gemma 2; uneven: Granite. */
static void set_gemma(struct sets *s, bool uneven)
{
    set_word(s, "model.embed_scale", "7");
    set_word(s, "model.score_scale", "0.25");
    set_word(s, "model.residual_scale", uneven ? "0.5" : "1");
    set_word(s, "model.logit_scale", uneven ? "0.25" : "1");
    if (uneven)
        return;
    set_word(s, "model.logit_cap", "3");
    set_word(s, "model.norm", "rms1");
    set_word(s, "model.norm_place", "both");
    set_word(s, "model.activation", "gelu");
    set_word(s, "model.qk_norm", "head");
    set_word(s, "model.rope_layers", "l1");
    set_word(s, "model.rope_local_theta", "100");
}

static void set_model(struct sets *s, const struct cell *c, int layers)
{
    const bool uneven = c->factor[CELL_UNEVEN], llama = model_texts[c->model] == parity_llama;
    set_key(s, "model.layers", layers);
    set_key(s, "model.dim", llama ? (uneven ? 36 : 48) : (uneven ? 30 : 32));
    set_key(s, "model.heads", llama ? (uneven ? 6 : 8) : (uneven ? 6 : 8));
    set_key(s, "model.kv_heads", llama ? (uneven ? 3 : 2) : 0);
    if (c->model == CELL_TRANSFORMER)
        set_word(s, "model.causal", uneven ? "true" : "false");
    else if (llama)
        set_key(s, "model.ffn", uneven ? 50 : 80);
    if (c->model == CELL_MIXTURE)
        set_experts(s, c);
    if (c->model == CELL_QWEN) {
        set_key(s, "model.head_dim", 10);
        set_word(s, "model.qkv_bias", "true");
        set_word(s, "model.qk_norm", "head");
        set_word(s, "model.rope_part", "0.6");
        set_word(s, "model.rope_type", uneven ? "llama3" : "yarn");
        set_word(s, "model.rope_factor", "4");
        set_word(s, "model.rope_original", "12");
        set_key(s, "model.window", uneven ? 5 : 9);
        set_key(s, "model.window_period", uneven ? 2 : 0);
        set_key(s, "model.window_from", uneven ? 0 : 1);
        set_word(s, "model.score_softcap", "1.5");
        set_word(s, "model.score_scale", "0.5");
    }
    if (c->model == CELL_OLMO) {
        set_word(s, "model.qk_norm", "whole");
        set_word(s, "model.norm_place", uneven ? "before" : "after");
    }
    if (c->model == CELL_NEOX)
        set_neox(s, uneven);
    if (c->model == CELL_GEMMA)
        set_gemma(s, uneven);
    set_key(s, "model.vocab", uneven ? 301 : 300);
    set_key(s, "train.seq", uneven ? 19 : 24);
}

static void set_layout(struct sets *s, const struct cell *c)
{
    const int *f = c->factor;
    set_key(s, "parallel.workers", cell_workers(c));
    set_key(s, "parallel.fsdp", f[CELL_FSDP]);
    set_key(s, "parallel.tp", f[CELL_TP]);
    set_key(s, "parallel.pp", f[CELL_PP]);
    set_key(s, "parallel.cp", f[CELL_CP]);
    set_key(s, "parallel.zero", f[CELL_ZERO]);
    set_word(s, "parallel.sp", f[CELL_SP] ? "true" : "false");
    set_word(s, "parallel.async_tp", f[CELL_SP] == 2 ? "true" : "false");
    set_word(s, "parallel.schedule", schedule_of(c)->name);
    set_key(s, "parallel.chunks", chunks_of(c));
    set_key(s, "parallel.ep", ep_of(c));
    set_word(s, "parallel.expert_load", f[CELL_LOAD] ? "balanced" : "routed");
    set_word(s, "parallel.expert_rows", !has_rounds(c) ? "0" : f[CELL_UNEVEN] ? "1.3" : "1");
    set_word(s, "parallel.dispatch", gathers_tokens(c) ? "all_gather" : "all_to_all");
    set_word(s, "parallel.recompute", recompute_names[f[CELL_RECOMPUTE]]);
    set_word(s, "run.comm_thread", has_comm_thread(c) || f[CELL_SP] == 2 ? "on" : "off");
}

void cell_init(const struct cell *c, const char *numerics, const char *dtype, struct parity_model *ret)
{
    struct sets s = {.n = 0};
    const bool alone = c->factor[CELL_ZERO] < 0;
    set_word(&s, "train.numerics", numerics);
    set_word(&s, "train.dtype", dtype);
    set_model(&s, c, alone ? -c->factor[CELL_ZERO] : layers_of(c));
    if (!alone)
        set_layout(&s, c);
    parity_model_init(ret, model_texts[c->model], s.list);
    if (!has_comm_thread(c)) /* a job file has async_tp on a CPU only with this thread; the bits do not depend on it */
        ret->job.run.comm_thread = COMM_THREAD_OFF;
}

/* ---- lists ---- */

void cells_fini(struct cells *c)
{
    free(c->list);
    *c = (struct cells){0};
}

static void add_cell(struct cells *c, const struct cell *x)
{
    for (int i = 0; i < c->n; i++)
        if (cell_same(&c->list[i], x))
            return;
    c->list = realloc(c->list, (size_t)(c->n + 1) * sizeof(*c->list));
    assert_non_null(c->list);
    c->list[c->n++] = *x;
}

/* The largest tensor parallelism that divides the heads: llama has 8 in 2 groups, or 6 in 3; gpt2 has 8 or 6. */
static int most_tp(const struct cell *c)
{
    return c->factor[CELL_UNEVEN] ? 6 : 8;
}

static bool legal(const struct cell *c)
{
    const int *f = c->factor;
    if (f[CELL_ZERO] && f[CELL_FSDP] == 1)
        return false;
    if (f[CELL_SP] && f[CELL_TP] == 1)
        return false;
    if (f[CELL_SCHEDULE] && f[CELL_PP] == 1)
        return false;
    if ((f[CELL_EP] || f[CELL_ROUTING]) && c->model != CELL_MIXTURE)
        return false;
    if (!ep_of(c) || (f[CELL_LOAD] && !f[CELL_EP]))
        return false;
    return f[CELL_TP] <= most_tp(c);
}

/* Whether the cell of this turn balances its experts: every second one, with every stage of ZeRO. */
static int balances(int turn)
{
    return (turn + turn / 4) % 2;
}

/* Sets the factors that are not axes to legal values that change from cell to cell. */
static struct cell with_choices(struct cell c, int turn)
{
    int *f = c.factor;
    f[CELL_ZERO] = f[CELL_FSDP] > 1 ? turn % 4 : 0;
    f[CELL_SP] = f[CELL_TP] > 1 ? (turn / 2 + 1) % 3 : 0;
    f[CELL_SCHEDULE] = f[CELL_PP] > 1 ? turn / 3 % PIPE_FILE : 0;
    f[CELL_RECOMPUTE] = turn % 5 < 2 ? 0 : turn / 5 % (c.model == CELL_MIXTURE ? 5 : 4);
    f[CELL_UNEVEN] = turn / 4 % 2;
    f[CELL_ROUTING] = c.model == CELL_MIXTURE ? turn / 7 % 3 : 0;
    f[CELL_EP] = c.model == CELL_MIXTURE ? 1 + turn % 3 : 0;
    while (f[CELL_EP] && !legal(&c))
        f[CELL_EP]--;
    f[CELL_LOAD] = f[CELL_EP] ? balances(turn) : 0;
    if (!legal(&c))
        f[CELL_UNEVEN] = 0;
    return c;
}

void cells_pairs(struct cells *c, enum cell_model model, int most)
{
    int turn = 0;
    for (int a = CELL_DP; a <= CELL_CP; a++)
        for (int b = a; b <= CELL_CP; b++)
            for (int x = 2; x <= most; x++)
                for (int y = a == b ? 1 : 2; x * y <= most && (a != b || y == 1); y++) {
                    struct cell one = {.model = model, .factor = {1, 1, 1, 1, 1}};
                    one.factor[b] = y;
                    one.factor[a] = x;
                    one = with_choices(one, turn++);
                    if (legal(&one))
                        add_cell(c, &one);
                }
}

void cells_schedule(struct cells *c, enum cell_model model, int schedule, int most)
{
    for (int turn = 0; turn < 4 * (CELL_CP + 1); turn++) {
        const int axis = turn / 4;
        struct cell one = {.model = model, .factor = {1, 1, 1, 1, 1}};
        one.factor[CELL_PP] = axis == CELL_PP ? 2 + turn % 4 : 2;
        if (axis != CELL_PP)
            one.factor[axis] = 2;
        one = with_choices(one, turn);
        one.factor[CELL_SCHEDULE] = schedule;
        one.factor[CELL_RECOMPUTE] = turn % 4;
        if (legal(&one) && cell_workers(&one) <= most)
            add_cell(c, &one);
    }
}

/* ---- triples ---- */

static const int values[CELL_FACTORS][8] = {
    {1, 2, 3},    {1, 2, 3},    {1, 2, 3}, {1, 2, 3}, {1, 2, 3}, {0, 1, 2, 3}, {0, 1, 2}, {0, 1, 2, 3, 4, 5, 6},
    {0, 1, 2, 3}, {0, 1, 2, 3}, {0, 1},    {0, 1, 2}, {0, 1}};
static const int n_values[CELL_FACTORS] = {3, 3, 3, 3, 3, 4, 3, PIPE_FILE, 4, 4, 2, 3, 2};

struct triple {
    int factor[3], value[3];
};

static bool has_triple(const struct cell *c, const struct triple *t)
{
    for (int i = 0; i < 3; i++)
        if (c->factor[t->factor[i]] != t->value[i])
            return false;
    return true;
}

/* Completes the triple to a legal cell; the other factors are drawn from `seed`. Returns false if no draw is legal. */
static bool complete_triple(const struct triple *t, int most, uint64_t seed, struct cell *c)
{
    for (int i = 0; i < CELL_FACTORS; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        c->factor[i] = values[i][(seed >> 33) % (uint64_t)n_values[i]];
    }
    for (int i = 0; t && i < 3; i++)
        c->factor[t->factor[i]] = t->value[i];
    static const int of_experts[] = {CELL_LOAD, CELL_EP, CELL_ROUTING};
    for (int i = 0; i < 3 && !legal(c); i++)
        if (!t || (t->factor[0] != of_experts[i] && t->factor[1] != of_experts[i] && t->factor[2] != of_experts[i]))
            c->factor[of_experts[i]] = 0;
    return legal(c) && cell_workers(c) <= most;
}

static int all_triples(struct triple *ret)
{
    int n = 0;
    for (int a = 0; a < CELL_FACTORS; a++)
        for (int b = a + 1; b < CELL_FACTORS; b++)
            for (int d = b + 1; d < CELL_FACTORS; d++)
                for (int i = 0; i < n_values[a] * n_values[b] * n_values[d]; i++)
                    ret[n++] = (struct triple){{a, b, d},
                                               {values[a][i % n_values[a]], values[b][i / n_values[a] % n_values[b]],
                                                values[d][i / n_values[a] / n_values[b]]}};
    return n;
}

/* Completes an open triple in several ways and returns the cell that covers most other triples. */
static bool best_cell(const struct triple *open, int n, int most, struct cell *best)
{
    int score = 0;
    for (uint64_t try = 0; try < 400; try++) {
        struct cell c = *best;
        int closes = 0;
        if (!complete_triple(&open[0], most, try * 977 + 13, &c))
            continue;
        for (int i = 0; i < n; i++)
            closes += has_triple(&c, &open[i]);
        if (closes > score) {
            score = closes;
            *best = c;
        }
    }
    return score > 0;
}

void cells_triples(struct cells *c, enum cell_model model, int most)
{
    struct triple *open = calloc(1 << 16, sizeof(*open));
    assert_non_null(open);
    int n = all_triples(open);
    while (n) {
        struct cell one = {.model = model};
        int left = 0;
        bool found = best_cell(open, n, most, &one);
        if (found)
            add_cell(c, &one);
        for (int i = 1; i < n; i++) /* the first is covered now, or cannot be */
            if (!found || !has_triple(&one, &open[i]))
                open[left++] = open[i];
        n = left;
    }
    free(open);
}

void cells_four_axes(struct cells *c, enum cell_model model)
{
    for (int without = CELL_DP; without <= CELL_CP; without++)
        for (int turn = 0; turn < 3; turn++) {
            struct cell one = {.model = model, .factor = {2, 2, 2, 2, 2}};
            one.factor[without] = 1;
            one = with_choices(one, 7 * without + 5 * turn + 1);
            if (legal(&one))
                add_cell(c, &one);
        }
}

/* Adds the cell with every value of ep above 1, and with `stages` stages of ZeRO, of which the first changes from cell
 * to cell; 4: all. */
static int add_folds(struct cells *c, struct cell one, int stages, int turn)
{
    for (int n = 1;; n++) {
        struct cell x = one;
        x.factor[CELL_EP] = n;
        if (!ep_of(&x))
            return turn;
        for (int k = 0; k < (one.factor[CELL_FSDP] > 1 ? stages : 1); k++, turn++) {
            x = with_choices(one, turn);
            x.factor[CELL_EP] = n;
            x.factor[CELL_LOAD] = balances(turn);
            x.factor[CELL_ZERO] = one.factor[CELL_FSDP] > 1 ? (k + (stages < 4 ? turn / stages : 0)) % 4 : 0;
            if (legal(&x))
                add_cell(c, &x);
        }
    }
}

void cells_five_axes(struct cells *c)
{
    int turn = 0;
    for (int without = CELL_DP; without <= CELL_CP; without++) {
        struct cell one = {.model = CELL_MIXTURE, .factor = {2, 2, 2, 2, 2}};
        one.factor[without] = 1;
        turn = add_folds(c, one, 3, turn);
    }
}

void cells_folds(struct cells *c, int most)
{
    int turn = 0;
    for (int i = 0; i < 3 * 3 * 3 * 3 * 3; i++) {
        struct cell one = {.model = CELL_MIXTURE,
                           .factor = {1 << i % 3, 1 << i / 3 % 3, 1 << i / 9 % 3, 1 << i / 27 % 3, 1 << i / 81}};
        if (cell_workers(&one) <= most)
            turn = add_folds(c, one, 4, turn);
    }
}
