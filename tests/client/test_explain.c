/* The data of the animation against the plan, and against sums computed by hand, for every ready-made layout. */
#include "client/explain/explain.h"
#include "common/plan/check/plan_check.h"
#include "common/plan/compile/compile.h"
#include "common/plan/estimate/memory.h"
#include "common/plan/models/build.h"
#include "tests/lib/test.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>

/* The model of the ready-made jobs: 256 columns, 688 in the feed-forward, 4 layers, 256 tokens in the vocabulary. */
#define DIM INT64_C(256)
#define LAYER (4 * DIM * DIM + 3 * DIM * 688 + 2 * DIM)
#define PARAMS (4 * LAYER + 2 * 256 * DIM + DIM) /* with embedding, head and the last norm */
#define TOKENS INT64_C(64)                       /* of a microbatch */

struct explained {
    struct job_spec job;
    struct graph graph;
    struct program programs[8];
    struct plan_rates rates;
    struct explain x;
    int n;
    struct why why;
};

static void programs_init(struct explained *f, const char *layout, const char *const *sets, int n_sets)
{
    memset(f, 0, sizeof(*f));
    const struct explain_layout *l = explain_layout_find(layout);
    assert_non_null(l);
    if (job_parse(layout, l->job, strlen(l->job), sets, n_sets, &f->job, &f->why) ||
        graph_build(&f->job.model, f->job.train.seq, &f->graph, &f->why))
        fail_msg("%s: %s", layout, f->why.text);
    f->n = (int)f->job.parallel.workers;
    if (plan_compile_all(&f->job, &f->graph, MODE_TRAIN, f->n, f->programs, &f->why) ||
        plan_check(&f->graph, f->programs, f->n, &f->why))
        fail_msg("%s: %s", layout, f->why.text);
    f->rates = plan_rates_of(&f->job);
}

static void explained_init_with(struct explained *f, const char *layout, const char *const *sets, int n_sets)
{
    programs_init(f, layout, sets, n_sets);
    if (explain_init(f->programs, &f->graph, f->n, &f->rates, NULL, &f->x, &f->why))
        fail_msg("%s: %s", layout, f->why.text);
}

static void explained_init(struct explained *f, const char *layout)
{
    explained_init_with(f, layout, NULL, 0);
}

static void explained_fini(struct explained *f)
{
    explain_fini(&f->x);
    for (int r = 0; r < f->n; r++)
        program_fini(&f->programs[r]);
    graph_fini(&f->graph);
    job_fini(&f->job);
}

static int64_t moved(const struct explained *f, enum op_kind kind, enum explain_kind what, int *ret_n)
{
    int64_t sum = 0;
    int n = 0;
    for (int i = 0; i < f->x.n_moves; i++) {
        const struct explain_move *m = &f->x.moves[i];
        if (m->kind != kind || m->what != what)
            continue;
        n++;
        for (int k = 0; k < m->n; k++)
            sum += m->in[k];
    }
    if (ret_n)
        *ret_n = n;
    return sum;
}

/* Bytes that the rank holds of `key` from moment t on. */
static int64_t held(const struct explain_changes *c, int key, double t)
{
    int64_t bytes = 0;
    for (int i = 0; i < c->n && c->all[i].at <= t; i++)
        if (c->all[i].key == key)
            bytes = c->all[i].bytes;
    return bytes;
}

/* ---- moves ---- */

TEST(moves_bring_the_bytes_of_the_forecast)
{
    for (int i = 0; i < n_explain_layouts; i++) {
        struct explained f;
        struct forecast plan;
        int64_t bytes[FORECAST_AXES] = {0};
        explained_init(&f, explain_layouts[i].name);
        assert_ok(plan_forecast(f.programs, f.n, &f.rates, &plan, &f.why));
        for (int k = 0; k < f.x.n_moves; k++) {
            unsigned axes = 0;
            for (int a = 0; a < AXIS_COUNT; a++)
                axes |= f.programs[0].mesh.size[a] > 1 ? f.x.moves[k].axes & (1u << a) : 0;
            for (int m = 0; m < f.x.moves[k].n; m++)
                bytes[axes] += f.x.moves[k].in[m];
        }
        for (int a = 0; a < FORECAST_AXES; a++)
            if (bytes[a] != plan.bytes[a])
                fail_msg("%s: %lld bytes over axes %d, the plan has %lld", explain_layouts[i].name, (long long)bytes[a],
                         a, (long long)plan.bytes[a]);
        assert_true(f.x.seconds == plan.seconds);
        forecast_fini(&plan);
        explained_fini(&f);
    }
}

TEST(moves_bring_what_arithmetic_says)
{
    struct explained f;
    int n;
    explained_init(&f, "ddp");
    /* An all-reduce of N elements brings 2 N (n - 1) / n to each of n ranks. */
    assert_int_equal(moved(&f, OP_ALL_REDUCE, EXPLAIN_GRAD, &n), 2 * 3 * PARAMS * 4);
    assert_int_equal(n, 6); /* a unit each */
    explained_fini(&f);
    explained_init(&f, "1f1b");
    /* 8 microbatches over 3 boundaries, there and back */
    assert_int_equal(moved(&f, OP_RECV, EXPLAIN_ACT, &n), 2 * 3 * 8 * TOKENS * DIM * 4);
    assert_int_equal(n, 2 * 3 * 8);
    explained_fini(&f);
    explained_init(&f, "zero3");
    /* Each rank reduces two microbatches, and sends the other three ranks their pieces. */
    assert_int_equal(moved(&f, OP_UNIT_SCATTER, EXPLAIN_GRAD, &n), 2 * 3 * PARAMS * 4);
    assert_int_equal(n, 2 * 6);
    explained_fini(&f);
    explained_init(&f, "ring");
    /* In 4 layers and 8 microbatches on 4 ranks keys and values make 3 hops, forward and again backward, and their
     * gradients 4, back to their rank. A hop brings a quarter of the tokens to each rank: 256 columns of each. */
    int kv = 0, grads = 0;
    for (int i = 0; i < f.x.n_moves; i++) {
        const struct explain_move *m = &f.x.moves[i];
        if (m->kind != OP_SHIFT)
            continue;
        *(m->gradient ? &grads : &kv) += 1;
        assert_int_equal(m->turn, 3); /* from the rank before */
        assert_int_equal(m->in[2], TOKENS / 4 * 2 * DIM * 4);
    }
    assert_int_equal(kv, 8 * 4 * (3 + 3));
    assert_int_equal(grads, 8 * 4 * 4);
    explained_fini(&f);
    explained_init(&f, "tensor-whole");
    /* One sum of all tokens for attention and one for the feed-forward in each layer, forward and backward, and one
     * for the embedding's rows and one behind the head: 8 microbatches, two ranks. */
    moved(&f, OP_ALL_REDUCE, EXPLAIN_ACT, &n);
    assert_int_equal(n, 8 * (2 * 2 * 4 + 2));
    explained_fini(&f);
}

/* The forward or backward of a microbatch on a rank. */
static const struct forecast_box *span_of(const struct explained *f, int rank, enum action_kind kind, int micro)
{
    const struct forecast_rank *r = &f->x.did->ranks[rank];
    for (int i = 0; i < r->n; i++)
        if (r->boxes[i].stream == STREAM_COMPUTE && r->boxes[i].kind == kind && r->boxes[i].micro == micro)
            return &r->boxes[i];
    fail_msg("rank %d has no action %s of microbatch %d", rank, action_name(kind), micro);
    return NULL;
}

/* A message leaves after its microbatch is computed, arrives before the next stage computes it, and takes the time of
 * its bytes on the link. */
static void check_messages(const char *layout)
{
    struct explained f;
    int n = 0;
    explained_init(&f, layout);
    for (int i = 0; i < f.x.n_moves; i++) {
        const struct explain_move *m = &f.x.moves[i];
        const enum action_kind kind = m->gradient ? ACT_BACKWARD : ACT_FORWARD;
        if (m->kind != OP_RECV)
            continue;
        n++;
        assert_int_equal(m->ranks[1] - m->ranks[0], m->gradient ? -1 : 1);
        assert_int_equal(m->in[0], 0);
        assert_true(fabs(m->end - m->start - f.rates.latency - TOKENS * DIM * 4 / f.rates.link) < 1e-12);
        assert_true(span_of(&f, m->ranks[0], kind, m->micro)->end <= m->start);
        assert_true(span_of(&f, m->ranks[1], kind, m->micro)->start >= m->end - 1e-12);
    }
    assert_int_equal(n, 2 * 3 * 8);
    explained_fini(&f);
}

TEST(messages_have_what_their_rank_computed)
{
    check_messages("gpipe");
    check_messages("1f1b");
}

/* The page has a sentence for every kind of transfer and of action. */
TEST(every_move_has_words)
{
    char entry[64];
    for (int i = 0; i < n_explain_layouts; i++) {
        struct explained f;
        explained_init(&f, explain_layouts[i].name);
        for (int k = 0; k < f.x.n_moves; k++) {
            snprintf(entry, sizeof(entry), "\n  %s: (m, w)", op_name(f.x.moves[k].kind));
            if (!strstr(explain_template, entry))
                fail_msg("explain.js has no words for %s", op_name(f.x.moves[k].kind));
        }
        explained_fini(&f);
    }
    for (int a = 0; a < ACT_COUNT; a++) {
        snprintf(entry, sizeof(entry), "\n  %s: ['", action_name((enum action_kind)a));
        if (!strstr(explain_template, entry))
            fail_msg("explain.js has no words for the action %s", action_name((enum action_kind)a));
    }
}

/* ---- memory ---- */

static int64_t instance_start(const struct program *p, const struct explain_life *l)
{
    const struct buffer *b = &p->buffers[l->buffer];
    return b->offset + l->instance * b->slot_bytes;
}

/* No two buffers share bytes while both are live, and the highest byte is the plan's last. */
static void check_space(const struct explained *f, const char *layout, int rank, enum buffer_space space)
{
    const struct program *p = &f->programs[rank];
    const struct explain_rank *r = &f->x.ranks[rank];
    int64_t top = 0;
    for (int i = 0; i < r->n_lives; i++) {
        const struct explain_life *a = &r->lives[i];
        const int64_t from = instance_start(p, a), until = from + p->buffers[a->buffer].bytes;
        if (p->buffers[a->buffer].space != space || a->end <= a->start)
            continue;
        top = until > top ? until : top;
        for (int k = 0; k < i; k++) {
            const struct explain_life *b = &r->lives[k];
            const int64_t other = instance_start(p, b), end = other + p->buffers[b->buffer].bytes;
            if (p->buffers[b->buffer].space == space && b->start < a->end && a->start < b->end && other < until &&
                from < end)
                fail_msg("%s: rank %d: %s and %s are live together and share bytes", layout, rank,
                         p->buffers[a->buffer].name, p->buffers[b->buffer].name);
        }
    }
    if ((top + 63) / 64 * 64 != (p->space_bytes[space] + 63) / 64 * 64)
        fail_msg("%s: rank %d: space %d is live up to byte %lld, the plan has %lld", layout, rank, (int)space,
                 (long long)top, (long long)p->space_bytes[space]);
}

static void check_memory(const struct explained *f, const char *layout)
{
    for (int r = 0; r < f->n; r++) {
        struct plan_memory plan;
        int64_t sum = 0;
        plan_memory(&f->programs[r], DEVICE_CPU, &plan);
        for (int s = 0; s < SPACE_COUNT; s++) {
            assert_int_equal(f->x.ranks[r].reserved[s], plan.bytes[s]);
            sum += f->x.ranks[r].reserved[s];
        }
        assert_int_equal(sum + plan.arena_bytes, plan.total_bytes);
        assert_true(f->x.ranks[r].peak <= sum);
    }
    for (int r = 0; r<f->n; r += f->n> 1 ? f->n - 1 : 1)
        for (enum buffer_space s = SPACE_GRAD; s <= SPACE_SHARED; s++)
            check_space(f, layout, r, s);
}

TEST(memory_is_that_of_the_plan)
{
    for (int i = 0; i < n_explain_layouts; i++) {
        struct explained f;
        explained_init(&f, explain_layouts[i].name);
        check_memory(&f, explain_layouts[i].name);
        explained_fini(&f);
    }
}

/* Other ways to keep, to sum and to send values, over the ready-made layouts. */
TEST(memory_is_that_of_the_plan_with_other_keys)
{
    static const struct {
        const char *layout, *set[3];
    } jobs[] = {
        {"zero1", {"train.dtype=bfloat16"}},
        {"zero2", {"train.dtype=bfloat16", "parallel.recompute=full"}},
        {"zero3", {"parallel.reshard=false", "parallel.prefetch=2"}},
        {"ddp", {"train.numerics=canonical"}},
        {"zero3", {"train.numerics=canonical", "parallel.recompute=attention"}},
        {"zero-bubble", {"parallel.schedule=zb-v", "parallel.chunks=2", "model.layers=8"}},
        {"zero-bubble", {"parallel.schedule=zb-h2", "parallel.post_validation=true"}},
        {"tensor", {"parallel.async_tp=true"}},
        {"experts", {"parallel.expert_rows=1.25", "parallel.recompute=experts"}},
        {"experts", {"parallel.expert_load=balanced", "parallel.recompute=experts"}},
        {"gpipe", {"train.global_batch=3"}},
        {"ring", {"model.window=20"}},
    };
    for (size_t i = 0; i < sizeof(jobs) / sizeof(jobs[0]); i++) {
        struct explained f;
        int n = 0;
        while (n < 3 && jobs[i].set[n])
            n++;
        explained_init_with(&f, jobs[i].layout, jobs[i].set, n);
        check_memory(&f, jobs[i].set[0]);
        explained_fini(&f);
    }
}

/* Parameters, gradients and two moments in float32; all are there when the last backward begins its first layer. */
TEST(data_parallel_ranks_peak_at_all_that_is_reserved)
{
    struct explained f;
    explained_init(&f, "ddp");
    int64_t sum = 0;
    for (int s = 0; s < SPACE_COUNT; s++)
        sum += f.x.ranks[0].reserved[s];
    assert_in_range(sum - f.x.ranks[0].peak, 0, SPACE_COUNT * (PLAN_SPACE_ALIGN - 1)); /* spaces are rounded up */
    assert_int_equal(held(&f.x.ranks[0].memory, EXPLAIN_PARAM, 0), PARAMS * 4);
    assert_int_equal(held(&f.x.ranks[0].memory, EXPLAIN_OPT, 0), PARAMS * 8);
    assert_int_equal(held(&f.x.ranks[0].memory, EXPLAIN_GRAD, 0), 0);
    explained_fini(&f);
}

/* ---- pieces ---- */

/* A rank has a layer's parameters whole when their all-gather ends, and not before. */
TEST(gathered_parameters_are_there_from_the_gather_on)
{
    struct explained f;
    int gathers = 0;
    explained_init(&f, "zero3");
    for (int i = 0; i < f.x.n_moves; i++) {
        const struct explain_move *m = &f.x.moves[i];
        const int key = m->unit * EXPLAIN_PARTS + EXPLAIN_WHOLE;
        if (m->kind != OP_UNIT_GATHER || m->unit < 1 || m->unit > 4)
            continue;
        int64_t in = 0;
        gathers++;
        for (int k = 0; k < m->n; k++) {
            const struct explain_changes *c = &f.x.ranks[m->ranks[k]].units;
            assert_int_equal(held(c, key, m->end), LAYER * 4);
            assert_int_equal(held(c, key, m->start - 1e-9), 0);
            in += m->in[k];
        }
        assert_int_equal(in, 3 * LAYER * 4); /* pieces are whole grains, so they differ a little */
    }
    assert_true(gathers >= 2 * 2 * 4 - 2); /* forward and backward of two microbatches; the last layer may be kept */
    /* two moments of a quarter; the space has room for the largest piece of any rank */
    const int64_t moments = held(&f.x.ranks[0].memory, EXPLAIN_OPT, 0);
    assert_true(moments >= PARAMS * 2 && moments < PARAMS * 2 * 1.005);
    explained_fini(&f);
}

/* After the reduce-scatter a rank of ZeRO 2 has its piece of the sum, and the gradients of the whole layer are gone. */
TEST(summed_gradients_are_pieces)
{
    struct explained f;
    int scatters = 0;
    explained_init(&f, "zero2");
    for (int i = 0; i < f.x.n_moves; i++) {
        const struct explain_move *m = &f.x.moves[i];
        if (m->kind != OP_UNIT_SCATTER || m->unit < 1 || m->unit > 4)
            continue;
        int64_t sums = 0;
        scatters++;
        for (int k = 0; k < m->n; k++) {
            const struct explain_changes *c = &f.x.ranks[m->ranks[k]].units;
            sums += held(c, m->unit * EXPLAIN_PARTS + EXPLAIN_SUM, m->end);
            assert_int_equal(held(c, m->unit * EXPLAIN_PARTS + EXPLAIN_LOCAL, (m->start + m->end) / 2), LAYER * 4);
            assert_int_equal(held(c, m->unit * EXPLAIN_PARTS + EXPLAIN_LOCAL, m->end), 0);
        }
        assert_int_equal(sums, LAYER * 4);
    }
    assert_int_equal(scatters, 2 * 4);
    explained_fini(&f);
}

/* ---- the measured step ---- */

/* A measured step that took twice the forecast's time everywhere. */
TEST(a_measured_step_moves_everything)
{
    struct explained f;
    struct forecast twice;
    struct explain x;
    explained_init(&f, "zero2");
    assert_ok(plan_forecast(f.programs, f.n, &f.rates, &twice, &f.why));
    for (int r = 0; r < twice.n; r++)
        for (int i = 0; i < twice.ranks[r].n; i++) {
            twice.ranks[r].boxes[i].start *= 2;
            twice.ranks[r].boxes[i].end *= 2;
        }
    forecast_sum(&twice);
    assert_ok(explain_init(f.programs, &f.graph, f.n, &f.rates, &twice, &x, &f.why));
    assert_true(fabs(x.seconds - 2 * f.x.seconds) < 1e-12);
    assert_int_equal(x.n_moves, f.x.n_moves);
    assert_ptr_equal(x.did, &twice);
    for (int i = 0; i < x.n_moves; i++)
        if (fabs(x.moves[i].start - 2 * f.x.moves[i].start) > 1e-9 ||
            fabs(x.moves[i].end - 2 * f.x.moves[i].end) > 1e-9)
            fail_msg("move %d (%s): %g to %g, in the forecast %g to %g", i, op_name(x.moves[i].kind), x.moves[i].start,
                     x.moves[i].end, f.x.moves[i].start, f.x.moves[i].end);
    assert_int_equal(x.ranks[0].peak, f.x.ranks[0].peak);
    explain_fini(&x);
    forecast_fini(&twice);
    explained_fini(&f);
}

/* ---- files ---- */

static int64_t sum_of_moves(json_t *data)
{
    int64_t sum = 0;
    size_t i, k;
    json_t *move, *bytes;
    json_array_foreach(json_object_get(data, "moves"), i, move) json_array_foreach(json_array_get(move, 10), k, bytes)
        sum += json_integer_value(bytes);
    return sum;
}

static int64_t last_of(json_t *flat, int kind)
{
    int64_t last = 0;
    for (size_t i = 0; i + 2 < json_array_size(flat); i += 3)
        if (json_integer_value(json_array_get(flat, i)) == kind)
            last = json_integer_value(json_array_get(flat, i + 2));
    return last;
}

/* Each rank of ZeRO 3 has a quarter, and together they have every element once. */
TEST(the_json_has_what_ranks_own)
{
    struct explained f;
    int64_t own = 0;
    explained_init(&f, "zero3");
    json_t *data = explain_json(&f.x, "zero3", "about"), *rank;
    size_t r;
    assert_non_null(data);
    json_array_foreach(json_object_get(data, "ranks"), r, rank)
    {
        json_t *list = json_object_get(rank, "own");
        for (size_t i = 0; i < json_array_size(list); i += 6)
            own += json_integer_value(json_array_get(list, i + 1));
        assert_int_equal(json_integer_value(json_object_get(rank, "peak")), f.x.ranks[r].peak);
        assert_int_equal(last_of(json_object_get(rank, "memory"), EXPLAIN_OPT), f.x.ranks[r].reserved[SPACE_OPT]);
    }
    assert_int_equal(own, PARAMS);
    int64_t wire = 0;
    for (int i = 0; i < f.x.n_moves; i++)
        for (int k = 0; k < f.x.moves[i].n; k++)
            wire += f.x.moves[i].in[k];
    assert_int_equal(sum_of_moves(data), wire);
    json_decref(data);
    explained_fini(&f);
}

static char *file_text(const char *path)
{
    FILE *in = fopen(path, "r");
    assert_non_null(in);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    assert_true(fread(text, 1, (1 << 20) - 1, in) > 0);
    fclose(in);
    return text;
}

/* The page loads nothing, and no name ends the element that holds the data. */
TEST(the_page_is_complete_in_itself)
{
    struct explained f;
    char page[PATH_MAX], picture[PATH_MAX];
    snprintf(page, sizeof(page), "%s/page.html", test_tmpdir());
    snprintf(picture, sizeof(picture), "%s/page.svg", test_tmpdir());
    explained_init(&f, "1f1b");
    assert_ok(explain_page_write(&f.x, "</script><b>", "", page, &f.why));
    char *text = file_text(page);
    assert_non_null(strstr(text, "default-src 'none'"));
    assert_non_null(strstr(text, "\\u003c/script>\\u003cb>"));
    assert_null(strstr(text, "</script><b>"));
    assert_null(strstr(text, "@DATA@"));
    assert_null(strstr(text, "@JS@"));
    assert_null(strstr(text, " src="));
    free(text);
    assert_ok(explain_svg_write(&f.x, "a & b", picture, &f.why));
    text = file_text(picture);
    assert_non_null(strstr(text, "a &amp; b: forecast of a step, "));
    assert_non_null(strstr(text, "</svg>"));
    free(text);
    assert_int_equal(explain_page_write(&f.x, "x", "", "absent/page.html", &f.why), ERR_NOTFOUND);
    explained_fini(&f);
}
