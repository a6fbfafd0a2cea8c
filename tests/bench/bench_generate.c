/* Generation by GPT-2 124M with its initial parameters: tokens a second beside the memory floor, the time in which all
 * weights of a token can be read once.
 *
 *   bench_generate [--prompt P] [--tokens N] [--batch B] [--threads T] [--bits 16|32]
 *
 * A prompt of P tokens is processed, then N tokens one after another for each of B sequences, the most likely ones.
 * --bits 16: in bfloat16, with other random values. The read bandwidth is that of T threads over memory far larger than
 * the caches, the best of some runs before and after. Prints one JSON line. */
#include "common/base/clock.h"
#include "common/plan/models/build.h"
#include "kernels/stream.h"
#include "tests/bench/median.h"
#include "tests/bench/peak.h"
#include "worker/choose.h"
#include "worker/step/engine.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define READ_BYTES ((int64_t)384 << 20)
#define READS 5
#define MAX_BATCH 64
#define ROWS 256 /* of a prompt at a time, as in dt-worker */

static const char yaml[] = "name: bench\nmodel: {arch: gpt2, dim: 768, layers: 12, heads: 12, vocab: 50257}\n"
                           "data: {train: [/nothing]}\ntrain: {steps: 1, seq: 1024}\n";

struct options {
    int64_t prompt, tokens, batch, threads, bits; /* bits: of an element */
};

struct bench {
    struct options o;
    struct job_spec job;
    struct graph graph;
    struct dev *dev;
    struct engine e;
    struct choose_room room;
    int32_t *ids[MAX_BATCH];
};

static void fail(const char *what, const struct why *why)
{
    fprintf(stderr, "bench_generate: %s: %s\n", what, why->text);
    exit(1);
}

/* ---- bandwidth ---- */

typedef uint64_t lines __attribute__((vector_size(64)));

struct reading {
    const lines *at;
    lines sums[256]; /* by thread */
};

static void read_lines(void *arg, int part, int64_t lo, int64_t hi)
{
    struct reading *r = arg;
    lines sum[4] = {{0}};
    for (int64_t i = lo; i + 4 <= hi; i += 4)
        for (int k = 0; k < 4; k++)
            sum[k] += r->at[i + k];
    r->sums[part] = sum[0] + sum[1] + sum[2] + sum[3];
}

static double read_gbs(const struct bench *b, const void *memory)
{
    static struct reading r;
    double best = 0;
    r.at = memory;
    for (int i = 0; i < READS; i++) {
        const int64_t start = clock_mono_ns();
        kern_stream_run(b->e.stream[STREAM_COMPUTE], READ_BYTES / 64, 4, read_lines, &r);
        const double gbs = (double)READ_BYTES / (double)(clock_mono_ns() - start);
        best = gbs > best ? gbs : best;
    }
    return best;
}

/* ---- generation ---- */

/* Values of about 1/50 in bfloat16; engine_fill_state gives only float32. */
static void fill_bfloat16(struct engine *e)
{
    uint16_t *at = e->space[SPACE_PARAM];
    for (size_t i = 0; i < e->space_bytes[SPACE_PARAM] / sizeof(*at); i++)
        at[i] = (uint16_t)(0x3ca0 + (i * 2654435761u >> 12) % 64 + (i % 3 ? 0x8000 : 0));
}

static void bench_open(struct bench *b)
{
    struct why why = {""};
    if (job_parse("bench", yaml, strlen(yaml), NULL, 0, &b->job, &why) ||
        graph_build(&b->job.model, b->job.train.seq, &b->graph, &why) || dev_open("cpu", 0, &b->dev, &why))
        fail("model", &why);
    b->job.train.seq = b->o.prompt + b->o.tokens;
    b->job.train.dtype = b->o.bits == 16 ? DT_BF16 : DT_F32;
    b->job.train.micro_batch = b->o.batch;
    b->job.train.global_batch = ROWS;
    const struct engine_config config = {.dev = b->dev,
                                         .job = &b->job,
                                         .graph = &b->graph,
                                         .world = 1,
                                         .generate = true,
                                         .decode = true,
                                         .threads = (int)b->o.threads};
    if (engine_init(&b->e, &config, &why) || engine_start(&b->e, NULL, &why) ||
        (b->o.bits == 32 && engine_fill_state(&b->e, &why)))
        fail("engine", &why);
    if (b->o.bits == 16)
        fill_bfloat16(&b->e);
    if (choose_room_init(&b->room, b->job.model.vocab))
        fail("memory", &why);
    for (int64_t s = 0; s < b->o.batch; s++) {
        b->ids[s] = calloc((size_t)b->job.train.seq, sizeof(*b->ids[s]));
        for (int64_t i = 0; b->ids[s] && i < b->o.prompt; i++)
            b->ids[s][i] = (int32_t)((i * 7919 + s * 104729) % 50257);
    }
}

/* The logits in float32, as dt-worker makes them. */
static const float *row_of(const struct bench *b, const void *logits, int64_t at)
{
    static float row[1 << 16];
    if (b->o.bits == 32)
        return (const float *)logits + at;
    for (int64_t i = 0; i < b->job.model.vocab; i++) {
        const uint32_t bits = (uint32_t)((const uint16_t *)logits)[at + i] << 16;
        memcpy(&row[i], &bits, sizeof(bits));
    }
    return row;
}

/* Processes `n` tokens of every sequence from `first` on, and appends the most likely next ones if there is room. */
static void pass(struct bench *b, int64_t first, int64_t n)
{
    static const struct choose_rule rule = {.temperature = 0};
    struct engine_run runs[MAX_BATCH];
    const void *logits;
    int64_t stride;
    struct why why = {""};
    for (int64_t s = 0; s < b->o.batch; s++)
        runs[s] = (struct engine_run){s, first, n, b->ids[s] + first};
    if (engine_decode(&b->e, runs, (int)b->o.batch, &logits, &stride, &why))
        fail("decode", &why);
    for (int64_t s = 0; s < b->o.batch && first + n >= b->o.prompt && first + n < b->job.train.seq; s++)
        b->ids[s][first + n] = choose_token(&rule, row_of(b, logits, s * stride), b->ids[s], first + n, 0, &b->room);
}

static double seconds_since(int64_t start)
{
    return (double)(clock_mono_ns() - start) * 1e-9;
}

/* The median, because on a shared machine some rounds are interrupted. */
static double median_round(struct bench *b)
{
    static double s[1024];
    const int64_t n = b->o.tokens - 1;
    for (int64_t i = 0; i < n; i++) {
        const int64_t start = clock_mono_ns();
        pass(b, b->o.prompt + i, 1);
        s[i] = seconds_since(start);
    }
    qsort(s, (size_t)n, sizeof(*s), median_order);
    return s[n / 2];
}

static void bench_run(struct bench *b)
{
    void *memory;
    struct why why = {""};
    const int64_t each = ROWS / b->o.batch, last = b->o.prompt - 1;
    if (dev_alloc(b->dev, (size_t)READ_BYTES, "memory to read", &memory, &why))
        fail("memory", &why);
    double gbs = read_gbs(b, memory);
    pass(b, 0, 1); /* touches all memory */
    int64_t start = clock_mono_ns();
    for (int64_t at = 0; at < last; at += each)
        pass(b, at, last - at < each ? last - at : each);
    const double prompt_s = seconds_since(start);
    pass(b, last, 1);
    const double round_s = median_round(b);
    const double after = read_gbs(b, memory), weights = (double)b->o.bits / 8 * (double)b->graph.n_params_matmul;
    gbs = after > gbs ? after : gbs;
    const double floor_s = weights / (gbs * 1e9);
    printf("{\"what\": \"generate\", \"cpu\": \"%s\", \"commit\": \"%s\", \"batch\": %d, \"threads\": %d, \"bits\": "
           "%d, \"prompt\": %d, "
           "\"tokens\": %d, \"tokens_per_s\": %.1f, \"ms_per_round\": %.2f, \"floor_ms\": %.2f, \"of_floor\": %.3f, "
           "\"read_gbs\": %.1f, \"prompt_tokens_per_s\": %.0f}\n",
           peak_cpu_name(), peak_commit(), (int)b->o.batch, (int)b->o.threads, (int)b->o.bits, (int)b->o.prompt,
           (int)b->o.tokens, (double)b->o.batch / round_s, round_s * 1e3, floor_s * 1e3, floor_s / round_s, gbs,
           (double)(b->o.batch * last) / prompt_s);
    dev_free(b->dev, memory, (size_t)READ_BYTES);
}

static void parse(int argc, char **argv, struct options *o)
{
    static const struct option names[] = {{"prompt", 1, NULL, 'p'},  {"tokens", 1, NULL, 'n'}, {"batch", 1, NULL, 'b'},
                                          {"threads", 1, NULL, 't'}, {"bits", 1, NULL, 'w'},   {0}};
    for (int c; (c = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        int64_t *const to = c == 'p'   ? &o->prompt
                            : c == 'n' ? &o->tokens
                            : c == 'b' ? &o->batch
                            : c == 'w' ? &o->bits
                                       : &o->threads;
        if (c == '?')
            exit(2);
        *to = atoi(optarg);
    }
    if (o->prompt < 2 || o->tokens < 2 || o->prompt + o->tokens > 1024 || o->batch < 1 || o->batch > MAX_BATCH ||
        o->threads < 1 || o->threads > 256 || (o->bits != 16 && o->bits != 32)) {
        fprintf(stderr,
                "bench_generate: 2 prompt and new tokens at least, 1024 at most; 1 to %d sequences; 16 or 32 bits\n",
                MAX_BATCH);
        exit(2);
    }
}

int main(int argc, char **argv)
{
    static struct bench b = {.o = {.prompt = 32, .tokens = 64, .batch = 1, .threads = 2, .bits = 32}};
    parse(argc, argv, &b.o);
    bench_open(&b);
    bench_run(&b);
    for (int64_t s = 0; s < b.o.batch; s++)
        free(b.ids[s]);
    choose_room_fini(&b.room);
    engine_fini(&b.e);
    dev_close(b.dev);
    graph_fini(&b.graph);
    job_fini(&b.job);
    return 0;
}
