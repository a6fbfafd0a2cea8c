#include "client/plan_report.h"

#include "client/json.h"
#include "common/plan/compile/compile.h"
#include "common/plan/estimate/memory.h"

#include <inttypes.h>
#include <string.h>

static const char *const space_names[SPACE_CACHE] =
    {/* no job has a cache */

     [SPACE_PARAM] = "parameters", [SPACE_OPT] = "optimizer", [SPACE_GRAD] = "gradients",
     [SPACE_WORK] = "activations", [SPACE_SENT] = "messages", [SPACE_SHARED] = "collectives",
     [SPACE_HOST] = "host"};

static const char *kept_text(const struct plan_memory *m, char *text, size_t size)
{
    char a[OUT_NUMBER];
    text[0] = 0;
    if (m->kept_bytes)
        snprintf(text, size, ", %s of it kept for post-validation", out_bytes(m->kept_bytes, a));
    return text;
}

static void memory_print(FILE *to, const struct spec_facts *f)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER], kept[80];
    if (f->memory.device_bytes)
        fprintf(to, "  GPU memory %s per worker\n", out_bytes(f->memory.device_bytes, a));
    fprintf(to, "  Memory     %s per worker, %s in total; %s available on this node\n",
            out_bytes(f->memory.host_bytes, a), out_bytes(f->memory.host_bytes * f->workers, b),
            out_bytes(f->node_bytes, c));
    for (int s = 0; s < SPACE_CACHE; s++)
        if (f->memory.bytes[s])
            fprintf(to, "    %-12s %10s%s\n", space_names[s], out_bytes(f->memory.bytes[s], a),
                    s == SPACE_OPT ? kept_text(&f->memory, kept, sizeof(kept)) : "");
    fprintf(to, "    %-12s %10s\n", "snapshot", out_bytes(f->memory.arena_bytes, a));
}

static const char *const recompute_names[SPEC_RECOMPUTES] = {"none", "experts", "full"};
static const char *const row_names[SPEC_ROWS] = {"routed", "rounds", "balanced"};

/* Whether the job may divide rows in this way. */
static bool has_rows(const struct spec_facts *f, int rows)
{
    bool has = false;
    for (int i = 0; i < SPEC_RECOMPUTES; i++)
        has |= f->expert_bytes[rows][i] > 0;
    return has;
}

/* How much a worker needs with each way to divide and to keep the rows of experts. */
static void experts_print(FILE *to, const struct spec_facts *f)
{
    char a[OUT_NUMBER];
    if (!f->expert_bytes[0][0])
        return;
    fprintf(to, "  Experts    any routing fits; memory per worker by parallel.recompute (columns):\n");
    fprintf(to, "    %-16s", "");
    for (int i = 0; i < SPEC_RECOMPUTES; i++)
        fprintf(to, " %10s", recompute_names[i]);
    fputc('\n', to);
    for (int rows = 0; rows < SPEC_ROWS; rows++) {
        char rounds[32];
        snprintf(rounds, sizeof(rounds), "expert_rows %g", f->expert_rows);
        if (!has_rows(f, rows))
            continue;
        fprintf(to, "    %-16s", rows == SPEC_ROUNDS ? rounds : row_names[rows]);
        for (int i = 0; i < SPEC_RECOMPUTES; i++)
            fprintf(to, " %10s", f->expert_bytes[rows][i] ? out_bytes(f->expert_bytes[rows][i], a) : "-");
        fputc('\n', to);
    }
}

/* "rank 3" or "ranks 0-3" */
static const char *ranks_text(int first, int last, char *text, size_t size)
{
    if (first == last)
        snprintf(text, size, "rank %d", first);
    else
        snprintf(text, size, "ranks %d-%d", first, last);
    return text;
}

/* "ranks 0-1: 3 each, rank 2: 2" */
static void shares_print(FILE *to, const struct spec_facts *f)
{
    char text[48];
    for (int first = 0, last; first < f->workers; first = last + 1) {
        for (last = first; last + 1 < f->workers && f->micros[last + 1] == f->micros[first];)
            last++;
        fprintf(to, "%s%s: %d%s", first ? ", " : "", ranks_text(first, last, text, sizeof(text)), f->micros[first],
                first == last ? "" : " each");
    }
    fputc('\n', to);
}

static bool memory_alike(const struct plan_memory *a, const struct plan_memory *b)
{
    return !memcmp(a->bytes, b->bytes, sizeof(a->bytes)) && a->arena_bytes == b->arena_bytes;
}

/* The last rank of the run of ranks from `first` on that need the same memory. */
static int alike_until(const struct spec_facts *f, int first)
{
    int last = first;
    while (last + 1 < f->workers && memory_alike(&f->ranks[last + 1], &f->ranks[first]))
        last++;
    return last;
}

/* The table of ranks that need different memory is cut after this number of lines, so that the report fits on a screen.
 * JSON has all ranks. */
#define MAX_LINES 24

/* On a narrow terminal the smallest kinds are left out. */
static const struct out_column rank_columns[SPACE_CACHE + 2] = {{"    RANKS", false, 0},
                                                                [SPACE_PARAM + 1] = {"PARAMS", true, 0},
                                                                [SPACE_OPT + 1] = {"OPTIM", true, 0},
                                                                [SPACE_GRAD + 1] = {"GRADS", true, 0},
                                                                [SPACE_WORK + 1] = {"ACTIV", true, 0},
                                                                [SPACE_SENT + 1] = {"MESSAGES", true, 3},
                                                                [SPACE_SHARED + 1] = {"COLLECTIVES", true, 2},
                                                                [SPACE_HOST + 1] = {"HOST", true, 4},
                                                                [SPACE_CACHE + 1] = {"SNAPSHOT", false, 0}};

static void ranks_print(const struct spec_facts *f)
{
    char text[48], a[OUT_NUMBER];
    struct out_table t;
    int shown = 0;
    if (alike_until(f, 0) == f->workers - 1)
        return;
    out_table_init(&t, rank_columns, SPACE_CACHE + 2);
    for (int first = 0, last; first < f->workers && t.n_rows < MAX_LINES; first = last + 1) {
        const int row = out_table_row(&t);
        last = alike_until(f, first);
        out_table_set(&t, row, 0, "    %s", ranks_text(first, last, text, sizeof(text)));
        for (int s = 0; s < SPACE_CACHE; s++)
            if (f->ranks[first].bytes[s])
                out_table_set(&t, row, s + 1, "%s", out_bytes(f->ranks[first].bytes[s], a));
        out_table_set(&t, row, SPACE_CACHE + 1, "%s", out_bytes(f->ranks[first].arena_bytes, a));
        shown = last + 1;
    }
    out_table_print(&t, stdout, -1);
    if (shown < f->workers)
        printf("    and %d more ranks; -o json shows all\n", f->workers - shown);
    out_table_fini(&t);
}

static void traffic_print(FILE *to, const struct spec_facts *f)
{
    char axes[MESH_AXES_NAME], a[OUT_NUMBER], b[OUT_NUMBER];
    for (unsigned i = 1; i < FORECAST_AXES; i++)
        if (f->forecast.bytes[i])
            fprintf(to, "  Traffic    %s a step over %s, %s to each rank\n", out_bytes(f->forecast.bytes[i], a),
                    mesh_axes_name(i, axes), out_bytes(f->forecast.bytes[i] / f->workers, b));
}

/* Where the forecast is from. Assumed rates are no news. */
static void rates_print(FILE *to, const struct spec_facts *f)
{
    if (f->high_s > 0)
        fprintf(to, "  Interval   %.4g to %.4g s: %s\n", f->low_s, f->high_s, f->interval_source);
    if (f->rates_source[0])
        fprintf(to, "  Rates      %s\n", f->rates_source);
    if (f->measured > 0)
        fprintf(to, "             %.3g %% of the operations' time is from measured times%s%s\n", 100 * f->measured,
                f->formulas[0] ? ", the rest from rates: " : "", f->formulas);
    else if (f->formulas[0])
        fprintf(to, "             %s\n", f->formulas);
}

static void forecast_print(FILE *to, const struct job_spec *job, const struct spec_facts *f)
{
    char a[OUT_NUMBER], b[OUT_NUMBER];
    double tokens = (double)(job->train.global_batch * job->train.seq);
    if (!f->micros)
        fprintf(to,
                "  Forecast   none: the plan is too large to compile for %d ranks here; dtctl submit compiles and "
                "checks it\n",
                f->workers);
    if (!f->forecast.n)
        return;
    traffic_print(to, f);
    fprintf(to, "  Forecast   %.4g s a step, %s tokens/s, bubble %.1f %%, exposed communication %.1f %%",
            f->forecast.seconds, out_count(tokens / f->forecast.seconds, a), 100 * f->forecast.bubble,
            100 * f->forecast.exposed);
    fprintf(to, "; with %s FLOP/s", out_count(f->rates.flops, a));
    fprintf(to, ", %s/s of memory and %s/s from peers for each worker\n", out_bytes((int64_t)f->rates.memory, a),
            out_bytes((int64_t)f->rates.link, b));
    rates_print(to, f);
}

static void passes_print(FILE *to, const struct job_spec *job, const struct spec_facts *f)
{
    char count[OUT_NUMBER];
    const double all = (double)(job->train.steps * job->train.global_batch);
    for (int i = 0; i < f->n_sources && job->data.packing == PACKING_BEST_FIT; i++)
        fprintf(to, "  Packing    %.2f %% of the samples of %s are filled, the rest is padding\n",
                100 * f->sources[i].filled, job->data.n_weights ? job->data.train[i] : "data.train");
    if (!job->data.n_weights) {
        fprintf(to, "  Passes     %.2f over the data\n", f->sources[0].passes);
        return;
    }
    for (int i = 0; i < f->n_sources; i++)
        fprintf(to, "  Source %-3d %.2f passes over %s: %s samples of %" PRId64 ", %.2f %% of the training\n", i + 1,
                f->sources[i].passes, job->data.train[i], out_count((double)f->sources[i].taken, count),
                f->sources[i].samples, 100 * (double)f->sources[i].taken / all);
}

static void report_print(FILE *to, const struct job_spec *job, const struct spec_facts *f)
{
    char a[OUT_NUMBER], b[OUT_NUMBER];
    fprintf(to, "job %s can run: %s parameters, %" PRId64 " steps of %" PRId64 " tokens, %d worker%s\n", job->name,
            out_count((double)f->params, a), job->train.steps, job->train.global_batch * job->train.seq, f->workers,
            f->workers == 1 ? "" : "s");
    fprintf(to,
            "  Data       %" PRId64 " tokens, %" PRId64 " samples of %" PRId64 "; vocabulary %" PRId64 " of %" PRId64
            " rows\n",
            f->train_tokens, f->train_samples, job->train.seq, f->vocab, job->model.vocab);
    if (f->valid_tokens)
        fprintf(to, "  Validation %" PRId64 " tokens, %" PRId64 " samples\n", f->valid_tokens, f->valid_samples);
    if (f->test_tokens)
        fprintf(to, "  Test       %" PRId64 " tokens, %" PRId64 " samples\n", f->test_tokens, f->test_samples);
    passes_print(to, job, f);
    fprintf(to, "  Compute    %s FLOP a token, %s a step\n", out_count(f->flops_per_token, a),
            out_count(f->flops_per_token * (double)(job->train.global_batch * job->train.seq), b));
    if (f->chosen[0])
        fprintf(to, "  Layout     auto: %s\n", f->chosen);
    if (f->micros) {
        fprintf(to, "  Step       %d microbatches: ", f->n_micros);
        shares_print(to, f);
    }
    forecast_print(to, job, f);
    memory_print(to, f);
}

static void rest_print(FILE *to, const struct job_spec *job, const struct spec_facts *f)
{
    experts_print(to, f);
    fprintf(to, "  Checkpoint every %" PRId64 " steps in %s\n", job->checkpoint.every, job->checkpoint.dir);
}

void plan_report_print(const struct job_spec *job, const struct spec_facts *f)
{
    struct out_page page;
    out_page_begin(&page);
    report_print(page.f, job, f);
    out_page_end(&page, stdout);
    ranks_print(f);
    out_page_begin(&page);
    rest_print(page.f, job, f);
    out_page_end(&page, stdout);
}

static json_t *memory_json(const struct plan_memory *m)
{
    json_t *memory = json_object();
    for (int s = 0; s < SPACE_CACHE; s++)
        json_object_set_new(memory, space_names[s], json_integer(m->bytes[s]));
    json_object_set_new(memory, "snapshot", json_integer(m->arena_bytes));
    if (m->kept_bytes)
        json_object_set_new(memory, "kept", json_integer(m->kept_bytes));
    json_object_set_new(memory, "device", json_integer(m->device_bytes));
    json_object_set_new(memory, "node", json_integer(m->host_bytes));
    json_object_set_new(memory, "total", json_integer(m->total_bytes));
    return memory;
}

/* [{"first": 0, "last": 3, "parameters": ..., ...}, ...] */
static json_t *ranks_json(const struct spec_facts *f)
{
    json_t *ranks = json_array();
    for (int first = 0, last; first < f->workers; first = last + 1) {
        last = alike_until(f, first);
        json_t *memory = memory_json(&f->ranks[first]);
        json_object_set_new(memory, "first", json_integer(first));
        json_object_set_new(memory, "last", json_integer(last));
        json_array_append_new(ranks, memory);
    }
    return ranks;
}

static json_t *forecast_json(const struct spec_facts *f)
{
    char axes[MESH_AXES_NAME];
    if (!f->forecast.n)
        return json_null();
    json_t *traffic = json_object();
    for (unsigned i = 1; i < FORECAST_AXES; i++)
        if (f->forecast.bytes[i])
            json_object_set_new(traffic, mesh_axes_name(i, axes), json_integer(f->forecast.bytes[i]));
    json_t *ret =
        json_pack("{s:f, s:f, s:f, s:o, s:{s:f, s:f, s:f, s:f}}", "seconds", f->forecast.seconds, "bubble",
                  f->forecast.bubble, "exposed", f->forecast.exposed, "bytes", traffic, "rates", "flops",
                  f->rates.flops, "memory", f->rates.memory, "link", f->rates.link, "latency", f->rates.latency);
    if (ret && f->rates_source[0])
        json_object_set_new(ret, "source", json_string(f->rates_source));
    if (ret && f->high_s > 0)
        json_object_set_new(
            ret, "interval",
            json_pack("{s:f, s:f, s:s}", "low_s", f->low_s, "high_s", f->high_s, "source", f->interval_source));
    if (ret && f->measured > 0)
        json_object_set_new(ret, "times", json_pack("{s:f, s:s}", "measured", f->measured, "formulas", f->formulas));
    return ret;
}

/* By the way to divide rows, then by recompute. */
static json_t *experts_json(const struct spec_facts *f)
{
    json_t *all = json_object();
    for (int rows = 0; rows < SPEC_ROWS; rows++) {
        json_t *bytes = json_object();
        for (int i = 0; i < SPEC_RECOMPUTES; i++)
            if (f->expert_bytes[rows][i])
                json_object_set_new(bytes, recompute_names[i], json_integer(f->expert_bytes[rows][i]));
        if (has_rows(f, rows))
            json_object_set(all, row_names[rows], bytes);
        json_decref(bytes);
    }
    return all;
}

static json_t *sources_json(const struct job_spec *job, const struct spec_facts *f)
{
    json_t *all = json_array();
    for (int i = 0; job->data.n_weights && i < f->n_sources; i++)
        json_array_append_new(all,
                              json_pack("{s:o, s:I, s:I, s:f, s:f}", "files",
                                        json_of_text(job->data.train[i], strlen(job->data.train[i])), "samples",
                                        (json_int_t)f->sources[i].samples, "taken", (json_int_t)f->sources[i].taken,
                                        "passes", f->sources[i].passes, "filled", f->sources[i].filled));
    return all;
}

/* {"fsdp": 2, "tp": 2, "zero": 3, "ep": 4}: the axes with several members, and what divides the state. */
static json_t *layout_json(const struct job_spec *job)
{
    char axes[MESH_AXES_NAME];
    struct mesh mesh;
    struct why why;
    json_t *layout = json_object();
    if (plan_mesh(job, &mesh, &why))
        return layout;
    for (unsigned axis = 0; axis < AXIS_COUNT; axis++)
        if (mesh.size[axis] > 1)
            json_object_set_new(layout, mesh_axes_name(1u << axis, axes), json_integer(mesh.size[axis]));
    if (job->parallel.ep > 1)
        json_object_set_new(layout, "ep", json_integer(job->parallel.ep));
    if (mesh.size[AXIS_FSDP] > 1)
        json_object_set_new(layout, "zero", json_integer(job->parallel.zero));
    return layout;
}

json_t *plan_report_json(const struct job_spec *job, const struct spec_facts *f)
{
    json_t *micros = json_array();
    for (int rank = 0; rank < f->workers && f->micros; rank++)
        json_array_append_new(micros, json_integer(f->micros[rank]));
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:f, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:i, s:o, s:o, s:o, s:o, s:o, "
                     "s:o, s:o, s:o, s:s*}",
                     "name", job->name, "parameters", (json_int_t)f->params, "steps", (json_int_t)job->train.steps,
                     "tokens_per_step", (json_int_t)job->train.global_batch * (json_int_t)job->train.seq, "vocab",
                     (json_int_t)f->vocab, "flops_per_token", f->flops_per_token, "train_tokens",
                     (json_int_t)f->train_tokens, "train_samples", (json_int_t)f->train_samples, "valid_tokens",
                     (json_int_t)f->valid_tokens, "valid_samples", (json_int_t)f->valid_samples, "test_tokens",
                     (json_int_t)f->test_tokens, "test_samples", (json_int_t)f->test_samples, "node_bytes",
                     (json_int_t)f->node_bytes, "workers", f->workers, "layout", layout_json(job), "sources",
                     sources_json(job, f), "microbatches", micros, "memory_per_worker", memory_json(&f->memory),
                     "expert_memory", experts_json(f), "ranks", ranks_json(f), "forecast", forecast_json(f),
                     "checkpoint_dir", json_of_text(job->checkpoint.dir, strlen(job->checkpoint.dir)), "layout_why",
                     f->chosen[0] ? f->chosen : NULL);
}
