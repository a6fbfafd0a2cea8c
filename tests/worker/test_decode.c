/* Generation with a cache of keys and values against generation without: engine_logits runs the whole window for every
 * token and is the oracle. All models, layouts of threads over one segment, prompts of every length, in pieces of every
 * kind, and several sequences at a time. */
#include "tests/parity/harness.h"

#include "common/plan/models/build.h"
#include "tests/worker/record_device.h"

#include <math.h>
#include <pthread.h>
#include <sys/mman.h>

#define VOCAB 300
#define MOST 24 /* tokens of a window */
#define MOST_RANKS 6

struct subject {
    const char *name, *yaml;
    const char *sets[16];
};

static const struct subject subjects[] = {
    {"llama", parity_llama, {"model.heads=8", "model.kv_heads=2", NULL}},
    {"llama without groups", parity_llama, {"model.heads=8", "model.kv_heads=8", "model.tied=true", NULL}},
    {"gpt2", parity_gpt2, {NULL}},
    {"transformer", parity_transformer, {"model.causal=true", NULL}},
    {"qwen",
     parity_llama,
     {"model.heads=8", "model.kv_heads=2", "model.head_dim=10", "model.qkv_bias=true", "model.qk_norm=head",
      "model.rope_part=0.6", "model.rope_type=yarn", "model.rope_factor=4", "model.rope_original=12", NULL}},
    {"mixture",
     parity_llama,
     {"model.heads=8", "model.experts=11", "model.experts_per_token=2", "model.expert_ffn=12", "model.shared_experts=2",
      "model.shared_gate=true", "model.aux_loss=0.1", "model.expert_capacity=1", NULL}},
    {"sigmoid mixture",
     parity_llama,
     {"model.heads=8", "model.experts=9", "model.experts_per_token=2", "model.expert_ffn=11", "model.router=sigmoid",
      "model.router_norm=true", "model.router_groups=3", "model.router_groups_kept=2", "model.router_group_best=2",
      "model.dense_layers=1", "model.expert_bias=0.02", NULL}},
    {"olmo", parity_llama, {"model.heads=8", "model.qk_norm=whole", NULL}},
};
#define SUBJECTS (sizeof(subjects) / sizeof(subjects[0]))

static int32_t token(int sequence, int64_t i)
{
    return (int32_t)((17 + 31 * sequence + i * i * 7 + i * 13) % VOCAB);
}

/* How the tokens of the sequences come: at most `chunk` tokens in a call, at most `each` of one sequence. */
struct pieces {
    int sequences;
    int64_t chunk, each;
};

struct decode_group {
    const struct subject *subject;
    struct pieces pieces;
    int tp, pp, fd;
    int64_t seq;
    struct dev *dev; /* NULL: the CPU */
    float *got;      /* [ranks][sequences][seq][VOCAB]; NAN where the rank got no logits. In the end rank 0's has all */
};

struct decode_rank {
    struct decode_group *group;
    int rank;
    pthread_t thread;
};

static void model_init(struct parity_model *m, const struct subject *s, const struct decode_group *b)
{
    parity_model_init(m, s->yaml, s->sets);
    m->job.train.numerics = NUMERICS_FAST;
    m->job.train.dtype = DT_F32;
    m->job.train.seq = b->seq;
    m->job.train.micro_batch = b->pieces.sequences;
    m->job.train.global_batch = b->pieces.chunk;
    m->job.parallel.tp = b->tp;
    m->job.parallel.pp = b->pp;
    m->job.parallel.workers = b->tp * b->pp;
    graph_fini(&m->graph);
    assert_ok(graph_build(&m->job.model, b->seq, &m->graph, NULL));
}

/* A row of logits in float32. A bfloat16 is the upper half of a float32. */
static void take_row(const struct engine *e, const void *logits, int64_t at, float *ret)
{
    for (int64_t i = 0; i < VOCAB; i++) {
        const uint32_t bits = e->eval.dtype == DT_BF16 ? (uint32_t)((const uint16_t *)logits)[at + i] << 16 : 0;
        if (e->eval.dtype == DT_BF16)
            memcpy(&ret[i], &bits, sizeof(bits));
        else
            ret[i] = ((const float *)logits)[at + i];
    }
}

static int64_t group_floats(const struct decode_group *b)
{
    return b->pieces.sequences * b->seq * VOCAB;
}

/* Ranks that have the same logits have the same bits of them. */
static void merge_ranks(struct decode_group *b, int world)
{
    const int64_t n = group_floats(b);
    for (int r = 1; r < world; r++)
        for (int64_t i = 0; i < n; i++) {
            const float x = b->got[r * n + i];
            if (isnan(b->got[i]))
                b->got[i] = x;
            else if (!isnan(x))
                assert_memory_equal(&b->got[i], &x, sizeof(x));
        }
}

/* Decodes all tokens of all sequences, whose lengths differ, piece by piece. */
static void decode_all(struct engine *e, const struct decode_group *b, float *got)
{
    int64_t done[8] = {0}, left;
    int32_t ids[8][MOST];
    do {
        struct engine_run runs[8];
        int n = 0, of[8];
        int64_t room = b->pieces.chunk, stride;
        const void *logits;
        struct why why = {""};
        left = 0;
        for (int s = 0; s < b->pieces.sequences; s++) {
            int64_t take = b->seq - s - done[s];
            take = take < b->pieces.each ? take : b->pieces.each;
            take = take < room ? take : room;
            for (int64_t i = 0; i < take; i++)
                ids[s][i] = token(s, done[s] + i);
            if (take > 0) {
                of[n] = s;
                runs[n++] = (struct engine_run){s, done[s], take, ids[s]};
            }
            room -= take;
            done[s] += take;
            left += b->seq - s - done[s];
        }
        if (engine_decode(e, runs, n, &logits, &stride, &why))
            fail_msg("%s: %s", b->subject->name, why.text);
        for (int i = 0; logits && i < n; i++)
            take_row(e, logits, i * stride, got + ((int64_t)of[i] * b->seq + done[of[i]] - 1) * VOCAB);
    } while (left);
}

static void *rank_main(void *arg)
{
    const struct decode_rank *r = arg;
    struct decode_group *b = r->group;
    const int world = b->tp * b->pp;
    struct parity_model m;
    struct engine e;
    struct comm *comm = NULL;
    struct why why = {""};
    model_init(&m, b->subject, b);
    const struct engine_config config = {.dev = b->dev ? b->dev : test_cpu(),
                                         .job = &m.job,
                                         .graph = &m.graph,
                                         .rank = r->rank,
                                         .world = world,
                                         .generate = true,
                                         .decode = true};
    if (engine_init(&e, &config, &why))
        fail_msg("%s: %s", b->subject->name, why.text);
    const struct comm_config cc = {.backend = "shm",
                                   .fd = b->fd,
                                   .rank = r->rank,
                                   .world = world,
                                   .epoch = 1,
                                   .shared_bytes = engine_shared_bytes(&e),
                                   .timeout_ms = 60000};
    if (world > 1)
        assert_ok(comm_open(&cc, &comm, &why));
    assert_ok(engine_start(&e, comm, &why));
    assert_ok(engine_fill_state(&e, &why));
    decode_all(&e, b, b->got + r->rank * group_floats(b));
    engine_fini(&e);
    comm_close(comm);
    parity_model_fini(&m);
    return NULL;
}

static void decode_on_ranks(struct decode_group *b)
{
    struct decode_rank ranks[MOST_RANKS];
    const int world = b->tp * b->pp;
    const int64_t n = world * group_floats(b);
    b->fd = world > 1 ? memfd_create("decode", MFD_CLOEXEC) : -1;
    b->got = malloc((size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++)
        b->got[i] = NAN;
    (void)test_cpu();
    for (int r = 0; r < world; r++) {
        ranks[r] = (struct decode_rank){b, r, 0};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, rank_main, &ranks[r]), 0);
    }
    for (int r = 0; r < world; r++)
        pthread_join(ranks[r].thread, NULL);
    merge_ranks(b, world);
    if (b->fd >= 0)
        close(b->fd);
}

/* want[sequences][seq][VOCAB] by one rank without a cache. */
static void oracle(const struct subject *s, int sequences, int64_t seq, float *want)
{
    struct decode_group b = {s, {1, 1, 1}, 1, 1, -1, seq, NULL, NULL};
    struct parity_model m;
    struct engine e;
    struct why why = {""};
    int32_t ids[MOST];
    const void *row;
    model_init(&m, s, &b);
    const struct engine_config config = {
        .dev = test_cpu(), .job = &m.job, .graph = &m.graph, .world = 1, .generate = true};
    assert_ok(engine_init(&e, &config, &why));
    assert_ok(engine_start(&e, NULL, &why));
    assert_ok(engine_fill_state(&e, &why));
    for (int k = 0; k < sequences; k++)
        for (int64_t i = 0; i < seq; i++) {
            ids[i] = token(k, i);
            assert_ok(engine_logits(&e, ids, i + 1, &row, &why));
            memcpy(want + (k * seq + i) * VOCAB, row, VOCAB * sizeof(float));
        }
    engine_fini(&e);
    parity_model_fini(&m);
}

/* Compares every row that a call gave, and returns their number. */
static int compare(const struct decode_group *b, const float *want)
{
    int rows = 0;
    for (int64_t i = 0; i < b->pieces.sequences * b->seq; i++) {
        const float *x = b->got + i * VOCAB, *y = want + i * VOCAB;
        if (isnan(x[0]))
            continue;
        rows++;
        for (int k = 0; k < VOCAB; k++)
            if (!(fabsf(x[k] - y[k]) <= 1e-5f))
                fail_msg("%s, tp %d, pp %d, at most %d tokens: logit %d after token %d of sequence %d is %g with the "
                         "cache, %g without",
                         b->subject->name, b->tp, b->pp, (int)b->pieces.chunk, k, (int)(i % b->seq), (int)(i / b->seq),
                         (double)x[k], (double)y[k]);
    }
    return rows;
}

/* Token by token; prompts of 1 to 7 tokens at a time, longer than a chunk; the whole window at once; three sequences of
 * different lengths, whose prompts share calls. */
static const struct pieces ways[] = {{1, 1, 1}, {1, 7, 7}, {1, MOST, MOST}, {3, 3, 1}, {3, 11, 5}, {3, 10, 10}};

static void check_subject(const struct subject *s, int tp, int pp, int64_t seq)
{
    float *want = malloc((size_t)(3 * seq * VOCAB) * sizeof(float));
    oracle(s, 3, seq, want);
    for (size_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
        struct decode_group b = {.subject = s, .pieces = ways[w], .tp = tp, .pp = pp, .seq = seq};
        decode_on_ranks(&b);
        const int rows = compare(&b, want);
        assert_true(rows >= (int)(ways[w].each == 1 ? ways[w].sequences * (seq - 2) : ways[w].sequences));
        free(b.got);
    }
    free(want);
}

TEST(logits_with_the_cache_are_those_without)
{
    for (size_t i = 0; i < SUBJECTS; i++)
        check_subject(&subjects[i], 1, 1, MOST);
}

/* An odd window, and heads that do not divide evenly. */
TEST(parts_of_a_model_share_no_cache)
{
    static const int layouts[][2] = {{2, 1}, {1, 2}, {2, 2}, {4, 1}};
    for (size_t i = 0; i < SUBJECTS; i++)
        for (size_t l = 0; l < sizeof(layouts) / sizeof(layouts[0]); l++)
            check_subject(&subjects[i], layouts[l][0], layouts[l][1], 13);
}

/* A call that begins before the end of what is cached replaces it from there on. */
TEST(a_sequence_can_be_replaced)
{
    struct decode_group b = {&subjects[0], {1, MOST, MOST}, 1, 1, -1, MOST, NULL, NULL};
    struct parity_model m;
    struct engine e;
    struct why why = {""};
    float want[2][VOCAB];
    const int32_t first[] = {7, 8, 9, 10, 11}, second[] = {7, 8, 50, 60};
    const void *row;
    int64_t stride;
    model_init(&m, b.subject, &b);
    const struct engine_config config = {
        .dev = test_cpu(), .job = &m.job, .graph = &m.graph, .world = 1, .generate = true, .decode = true};
    assert_ok(engine_init(&e, &config, &why));
    assert_ok(engine_start(&e, NULL, &why));
    assert_ok(engine_fill_state(&e, &why));
    assert_ok(engine_decode(&e, &(struct engine_run){0, 0, 4, second}, 1, &row, &stride, &why));
    memcpy(want[0], row, sizeof(want[0]));
    assert_ok(engine_decode(&e, &(struct engine_run){0, 0, 5, first}, 1, &row, &stride, &why));
    assert_memory_not_equal(want[0], row, sizeof(want[0]));
    assert_ok(engine_decode(&e, &(struct engine_run){0, 2, 2, second + 2}, 1, &row, &stride, &why));
    for (int k = 0; k < VOCAB; k++)
        assert_true(fabsf(((const float *)row)[k] - want[0][k]) <= 1e-5f);
    engine_fini(&e);
    parity_model_fini(&m);
}

/* On a device whose memory the host cannot access, as a GPU's: ids, positions and logits are copied. */
TEST(a_device_with_hidden_memory_decodes)
{
    static const struct subject *const some[] = {&subjects[0], &subjects[2], &subjects[3]};
    for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
        struct decode_group b = {.subject = some[i], .pieces = {3, 11, 5}, .tp = 1, .pp = 1, .seq = MOST};
        float *want = malloc((size_t)(3 * MOST * VOCAB) * sizeof(float));
        oracle(some[i], 3, MOST, want);
        b.dev = rec_open();
        decode_on_ranks(&b);
        rec_close(b.dev);
        assert_true(compare(&b, want) > 10);
        free(b.got);
        free(want);
    }
}

/* ---- bfloat16 ---- */

/* The nearest bfloat16, ties to even, in its definition. */
static uint16_t nearest(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    const uint32_t below = bits & 0xffff, upper = bits >> 16;
    return (uint16_t)(upper + (below > 0x8000 || (below == 0x8000 && (upper & 1))));
}

/* Gives `to`, in bfloat16, the parameters of `from`. */
static void copy_params(const struct engine *from, const struct engine *to)
{
    for (int t = 0; t < from->config.graph->n_tensors; t++) {
        const int b = from->eval.param_buffer[t];
        if (b < 0)
            continue;
        const struct buffer *x = &from->eval.buffers[b], *y = &to->eval.buffers[to->eval.param_buffer[t]];
        const bool narrow = from->config.graph->tensors[t].kind == GT_PARAM;
        const int64_t n = x->bytes / (int64_t)dtype_bytes(x->dtype);
        void *dst = engine_buffer(to, &to->eval, to->eval.param_buffer[t]);
        const float *src = engine_buffer(from, &from->eval, b);
        assert_int_equal(y->dtype, narrow ? DT_BF16 : x->dtype);
        for (int64_t i = 0; narrow && i < n; i++)
            ((uint16_t *)dst)[i] = nearest(src[i]);
        if (!narrow)
            memcpy(dst, src, (size_t)x->bytes);
    }
}

static void open_decoder(struct parity_model *m, const struct decode_group *b, enum dtype dtype, struct engine *e)
{
    struct why why = {""};
    model_init(m, b->subject, b);
    m->job.train.dtype = dtype;
    const struct engine_config config = {
        .dev = test_cpu(), .job = &m->job, .graph = &m->graph, .world = 1, .generate = true, .decode = true};
    if (engine_init(e, &config, &why))
        fail_msg("%s: %s", b->subject->name, why.text);
    assert_ok(engine_start(e, NULL, &why));
}

/* The length of the difference of two rows, as a part of the length of the second. */
static double distance(const float *x, const float *y)
{
    double difference = 0, length = 0;
    for (int k = 0; k < VOCAB; k++) {
        difference += ((double)x[k] - y[k]) * ((double)x[k] - y[k]);
        length += (double)y[k] * y[k];
    }
    return sqrt(difference / length);
}

/* A number in bfloat16 has an error of at most 2^-9; a few of them in a row for each of a few layers stay below 5 %. A
 * token that a router sends to other experts, because of such an error, differs more. */
TEST(logits_in_bfloat16_are_near_those_in_float32)
{
    for (size_t i = 0; i < SUBJECTS; i++) {
        struct decode_group b = {.subject = &subjects[i], .pieces = {3, 11, 5}, .tp = 1, .pp = 1, .seq = MOST};
        struct parity_model m[2];
        struct engine e[2];
        struct why why = {""};
        float *got[2];
        const bool routes = strstr(b.subject->name, "mixture");
        double worst = 0;
        for (int k = 0; k < 2; k++) {
            got[k] = b.got = calloc(3 * MOST * VOCAB, sizeof(float));
            open_decoder(&m[k], &b, k ? DT_BF16 : DT_F32, &e[k]);
            if (k)
                copy_params(&e[0], &e[1]);
            else
                assert_ok(engine_fill_state(&e[0], &why));
            decode_all(&e[k], &b, b.got);
        }
        assert_true(e[1].space_bytes[SPACE_PARAM] < e[0].space_bytes[SPACE_PARAM] * 3 / 4);
        for (int64_t row = 0; row < 3 * MOST; row++)
            if (got[0][row * VOCAB] != 0) {
                const double d = distance(got[1] + row * VOCAB, got[0] + row * VOCAB);
                worst = d > worst ? d : worst;
            }
        if (!(worst > 1e-4 && worst < (routes ? 0.5 : 0.05)))
            fail_msg("%s: the logits differ by %g of their length", b.subject->name, worst);
        for (int k = 0; k < 2; k++) {
            engine_fini(&e[k]);
            parity_model_fini(&m[k]);
            free(got[k]);
        }
    }
}

TEST(a_model_that_sees_later_tokens_is_refused)
{
    const struct subject s = {"course", parity_transformer, {"model.causal=false", NULL}};
    struct decode_group b = {&s, {1, 4, 4}, 1, 1, -1, MOST, NULL, NULL};
    struct parity_model m;
    struct engine e;
    struct why why = {""};
    model_init(&m, &s, &b);
    const struct engine_config config = {
        .dev = test_cpu(), .job = &m.job, .graph = &m.graph, .world = 1, .generate = true, .decode = true};
    assert_int_equal(engine_init(&e, &config, &why), ERR_UNSUPPORTED);
    assert_non_null(strstr(why.text, "model.causal"));
    parity_model_fini(&m);
}
