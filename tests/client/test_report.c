/* The report of a job. The ledger is compared with jobs that are simulated here second by second, so its right values
 * do not come from the code under test. Each rule of advice is tried on a job without faults and on the same job with
 * one. */
#include "client/report/advice.h"
#include "client/report/html.h"
#include "client/report/pages.h"
#include "client/report/sections.h"
#include "client/report/series.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>

/* libfontconfig keeps its lists of fonts until the process ends. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libfontconfig\n";
}

#define BEGIN INT64_C(1790000000000) /* of every job: a time in 2026 */

/* ---- the ledger against a simulated job ---- */

/* A linear congruential generator: the same jobs on every machine. */
static uint32_t draw(uint64_t *state, uint32_t below)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % below;
}

#define SAVE_EVERY 5

struct made {
    struct client_job job;
    struct metric row[4096];
    size_t n;
    struct incident incident[16];
    struct client_checkpoint checkpoint[512];
    int n_checkpoints;
    int64_t now, truth[LEDGER_COUNT], workers, step_ms;
    uint64_t random;
};

static void pass(struct made *m, int64_t ms, enum ledger_part part)
{
    m->now += ms;
    m->truth[part] += ms * m->workers;
}

static void row_make(struct made *m, int64_t step, uint64_t epoch, bool evaluated)
{
    struct metric *row = &m->row[m->n++];
    *row = metric_none;
    row->step = step;
    row->epoch = epoch;
    row->workers = m->workers;
    row->step_s = (double)m->step_ms * 1e-3;
    row->wall_ms = m->now;
    row->loss = 2;
    row->grad_norm = 1;
    row->valid_loss = evaluated ? 3 : NAN;
}

/* A step, with its evaluation and the stall of its save. */
static void step_make(struct made *m, int64_t step, uint64_t epoch)
{
    const bool evaluated = step % 7 == 0, saved = step % SAVE_EVERY == 0;
    pass(m, m->step_ms, LEDGER_PRODUCTIVE);
    if (evaluated)
        pass(m, 30, LEDGER_EVALUATION);
    row_make(m, step, epoch, evaluated);
    if (saved)
        m->checkpoint[m->n_checkpoints++] = (struct client_checkpoint){.step = step};
    if (saved && (step + 1) % 7 != 0) /* no evaluation follows, in which a stall cannot be distinguished */
        pass(m, 11, LEDGER_STALL);
}

/* Steps after the checkpoint whose rows the next epoch replaces, and what follows the failure. */
static void fail_make(struct made *m, uint64_t epoch, int64_t lost)
{
    struct incident *in = &m->incident[m->job.n_incident++];
    pass(m, lost * m->step_ms * (1 + draw(&m->random, 4)) + draw(&m->random, (uint32_t)m->step_ms), LEDGER_RECOMPUTED);
    *in = incident_none;
    in->detect_ms = 1 + draw(&m->random, 5000);
    in->lost_steps = lost;
    in->epoch = epoch;
    pass(m, (int64_t)in->detect_ms, LEDGER_DETECTION);
    in->wall_ms = m->now;
}

static void recover_make(struct made *m, struct incident *in, enum ledger_part part)
{
    in->restart_ms = 1 + draw(&m->random, 2000);
    in->load_ms = draw(&m->random, 2000);
    pass(m, (int64_t)(in->restart_ms + in->load_ms), part);
}

static void job_make(struct made *m, uint64_t seed)
{
    memset(m, 0, sizeof(*m));
    m->random = seed;
    m->now = BEGIN;
    m->step_ms = 20 + draw(&m->random, 500);
    m->workers = 1 + draw(&m->random, 8);
    m->job = (struct client_job){
        .submitted_ms = BEGIN, .started_ms = BEGIN, .incident = m->incident, .state = "done", .start = incident_none};
    m->job.start.epoch = 1;
    m->job.start.slots_ms = draw(&m->random, 10000);
    m->job.start.wall_ms = BEGIN;
    m->now += (int64_t)m->job.start.slots_ms;
    recover_make(m, &m->job.start, LEDGER_STARTING);
    m->job.start.restart_ms += m->job.start.slots_ms;
    const int epochs = 1 + (int)draw(&m->random, 6);
    int64_t step = 0;
    for (uint64_t epoch = 1; epoch <= (uint64_t)epochs; epoch++) {
        for (int64_t until = step + 1 + draw(&m->random, 40); step < until;)
            step_make(m, ++step, epoch);
        if (epoch == (uint64_t)epochs)
            break;
        if (m->checkpoint[m->n_checkpoints ? m->n_checkpoints - 1 : 0].step == step && (step + 1) % 7 != 0)
            step_make(m, ++step, epoch); /* the stall of a save that a failure follows is part of what is lost */
        fail_make(m, epoch, draw(&m->random, 30));
        m->workers = 1 + draw(&m->random, 8); /* an elastic job */
        recover_make(m, &m->incident[m->job.n_incident - 1], LEDGER_RESTART);
    }
    if (m->checkpoint[m->n_checkpoints ? m->n_checkpoints - 1 : 0].step == step && (step + 1) % 7 != 0)
        step_make(m, ++step, (uint64_t)epochs);
    pass(m, draw(&m->random, 2000), LEDGER_ENDING);
    m->job.ended_ms = m->now;
}

TEST(ledger_equals_the_simulated_job)
{
    static struct made m;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        struct ledger l;
        int64_t total = 0;
        job_make(&m, seed);
        const struct ledger_saves listed = {m.checkpoint, m.n_checkpoints, 0}, every = {NULL, 0, SAVE_EVERY};
        assert_ok(ledger_make(&m.job, m.row, m.n, seed % 2 ? &listed : &every, m.now, NULL, &l));
        for (int i = 0; i < LEDGER_COUNT; i++) {
            if (l.part_ms[i] != m.truth[i])
                fail_msg("job %d: %s has %lld ms, not %lld", (int)seed, ledger_rows[i].name, (long long)l.part_ms[i],
                         (long long)m.truth[i]);
            total += m.truth[i];
        }
        assert_int_equal(l.total_ms, total);
        assert_int_equal(l.queued_ms, (int64_t)m.job.start.slots_ms);
        assert_int_equal(l.wall_ms, m.now - BEGIN - l.queued_ms);
    }
}

static double wait_share(const void *arg, int64_t wall_ms)
{
    return *(const double *)arg * (double)(wall_ms % 3);
}

/* Whatever the times of rows and incidents are, the parts sum to the time of the workers, exactly. */
TEST(ledger_sums_exactly_with_any_clock)
{
    static struct made m;
    for (uint64_t seed = 1; seed <= 2000; seed++) {
        struct ledger l;
        double share = 0.49;
        const struct ledger_waits waits = {wait_share, &share};
        job_make(&m, seed);
        const struct ledger_saves saves = {m.checkpoint, m.n_checkpoints, 0};
        for (size_t i = 0; i < m.n; i++) {
            m.row[i].wall_ms += (int64_t)draw(&m.random, 20000) - 10000;
            m.row[i].workers = 3;
            m.row[i].step_s = draw(&m.random, 4) ? m.row[i].step_s : NAN;
        }
        for (int i = 0; i < m.job.n_incident; i++)
            m.incident[i].wall_ms += (int64_t)draw(&m.random, 20000) - 10000;
        assert_ok(ledger_make(&m.job, m.row, m.n, &saves, m.now, &waits, &l));
        int64_t sum = 0;
        for (int i = 0; i < LEDGER_COUNT; i++) {
            assert_true(l.part_ms[i] >= 0);
            sum += l.part_ms[i];
        }
        assert_int_equal(sum, l.total_ms);
        assert_int_equal(sum, 3 * l.wall_ms);
        assert_int_equal(l.wall_ms + l.queued_ms, m.now - BEGIN);
    }
}

TEST(ledger_of_jobs_without_steps)
{
    struct ledger l;
    const struct ledger_saves none = {0};
    struct client_job job = {.submitted_ms = BEGIN, .state = "pending", .max_workers = 4, .start = incident_none};
    assert_ok(ledger_make(&job, NULL, 0, &none, BEGIN + 5000, NULL, &l));
    assert_int_equal(l.queued_ms, 5000); /* it never had slots */
    assert_int_equal(l.total_ms, 0);
    job.started_ms = BEGIN + 10;
    job.state = "failed";
    assert_ok(ledger_make(&job, NULL, 0, &none, BEGIN + 5000, NULL, &l));
    assert_int_equal(l.part_ms[LEDGER_STARTING], 20000); /* four workers for five seconds */
    assert_int_equal(l.total_ms, 20000);
    assert_int_equal(l.queued_ms, 0);
}

/* 100 steps of 1 s, of which control has kept every fourth row: their time is that of steps. */
TEST(ledger_of_thinned_metrics)
{
    struct ledger l;
    struct metric row[25];
    const struct ledger_saves none = {0};
    const struct client_job job = {.submitted_ms = BEGIN,
                                   .started_ms = BEGIN,
                                   .state = "done",
                                   .max_workers = 2,
                                   .workers = 2,
                                   .start = incident_none};
    for (int i = 0; i < 25; i++) {
        row[i] = metric_none;
        row[i].step = 4 * (i + 1);
        row[i].loss = row[i].grad_norm = row[i].step_s = 1;
        row[i].workers = 2;
        row[i].epoch = 1;
        row[i].wall_ms = BEGIN + 1000 * row[i].step;
    }
    assert_ok(ledger_make(&job, row, 25, &none, row[24].wall_ms, NULL, &l));
    assert_int_equal(l.total_ms, 2 * 100000);
    assert_int_equal(l.part_ms[LEDGER_STARTING], 2 * 3000); /* until the first row's step begins */
    assert_int_equal(l.part_ms[LEDGER_PRODUCTIVE], 2 * 97000);
}

/* ---- usage samples ---- */

TEST(usage_lines)
{
    static const char text[] =
        "{\"wall_ms\":1000,\"window_ms\":500,\"step\":7,\"epoch\":1,\"node\":[\"a\",\"b\"],\"step_s\":[0.5,0.5],"
        "\"compute_s\":[0.4,0.2],\"comm_s\":[0.1,0.3],\"cpu\":[1,null]}\n"
        "broken\n{\"wall_ms\":900,\"window_ms\":1,\"step\":7,\"epoch\":1,\"node\":[\"a\"],\"cpu\":[1]}\n" /* damaged;
                                                                                                             back in
                                                                                                             time */
        "{\"wall_ms\":2000,\"window_ms\":900,\"step\":9,\"epoch\":2,\"node\":[\"a\",\"c\",\"d\"],\"cpu\":[3,5,1],"
        "\"unknown\":[1]}";
    struct usage_samples u;
    assert_ok(usage_parse(text, strlen(text), &u));
    assert_int_equal(u.n, 2);
    assert_int_equal(u.bad, 2);
    assert_int_equal(u.ranks, 3);
    assert_string_equal(u.node[1], "c");
    assert_true(isnan(*usage_at(&u.row[1], USAGE_step_s, 0)));
    assert_true(usage_mean(&u, USAGE_cpu, -1) == 2.5); /* (1 + 3 + 5 + 1) / 4 */
    assert_true(usage_mean(&u, USAGE_cpu, 1) == 5);
    assert_true(isnan(usage_mean(&u, USAGE_gpu_util, -1)));
    assert_true(usage_most(&u, USAGE_cpu) == 5);
    /* Rank 1 waits 0.2 s of 0.5 s for rank 0, which waits for no rank. */
    assert_true(fabs(usage_wait_at(&u, 1000) - 0.2) < 1e-12);
    assert_true(usage_wait_at(&u, 1500) == 0); /* no times of steps then */
    usage_samples_fini(&u);
}

/* ---- advice ---- */

#define STEPS 400

/* A job without faults: 4 ranks on two nodes, a second per step. */
struct sample {
    struct report r;
    struct client_job job;
    struct metric row[STEPS];
    struct incident incident[4];
    struct client_checkpoint checkpoint[8];
    int micros[4];
    double compute[4], comm[4], flop[4], data, cpu, rss, gpu_util, celsius;
    char *yaml_stage;
};

static void sample_init(struct sample *s)
{
    memset(s, 0, sizeof(*s));
    s->job = (struct client_job){.job = "4",
                                 .name = "first",
                                 .state = "done",
                                 .reason = "",
                                 .user = "ann",
                                 .parent = "",
                                 .checkpoint_dir = "",
                                 .checkpoint_error = "",
                                 .spec_yaml = "",
                                 .layout_why = "",
                                 .max_workers = 4,
                                 .step = STEPS,
                                 .steps = STEPS,
                                 .submitted_ms = BEGIN,
                                 .started_ms = BEGIN,
                                 .ended_ms = BEGIN + 3000 + 1000 * STEPS,
                                 .incident = s->incident,
                                 .start = incident_none};
    s->job.start.epoch = 1;
    s->job.start.recover_ms = 4000;
    for (int i = 0; i < STEPS; i++) {
        s->row[i] = metric_none;
        s->row[i].step = i + 1;
        s->row[i].loss = 5 - 0.01 * i;
        s->row[i].valid_loss = i % 100 == 99 ? 5.1 - 0.01 * i : NAN;
        s->row[i].grad_norm = i % 10 ? 0.5 : 1.2; /* some steps are clipped */
        s->row[i].lr = 1e-3;
        s->row[i].tokens_per_s = 4096;
        s->row[i].step_s = 1;
        s->row[i].workers = 4;
        s->row[i].epoch = 1;
        s->row[i].wall_ms = BEGIN + 3000 + 1000 * (i + 1);
    }
    for (int i = 0; i < 4; i++) {
        s->micros[i] = 2;
        s->compute[i] = 0.8;
        s->comm[i] = 0.1;
        s->flop[i] = 1e12;
        s->checkpoint[i] = (struct client_checkpoint){.job = "4",
                                                      .path = "",
                                                      .step = 100 * (i + 1),
                                                      .bytes = 1 << 20,
                                                      .loss = NAN,
                                                      .committed_ms = BEGIN + 3500 + 100000 * (i + 1)};
    }
    s->data = 0.01;
    s->cpu = 3.5;
    s->rss = 900e6;
    s->gpu_util = s->celsius = NAN;
    s->r.has_spec = true;
    s->r.ended = true;
    s->r.end_ms = s->job.ended_ms;
    s->r.spec.train.global_batch = 8;
    s->r.spec.train.micro_batch = 1;
    s->r.spec.train.clip = 1;
    s->r.spec.run.threads = 4;
    s->r.spec.run.grow = true;
    s->r.spec.run.hang_seconds = 30;
    s->r.spec.parallel.pp = s->r.spec.parallel.tp = 1;
    s->r.spec.checkpoint.every = 100;
    s->r.spec.data.stage = "none";
    s->r.plan.made = true;
    s->r.plan.facts.workers = 4;
    s->r.plan.facts.micros = s->micros;
    s->r.in.cluster = "node a";
    s->r.in.n_checkpoints = 4;
    s->r.in.n_rows = STEPS;
}

static void put_real(struct buf *b, double v, bool last)
{
    if (isnan(v))
        assert_ok(buf_printf(b, "null%s", last ? "]" : ","));
    else
        assert_ok(buf_printf(b, "%.17g%s", v, last ? "]" : ","));
}

static void put_column(struct buf *b, const char *name, const double value[4])
{
    assert_ok(buf_printf(b, ",\"%s\":[", name));
    for (int i = 0; i < 4; i++)
        put_real(b, value[i], i == 3);
}

static void put_same(struct buf *b, const char *name, double value)
{
    const double all[4] = {value, value, value, value};
    if (!isnan(value))
        put_column(b, name, all);
}

/* Usage and ledger follow from the rest, as in report_init. */
static void sample_end(struct sample *s)
{
    struct buf text = {0};
    const struct ledger_waits waits = {usage_wait_at, &s->r.usage};
    const struct ledger_saves saves = {s->checkpoint, s->r.in.n_checkpoints, 0};
    for (int i = 0; i < 40; i++) {
        assert_ok(buf_printf(
            &text, "{\"wall_ms\":%lld,\"window_ms\":10000,\"step\":%d,\"epoch\":1,\"node\":[\"a\",\"a\",\"b\",\"b\"]",
            (long long)(BEGIN + 3000 + 10000 * (i + 1)), 10 * i));
        put_same(&text, "step_s", 1);
        put_column(&text, "compute_s", s->compute);
        put_column(&text, "comm_s", s->comm);
        put_column(&text, "planned_flop", s->flop);
        put_same(&text, "data_s", s->data);
        put_same(&text, "cpu", s->cpu);
        put_same(&text, "rss_bytes", s->rss);
        put_same(&text, "planned_bytes", 1e9);
        put_same(&text, "gpu_util", s->gpu_util);
        put_same(&text, "gpu_celsius", s->celsius);
        assert_ok(buf_printf(&text, "}\n"));
    }
    s->r.job = s->r.in.job = &s->job;
    s->r.in.row = s->row;
    s->r.in.checkpoint = s->checkpoint;
    assert_ok(usage_parse((char *)text.data, text.len, &s->r.usage));
    assert_int_equal(s->r.usage.bad, 0);
    buf_fini(&text);
    assert_ok(ledger_make(&s->job, s->row, s->r.in.n_rows, &saves, s->r.end_ms, &waits, &s->r.ledger));
}

static void sample_fini(struct sample *s)
{
    usage_samples_fini(&s->r.usage);
}

/* Moves all that comes after the step by some time. */
static void delay(struct sample *s, int step, int64_t ms)
{
    for (int i = step; i < STEPS; i++)
        s->row[i].wall_ms += ms;
    s->job.ended_ms += ms;
    s->r.end_ms = s->job.ended_ms;
}

static void incident_add(struct sample *s, uint64_t epoch, int step, const char *seen, int64_t detect_ms)
{
    struct incident *in = &s->incident[s->job.n_incident++];
    *in = incident_none;
    in->epoch = epoch;
    in->seen = seen;
    in->decided = "new epoch";
    in->detect_ms = (double)detect_ms;
    in->recover_ms = 1000;
    in->lost_steps = 0;
    delay(s, step, detect_ms + 2000);
    in->wall_ms = s->row[step - 1].wall_ms + detect_ms;
    for (int i = step; i < STEPS; i++)
        s->row[i].epoch = epoch + 1;
}

static void make_slow_rank(struct sample *s)
{
    s->compute[2] = 0.89; /* 0.89 / 0.8 = 1.1125 */
}
static void make_waiting(struct sample *s)
{
    s->compute[0] = 0.25; /* one of four ranks waits 0.55 s of each second */
    s->comm[0] = 0.6;
}
static void make_spread(struct sample *s)
{
    for (int i = 0; i < STEPS; i += 50)
        s->row[i].step_s = 2.5;
}
static void make_idle_ranks(struct sample *s)
{
    s->micros[3] = 1;
}
static void make_communication(struct sample *s)
{
    for (int i = 0; i < 4; i++)
        s->comm[i] = 0.3;
}
static void make_bubble(struct sample *s)
{
    s->r.spec.parallel.pp = 4;
    s->r.plan.facts.forecast.bubble = 0.3;
}
static void make_data_waits(struct sample *s)
{
    s->data = 0.06;
}
static void make_data_network(struct sample *s)
{
    s->r.data_network = "nfs";
}
static void make_idle_cpu(struct sample *s)
{
    s->cpu = 1.5;
}
static void make_idle_gpu(struct sample *s)
{
    s->r.gpus = true;
    s->gpu_util = 0.4;
}
static void make_hot_gpu(struct sample *s)
{
    s->celsius = 86;
}
static void make_memory_far(struct sample *s)
{
    s->rss = 400e6;
}
static void make_no_checkpoint(struct sample *s)
{
    s->r.in.n_checkpoints = 0;
    delay(s, STEPS, 1800000);
}
/* Each save stalls for 8 s; with one failure in 428 s the best interval is sqrt(2 * 6.5 * 433), about 75 s. */
static void make_interval(struct sample *s)
{
    for (int i = 1; i <= 4; i++) {
        s->checkpoint[i - 1].step = 25 * i;
        delay(s, 25 * i, 8000);
    }
    s->r.spec.checkpoint.every = 25;
    incident_add(s, 1, 110, "worker rank 1 (pid 1) exited", 100);
}
static void make_stalls(struct sample *s)
{
    for (int i = 1; i < 4; i++)
        delay(s, 100 * i, 10000);
}
static void make_slow_detection(struct sample *s)
{
    incident_add(s, 1, 150, "worker rank 1 (pid 1) hangs", 90000);
}
static void make_same_failure(struct sample *s)
{
    incident_add(s, 1, 150, "worker rank 1 (pid 1) was killed by signal 9", 100);
    incident_add(s, 2, 250, "worker rank 1 (pid 2) was killed by signal 9", 100);
}
static void make_slow_start(struct sample *s)
{
    delay(s, 0, 97000);
    s->job.start.recover_ms = 100000;
    s->job.start.data_ms = 80000;
}
static void make_fewer_workers(struct sample *s)
{
    for (int i = 300; i < STEPS; i++)
        s->row[i].workers = 2;
}
static void make_not_finite(struct sample *s)
{
    s->row[17].loss = NAN;
    s->row[17].skipped = true;
}
static void make_always_clipped(struct sample *s)
{
    for (int i = 200; i < STEPS; i++)
        s->row[i].grad_norm = i % 20 ? 1.5 : 0.5; /* 95 % */
}
static void make_overfit(struct sample *s)
{
    s->row[299].valid_loss = s->row[399].valid_loss = 4.5; /* 4.11 in step 100, 3.11 in step 200 */
}

/* With each fault, its own rule applies and no other, and the sentence has its number. */
static const struct {
    const char *rule;
    void (*make)(struct sample *s);
    const char *number;
} faults[] = {
    {"slow_rank", make_slow_rank,
     "Rank 2 on node b computes for 11 % longer than the median of the ranks with the same work"},
    {"waiting", make_waiting, "14 % of the time"},
    {"spread", make_spread, "2.5 s or more, 2.5 times the median of 1 s"},
    {"idle_ranks", make_idle_ranks, "rank 3 computes 1 of the 2 microbatches"},
    {"communication", make_communication, "30 % of a step"},
    {"bubble", make_bubble, "30 % of a step (forecast)"},
    {"data_waits", make_data_waits, "6 % of a step"},
    {"data_network", make_data_network, "nfs"},
    {"idle_cpu", make_idle_cpu, "1.5 of its 4 threads"},
    {"idle_gpu", make_idle_gpu, "40 % of the time"},
    {"hot_gpu", make_hot_gpu, "86 °C"},
    {"memory_far", make_memory_far, "381.5 MiB of the 953.7 MiB"},
    {"no_checkpoint", make_no_checkpoint, "checkpoint.every; it is 100 now"},
    {"interval", make_interval, "A checkpoint stalls training for 8 s"},
    {"stalls", make_stalls, "7 % of the time"},
    {"slow_detection", make_slow_detection, "decided on 90 s after it"},
    {"same_failure", make_same_failure, "2 incidents begin alike"},
    {"slow_start", make_slow_start, "opening data and device: 80 s"},
    {"fewer_workers", make_fewer_workers,
     "100 of 400 steps ran with fewer workers than the 4 of the job file, down to 2"},
    {"not_finite", make_not_finite, "in 1 step, first in step 18"},
    {"always_clipped", make_always_clipped, "95 % of the steps"},
    {"overfit", make_overfit, "lowest in step 200 (3.11) and is 4.5 now"},
};

TEST(advice_of_a_job_without_faults)
{
    static struct sample s;
    char text[ADVICE_TEXT];
    sample_init(&s);
    sample_end(&s);
    for (int i = 0; i < n_advice_rules; i++)
        if (advice_rules[i].applies(&s.r, text))
            fail_msg("%s: %s", advice_rules[i].name, text);
    sample_fini(&s);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The quantiles in a sentence are those of the sorted times, in any order of the steps and with equal ones. */
TEST(quantiles_equal_those_of_sorted_times)
{
    static struct sample s;
    const struct advice_rule *spread = &advice_rules[2];
    uint64_t random = 7;
    assert_string_equal(spread->name, "spread");
    for (int round = 0; round < 300; round++) {
        double sorted[STEPS];
        char text[ADVICE_TEXT], expected[128];
        sample_init(&s);
        sample_end(&s);
        const uint32_t kinds = 1 + draw(&random, round % 2 ? 5 : 1000);
        for (int i = 0; i < STEPS; i++)
            sorted[i] = s.row[i].step_s =
                draw(&random, 40) ? 1 + draw(&random, kinds) * 1e-3 : 4 + draw(&random, kinds);
        qsort(sorted, STEPS, sizeof(sorted[0]), by_size);
        const double slow = sorted[(int)(0.99 * (STEPS - 1))], median = sorted[(STEPS - 1) / 2];
        snprintf(expected, sizeof(expected), "takes %.3g s or more, %.1f times the median of %.3g s", slow,
                 slow / median, median);
        if (spread->applies(&s.r, text) != (slow > 2 * median))
            fail_msg("round %d: %s", round, expected);
        if (slow > 2 * median && !strstr(text, expected))
            fail_msg("no \"%s\" in: %s", expected, text);
        sample_fini(&s);
    }
}

/* A stage of a pipeline that has more work than the others is not slow. */
TEST(a_rank_with_more_work_is_not_slow)
{
    static struct sample s;
    char text[ADVICE_TEXT];
    sample_init(&s);
    s.compute[2] = s.compute[3] = 0.95;
    s.flop[2] = s.flop[3] = 1.2e12;
    sample_end(&s);
    assert_string_equal(advice_rules[0].name, "slow_rank");
    assert_false(advice_rules[0].applies(&s.r, text));
    sample_fini(&s);
    sample_init(&s);
    s.compute[1] = 0.95; /* the same time with the work of ranks 0, 2 and 3 */
    sample_end(&s);
    assert_true(advice_rules[0].applies(&s.r, text));
    sample_fini(&s);
}

TEST(advice_of_each_fault)
{
    static struct sample s;
    char text[ADVICE_TEXT];
    assert_int_equal(sizeof(faults) / sizeof(faults[0]), n_advice_rules);
    for (int f = 0; f < n_advice_rules; f++) {
        sample_init(&s);
        faults[f].make(&s);
        sample_end(&s);
        bool found = false;
        for (int i = 0; i < n_advice_rules; i++) {
            const bool own = strcmp(advice_rules[i].name, faults[f].rule) == 0,
                       applies = advice_rules[i].applies(&s.r, text);
            if (applies != own)
                fail_msg("%s: the rule %s %s %s", faults[f].rule, advice_rules[i].name,
                         applies ? "applies:" : "does not apply", applies ? text : "");
            if (own && !strstr(text, faults[f].number))
                fail_msg("%s: no \"%s\" in: %s", faults[f].rule, faults[f].number, text);
            found |= own;
        }
        assert_true(found);
        sample_fini(&s);
    }
}

/* ---- documents ---- */

static void html_of(struct sample *s, struct buf *ret)
{
    struct doc d = {0};
    report_document(&s->r, &d);
    assert_ok(html_write(&d, ret));
    assert_ok(buf_append(ret, "", 1));
    doc_fini(&d);
}

static void assert_has(const struct buf *b, const char *text)
{
    if (!strstr((const char *)b->data, text))
        fail_msg("the page lacks: %s", text);
}

TEST(page_has_the_numbers)
{
    static struct sample s;
    struct buf page = {0};
    sample_init(&s);
    s.compute[3] = s.compute[1] = 0.95;
    sample_end(&s);
    html_of(&s, &page);
    assert_has(&page, "<td>Total</td><td class=\"r\">1612.0</td><td class=\"r\">100.0 %</td>"); /* 4 x 403 s */
    assert_has(&page, "<td>Productive</td><td class=\"r\">1520.0</td>");
    /* Two of four ranks wait in a second, for 0.1 s of communication each. */
    assert_has(&page, "<td>Waiting for slower ranks</td><td class=\"r\">80.0</td>");
    assert_has(&page, "<td>Starting</td><td class=\"r\">12.0</td>");
    assert_has(&page, "finds anything to change");
    assert_has(&page, "<td>b</td><td class=\"r\">2</td><td class=\"r\">0.875</td>"); /* kernels: (0.8 + 0.95) / 2 */
    assert_has(&page, "data:image/png;base64,iVBORw0KGgo");                          /* a colour map */
    sample_fini(&s);
    buf_fini(&page);
}

TEST(page_has_forecast_and_measurement)
{
    static struct sample s;
    struct buf page = {0};
    sample_init(&s);
    s.r.spec.forecast =
        (struct job_forecast){.source = "m: a file", .workers = 2, .compute_s = 0.5, .tp_s = 0.1, .update_s = 0.05};
    sample_end(&s);
    step_compare(&s.r.spec.forecast, &s.r.usage.row[0], &s.r.step);
    s.r.has_step = true;
    html_of(&s, &page);
    assert_has(&page, "Forecast and measurement");
    assert_has(&page, "Step 1 s, forecast 0.65 s (+54 %): most of it in computing, +0.3 s.");
    assert_has(&page, "for m: a file. The job ran with another number of workers.");
    assert_has(&page, "<td>computing</td><td class=\"r\">0.5</td><td class=\"r\">0.8</td><td class=\"r\">+0.3</td>");
    assert_has(&page, "<td>tensor parallelism</td><td class=\"r\">0.1</td><td class=\"r\">-</td>");
    sample_fini(&s);
    buf_fini(&page);
}

TEST(page_of_hostile_names)
{
    static struct sample s;
    struct buf page = {0};
    sample_init(&s);
    s.job.name = "</title><script>alert(1)</script>\"'&\x1b[31m\xff\xe2\x80\xae"
                 "gpj";
    s.job.user = "<b onload=x>";
    s.job.reason = "]]>--><svg/onload=alert(1)>";
    incident_add(&s, 1, 150, "<img src=x onerror=alert(1)>\nsecond line", 100);
    sample_end(&s);
    html_of(&s, &page);
    const char *text = (const char *)page.data;
    assert_null(strstr(text, "<script"));
    assert_null(strstr(text, "<img"));
    assert_null(strstr(text, "<b "));
    assert_null(strstr(text, "<svg/"));
    assert_null(strchr(text, 0x1b));
    assert_null(strstr(text, "\xe2\x80\xae"));
    assert_has(&page,
               "&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;&amp;\xef\xbf\xbd[31m\xef\xbf\xbd");
    sample_fini(&s);
    buf_fini(&page);
}

/* No picture is higher than a page of paper has room, also of a job with hundreds of incidents. */
TEST(pictures_fit_on_a_page)
{
    static struct sample s;
    static struct incident many[300];
    struct doc d = {0};
    int plots = 0;
    sample_init(&s);
    sample_end(&s);
    for (int i = 0; i < 300; i++) {
        many[i] = incident_none;
        many[i].epoch = (uint64_t)i + 1;
        many[i].seen = "worker rank 1 exited";
        many[i].decided = "new epoch";
        many[i].detect_ms = 5;
        many[i].restart_ms = 300;
    }
    s.job.incident = many;
    s.job.n_incident = 300;
    report_document(&s.r, &d);
    assert_ok(d.err);
    for (int i = 0; i < d.n; i++)
        if (d.block[i].plot) {
            assert_true(plot_height(d.block[i].plot, 510) < 700); /* A4 without margins, header and foot */
            plots++;
        }
    assert_in_range(plots, 10, 30);
    doc_fini(&d);
    sample_fini(&s);
}

TEST(texts_are_cleaned)
{
    static const char *const cases[][2] = {
        {"plain é \xf0\x9f\x98\x80", "plain é \xf0\x9f\x98\x80"},
        {"a\nb\tc", "a b c"},
        {"\x01\x7f", "\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xc0\xaf|\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd|\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe2\x80\xaex\xe2\x81\xa6", "\xef\xbf\xbdx\xef\xbf\xbd"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *text = doc_text_clean(cases[i][0]);
        assert_string_equal(text, cases[i][1]);
        free(text);
    }
}

/* A long job must not take long to report: a million steps in less than five seconds, also with a sanitizer. */
TEST(a_million_steps)
{
    static struct sample s;
    const int64_t n = 1000000, begin = clock_mono_ns();
    struct metric *row = malloc((size_t)n * sizeof(*row));
    struct buf page = {0};
    assert_non_null(row);
    sample_init(&s);
    for (int64_t i = 0; i < n; i++) {
        row[i] = s.row[i % STEPS];
        row[i].step = i + 1;
        row[i].wall_ms = BEGIN + 3000 + 1000 * (i + 1);
    }
    s.job.ended_ms = s.r.end_ms = BEGIN + 3000 + 1000 * n;
    sample_end(&s);
    s.r.in.row = row;
    s.r.in.n_rows = (size_t)n;
    assert_ok(
        ledger_make(&s.job, row, (size_t)n, &(struct ledger_saves){s.checkpoint, 4, 0}, s.r.end_ms, NULL, &s.r.ledger));
    assert_int_equal(s.r.ledger.part_ms[LEDGER_PRODUCTIVE], 4 * n * 1000);
    html_of(&s, &page);
    assert_true(page.len < 1 << 20); /* points are joined */
    printf("%.2f s\n", (double)(clock_mono_ns() - begin) * 1e-9);
    free(row);
    sample_fini(&s);
    buf_fini(&page);
}

/* ---- PDF ---- */

/* Pages of the sample, written to `path`; skipped where the module was not built. */
static void pdf_write(struct sample *s, const char *path)
{
    const struct report_module *module;
    struct why why = {""};
    struct buf out = {0};
    struct doc d = {0};
    assert_ok(pages_module(&module, &why));
    report_document(&s->r, &d);
    assert_ok(pages_write(&d, module, &out, &why));
    assert_ok(file_replace(path, out.data, out.len, 0666));
    doc_fini(&d);
    buf_fini(&out);
}

static void pdf_text(const char *path, struct buf *ret)
{
    char command[512], part[4096];
    if (system("command -v pdftotext >/dev/null"))
        TEST_SKIP("pdftotext is not installed (Debian: poppler-utils)");
    snprintf(command, sizeof(command), "pdftotext -layout %s -", path);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    for (size_t n; (n = fread(part, 1, sizeof(part), f)) > 0;)
        assert_ok(buf_append(ret, part, n));
    assert_int_equal(pclose(f), 0);
    assert_ok(buf_append(ret, "", 1));
}

static int count_pages(const char *text)
{
    int n = 0;
    for (; *text; text++)
        n += *text == '\f'; /* pdftotext ends each page with one */
    return n;
}

TEST(pdf_has_numbers_and_pages)
{
    static struct sample s;
    struct buf text = {0};
    char path[256], last[32];
    snprintf(path, sizeof(path), "%s/report.pdf", test_tmpdir());
    sample_init(&s);
    incident_add(
        &s, 1, 150,
        "worker rank 1 (pid 1) was killed by signal 9; a long sentence that goes on over several lines of the cell",
        100);
    sample_end(&s);
    pdf_write(&s, path);
    pdf_text(path, &text);
    const int pages = count_pages((char *)text.data);
    assert_in_range(pages, 4, 12);
    for (int i = 1; i <= pages; i++) {
        snprintf(last, sizeof(last), "page %d of %d", i, pages);
        assert_has(&text, last);
    }
    assert_has(&text, "Productive");
    assert_has(&text, "1600.0"); /* worker-seconds */
    assert_has(&text, "Job 4: first");
    assert_has(&text, "Use of the processor");
    assert_has(&text, "lines of the cell"); /* texts of tables are not cut */
    sample_fini(&s);
    buf_fini(&text);
}

TEST(pdf_of_hostile_names)
{
    static struct sample s;
    struct buf text = {0};
    char path[256];
    snprintf(path, sizeof(path), "%s/hostile.pdf", test_tmpdir());
    sample_init(&s);
    char name[4096];
    memset(name, 'W', sizeof(name) - 1);
    name[sizeof(name) - 1] = 0;
    s.job.name = "<b>&amp;\xff%s";
    s.job.reason = name; /* one word of 4095 letters */
    sample_end(&s);
    pdf_write(&s, path);
    pdf_text(path, &text);
    assert_has(&text, "Job 4: <b>&amp;");
    assert_in_range(count_pages((char *)text.data), 4, 12);
    sample_fini(&s);
    buf_fini(&text);
}

/* ---- jobs of many ranks and steps, to be looked at ---- */

#define MANY_RANKS 64

/* Samples of 64 ranks, of which rank 37 is slow, in 300 windows; the last third has only 48 ranks. */
static void many_ranks(struct usage_samples *u)
{
    struct buf text = {0};
    for (int i = 0; i < 300; i++) {
        const int ranks = i < 200 ? MANY_RANKS : 48;
        assert_ok(buf_printf(&text, "{\"wall_ms\":%lld,\"window_ms\":4000,\"step\":%d,\"epoch\":1",
                             (long long)(BEGIN + 3000 + 4000 * (i + 1)), i));
        for (int r = 0; r < ranks; r++)
            assert_ok(
                buf_printf(&text, "%s\"node-%02d\"%s", r ? "," : ",\"node\":[", r / 8, r == ranks - 1 ? "]" : ""));
        for (int column = 0; column < 3; column++) {
            static const char *const names[] = {"compute_s", "rss_bytes", "gpu_celsius"};
            assert_ok(buf_printf(&text, ",\"%s\":[", names[column]));
            for (int r = 0; r < ranks; r++) {
                const double v[] = {(r == 37 ? 0.9 : 0.8) + 0.02 * sin(i * 0.1 + r), 1e9 + 1e6 * i + 2e7 * r,
                                    60 + r % 8 + 8 * sin(i * 0.02)};
                put_real(&text, v[column], r == ranks - 1);
            }
        }
        assert_ok(buf_printf(&text, "}\n"));
    }
    assert_ok(usage_parse((char *)text.data, text.len, u));
    buf_fini(&text);
}

/* A rank that leaves has no values after that: its cells are grey, and its mean is that of the time before. */
TEST(grid_of_an_elastic_job)
{
    static struct sample s;
    bool any = false;
    double low, mean, high;
    sample_init(&s);
    s.r.job = &s.job;
    many_ranks(&s.r.usage);
    struct plot *p = plot_new(PLOT_GRID, "memory", "GiB");
    assert_true(series_grid(&s.r, USAGE_rss_bytes, p, &any));
    assert_true(any);
    assert_int_equal(p->ranks, MANY_RANKS);
    assert_true(isnan(p->cell[63 * p->bins + p->bins - 1]));
    assert_false(isnan(p->cell[47 * p->bins + p->bins - 1]));
    assert_true(plot_grid_range(p, 63, &low, &mean, &high));
    assert_true(fabs(mean * (1 << 30) - (1e9 + 1e6 * 99.5 + 2e7 * 63)) < 1e6); /* windows 0 to 199 */
    plot_free(p);
    sample_fini(&s);
}

static void look_write(struct sample *s, const char *name)
{
    char path[512];
    struct buf page = {0};
    snprintf(path, sizeof(path), "%s/%s.pdf", getenv("DTD_REPORT_OUT"), name);
    pdf_write(s, path);
    html_of(s, &page);
    snprintf(path, sizeof(path), "%s/%s.html", getenv("DTD_REPORT_OUT"), name);
    assert_ok(file_replace(path, page.data, page.len - 1, 0666));
    buf_fini(&page);
}

/* DTD_REPORT_OUT: a folder in which samples are left as page and PDF, to be looked at. */
TEST(samples_to_look_at)
{
    static struct sample s;
    if (!getenv("DTD_REPORT_OUT"))
        TEST_SKIP("DTD_REPORT_OUT is not set");
    sample_init(&s);
    for (int i = 0; i < n_advice_rules; i++) /* advice of all kinds */
        if (i % 3 == 0)
            faults[i].make(&s);
    make_same_failure(&s);
    sample_end(&s);
    look_write(&s, "sample");
    sample_fini(&s);

    const int64_t n = 200000;
    struct metric *row = malloc((size_t)n * sizeof(*row));
    uint64_t random = 1;
    assert_non_null(row);
    sample_init(&s);
    sample_end(&s);
    usage_samples_fini(&s.r.usage);
    many_ranks(&s.r.usage);
    for (int64_t i = 0; i < n; i++) {
        row[i] = s.row[i % STEPS];
        row[i].step = i + 1;
        row[i].loss = i / 100 == 777 ? NAN : 3 + 7 * exp(-(double)i * 3e-5) + 0.002 * draw(&random, 500);
        row[i].valid_loss = i % 20000 == 19999 ? 3.2 + 7 * exp(-(double)i * 3e-5) : NAN;
        row[i].grad_norm = 0.3 + 0.0001 * draw(&random, 5000);
        row[i].workers = i < 150000 ? 64 : 48;
        row[i].epoch = i < 150000 ? 1 : 2;
        row[i].wall_ms = BEGIN + 3000 + 1000 * (i + 1);
    }
    s.r.in.row = row;
    s.r.in.n_rows = (size_t)n;
    look_write(&s, "many");
    free(row);
    sample_fini(&s);
}
