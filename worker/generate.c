/* checkpoint -> spec, tokenizer, graph -> generation program -> parameters -> one token at a time
 *
 * Each token runs the whole window through the model: there is no cache of keys and values, and a position's result
 * does not depend on what stands behind it. Where positions are not learned the window is only as long as prompt and
 * answer need. Choosing is counter-based: the same seed gives the same text on every machine that rounds alike. */
#include "worker/generate.h"

#include "common/base/file.h"
#include "common/base/rng.h"
#include "common/ckpt/ckpt.h"
#include "common/data/data.h"
#include "worker/step/snapshot.h"

#include <inttypes.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ARENA ((size_t)64 << 20) /* what passes from the checkpoint to the engine at a time */

struct generator {
    const struct generate *ask;
    struct ckpt *ckpt;
    struct job_spec job;
    struct tokenizer *tokenizer;
    struct graph graph;
    struct dev *dev;
    struct engine engine;
    struct buf ids, text;
    int32_t *order;
};

/* ---- choosing ---- */

struct ranked {
    const float *logits;
};

static int by_logit(const void *a, const void *b, void *arg)
{
    const float *logits = ((const struct ranked *)arg)->logits;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    if (logits[x] != logits[y])
        return logits[x] > logits[y] ? -1 : 1;
    return (x > y) - (x < y);
}

static int32_t largest(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

int32_t generate_choose(const float *logits, int64_t n, const struct generate *g, int64_t position, int32_t *order)
{
    struct ranked r = {logits};
    int64_t k = g->top_k > 0 && g->top_k < n ? g->top_k : n;
    double top = (double)logits[largest(logits, n)], sum = 0.0;
    if (g->temperature <= 0.0)
        return largest(logits, n);
    for (int64_t i = 0; i < n; i++)
        order[i] = (int32_t)i;
    if (k < n)
        qsort_r(order, (size_t)n, sizeof(*order), by_logit, &r);
    for (int64_t i = 0; i < k; i++)
        sum += exp(((double)logits[order[i]] - top) / g->temperature);
    double left = rng_uniform(g->seed, rng_stream("generate"), (uint64_t)position) * sum;
    for (int64_t i = 0; i < k; i++) {
        left -= exp(((double)logits[order[i]] - top) / g->temperature);
        if (left < 0.0)
            return order[i];
    }
    return order[k - 1];
}

/* ---- the checkpoint ---- */

static err_t read_spec(struct generator *g, struct why *why)
{
    struct buf yaml = {0};
    err_t err = ckpt_small_file(g->ckpt, CKPT_JOB_FILE, &yaml, why);
    if (err == ERR_NOTFOUND)
        err = why_set(why, err, "%s has no %s: only checkpoints that dtd wrote say which model they are",
                      g->ask->checkpoint, CKPT_JOB_FILE);
    if (!err)
        err = job_parse(CKPT_JOB_FILE, (const char *)yaml.data, yaml.len, NULL, 0, &g->job, why);
    buf_fini(&yaml);
    return err;
}

static err_t read_tokenizer(struct generator *g, struct why *why)
{
    struct buf vocab = {0};
    if (g->job.data.tokenizer == TOKENIZER_BYTES)
        return tokenizer_bytes_new(&g->tokenizer);
    err_t err = ckpt_small_file(g->ckpt, CKPT_VOCAB_FILE, &vocab, why);
    if (!err)
        err =
            tokenizer_new_from(g->job.data.tokenizer, vocab.data, vocab.len, g->job.data.lowercase, &g->tokenizer, why);
    buf_fini(&vocab);
    return err;
}

/* An empty prompt begins behind the end of a line. */
static err_t read_prompt(struct generator *g, struct why *why)
{
    const char *prompt = g->ask->prompt;
    err_t err = tokenizer_encode(g->tokenizer, prompt, strlen(prompt), &g->ids);
    if (!err && g->ids.len == 0)
        err = tokenizer_encode(g->tokenizer, "\n", 1, &g->ids);
    return err ? why_set(why, err, "cannot encode the prompt: %s", err_text(err)) : OK;
}

/* The spec as one process needs it. */
static void adapt_spec(struct generator *g)
{
    struct job_train *t = &g->job.train;
    int64_t need = (int64_t)(g->ids.len / sizeof(int32_t)) + g->ask->tokens;
    struct job_parallel *p = &g->job.parallel;
    p->workers = p->fsdp = p->tp = p->pp = p->cp = p->ep = p->chunks = 1;
    p->zero = 0;
    p->recompute = RECOMPUTE_NONE;
    t->numerics = NUMERICS_FAST;
    t->dtype = DT_F32;
    if (g->job.model.vocab == 0)
        g->job.model.vocab = tokenizer_vocab(g->tokenizer);
    if (g->job.model.arch == ARCH_LLAMA && need < t->seq)
        t->seq = need;
}

/* Pieces first .. end-1 through the arena: a box of the checkpoint is dense, in the engine its rows may stand apart (q,
 * k and v of one matrix). */
static err_t load_round(struct snapshot *plan, int first, int end, struct engine *e, struct ckpt *ckpt, uint8_t *arena,
                        struct why *why)
{
    struct ckpt_read_stats stats;
    struct ckpt_want *wants = calloc((size_t)(end - first) + 1, sizeof(*wants));
    if (!wants)
        return why_set(why, ERR_NOMEM, "out of memory");
    for (int i = first; i < end; i++) {
        const struct snapshot_piece *x = &plan->pieces[i];
        wants[i - first] = (struct ckpt_want){x->fqn, x->box, x->dtype, arena + x->arena_offset};
    }
    err_t err = ckpt_read(ckpt, wants, end - first, &stats, why);
    free(wants);
    return err ? err : snapshot_restore(plan, e, arena, first, end, why);
}

err_t generate_load(struct engine *e, struct ckpt *ckpt, struct why *why)
{
    struct snapshot plan;
    err_t err = snapshot_plan_load(e, false, &plan);
    uint8_t *arena = err ? NULL : malloc(ARENA);
    if (!err && !arena)
        err = ERR_NOMEM;
    err = err ? err : snapshot_fit(&plan, ARENA);
    if (err)
        why_set(why, err, "cannot load the parameters: %s", err_text(err));
    for (int first = 0, end; !err && first < plan.n; first = end) {
        end = snapshot_place(&plan, first, ARENA);
        err = load_round(&plan, first, end, e, ckpt, arena, why);
    }
    free(arena);
    snapshot_fini(&plan);
    return err;
}

static int count_cores(void)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
}

static err_t open_model(struct generator *g, struct why *why)
{
    err_t err = ckpt_open(g->ask->checkpoint, &g->ckpt, why);
    err = err ? err : read_spec(g, why);
    err = err ? err : read_tokenizer(g, why);
    err = err ? err : read_prompt(g, why);
    if (err)
        return err;
    adapt_spec(g);
    err = graph_build(&g->job.model, g->job.train.seq, &g->graph, why);
    err = err ? err : dev_open("cpu", 0, &g->dev, why);
    const struct engine_config config = {
        .dev = g->dev, .job = &g->job, .graph = &g->graph, .world = 1, .generate = true, .threads = count_cores()};
    err = err ? err : engine_init(&g->engine, &config, why);
    err = err ? err : engine_start(&g->engine, NULL, why);
    err = err ? err : generate_load(&g->engine, g->ckpt, why);
    if (err)
        return err;
    g->order = calloc((size_t)g->job.model.vocab, sizeof(*g->order));
    return g->order ? OK : why_set(why, ERR_NOMEM, "out of memory");
}

/* ---- talking ---- */

static err_t say(struct generator *g, struct why *why)
{
    err_t err = file_write_all(STDOUT_FILENO, g->text.data, g->text.len);
    g->text.len = 0;
    return err ? why_set(why, err, "cannot write the text: %s", err_text(err)) : OK;
}

static err_t next_token(struct generator *g, int64_t i, struct why *why)
{
    const void *logits;
    int64_t n = (int64_t)(g->ids.len / sizeof(int32_t)), seq = g->job.train.seq, skip = n > seq ? n - seq : 0;
    err_t err = engine_logits(&g->engine, (const int32_t *)(const void *)g->ids.data + skip, n - skip, &logits, why);
    if (err)
        return err;
    /* Rows of the embedding beyond the vocabulary are padding: they stand for no token. */
    int64_t choices =
        tokenizer_vocab(g->tokenizer) < g->job.model.vocab ? tokenizer_vocab(g->tokenizer) : g->job.model.vocab;
    int32_t id = generate_choose(logits, choices, g->ask, i, g->order);
    err = buf_append(&g->ids, &id, sizeof(id));
    err = err ? err : tokenizer_decode(g->tokenizer, id, &g->text);
    return err ? why_set(why, err, "cannot decode token %d: %s", (int)id, err_text(err)) : say(g, why);
}

static err_t talk(struct generator *g, struct why *why)
{
    err_t err = buf_printf(&g->text, "%s%s", g->ask->prompt,
                           g->job.data.tokenizer == TOKENIZER_WORDS && g->ask->prompt[0] ? " " : "");
    err = err ? why_set(why, err, "out of memory") : say(g, why);
    for (int64_t i = 0; !err && i < g->ask->tokens; i++)
        err = next_token(g, i, why);
    if (!err)
        err = buf_append(&g->text, "\n", 1) ? ERR_NOMEM : say(g, why);
    return err;
}

err_t generate_run(const struct generate *ask, struct why *why)
{
    struct generator g = {.ask = ask};
    err_t err = open_model(&g, why);
    if (!err)
        err = talk(&g, why);
    free(g.order);
    buf_fini(&g.ids);
    buf_fini(&g.text);
    engine_fini(&g.engine);
    dev_close(g.dev);
    graph_fini(&g.graph);
    tokenizer_free(g.tokenizer);
    job_fini(&g.job);
    ckpt_close(g.ckpt);
    return err;
}
