/* Each rule is a function that compares numbers of the report with a limit and writes them into its sentence. A rule
 * whose numbers are unknown does not apply. */
#include "client/report/advice.h"

#include "client/out.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Limits. Each is a place where a remedy usually gains more than it costs. */
#define SLOW_RANK                                                                                                    \
    1.10 /* a rank's time in kernels, over the median of those with the same work: beyond the noise of healthy nodes \
          */
#define SPREAD 2.0      /* the 99th percentile of step times, over the median */
#define DATA_SHARE 0.05 /* of the step, spent waiting for data */
#define COMM_SHARE 0.25 /* of the step, spent in communication */
#define WAIT_SHARE 0.10 /* of all worker time, waiting for slower ranks */
#define BUBBLE 0.20
#define IDLE_CPU 0.5 /* of the threads of a worker */
#define IDLE_GPU 0.5
#define HOT_GPU 83.0    /* °C: where data centre GPUs begin to lower their clock */
#define MEMORY_USED 0.5 /* of the plan */
#define STALL_SHARE 0.05
#define INTERVAL_RATIO 2.0  /* the loss from a wrong interval is small below it */
#define INTERVAL_SHARE 0.02 /* of all time, lost to stalls and repeated steps: less is not worth a change */
#define DETECTION_MS 60000  /* worker time per incident is then mostly waiting for the time limit */
#define START_SHARE 0.10
#define START_MS 60000
#define CLIP_SHARE 0.90
#define OVERFIT 1.02    /* the newest validation loss over the best one */
#define LONG_MS 1800000 /* half an hour without a checkpoint is a loss that users notice */
#define FEW_STEPS 20    /* too few do not show a job's speed */

static double part_share(const struct report *r, enum ledger_part part)
{
    return r->ledger.total_ms ? (double)r->ledger.part_ms[part] / (double)r->ledger.total_ms : 0;
}

/* The k-th smallest of n values, whose order it changes. In linear time, because a job may have millions of steps; the
 * pivot is the median of three, so that sorted values do not take quadratic time. */
static double select_kth(double *v, size_t n, size_t k)
{
    size_t low = 0, high = n - 1;
    while (low < high) {
        const double a = v[low], b = v[low + (high - low) / 2], c = v[high];
        const double pivot = fmax(fmin(a, b), fmin(fmax(a, b), c));
        size_t i = low, j = high;
        while (i <= j) {
            for (; i < high && v[i] < pivot; i++) {
            }
            for (; j > low && v[j] > pivot; j--) {
            }
            if (i <= j) {
                const double swap = v[i];
                v[i++] = v[j];
                v[j] = swap;
                if (j == 0)
                    break;
                j--;
            }
        }
        if (k <= j)
            high = j;
        else if (k >= i)
            low = i;
        else
            break;
    }
    return v[k];
}

/* The share-th smallest step time; NAN: unknown. */
static double step_quantile(const struct report *r, double share)
{
    double *all = r->in.n_rows ? calloc(r->in.n_rows, sizeof(*all)) : NULL, ret = NAN;
    size_t n = 0;
    for (size_t i = 0; all && i < r->in.n_rows; i++)
        if (isfinite(r->in.row[i].step_s))
            all[n++] = r->in.row[i].step_s;
    if (n)
        ret = select_kth(all, n, (size_t)(share * (double)(n - 1)));
    free(all);
    return ret;
}

/* ---- speed ---- */

struct slow {
    int rank; /* -1: none */
    double ratio;
};

static bool same_work(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* Compares the ranks with as much work as rank `first`, whose values are gathered in `peers`, with their median. */
static void compare_peers(const double *value, const double *work, int n_ranks, int first, double *peers,
                          struct slow *ret)
{
    size_t n = 0;
    int worst = first;
    for (int i = first; i < n_ranks; i++)
        if (isfinite(value[i]) && same_work(work[i], work[first])) {
            worst = value[i] > value[worst] || isnan(value[worst]) ? i : worst;
            peers[n++] = value[i];
        }
    if (n < 2)
        return;
    double median = select_kth(peers, n, n / 2);
    if (n % 2 == 0)
        median = (median + select_kth(peers, n, n / 2 - 1)) / 2;
    if (value[worst] / median > ret->ratio)
        *ret = (struct slow){worst, value[worst] / median};
}

/* Stages of a pipeline differ in their work by the plan, so each is compared with its own kind. There are few kinds. */
static struct slow slowest_of(const struct report *r)
{
    const size_t n = (size_t)r->usage.ranks;
    struct slow ret = {-1, SLOW_RANK};
    double *value = calloc(n + 1, sizeof(double)), *work = calloc(n + 1, sizeof(double)),
           *peers = calloc(n + 1, sizeof(double));
    bool ok = value && work && peers;
    for (int i = 0; ok && i < r->usage.ranks; i++) {
        value[i] = usage_mean(&r->usage, USAGE_compute_s, i);
        work[i] = usage_mean(&r->usage, USAGE_planned_flop, i);
    }
    for (int first = 0; ok && first < r->usage.ranks; first++) {
        bool again = false;
        for (int i = 0; i < first && !again; i++)
            again = same_work(work[i], work[first]);
        if (!again)
            compare_peers(value, work, r->usage.ranks, first, peers, &ret);
    }
    free(value);
    free(work);
    free(peers);
    return ret;
}

static bool slow_rank(const struct report *r, char text[ADVICE_TEXT])
{
    const struct slow s = slowest_of(r);
    if (s.rank < 0)
        return false;
    const char *node = r->usage.node[s.rank];
    snprintf(
        text, ADVICE_TEXT,
        "Rank %d%s%s computes for %.0f %% longer than the median of the ranks with the same work, and the others wait "
        "for it. Look there for other processes and a low clock (dtctl node); if it stays slow, drain the node: "
        "dtctl node drain %s --reason TEXT.",
        s.rank, node[0] ? " on node " : "", node, (s.ratio - 1) * 100, node[0] ? node : "NODE");
    return true;
}

static bool waiting(const struct report *r, char text[ADVICE_TEXT])
{
    const double share = part_share(r, LEDGER_WAITING);
    if (!(share > WAIT_SHARE))
        return false;
    snprintf(
        text, ADVICE_TEXT,
        "%.0f %% of the time of all workers is spent waiting until the slowest rank has computed. If it is always the "
        "same rank, its node is slow; if it changes, the work is uneven: compare the ranks in the utilisation "
        "pictures.",
        share * 100);
    return true;
}

static bool spread(const struct report *r, char text[ADVICE_TEXT])
{
    const double median = step_quantile(r, 0.5), slow = step_quantile(r, 0.99);
    if (r->in.n_rows < 5 * FEW_STEPS || !(slow > SPREAD * median))
        return false;
    snprintf(
        text, ADVICE_TEXT,
        "One step in a hundred takes %.3g s or more, %.1f times the median of %.3g s. Other processes on the nodes, "
        "or data that is read late, make single steps slow.",
        slow, slow / median, median);
    return true;
}

static bool idle_ranks(const struct report *r, char text[ADVICE_TEXT])
{
    const struct spec_facts *f = &r->plan.facts;
    int least = INT32_MAX, most = 0, rank = 0;
    if (!r->plan.made || !f->micros)
        return false;
    for (int i = 0; i < f->workers; i++) {
        rank = f->micros[i] < least ? i : rank;
        least = f->micros[i] < least ? f->micros[i] : least;
        most = f->micros[i] > most ? f->micros[i] : most;
    }
    if (least == most)
        return false;
    snprintf(
        text, ADVICE_TEXT,
        "With train.global_batch %" PRId64 " and train.micro_batch %" PRId64
        ", rank %d computes %d of the %d microbatches that other ranks compute in a step, and is idle for the rest. "
        "Choose a global batch that the number of replicas times the microbatch divides.",
        r->spec.train.global_batch, r->spec.train.micro_batch, rank, least, most);
    return true;
}

static bool communication(const struct report *r, char text[ADVICE_TEXT])
{
    const double share = usage_mean(&r->usage, USAGE_comm_s, -1) / usage_mean(&r->usage, USAGE_step_s, -1) -
                         part_share(r, LEDGER_WAITING);
    if (!(share > COMM_SHARE))
        return false;
    char less[96] = "";
    if (r->spec.parallel.tp > 1)
        snprintf(less, sizeof(less), " fewer ranks of tensor parallelism (parallel.tp: %" PRId64 " now),",
                 r->spec.parallel.tp);
    snprintf(
        text, ADVICE_TEXT,
        "Ranks spend %.0f %% of a step in communication. Larger microbatches (train.micro_batch),%s or run.comm: ucx "
        "on a fast network lower it; dtctl plan compares layouts.",
        share * 100, less);
    return true;
}

static bool bubble(const struct report *r, char text[ADVICE_TEXT])
{
    const bool measured = r->measured.did.n > 0;
    const double share = measured ? r->measured.did.bubble : r->plan.made ? r->plan.facts.forecast.bubble : 0;
    if (!r->has_spec || r->spec.parallel.pp < 2 || !(share > BUBBLE))
        return false;
    snprintf(text, ADVICE_TEXT,
             "The stages of the pipeline are idle for %.0f %% of a step (%s). More microbatches in a step "
             "(train.global_batch) or another schedule (parallel.schedule: interleaved, zb-v) make this less.",
             share * 100, measured ? "measured" : "forecast");
    return true;
}

static bool data_waits(const struct report *r, char text[ADVICE_TEXT])
{
    const double share = usage_mean(&r->usage, USAGE_data_s, -1) / usage_mean(&r->usage, USAGE_step_s, -1);
    if (!(share > DATA_SHARE))
        return false;
    snprintf(
        text, ADVICE_TEXT,
        "Ranks wait for data during %.0f %% of a step. Stage the data on each node (data.stage: auto), or place the "
        "prepared data on a faster file system (data.cache).",
        share * 100);
    return true;
}

static bool data_network(const struct report *r, char text[ADVICE_TEXT])
{
    if (!r->data_network || !r->has_spec || !r->spec.data.stage || strcmp(r->spec.data.stage, "none") != 0)
        return false;
    snprintf(text, ADVICE_TEXT,
             "Each node reads the training data over the network: data.cache is on %s, and data.stage is none. With "
             "data.stage: auto a node copies it once, before training.",
             r->data_network);
    return true;
}

static bool idle_cpu(const struct report *r, char text[ADVICE_TEXT])
{
    const double cores = usage_mean(&r->usage, USAGE_cpu, -1);
    const double threads = r->has_spec ? (double)r->spec.run.threads : 0;
    if (r->gpus || !(threads >= 2) || !(cores < IDLE_CPU * threads))
        return false;
    snprintf(text, ADVICE_TEXT,
             "A worker uses %.1f of its %.0f threads (run.threads). The node has fewer cores than threads, or the "
             "microbatch is too small to keep them busy: raise train.micro_batch or lower run.threads.",
             cores, threads);
    return true;
}

static bool idle_gpu(const struct report *r, char text[ADVICE_TEXT])
{
    const double use = usage_mean(&r->usage, USAGE_gpu_util, -1);
    if (!(use < IDLE_GPU))
        return false;
    snprintf(
        text, ADVICE_TEXT,
        "The GPUs compute for %.0f %% of the time. Larger microbatches (train.micro_batch) make kernels longer; the "
        "timeline of a step (run.timeline_step) shows where the GPUs wait.",
        use * 100);
    return true;
}

static bool hot_gpu(const struct report *r, char text[ADVICE_TEXT])
{
    const double most = usage_most(&r->usage, USAGE_gpu_celsius);
    if (!(most >= HOT_GPU))
        return false;
    snprintf(
        text, ADVICE_TEXT,
        "A GPU reached %.0f °C, where GPUs lower their clock. Ask the administrators of the node about its cooling.",
        most);
    return true;
}

/* ---- memory ---- */

static bool memory_far(const struct report *r, char text[ADVICE_TEXT])
{
    char a[OUT_NUMBER], b[OUT_NUMBER];
    const enum usage_field used = isfinite(usage_most(&r->usage, USAGE_gpu_bytes)) ? USAGE_gpu_bytes : USAGE_rss_bytes;
    const double most = usage_most(&r->usage, used), planned = usage_most(&r->usage, USAGE_planned_bytes);
    if (!(most < MEMORY_USED * planned))
        return false;
    snprintf(text, ADVICE_TEXT,
             "No rank used more than %s of the %s that the plan reserves for it. Nothing is wrong with that, but a "
             "worker has "
             "room: a larger train.micro_batch or less recomputation (parallel.recompute) makes steps faster.",
             out_bytes((int64_t)most, a), out_bytes((int64_t)planned, b));
    return true;
}

/* ---- failures and checkpoints ---- */

static int failures(const struct report *r)
{
    int n = 0;
    for (int i = 0; i < r->job->n_incident; i++)
        n += !isnan(r->job->incident[i].recover_ms) || r->job->incident[i].restart_ms > 0 ||
             r->job->incident[i].lost_steps >= 0;
    return n;
}

static bool no_checkpoint(const struct report *r, char text[ADVICE_TEXT])
{
    char a[OUT_NUMBER];
    if (!r->has_spec || job_is_command(&r->spec) || r->in.n_checkpoints || r->ledger.wall_ms < LONG_MS)
        return false;
    snprintf(
        text, ADVICE_TEXT,
        "The job ran for %s without a checkpoint, so a failure repeats all of it. Set checkpoint.every; it is %" PRId64
        " now.",
        out_duration((double)r->ledger.wall_ms * 1e-3, a), r->spec.checkpoint.every);
    return true;
}

/* Young and Daly: the time between checkpoints that loses least is sqrt(2 x cost of one x time between failures). */
static bool interval(const struct report *r, char text[ADVICE_TEXT])
{
    const int n = failures(r);
    const int64_t saves = r->ledger.saves;
    const double step_s = step_quantile(r, 0.5);
    const double lost = part_share(r, LEDGER_RECOMPUTED) + part_share(r, LEDGER_STALL);
    if (!r->has_spec || n == 0 || saves == 0 || r->spec.checkpoint.every <= 0 || !(step_s > 0) || !r->ledger.stall_ms ||
        lost < INTERVAL_SHARE)
        return false;
    const double cost = (double)r->ledger.stall_ms * 1e-3 / (double)saves;
    const double between = (double)r->ledger.wall_ms * 1e-3 / n, best = sqrt(2 * cost * between);
    const double now = step_s * (double)r->spec.checkpoint.every;
    const double every = fmax(1, round(best / step_s));
    if ((now < best * INTERVAL_RATIO && now > best / INTERVAL_RATIO) || every == (double)r->spec.checkpoint.every)
        return false;
    snprintf(text, ADVICE_TEXT,
             "A checkpoint stalls training for %.3g s, and the job failed every %.3g s. By Young's and Daly's formula, "
             "checkpoints every %.3g s lose least: checkpoint.every: %.0f instead of %" PRId64 " (every %.3g s).",
             cost, between, best, every, r->spec.checkpoint.every, now);
    return true;
}

static bool stalls(const struct report *r, char text[ADVICE_TEXT])
{
    const double share = part_share(r, LEDGER_STALL);
    if (!(share > STALL_SHARE) || failures(r))
        return false;
    snprintf(text, ADVICE_TEXT,
             "Training waits for checkpoints for %.0f %% of the time, and the job has not failed. Save less often "
             "(checkpoint.every), or write to a faster file system (checkpoint.dir).",
             share * 100);
    return true;
}

static bool slow_detection(const struct report *r, char text[ADVICE_TEXT])
{
    const int n = r->job->n_incident, workers = report_workers(r);
    const double each = n ? (double)r->ledger.part_ms[LEDGER_DETECTION] / (n * (workers ? workers : 1)) : 0;
    if (!r->has_spec || !(each > DETECTION_MS))
        return false;
    snprintf(text, ADVICE_TEXT,
             "A failure was decided on %.0f s after it, or after the last step, on average. run.hang_seconds (%" PRId64
             " now) is the time limit for a step that hangs; set it to a few times the longest step.",
             each * 1e-3, r->spec.run.hang_seconds);
    return true;
}

static int64_t step_of(const struct report *r)
{
    return r->in.n_rows ? r->in.row[r->in.n_rows - 1].step : 0;
}

/* The process id differs from start to start: the words before it are compared. */
static bool seen_alike(const char *a, const char *b)
{
    const size_t n = strcspn(a, "(");
    return n > 0 && strncmp(a, b, n) == 0 && (a[n] == 0 || b[n] == '(');
}

static int words_len(const char *seen)
{
    int n = (int)strcspn(seen, "(");
    while (n > 0 && seen[n - 1] == ' ')
        n--;
    return n;
}

static bool same_failure(const struct report *r, char text[ADVICE_TEXT])
{
    for (int i = 0; i < r->job->n_incident; i++) {
        const char *seen = r->job->incident[i].seen ? r->job->incident[i].seen : "";
        int n = 0;
        for (int k = 0; k < r->job->n_incident; k++)
            n += seen_alike(seen, r->job->incident[k].seen ? r->job->incident[k].seen : "");
        if (n < 2)
            continue;
        snprintf(
            text, ADVICE_TEXT,
            "%d incidents begin alike: \"%.*s\". A failure that repeats has one cause; dtctl why %s shows the last "
            "lines of the worker.",
            n, words_len(seen), seen, r->job->job);
        return true;
    }
    return false;
}

static bool slow_start(const struct report *r, char text[ADVICE_TEXT])
{
    static const struct {
        const char *field, *name;
    } parts[] = {{"connect_ms", "the start of the processes"},
                 {"scan_ms", "the scan of the checkpoint folder"},
                 {"data_ms", "opening data and device"},
                 {"plan_ms", "compiling the program"},
                 {"join_ms", "the ranks' joining"},
                 {"memory_ms", "allocating memory"},
                 {"state_ms", "loading or drawing the state"}};
    const double share = part_share(r, LEDGER_STARTING);
    const struct incident *start = &r->job->start;
    const double all = start->recover_ms;
    double most = 0;
    const char *name = NULL;
    if (!start->epoch || !(share > START_SHARE) || !(all > START_MS))
        return false;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        const double ms = field_get(field_find(&incident_fields, parts[i].field), start).real;
        if (ms > most) {
            most = ms;
            name = parts[i].name;
        }
    }
    if (!name)
        return false;
    snprintf(text, ADVICE_TEXT, "Starting took %.0f %% of the job's time. Its longest part is %s: %.3g s.", share * 100,
             name, most * 1e-3);
    return true;
}

static bool fewer_workers(const struct report *r, char text[ADVICE_TEXT])
{
    int64_t steps = 0, least = r->job->max_workers;
    for (size_t i = 0; i < r->in.n_rows; i++)
        if (r->in.row[i].workers < r->job->max_workers) {
            steps++;
            least = r->in.row[i].workers < least ? r->in.row[i].workers : least;
        }
    if (!steps || !r->has_spec)
        return false;
    snprintf(text, ADVICE_TEXT,
             "%" PRId64 " of %zu steps ran with fewer workers than the %d of the job file, down to %" PRId64 ". %s",
             steps, r->in.n_rows, r->job->max_workers, least,
             r->spec.run.grow ? "run.grow is on: the job takes more as soon as there is room."
                              : "run.grow: true makes the job take more as soon as there is room.");
    return true;
}

/* ---- the model ---- */

static bool not_finite(const struct report *r, char text[ADVICE_TEXT])
{
    int64_t n = 0, first = 0;
    for (size_t i = 0; i < r->in.n_rows; i++) {
        const struct metric *m = &r->in.row[i];
        if (isfinite(m->loss) && isfinite(m->grad_norm) && !m->skipped)
            continue;
        first = n ? first : m->step;
        n++;
    }
    if (!n)
        return false;
    snprintf(text, ADVICE_TEXT,
             "The loss or the gradient norm was not finite in %" PRId64 " step%s, first in step %" PRId64
             ". These steps update nothing. A lower learning rate (train.lr), a longer warm-up (train.warmup) or "
             "train.dtype: float32 usually helps.",
             n, n == 1 ? "" : "s", first);
    return true;
}

static bool always_clipped(const struct report *r, char text[ADVICE_TEXT])
{
    int64_t n = 0, all = 0;
    for (size_t i = r->in.n_rows / 2; r->has_spec && i < r->in.n_rows; i++) {
        all += isfinite(r->in.row[i].grad_norm);
        n += r->in.row[i].grad_norm > r->spec.train.clip;
    }
    if (all < FEW_STEPS || !(r->spec.train.clip > 0) || !((double)n > CLIP_SHARE * (double)all))
        return false;
    snprintf(
        text, ADVICE_TEXT,
        "In the second half of the job %.0f %% of the steps had a gradient norm above train.clip (%g), so nearly every "
        "step is scaled down. Raise train.clip, or lower train.lr if the loss is not smooth.",
        100.0 * (double)n / (double)all, r->spec.train.clip);
    return true;
}

static bool overfit(const struct report *r, char text[ADVICE_TEXT])
{
    double best = INFINITY, last = NAN;
    int64_t best_step = 0;
    int after = 0;
    for (size_t i = 0; i < r->in.n_rows; i++) {
        const double v = r->in.row[i].valid_loss;
        if (!isfinite(v))
            continue;
        last = v;
        after++;
        if (v < best) {
            best = v;
            best_step = r->in.row[i].step;
            after = 0;
        }
    }
    if (after < 2 || !(last > OVERFIT * best))
        return false;
    snprintf(text, ADVICE_TEXT,
             "The validation loss was lowest in step %" PRId64 " (%.4g) and is %.4g now, after step %" PRId64
             ": the model overfits. checkpoint.keep_best keeps the best checkpoints.",
             best_step, best, last, step_of(r));
    return true;
}

const struct advice_rule advice_rules[] = {
    {"slow_rank", "One rank is slower than the others", slow_rank},
    {"waiting", "Ranks wait for each other", waiting},
    {"spread", "Some steps are much slower than the rest", spread},
    {"idle_ranks", "The global batch leaves ranks idle", idle_ranks},
    {"communication", "Communication is a large part of a step", communication},
    {"bubble", "The pipeline is idle for a large part of a step", bubble},
    {"data_waits", "Steps wait for data", data_waits},
    {"data_network", "The data is read over the network", data_network},
    {"idle_cpu", "Cores are idle", idle_cpu},
    {"idle_gpu", "GPUs are idle", idle_gpu},
    {"hot_gpu", "A GPU is hot", hot_gpu},
    {"memory_far", "Memory is far below the plan", memory_far},
    {"no_checkpoint", "There is no checkpoint", no_checkpoint},
    {"interval", "Another checkpoint interval would lose less", interval},
    {"stalls", "Checkpoints stall training", stalls},
    {"slow_detection", "Failures are detected late", slow_detection},
    {"same_failure", "The same failure repeats", same_failure},
    {"slow_start", "The start takes long", slow_start},
    {"fewer_workers", "The job ran with fewer workers than it wants", fewer_workers},
    {"not_finite", "Loss or gradient norm is not finite", not_finite},
    {"always_clipped", "Nearly every gradient is clipped", always_clipped},
    {"overfit", "The validation loss rises", overfit},
};
const int n_advice_rules = sizeof(advice_rules) / sizeof(advice_rules[0]);
