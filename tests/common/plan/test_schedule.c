/* Schedules: bubbles and live activations against the formulas, the check of every small schedule, refusals of planted
 * faults, and text that is printed and read again. Formulas: GPipe arXiv 1811.06965, 1F1B and interleaved 2104.04473,
 * ZB-H1 and ZB-H2 2401.10241; ZB-V and DualPipeV by simulation of PyTorch's orders. */
#include "common/plan/schedule/schedule.h"
#include "tests/lib/example.h"

#include <math.h>

#define MAX_P 8
#define MAX_V 4
#define MAX_M 17

static struct schedule built(enum schedule_kind kind, int p, int v, int m)
{
    struct schedule s;
    struct why why = {""};
    if (schedule_build(kind, p, v, m, &s, &why))
        fail_msg("%s p %d v %d m %d: %s", schedule_name(kind), p, v, m, why.text);
    return s;
}

static struct schedule_times timed(const struct schedule *s, const struct schedule_cost *cost)
{
    struct schedule_times t;
    assert_ok(schedule_simulate(s, cost, &t, NULL));
    return t;
}

static int min_chunks(enum schedule_kind kind)
{
    return schedule_placement(kind) == PLACE_V ? 2 : 1;
}

static int max_chunks(enum schedule_kind kind)
{
    return kind == SCHEDULE_INTERLEAVED ? MAX_V : min_chunks(kind);
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Costs of the forward and of the backwards for inputs and weights of all of a rank's layers; a chunk has 1/v of them.
 */
static struct schedule_cost costs(double f, double b, double w, int v)
{
    return (struct schedule_cost){.seconds = {f / v, (b + w) / v, b / v, w / v}, .last_scale = 1};
}

static double closed_bubble(enum schedule_kind kind, int p, int v, double f, double b, double w)
{
    if (kind == SCHEDULE_ZB_V) /* with the costs of a chunk */
        return (b >= f ? (p - 1) * fmax(b, 2 * (b - w)) : (p - 1) * f + (p - 2) * (f - b)) / v;
    if (kind == SCHEDULE_ZB_H2)
        return (p - 1) * (f + fmax(b - 2 * w, 0));
    if (kind == SCHEDULE_DUALPIPE_V)
        return (p - 1) * (f + b - w) / v;
    return (p - 1) * (kind == SCHEDULE_ZB_H1 ? f + b - w : (f + b + w) / v);
}

static bool formula_holds(enum schedule_kind kind, int p, int v, int m)
{
    if (kind == SCHEDULE_INTERLEAVED && v > 1)
        return m % p == 0;
    if (kind == SCHEDULE_DUALPIPE_V)
        return m >= 2 * p;
    if (kind == SCHEDULE_ZB_V || kind == SCHEDULE_ZB_H2)
        return m >= 2 * p - 1;
    return kind != SCHEDULE_ZB_H1 || m >= p;
}

static void assert_bubble(enum schedule_kind kind, int p, int v, int m, const double fbw[3])
{
    double f = fbw[0], b = fbw[1], w = fbw[2], want = closed_bubble(kind, p, v, f, b, w);
    struct schedule s = built(kind, p, v, m);
    struct schedule_cost cost = costs(f, b, w, v);
    struct schedule_times t = timed(&s, &cost);
    double got = t.makespan - m * (f + b + w);
    if (fabs(got - want) > 1e-9 * t.makespan)
        fail_msg("%s p %d v %d m %d, costs %g %g %g: bubble %.12g, not %.12g", schedule_name(kind), p, v, m, f, b, w,
                 got, want);
    for (int r = 0; r < p; r++) {
        assert_true(fabs(t.ranks[r].bubble - want) <= 1e-9 * t.makespan);
        assert_true(fabs(t.ranks[r].busy - m * (f + b + w)) <= 1e-9 * t.makespan);
    }
    schedule_times_fini(&t);
    schedule_fini(&s);
}

static bool formula_covers(enum schedule_kind kind, const double fbw[3])
{
    return kind != SCHEDULE_DUALPIPE_V || fbw[1] <= fbw[0];
}

TEST(bubbles_are_the_formulas)
{
    /* Also with unequal parts of a backward. The formulas of ZB-H1 and ZB-H2 require that weights cost no more than
     * inputs or forwards; DualPipeV's also that inputs cost no more than forwards; ZB-V's that they cost no more than
     * inputs, and with b < f that b <= 2 w and f <= b + w. */
    static const double parts[][3] = {{1, 1, 1}, {1, 1.25, 1}, {2, 3, 1.5}, {1, 2, 0.5}, {2, 3, 2}, {3, 2, 2}};
    int cells = 0;
    for (int kind = 0; kind < SCHEDULE_KIND_COUNT; kind++)
        for (int p = 2; p <= 8; p++)
            for (int v = min_chunks((enum schedule_kind)kind); v <= max_chunks((enum schedule_kind)kind); v++)
                for (int m = 1; m <= 33; m++)
                    for (size_t i = 0; i < 6 && formula_holds((enum schedule_kind)kind, p, v, m); i++, cells++)
                        if (formula_covers((enum schedule_kind)kind, parts[i]))
                            assert_bubble((enum schedule_kind)kind, p, v, m, parts[i]);
    printf("%d bubbles\n", cells);
}

/* The largest number of (chunk, microbatch) live on a rank. Where the ranks do not divide the microbatches, an
 * interleaved schedule has at most as many as that of the next multiple, and a V with few microbatches at most as many
 * as with those that its order is made for. */
static int closed_peak(enum schedule_kind kind, int p, int v, int m, int rank)
{
    if (kind == SCHEDULE_GPIPE)
        return m;
    if (kind == SCHEDULE_ZB_V || kind == SCHEDULE_DUALPIPE_V)
        return least(2 * p + (kind == SCHEDULE_DUALPIPE_V), 2 * m);
    if (kind == SCHEDULE_ZB_H2)
        return least(2 * p - 1, m);
    if (kind == SCHEDULE_ZB_H1)
        return least(p, m);
    return v == 1 ? least(p - rank, m) : least(2 * (p - rank - 1) + (v - 1) * p + 1, v * m);
}

static bool peak_is_exact(enum schedule_kind kind, int p, int v, int m)
{
    return schedule_placement(kind) == PLACE_V ? m >= 2 * p : kind != SCHEDULE_INTERLEAVED || v == 1 || m % p == 0;
}

static void assert_peaks(enum schedule_kind kind, int p, int v, int m)
{
    struct schedule s = built(kind, p, v, m);
    struct why why = {""};
    int peaks[MAX_P];
    if (schedule_check(&s, peaks, &why))
        fail_msg("%s p %d v %d m %d: %s", schedule_name(kind), p, v, m, why.text);
    for (int r = 0; r < p; r++) {
        int want = closed_peak(kind, p, v, m, r);
        if (peaks[r] > want || (peak_is_exact(kind, p, v, m) && peaks[r] < want))
            fail_msg("%s p %d v %d m %d: rank %d has %d live, not %d", schedule_name(kind), p, v, m, r, peaks[r], want);
    }
    schedule_fini(&s);
}

TEST(small_schedules_pass_the_check_with_the_peaks_of_the_formulas)
{
    int n = 0;
    for (int kind = 0; kind < SCHEDULE_KIND_COUNT; kind++)
        for (int p = 1; p <= MAX_P; p++)
            for (int v = min_chunks((enum schedule_kind)kind); v <= max_chunks((enum schedule_kind)kind); v++)
                for (int m = 1; m <= MAX_M; m++, n++)
                    assert_peaks((enum schedule_kind)kind, p, v, m);
    printf("%d schedules\n", n);
    assert_int_equal(n, MAX_P * MAX_M * (SCHEDULE_KIND_COUNT - 1 + MAX_V));
}

/* ZB-H1 needs at most the memory of the fullest rank of 1F1B, as its authors state; a forward waits for weights only
 * when there is no room. */
TEST(zero_bubble_keeps_within_1f1b)
{
    for (int p = 1; p <= MAX_P; p++)
        for (int m = 1; m <= MAX_M; m++) {
            int zero[MAX_P], plain[MAX_P];
            struct schedule a = built(SCHEDULE_ZB_H1, p, 1, m), b = built(SCHEDULE_1F1B, p, 1, m);
            assert_ok(schedule_check(&a, zero, NULL));
            assert_ok(schedule_check(&b, plain, NULL));
            for (int r = 0; r < p; r++)
                assert_true(zero[r] <= plain[0]);
            struct schedule_cost cost = costs(1, 1, 1, 1);
            struct schedule_times fast = timed(&a, &cost), slow = timed(&b, &cost);
            assert_true(p == 1 || m == 1 ? fast.makespan <= slow.makespan : fast.makespan < slow.makespan);
            schedule_times_fini(&fast);
            schedule_times_fini(&slow);
            schedule_fini(&a);
            schedule_fini(&b);
        }
}

/* Of ZB-H2's bubble the offset between ranks is outside of a rank's own slots, so the next step could begin in it. The
 * rest is the formula of its authors; at equal costs nothing. */
TEST(zb_h2_waits_inside_as_its_authors_state)
{
    static const double parts[][3] = {{1, 1, 1}, {2, 3, 2}, {3, 2, 2}, {2, 2, 1}};
    for (int p = 2; p <= MAX_P; p++)
        for (int m = 2 * p - 1; m <= 4 * p; m++)
            for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
                const double f = parts[i][0], b = parts[i][1], w = parts[i][2];
                struct schedule s = built(SCHEDULE_ZB_H2, p, 1, m);
                const struct schedule_cost cost = costs(f, b, w, 1);
                struct schedule_times t = timed(&s, &cost);
                double most = 0;
                for (int r = 0; r < p; r++) {
                    const struct schedule_span *spans = t.ranks[r].spans;
                    most = fmax(most, spans[s.rows[r].n - 1].end - spans[0].start - t.ranks[r].busy);
                }
                assert_true(most == (p - 1) * (f + b - 2 * w));
                schedule_times_fini(&t);
                schedule_fini(&s);
            }
}

/* Post-validation removes the offset between ranks from zb-h2's bubble: what remains is the wait inside of a rank's own
 * slots, the formula of its authors. */
static double bubble_ahead(enum schedule_kind kind, int p, int m, const double fbw[3])
{
    const int v = min_chunks(kind);
    struct schedule s = built(kind, p, v, m);
    struct schedule_posts posts;
    struct schedule_times t;
    const struct schedule_cost cost = costs(fbw[0], fbw[1], fbw[2], v);
    assert_ok(schedule_posts_init(&posts, &s, NULL));
    assert_int_equal(schedule_ahead(&s, &posts), p - 1);
    assert_ok(schedule_simulate_ahead(&s, p - 1, &cost, &t, NULL));
    const double bubble = t.makespan - m * (fbw[0] + fbw[1] + fbw[2]);
    for (int r = 0; r < p; r++) {
        assert_true(fabs(t.ranks[r].bubble - bubble) < 1e-9);
        for (int i = 1; i < p - 1 - r; i++) /* the slots that run ahead are the last */
            assert_true(t.ranks[r].spans[i].start >= t.ranks[r].spans[s.rows[r].n - 1].end);
    }
    schedule_times_fini(&t);
    schedule_posts_fini(&posts);
    schedule_fini(&s);
    return bubble;
}

TEST(post_validation_leaves_the_wait_inside)
{
    static const double parts[][3] = {{1, 1, 1}, {2, 3, 2}, {3, 2, 2}, {2, 2, 1}};
    for (int p = 2; p <= MAX_P; p++)
        for (int m = 2 * p - 1; m <= 4 * p; m++) {
            for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
                assert_true(fabs(bubble_ahead(SCHEDULE_ZB_H2, p, m, parts[i]) -
                                 (p - 1) * (parts[i][0] + parts[i][1] - 2 * parts[i][2])) < 1e-9);
            assert_true(fabs(bubble_ahead(SCHEDULE_ZB_V, p, m, parts[0])) < 1e-9);
        }
}

/* With few microbatches or another order fewer slots can run ahead, and in most orders a rank that begins first is not
 * among the first to finish; the cut is still one that no message crosses. */
TEST(no_message_crosses_the_cut_of_slots_that_run_ahead)
{
    int most = 0;
    for (int kind = 0; kind < SCHEDULE_KIND_COUNT; kind++)
        for (int p = 2; p <= MAX_P; p++)
            for (int m = 1; m <= MAX_M; m++) {
                struct schedule s = built((enum schedule_kind)kind, p, min_chunks((enum schedule_kind)kind), m);
                struct schedule_posts posts;
                assert_ok(schedule_posts_init(&posts, &s, NULL));
                const int ahead = schedule_ahead(&s, &posts);
                assert_true(ahead <= least(p - 1, m));
                most = ahead > most ? ahead : most;
                for (int r = 0; r + 1 < p; r++) {
                    int sent = 0, received = 0;
                    for (int i = 0; i < s.rows[r].n; i++)
                        sent += s.rows[r].slots[i].kind == SLOT_FORWARD && s.rows[r].slots[i].chunk == 0 &&
                                posts.ranks[r].send[i] < ahead - r;
                    for (int i = 0; i < s.rows[r + 1].n; i++)
                        received += s.rows[r + 1].slots[i].kind == SLOT_FORWARD && s.rows[r + 1].slots[i].chunk == 0 &&
                                    posts.ranks[r + 1].receive[i] < ahead - r - 1;
                    assert_int_equal(sent, received);
                }
                schedule_posts_fini(&posts);
                schedule_fini(&s);
            }
    assert_int_equal(most, MAX_P - 1);
}

/* In a V all ranks keep the same number of activations, that of ZB-H1 (two chunks are one of its stages), and at equal
 * costs no rank waits between its first and its last slot. */
TEST(the_v_is_even)
{
    for (int p = 2; p <= MAX_P; p++)
        for (int m = 2 * p - 1; m <= 4 * p; m++) {
            int peaks[MAX_P];
            struct schedule s = built(SCHEDULE_ZB_V, p, 2, m);
            const struct schedule_cost cost = costs(2, 2, 2, 2);
            struct schedule_times t = timed(&s, &cost);
            assert_ok(schedule_check(&s, peaks, NULL));
            for (int r = 0; r < p; r++) {
                const struct schedule_span *spans = t.ranks[r].spans;
                assert_int_equal(peaks[r], 2 * p);
                assert_true(spans[s.rows[r].n - 1].end - spans[0].start == 6 * m);
            }
            schedule_times_fini(&t);
            schedule_fini(&s);
        }
}

/* In a V the last rank passes a value from its first chunk to its second, and rank 0 has the first and the last stage.
 */
TEST(stages_in_a_v)
{
    const struct schedule s = {.placement = PLACE_V, .ranks = 3, .chunks = 2, .micros = 1};
    static const int stages[3][2] = {{0, 5}, {1, 4}, {2, 3}};
    for (int r = 0; r < 3; r++)
        for (int c = 0; c < 2; c++) {
            const struct slot forward = {SLOT_FORWARD, c, 0}, input = {SLOT_INPUT, c, 0};
            struct schedule_work to, from;
            assert_int_equal(schedule_stage(&s, r, c), stages[r][c]);
            assert_int_equal(schedule_target(&s, r, &forward, &to), stages[r][c] < 5);
            assert_int_equal(schedule_source(&s, r, &input, &from), stages[r][c] < 5);
            if (stages[r][c] < 5) {
                assert_int_equal(stages[to.rank][to.chunk], stages[r][c] + 1);
                assert_int_equal(stages[from.rank][from.chunk], stages[r][c] + 1);
            }
        }
}

/* A value that stays on its rank is kept from the exchange after its step on. */
TEST(a_value_for_the_same_rank_is_kept)
{
    struct schedule s = built(SCHEDULE_ZB_V, 3, 2, 7);
    struct schedule_posts p;
    int kept = 0;
    assert_ok(schedule_posts_init(&p, &s, NULL));
    for (int i = 0; i < s.rows[2].n; i++) {
        struct schedule_work from;
        if (!schedule_source(&s, 2, &s.rows[2].slots[i], &from) || from.rank != 2)
            continue;
        assert_true(schedule_is(&s.rows[2].slots[p.ranks[2].made[i]], &from));
        assert_int_equal(p.ranks[2].receive[i], p.ranks[2].send[p.ranks[2].made[i]]);
        kept++;
    }
    assert_int_equal(kept, 2 * 7); /* a value and a gradient of each microbatch */
    assert_ok(schedule_posts_check(&p, &s, NULL));
    schedule_posts_fini(&p);
    schedule_fini(&s);
}

/* Microbatches that do not exist make no step longer. */
TEST(a_remainder_never_takes_longer_than_the_next_multiple)
{
    for (int p = 2; p <= MAX_P; p++)
        for (int v = 2; v <= MAX_V; v++)
            for (int m = 1; m <= 3 * p; m++) {
                struct schedule s = built(SCHEDULE_INTERLEAVED, p, v, m);
                struct schedule whole = built(SCHEDULE_INTERLEAVED, p, v, (m + p - 1) / p * p);
                struct schedule_cost cost = costs(1, 1, 1, v);
                struct schedule_times a = timed(&s, &cost), b = timed(&whole, &cost);
                assert_true(a.makespan <= b.makespan + 1e-9);
                schedule_times_fini(&a);
                schedule_times_fini(&b);
                schedule_fini(&s);
                schedule_fini(&whole);
            }
}

/* The oracle, slot by slot: a slot starts exactly when its rank is free and its last input has arrived. */
static void assert_spans(const struct schedule *s, const struct schedule_cost *cost, const struct schedule_times *t)
{
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->rows[r].n; i++) {
            const struct slot *x = &s->rows[r].slots[i];
            struct schedule_work from;
            double start = i ? t->ranks[r].spans[i - 1].end : 0;
            if (schedule_source(s, r, x, &from))
                for (int j = 0; j < s->rows[from.rank].n; j++)
                    if (schedule_is(&s->rows[from.rank].slots[j], &from))
                        start = fmax(start, t->ranks[from.rank].spans[j].end + (from.rank == r ? 0 : cost->latency));
            double scale = x->micro == s->micros - 1 ? cost->last_scale : 1;
            assert_true(fabs(t->ranks[r].spans[i].start - start) < 1e-9);
            assert_true(fabs(t->ranks[r].spans[i].end - start - scale * cost->seconds[x->kind]) < 1e-9);
        }
}

TEST(times_are_the_earliest)
{
    const struct schedule_cost cost = {{1, 2.5, 1.25, 1}, 0.125, 0.5};
    for (int kind = 0; kind < SCHEDULE_KIND_COUNT; kind++)
        for (int p = 1; p <= 5; p++)
            for (int v = min_chunks((enum schedule_kind)kind); v <= least(2, max_chunks((enum schedule_kind)kind)); v++)
                for (int m = 1; m <= 7; m++) {
                    struct schedule s = built((enum schedule_kind)kind, p, v, m);
                    struct schedule_times t = timed(&s, &cost);
                    assert_spans(&s, &cost, &t);
                    schedule_times_fini(&t);
                    schedule_fini(&s);
                }
}

/* One microbatch passes the pipeline forward and backward: 2 (p - 1) transfers, and none on one rank. */
TEST(latency_counts_between_ranks_only)
{
    const struct schedule_cost cost = {{1, 2, 1, 1}, 0.25, 0.5};
    struct schedule s = built(SCHEDULE_1F1B, 4, 1, 1);
    struct schedule_times t = timed(&s, &cost);
    assert_true(fabs(t.makespan - (4 * 1.5 + 6 * 0.25)) < 1e-12);
    schedule_times_fini(&t);
    schedule_fini(&s);
    s = built(SCHEDULE_INTERLEAVED, 1, 3, 2);
    t = timed(&s, &cost);
    assert_true(fabs(t.makespan - 3 * (3 + 1.5)) < 1e-12);
    assert_true(t.ranks[0].bubble < 1e-12);
    schedule_times_fini(&t);
    schedule_fini(&s);
}

/* ---- sends and receives ---- */

TEST(a_receive_is_after_its_send_and_before_its_use)
{
    for (int v = 1; v <= 3; v++) {
        struct schedule s = built(SCHEDULE_INTERLEAVED, 4, v, 10);
        struct schedule_posts p;
        assert_ok(schedule_posts_init(&p, &s, NULL));
        for (int r = 0; r < s.ranks; r++) {
            int received = 0;
            for (int i = 0; i < s.rows[r].n; i++) {
                struct schedule_work from;
                bool takes = schedule_source(&s, r, &s.rows[r].slots[i], &from);
                assert_true(p.ranks[r].receive[i] <= i);
                assert_int_equal(p.ranks[r].receive[i] >= 0, takes);
                if (takes)
                    assert_true(schedule_is(&s.rows[from.rank].slots[p.ranks[r].made[i]], &from));
                else
                    assert_int_equal(p.ranks[r].made[i], -1);
                received += takes;
            }
            assert_in_range(p.ranks[r].held, 1, received);
        }
        assert_ok(schedule_posts_check(&p, &s, NULL));
        schedule_posts_fini(&p);
        schedule_fini(&s);
    }
}

/* Of three ranks the middle one holds microbatch 2 from the rank before it and microbatch 0's gradient from the rank
 * after it at the same time. */
TEST(values_that_wait_are_counted)
{
    static const int held[] = {1, 2, 1};
    struct schedule s = built(SCHEDULE_1F1B, 3, 1, 4);
    struct schedule_posts p;
    assert_ok(schedule_posts_init(&p, &s, NULL));
    for (int r = 0; r < 3; r++)
        assert_int_equal(p.ranks[r].held, held[r]);
    assert_int_equal(p.ranks[1].receive[3], 2); /* F0.2, before B0.0 */
    schedule_posts_fini(&p);
    schedule_fini(&s);
}

/* With chunks in a loop, a forward and the whole backward after it share an exchange, which comes after both. This is
 * possible in the first order below; in the second the backward needs what the forward sends. */
TEST(a_forward_is_sent_with_its_backward)
{
    struct schedule s = built(SCHEDULE_INTERLEAVED, 2, 2, 4);
    struct schedule_posts p;
    int pairs = 0;
    assert_ok(schedule_posts_init(&p, &s, NULL));
    for (int r = 0; r < 2; r++)
        for (int i = 0; i < s.rows[r].n; i++) {
            const struct slot *slot = &s.rows[r].slots[i];
            bool pair = i + 1 < s.rows[r].n && slot->kind == SLOT_FORWARD && slot[1].kind == SLOT_BACKWARD;
            assert_int_equal(p.ranks[r].send[i], i + 1 + pair);
            pairs += pair;
        }
    assert_true(pairs >= 8);
    schedule_posts_fini(&p);
    schedule_fini(&s);
    s = built(SCHEDULE_DUALPIPE_V, 3, 2, 6); /* in a V no value waits for the slot after it */
    assert_ok(schedule_posts_init(&p, &s, NULL));
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < s.rows[r].n; i++)
            assert_int_equal(p.ranks[r].send[i], i + 1);
    schedule_posts_fini(&p);
    schedule_fini(&s);
    static const char text[] = "F0.0,F1.0,B1.0,B0.0\nF0.0,F1.0,B1.0,B0.0\n";
    assert_ok(schedule_read_csv(text, sizeof(text) - 1, "text", &s, NULL));
    assert_ok(schedule_posts_init(&p, &s, NULL));
    for (int i = 0; i < 4; i++)
        assert_true(p.ranks[0].send[i] == i + 1 && p.ranks[1].send[i] == i + 1);
    schedule_posts_fini(&p);
    schedule_fini(&s);
}

/* The oracle: at slot i, the values received at or before it whose slots are i or later. */
static int slow_held(const struct schedule_rank_posts *p, int n)
{
    int most = 0;
    for (int at = 0; at < n; at++) {
        int now = 0;
        for (int i = at; i < n; i++)
            now += p->receive[i] >= 0 && p->receive[i] <= at;
        most = now > most ? now : most;
    }
    return most;
}

/* Values from rank `from` to rank `to` are received in the order of the sender's slots. */
static void assert_in_order(const struct schedule *s, const struct schedule_posts *p, int from, int to)
{
    int last = -1;
    for (int i = 0; i < s->rows[from].n; i++) {
        struct schedule_work w;
        if (!schedule_target(s, from, &s->rows[from].slots[i], &w) || w.rank != to || to == from)
            continue;
        for (int j = 0; j < s->rows[to].n; j++)
            if (schedule_is(&s->rows[to].slots[j], &w)) {
                assert_true(p->ranks[to].receive[j] >= last);
                last = p->ranks[to].receive[j];
            }
    }
}

TEST(receives_are_in_the_order_of_sends_and_counted)
{
    for (int kind = 0; kind < SCHEDULE_KIND_COUNT; kind++)
        for (int p = 1; p <= 5; p++)
            for (int v = min_chunks((enum schedule_kind)kind); v <= least(3, max_chunks((enum schedule_kind)kind)); v++)
                for (int m = 1; m <= 11; m++) {
                    struct schedule s = built((enum schedule_kind)kind, p, v, m);
                    struct schedule_posts posts;
                    assert_ok(schedule_posts_init(&posts, &s, NULL));
                    for (int r = 0; r < p; r++) {
                        assert_int_equal(posts.ranks[r].held, slow_held(&posts.ranks[r], s.rows[r].n));
                        for (int q = 0; q < p; q++)
                            assert_in_order(&s, &posts, r, q);
                    }
                    schedule_posts_fini(&posts);
                    schedule_fini(&s);
                }
}

/* Receives right before the use, where the sender waits for them, deadlock an interleaved pipeline: two ranks send each
 * other gradients that neither receives yet. */
TEST(late_receives_are_refused)
{
    struct schedule s = built(SCHEDULE_INTERLEAVED, 2, 2, 4);
    struct schedule_posts p;
    struct why why;
    assert_ok(schedule_posts_init(&p, &s, NULL));
    for (int r = 0; r < s.ranks; r++)
        for (int i = 0; i < s.rows[r].n; i++)
            if (p.ranks[r].receive[i] >= 0)
                p.ranks[r].receive[i] = i;
    assert_err(ERR_INVALID, schedule_posts_check(&p, &s, &why));
    assert_string_equal(why.text, "rank 0, slot 5: backward of chunk 1 on microbatch 0 waits for ever until its output "
                                  "is received");
    schedule_posts_fini(&p);
    schedule_fini(&s);
}

/* ---- faults ---- */

static void assert_refused(struct schedule *s, const char *want)
{
    struct why why = {""};
    err_t err = schedule_check(s, NULL, &why);
    if (err != ERR_INVALID || !strstr(why.text, want))
        fail_msg("%s: '%s', where '%s' was wanted", err_name(err), why.text, want);
    schedule_fini(s);
}

static void swap_slots(struct schedule *s, int rank, int i, int j)
{
    struct slot t = s->rows[rank].slots[i];
    s->rows[rank].slots[i] = s->rows[rank].slots[j];
    s->rows[rank].slots[j] = t;
}

TEST(swapped_slots)
{
    struct schedule s = built(SCHEDULE_1F1B, 2, 1, 3);
    swap_slots(&s, 1, 2, 3);
    assert_refused(&s, "rank 1, slot 2: backward of chunk 0 on microbatch 1: its forward is not before it");
    s = built(SCHEDULE_ZB_H1, 2, 1, 2);
    swap_slots(&s, 0, 2, 3);
    assert_refused(&s,
                   "rank 0, slot 2: backward for weights of chunk 0 on microbatch 0: its backward for inputs is not "
                   "before it");
}

TEST(missing_work)
{
    struct schedule s = built(SCHEDULE_ZB_H1, 2, 1, 3);
    s.rows[1].n--;
    assert_refused(&s, "rank 1, slot 8: backward for weights of chunk 0 on microbatch 2: the row ends without it");
    s = built(SCHEDULE_GPIPE, 3, 1, 4);
    s.rows[2].n--;
    assert_refused(&s, "rank 2, slot 7: backward of chunk 0 on microbatch 3: the row ends without it");
    s = built(SCHEDULE_INTERLEAVED, 2, 2, 2);
    s.rows[0].n = 0;
    assert_refused(&s, "rank 0, slot 0: forward of chunk 0 on microbatch 0: the row ends without it");
}

TEST(work_done_twice)
{
    struct schedule s = built(SCHEDULE_GPIPE, 2, 1, 3);
    s.rows[0].slots[2].micro = 1;
    assert_refused(&s, "rank 0, slot 2: forward of chunk 0 on microbatch 1: slot 1 already does the same");
    s = built(SCHEDULE_ZB_H1, 1, 1, 2);
    s.rows[0].slots[5].micro = 0;
    assert_refused(&s, "rank 0, slot 5: backward for weights of chunk 0 on microbatch 0: slot 2 already does the same");
}

TEST(whole_and_split_backward)
{
    struct schedule s = built(SCHEDULE_ZB_H1, 1, 1, 1);
    s.rows[0].slots[2].kind = SLOT_BACKWARD;
    assert_refused(&s,
                   "rank 0, slot 2: backward of chunk 0 on microbatch 0: a backward for inputs is already before it");
    s = built(SCHEDULE_ZB_H1, 1, 1, 1);
    s.rows[0].slots[1].kind = SLOT_BACKWARD;
    s.rows[0].slots[2].kind = SLOT_INPUT;
    assert_refused(&s, "rank 0, slot 2: backward for inputs of chunk 0 on microbatch 0: a whole backward is already");
}

TEST(work_that_is_not_there)
{
    struct schedule s = built(SCHEDULE_GPIPE, 2, 1, 3);
    s.rows[1].slots[1].micro = 3;
    assert_refused(&s, "rank 1, slot 1: forward of chunk 0 on microbatch 3: there is no such microbatch");
    s = built(SCHEDULE_GPIPE, 2, 1, 3);
    s.rows[1].slots[4].chunk = -1;
    assert_refused(&s, "rank 1, slot 4: backward of chunk -1 on microbatch 1: there is no such chunk");
    s = built(SCHEDULE_GPIPE, 2, 1, 3);
    s.rows[0].slots[0].kind = SLOT_KIND_COUNT;
    assert_refused(&s, "rank 0, slot 0: ? of chunk 0 on microbatch 0: there is no such kind");
}

/* Rank 0 needs microbatch 0's gradient before it computes microbatch 1, which rank 1 needs first. */
TEST(a_cycle_of_waits)
{
    static const char text[] = "F0.0,B0.0,F0.1,B0.1\nF0.1,B0.1,F0.0,B0.0\n";
    struct schedule s;
    assert_ok(schedule_read_csv(text, strlen(text), "cycle.csv", &s, NULL));
    assert_refused(&s,
                   "the ranks wait for each other: rank 0, slot 1: backward of chunk 0 on microbatch 0 waits for its "
                   "input from rank 1; rank 1, slot 0: forward of chunk 0 on microbatch 1 waits for its input from "
                   "rank 0");
    /* Rank 0 waits for a cycle that does not contain it. */
    static const char tail[] = "F0.0,F0.1,B0.0,B0.1\nF0.0,B0.0,F0.1,B0.1\nF0.1,B0.1,F0.0,B0.0\n";
    assert_ok(schedule_read_csv(tail, strlen(tail), "tail.csv", &s, NULL));
    assert_refused(&s,
                   "the ranks wait for each other: rank 1, slot 1: backward of chunk 0 on microbatch 0 waits for its "
                   "input from rank 2; rank 2, slot 0: forward of chunk 0 on microbatch 1 waits for its input from "
                   "rank 1");
    /* On one rank: the second chunk before the first. */
    static const char own[] = "F1.0,F0.0,B1.0,B0.0\n";
    assert_ok(schedule_read_csv(own, strlen(own), "own.csv", &s, NULL));
    assert_refused(&s, "rank 0, slot 0: forward of chunk 1 on microbatch 0 waits for its input from rank 0");
}

/* A swap of two adjacent slots is refused, or yields a schedule that runs. */
TEST(swaps_are_refused_or_run)
{
    int refused = 0, legal = 0;
    struct schedule s = built(SCHEDULE_INTERLEAVED, 3, 2, 6);
    const struct schedule_cost cost = {{1, 2, 1, 1}, 0, 1};
    for (int r = 0; r < s.ranks; r++)
        for (int i = 0; i + 1 < s.rows[r].n; i++) {
            struct schedule_times t;
            struct why why = {""};
            swap_slots(&s, r, i, i + 1);
            err_t err = schedule_check(&s, NULL, &why);
            refused += err != OK;
            legal += !err;
            assert_true(!err || strstr(why.text, "rank "));
            if (!err) {
                assert_ok(schedule_simulate(&s, &cost, &t, &why));
                schedule_times_fini(&t);
            }
            swap_slots(&s, r, i, i + 1);
        }
    assert_true(refused > 5 && legal > 5);
    schedule_fini(&s);
}

/* A schedule with a source that does not exist has no times. */
TEST(times_of_unchecked_schedules)
{
    static const char text[] = "F0.1,B0.1\nF0.0,B0.0\n";
    const struct schedule_cost cost = {{1, 2, 1, 1}, 0, 1};
    struct schedule s;
    struct schedule_times t;
    struct why why;
    assert_ok(schedule_read_csv(text, strlen(text), "x.csv", &s, NULL));
    assert_err(ERR_INVALID, schedule_simulate(&s, &cost, &t, &why));
    s.rows[0].slots[0].micro = 7;
    assert_err(ERR_INVALID, schedule_simulate(&s, &cost, &t, &why));
    assert_non_null(strstr(why.text, "rank 0, slot 0"));
    schedule_fini(&s);
}

TEST(times_of_a_value_that_no_rank_computes)
{
    static const char text[] = "F0.1\nF0.0\n";
    const struct schedule_cost cost = {{1, 2, 1, 1}, 0, 1};
    struct schedule s;
    struct schedule_times t;
    struct why why;
    assert_ok(schedule_read_csv(text, strlen(text), "x.csv", &s, NULL));
    assert_err(ERR_INVALID, schedule_simulate(&s, &cost, &t, &why));
    assert_string_equal(why.text, "rank 1, slot 0: forward of chunk 0 on microbatch 0 waits for its input from rank 0, "
                                  "which never computes it");
    schedule_fini(&s);
}

/* ---- sizes ---- */

TEST(sizes_that_are_not_legal)
{
    static const struct {
        enum schedule_kind kind;
        int p, v, m;
        const char *want;
    } rows[] = {
        {SCHEDULE_1F1B, 0, 1, 4, "the legal range is 1 to 1024; the nearest legal number is 1"},
        {SCHEDULE_1F1B, 1025, 1, 4, "the nearest legal number is 1024"},
        {SCHEDULE_INTERLEAVED, 2, 65, 4, "cannot have 65 chunks per rank: the legal range is 1 to 64"},
        {SCHEDULE_INTERLEAVED, 2, -1, 4, "the nearest legal number is 1"},
        {SCHEDULE_GPIPE, 2, 1, 0, "cannot have 0 microbatches"},
        {SCHEDULE_GPIPE, 2, 1, 65537, "the nearest legal number is 65536"},
        {SCHEDULE_GPIPE, 1024, 1, 1025, "the nearest legal number of microbatches is 1024"},
        {SCHEDULE_ZB_H1, 2, 2, 4, "schedule zb-h1 has 1 chunks per rank, not 2; the nearest legal choice is 1, or "},
        {SCHEDULE_ZB_V, 2, 1, 4, "schedule zb-v has 2 chunks per rank, not 1; the nearest legal choice is 2, or "},
        {SCHEDULE_ZB_V, 2, 3, 4, "the nearest legal choice is 2, or schedule interleaved"},
        {SCHEDULE_KIND_COUNT, 2, 1, 4, "there is no schedule number"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct schedule s;
        struct why why = {""};
        assert_err(ERR_INVALID, schedule_build(rows[i].kind, rows[i].p, rows[i].v, rows[i].m, &s, &why));
        if (!strstr(why.text, rows[i].want))
            fail_msg("'%s', where '%s' was wanted", why.text, rows[i].want);
    }
}

TEST(the_largest_are_built)
{
    struct schedule s = built(SCHEDULE_1F1B, 1024, 1, 1024);
    assert_ok(schedule_check(&s, NULL, NULL));
    schedule_fini(&s);
    s = built(SCHEDULE_INTERLEAVED, 16, 64, 1024);
    assert_ok(schedule_check(&s, NULL, NULL));
    schedule_fini(&s);
}

/* ---- text ---- */

static char *printed(const struct schedule *s, enum schedule_form form)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_ok(schedule_print_csv(s, form, out));
    fclose(out);
    return text;
}

static void assert_same(const struct schedule *a, const struct schedule *b)
{
    assert_int_equal(a->ranks, b->ranks);
    assert_int_equal(a->chunks, b->chunks);
    assert_int_equal(a->micros, b->micros);
    for (int r = 0; r < a->ranks; r++) {
        assert_int_equal(a->rows[r].n, b->rows[r].n);
        assert_memory_equal(a->rows[r].slots, b->rows[r].slots, (size_t)a->rows[r].n * sizeof(struct slot));
    }
}

TEST(printed_text_can_be_read)
{
    for (int kind = 0; kind < SCHEDULE_KIND_COUNT; kind++)
        for (int p = 1; p <= 5; p++)
            for (int v = min_chunks((enum schedule_kind)kind); v <= max_chunks((enum schedule_kind)kind); v++)
                for (int m = 1; m <= 11; m += 2) {
                    struct schedule s = built((enum schedule_kind)kind, p, v, m), again;
                    char *text = printed(&s, SCHEDULE_OWN);
                    assert_ok(schedule_read_csv(text, strlen(text), "x.csv", &again, NULL));
                    assert_same(&s, &again);
                    free(text);
                    schedule_fini(&s);
                    schedule_fini(&again);
                }
}

TEST(a_cycle_is_printed_without_gaps)
{
    static const char text[] = "F0.0,B0.0,F0.1,B0.1\nF0.1,B0.1,F0.0,B0.0\n";
    struct schedule s;
    assert_ok(schedule_read_csv(text, strlen(text), "x.csv", &s, NULL));
    char *again = printed(&s, SCHEDULE_OWN);
    assert_string_equal(again, text);
    free(again);
    schedule_fini(&s);
}

TEST(blanks_comments_and_line_ends)
{
    static const char text[] = "# two ranks\r\n\n  F0.0 , -,,\tI0.0,W0.0\r\n \t\n-,F0.0,B0.0";
    struct schedule s;
    assert_ok(schedule_read_csv(text, strlen(text), "x.csv", &s, NULL));
    assert_int_equal(s.ranks, 2);
    assert_int_equal(s.rows[0].n, 3);
    assert_int_equal(s.rows[0].slots[1].kind, SLOT_INPUT);
    assert_int_equal(s.rows[1].slots[1].kind, SLOT_BACKWARD);
    assert_ok(schedule_check(&s, NULL, NULL));
    schedule_fini(&s);
}

TEST(text_that_is_not_a_schedule)
{
    static const struct {
        const char *text;
        err_t err;
        const char *want;
    } rows[] = {
        {"", ERR_INVALID, "x.csv: no slots"},
        {"-,-\n", ERR_INVALID, "x.csv: no slots"},
        {"F0.0,G0.0\n", ERR_INVALID, "x.csv:1:6: 'G0.0' is not a slot; write F, B, I or W"},
        {"F0.0\n F0.0, F0.1x\n", ERR_INVALID, "x.csv:2:8: 'F0.1x' is not a slot"},
        {"F0.0,B0\n", ERR_INVALID, "x.csv:1:6: 'B0' is not a slot"},
        {"F.0\n", ERR_INVALID, "x.csv:1:1: 'F.0' is not a slot"},
        {"F0.-1\n", ERR_INVALID, "x.csv:1:1: 'F0.-1' is not a slot"},
        {"F0.0 B0.0\n", ERR_INVALID, "x.csv:1:1: 'F0.0 B0.0' is not a slot"},
        {"\n\nF0.0,\033[2J,B0.0\n", ERR_INVALID, "x.csv:3:6: '?[2J' is not a slot"},
        {"F0.0,Fxxxxxxxxxxxxxxxxxxxxxxxx", ERR_INVALID, "x.csv:1:6: 'Fxxxxxxxxxxxxxxx...' is not a slot"},
        {"F64.0\n", ERR_LIMIT, "x.csv:1:1: the chunk number is too large; the largest legal number is 63"},
        {"F0.65536\n", ERR_LIMIT, "x.csv:1:1: the microbatch number is too large; the largest legal number is 65535"},
        {"F0.99999999999999999999\n", ERR_LIMIT, "x.csv:1:1: the microbatch number"},
        {"F63.65535\n", ERR_INVALID, "x.csv: 1 ranks x 64 chunks x 65536 microbatches exceed the limit"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct schedule s;
        struct why why = {""};
        assert_err(rows[i].err, schedule_read_csv(rows[i].text, strlen(rows[i].text), "x.csv", &s, &why));
        if (strncmp(why.text, rows[i].want, strlen(rows[i].want)) != 0)
            fail_msg("'%s', where '%s' was wanted", why.text, rows[i].want);
    }
}

/* ---- PyTorch's form ---- */

/* 2 ranks, 4 stages and 8 microbatches, the shape of torchtitan's tests/assets/custom_schedule.csv: interleaved 1F1B.
 */
static const char looped[] =
    "0F0,0F1,2F0,2F1,0F2,,2B0,0F3,2B1,2F2,0B0,2F3,0B1,0F4,2B2,0F5,2B3,2F4,0B2,2F5,0B3,0F6,2B4,0F7,2B5,2F6,0B4,2F7,0B5,"
    ",2B6,,2B7,0B6,0B7\r\n"
    ",1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1F4,1B2,1F5,1B3,3F4,3B4,3F5,3B5,1F6,1B4,1F7,1B5,3F6,3B6,"
    "3F7,3B7,1B6,1B7,,\r\n";

TEST(a_loop_in_pytorchs_form_is_read)
{
    struct schedule s, want = built(SCHEDULE_INTERLEAVED, 2, 2, 8);
    assert_ok(schedule_read_csv(looped, strlen(looped), "x.csv", &s, NULL));
    assert_int_equal(s.placement, PLACE_LOOP);
    assert_same(&s, &want);
    assert_ok(schedule_check(&s, NULL, NULL));
    schedule_fini(&s);
    schedule_fini(&want);
}

/* Two stages for each line, there and back, and a pair that PyTorch would overlap. */
TEST(a_v_in_pytorchs_form_is_read)
{
    static const char text[] = "0F0,0F1,3F0,3B0,0B0,(3F1;3B1)OVERLAP_F_B,0B1\n1F0,2F0,1F1,2F1,2B0,1B0,2B1,1B1\n";
    struct schedule s;
    assert_ok(schedule_read_csv(text, strlen(text), "x.csv", &s, NULL));
    assert_int_equal(s.placement, PLACE_V);
    assert_int_equal(s.chunks, 2);
    assert_int_equal(s.rows[0].n, 8);
    assert_int_equal(s.rows[0].slots[2].chunk, 1);
    assert_true(s.rows[0].slots[5].kind == SLOT_FORWARD && s.rows[0].slots[6].kind == SLOT_BACKWARD);
    assert_int_equal(s.rows[1].slots[1].chunk, 1);
    assert_ok(schedule_check(&s, NULL, NULL));
    schedule_fini(&s);
}

/* Every schedule comes back with its placement; the order of a V in dtd's own form would be that of a loop. */
TEST(text_in_pytorchs_form_can_be_read)
{
    for (int kind = 0; kind < SCHEDULE_KIND_COUNT; kind++)
        for (int p = 1; p <= 5; p++)
            for (int v = min_chunks((enum schedule_kind)kind); v <= max_chunks((enum schedule_kind)kind); v++)
                for (int m = 1; m <= 11; m += 2) {
                    struct schedule s = built((enum schedule_kind)kind, p, v, m), again;
                    char *text = printed(&s, SCHEDULE_PYTORCH);
                    assert_ok(schedule_read_csv(text, strlen(text), "x.csv", &again, NULL));
                    assert_same(&s, &again);
                    if (p > 1)
                        assert_int_equal(again.placement, s.placement);
                    free(text);
                    schedule_fini(&s);
                    schedule_fini(&again);
                }
}

TEST(text_that_is_not_in_pytorchs_form)
{
    static const struct {
        const char *text;
        err_t err;
        const char *want;
    } rows[] = {
        {"0F0,F0.0\n", ERR_INVALID,
         "x.csv:1:5: 'F0.0' has another form than the first cell; write all as F0.3, or all"},
        {"F0.0\n0F0\n", ERR_INVALID, "x.csv:2:1: '0F0' has another form"},
        {"0F\n", ERR_INVALID,
         "x.csv:1:1: '0F' is not an action; write the stage, F, B, I or W, and the microbatch (0F3)"},
        {"0F0,0X0\n", ERR_INVALID, "x.csv:1:5: '0X0' is not an action"},
        {"0F0,0\n", ERR_INVALID, "x.csv:1:5: '0' is not an action"},
        {"0F0x\n", ERR_INVALID, "x.csv:1:1: '0F0x' is not an action"},
        {"0F0,0SEND_F0\n", ERR_INVALID, "x.csv:1:5: '0SEND_F0' is communication; write PyTorch's form compute_only"},
        {"0UNSHARD,0F0\n", ERR_INVALID, "x.csv:1:1: '0UNSHARD' is communication"},
        {"0REDUCE_GRAD\n", ERR_INVALID, "x.csv:1:1: '0REDUCE_GRAD' is communication"},
        {"(0F0)OVERLAP_F_B\n", ERR_INVALID,
         "x.csv:1:1: '(0F0)OVERLAP_F_B' is not a pair; write a forward and a backward"},
        {"(0F0;0B0\n", ERR_INVALID, "x.csv:1:1: '(0F0;0B0' is not a pair"},
        {"(0F0;)OVERLAP_F_B\n", ERR_INVALID, "x.csv:1:6: '' is not an action"},
        {"(;)OVERLAP_F_B\n", ERR_INVALID, "x.csv:1:2: '' is not an action"},
        {"65536F0\n", ERR_LIMIT, "x.csv:1:1: the stage number is too large; the largest legal number is 65535"},
        {"0F65536\n", ERR_LIMIT, "x.csv:1:1: the microbatch number is too large"},
        {"0F0,2F0\n1F0\n", ERR_INVALID, "x.csv: 3 stages on 2 lines; write equally many stages on each line"},
        {"# of 3 ranks\n0F0,3F0\n\n1F0,2F0\n4F0,5F0\n", ERR_INVALID,
         "x.csv:4: stage 2 is on line 2 of 3; stages must go round the lines (0 to 2 are the first of each), or, with "
         "two "
         "for each line, there and back (the first line has 0 and 5)"},
        {"0F0,1F0\n2F0,3F0\n", ERR_INVALID, "x.csv:1: stage 1 is on line 1 of 2; stages must go round the lines"},
        {"0F0,0F1,3F0\n1F0,2F0,3F1\n", ERR_INVALID, "x.csv:1: stage 3 is on line 1 of 2"},
        {"0F0,5F0,6F0\n1F0,4F0,7F0\n2F0,3F0,8F0\n", ERR_INVALID, "x.csv:1: stage 5 is on line 1 of 3"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct schedule s;
        struct why why = {""};
        assert_err(rows[i].err, schedule_read_csv(rows[i].text, strlen(rows[i].text), "x.csv", &s, &why));
        if (strncmp(why.text, rows[i].want, strlen(rows[i].want)) != 0)
            fail_msg("'%s', where '%s' was wanted", why.text, rows[i].want);
    }
}

TEST(too_many_lines)
{
    char text[(SCHEDULE_MAX_RANKS + 1) * 5];
    struct schedule s;
    struct why why;
    for (size_t i = 0; i < sizeof(text); i += 5)
        memcpy(text + i, "F0.0\n", 5);
    assert_ok(schedule_read_csv(text, sizeof(text) - 5, "x.csv", &s, NULL));
    schedule_fini(&s);
    assert_err(ERR_LIMIT, schedule_read_csv(text, sizeof(text), "x.csv", &s, &why));
    assert_non_null(strstr(why.text, "x.csv:1025:1: too many lines"));
    assert_err(ERR_LIMIT, schedule_read_csv(text, SCHEDULE_MAX_BYTES + 1, "x.csv", &s, &why));
    assert_non_null(strstr(why.text, "bytes; a schedule has at most"));
}

/* Each "```csv KIND P V M" block of docs/internals/schedules.md equals the schedule that the rule builds. */
TEST(examples_of_the_manual)
{
    struct buf doc = {0};
    int found = 0;
    example_read("internals/schedules.md", &doc);
    for (const char *at = (char *)doc.data; (at = strstr(at, "```csv ")); found++) {
        char kind[32];
        int p, v, m, k = 0;
        assert_int_equal(sscanf(at, "```csv %31s %d %d %d\n", kind, &p, &v, &m), 4);
        while (k < SCHEDULE_KIND_COUNT && strcmp(kind, schedule_name((enum schedule_kind)k)) != 0)
            k++;
        struct schedule s = built((enum schedule_kind)k, p, v, m);
        char *want = printed(&s, SCHEDULE_OWN);
        at = strchr(at, '\n') + 1;
        if (strncmp(at, want, strlen(want)) != 0 || strncmp(at + strlen(want), "```", 3) != 0)
            fail_msg("%s %d %d %d is\n%s", kind, p, v, m, want);
        free(want);
        schedule_fini(&s);
    }
    assert_int_equal(found, SCHEDULE_KIND_COUNT);
    buf_fini(&doc);
}
