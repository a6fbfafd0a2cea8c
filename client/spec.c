/* The checks run in order of cost: text, paths, data, plan. They write nothing but prepared data in the cache, which is
 * named by the hash of its content and is reused by the next submit. */
#include "client/spec.h"

#include "client/planner/planner.h"
#include "client/spec_mix.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/meminfo.h"
#include "common/conf/job_rules.h"
#include "common/data/mixture.h"
#include "common/data/tables.h"
#include "common/plan/check/plan_check.h"
#include "common/plan/compile/compile.h"
#include "common/plan/estimate/memory.h"
#include "common/plan/models/build.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Job files have a few KiB; the limit stops dtctl from reading a data file that was named by mistake. */
#define MAX_JOB_FILE (1 << 20)

/* ---- reading ---- */

static err_t folder_of(const char *file, char ret[PATH_MAX], struct why *why)
{
    char cwd[PATH_MAX] = "";
    if (file[0] != '/' && !getcwd(cwd, sizeof(cwd)))
        return why_set(why, err_from_errno(errno), "the current folder: %s", strerror(errno));
    const char *slash = strrchr(file, '/');
    int len = slash ? (int)(slash - file) : 0;
    int n = snprintf(ret, PATH_MAX, "%s%s%.*s", cwd, cwd[0] && slash ? "/" : "", len, file);
    if (n < 0 || n >= PATH_MAX)
        return why_set(why, ERR_LIMIT, "%s: the path is too long", file);
    if (!ret[0])
        strcpy(ret, "/");
    return OK;
}

/* Replaces a list of globs by the list of files that match. `what`: the key, for errors and the warning. */
static err_t files_resolve(const char *what, const char *folder, const struct data_containers *containers,
                           char ***files, int *n, struct why *why)
{
    char **found, repeated[PATH_MAX];
    int n_found;
    if (!*n)
        return OK;
    err_t err = data_resolve(folder, *files, *n, containers, &found, &n_found, repeated, why);
    if (err)
        return why_prefix(why, err, "%s", what);
    if (repeated[0])
        fprintf(stderr, "dtctl: warning: %s: %s is named more than once; it is read once\n", what, repeated);
    data_paths_free(*files, *n);
    *files = found;
    *n = n_found;
    return OK;
}

err_t spec_resolve_tokenizer(struct job_spec *job, const char *folder, struct why *why)
{
    return files_resolve("data.tokenizer_files", folder, NULL, &job->data.tokenizer_files, &job->data.n_tokenizer_files,
                         why);
}

err_t spec_resolve(struct job_spec *job, const char *folder, struct why *why)
{
    struct job_data *d = &job->data;
    err_t err = job_paths_resolve(job, folder, why);
    err = err             ? err
          : mixture_is(d) ? spec_mix_resolve(job, folder, why)
                          : files_resolve("data.train", folder, &table_containers, &d->train, &d->n_train, why);
    err = err ? err : files_resolve("data.valid", folder, &table_containers, &d->valid, &d->n_valid, why);
    err = err ? err : files_resolve("data.test", folder, &table_containers, &d->test, &d->n_test, why);
    return err ? err : spec_resolve_tokenizer(job, folder, why);
}

static err_t text_read(const char *file, struct buf *ret, struct why *why)
{
    errno = 0;
    err_t err = file_read(file, MAX_JOB_FILE, ret);
    if (err == ERR_LIMIT)
        return why_set(why, err, "%s: a job file has at most %d bytes", file, MAX_JOB_FILE);
    return err ? why_set(why, err, "%s: %s", file, errno ? strerror(errno) : err_text(err)) : OK;
}

/* ---- paths of --set ---- */

static bool is_set(const char *key, const char *const *sets, int n_sets)
{
    size_t len = strlen(key);
    for (int i = 0; i < n_sets; i++)
        if (strncmp(sets[i], key, len) == 0 && sets[i][len] == '=')
            return true;
    return false;
}

static err_t path_from(const char *folder, char **path)
{
    char *joined;
    if (!*path || !**path || **path == '/')
        return OK;
    if (asprintf(&joined, "%s/%s", folder, *path) < 0)
        return ERR_NOMEM;
    free(*path);
    *path = joined;
    return OK;
}

/* Paths in a job file are relative to its folder; those that were typed are relative to where that was. */
static err_t resolve_typed_paths(struct job_spec *job, const char *const *sets, int n_sets, struct why *why)
{
    int one = 1, none = strcmp(job->run.algorithms ? job->run.algorithms : "", JOB_NO_ALGORITHMS) != 0;
    const struct {
        const char *key;
        char **paths;
        const int *n;
    } typed[] = {
        {"checkpoint.dir", &job->checkpoint.dir, &one},
        {"checkpoint.resume_from", &job->checkpoint.resume_from, &one},
        {"data.train", job->data.train, &job->data.n_train},
        {"data.valid", job->data.valid, &job->data.n_valid},
        {"data.test", job->data.test, &job->data.n_test},
        {"data.tokenizer_files", job->data.tokenizer_files, &job->data.n_tokenizer_files},
        {"data.cache", &job->data.cache, &one},
        {"run.workdir", &job->run.workdir, &one},
        {"run.algorithms", &job->run.algorithms, &none},
        {"run.tensorboard", &job->run.tensorboard, &one},
        {"run.wandb", &job->run.wandb, &one},
        {"run.report", &job->run.report, &one},
    };
    char cwd[PATH_MAX];
    err_t err = OK;
    for (size_t i = 0; !err && i < sizeof(typed) / sizeof(typed[0]); i++) {
        if (!is_set(typed[i].key, sets, n_sets))
            continue;
        if (!getcwd(cwd, sizeof(cwd)))
            return why_set(why, ERR_IO, "the current folder does not exist any more");
        for (int k = 0; !err && k < *typed[i].n; k++)
            err = path_from(cwd, &typed[i].paths[k]);
    }
    return err ? why_set(why, err, "out of memory") : OK;
}

err_t spec_read(const char *file, const char *const *sets, int n_sets, struct job_spec *ret, struct why *why)
{
    char folder[PATH_MAX];
    struct buf text = {0};
    struct job_spec job = {0};
    err_t err = text_read(file, &text, why);
    if (!err)
        err = folder_of(file, folder, why);
    if (!err)
        err = job_parse(file, (const char *)text.data, text.len, sets, n_sets, &job, why);
    if (!err)
        err = resolve_typed_paths(&job, sets, n_sets, why);
    if (!err && (err = spec_resolve(&job, folder, why)))
        why_prefix(why, err, "%s", file);
    buf_fini(&text);
    if (err) {
        job_fini(&job);
        return err;
    }
    *ret = job;
    return OK;
}

err_t spec_print(const struct job_spec *job, struct buf *ret)
{
    err_t err = job_print(job, ret);
    return err ? err : buf_append(ret, "", 1);
}

err_t spec_text_set(char **field, const char *text)
{
    char *copy = strdup(text);
    if (!copy)
        return ERR_NOMEM;
    free(*field);
    *field = copy;
    return OK;
}

/* ---- data ---- */

struct preparing {
    struct out_progress *progress;
    const char *what;
};

static void prepare_progress(int64_t done, int64_t total, void *arg)
{
    struct preparing *p = arg;
    char line[128], a[OUT_NUMBER], b[OUT_NUMBER];
    int64_t now = clock_mono_ms();
    if (!p->progress || !out_progress_due(p->progress, now))
        return;
    snprintf(line, sizeof(line), "preparing %s  %.0f%%  %s of %s", p->what,
             total > 0 ? 100.0 * (double)done / (double)total : 0, out_bytes(done, a), out_bytes(total, b));
    out_progress_draw(p->progress, now, line);
}

static void prepare_report(const char *sentence, void *arg)
{
    const struct preparing *p = arg;
    if (p->progress)
        out_progress_clear(p->progress);
    fprintf(stderr, "dtctl: %s %s\n", p->what, sentence);
}

static void prepare_warning(const char *text, void *arg)
{
    const struct preparing *p = arg;
    if (p->progress)
        out_progress_clear(p->progress);
    fprintf(stderr, "dtctl: warning: %s: %s\n", p->what, text);
}

struct data_files {
    const char *what;
    char **paths;
    int n;
    const char *vocab_from;
    char **hash;
    bool again; /* prepare even if the set of `hash` exists: the files may have changed */
};

static bool set_exists(const struct job_spec *job, const char *hash)
{
    struct data_set *set;
    if (!hash[0] || data_open(job->data.cache, hash, &set, NULL))
        return false;
    data_close(set);
    return true;
}

/* Prepares one list of files, unless the set that the spec names exists. The hash must not change. */
static err_t set_prepare(const struct job_spec *job, const struct data_files *f, struct out_progress *progress,
                         struct why *why)
{
    char found[65];
    struct preparing preparing = {progress, f->what};
    if (!f->again && set_exists(job, *f->hash))
        return OK;
    const struct data_prepare p = {.files = f->paths,
                                   .n_files = f->n,
                                   .tokenizer = job->data.tokenizer,
                                   .lowercase = job->data.lowercase,
                                   .raw = job->data.raw,
                                   .format = job->data.format,
                                   .tables = table_rows,
                                   .containers = &table_containers,
                                   .field = job->data.field,
                                   .bos = job->data.bos,
                                   .eos = job->data.eos,
                                   .label = job->model.labels ? job->data.label : NULL,
                                   .template = job->data.template,
                                   .tokenizer_files = job->data.tokenizer_files,
                                   .n_tokenizer_files = job->data.n_tokenizer_files,
                                   .vocab_from = job->data.tokenizer != TOKENIZER_BYTES ? f->vocab_from : NULL,
                                   .cache = job->data.cache,
                                   .progress = prepare_progress,
                                   .report = prepare_report,
                                   .warn = prepare_warning,
                                   .arg = &preparing};
    err_t err = data_prepare(&p, found, why);
    if (progress)
        out_progress_clear(progress);
    if (err)
        return why_prefix(why, err, "%s", f->what);
    if ((*f->hash)[0] && strcmp(*f->hash, found) != 0 && job->data.order == CHANGE_KEEP)
        return why_set(
            why, ERR_INVALID,
            "%s: the files are not those that the checkpoint was trained on (hash %.12s, now %.12s). Restore "
            "the old files, or submit a new job with the new ones",
            f->what, *f->hash, found);
    return spec_text_set(f->hash, found);
}

/* Hashes of a mixture's other sources: as many as there are now, "" where none is known yet. */
static err_t more_hashes_fit(struct job_data *d)
{
    const int want = mixture_is(d) ? d->n_weights - 1 : 0;
    char **hashes = calloc((size_t)want + 1, sizeof(*hashes));
    bool all = hashes != NULL;
    for (int i = 0; all && i < want; i++)
        all = (hashes[i] = strdup(i < d->n_more_hashes ? d->more_hashes[i] : "")) != NULL;
    char **gone = all ? d->more_hashes : hashes;
    data_paths_free(gone, !gone ? 0 : all ? d->n_more_hashes : want);
    if (!all)
        return ERR_NOMEM;
    d->more_hashes = hashes;
    d->n_more_hashes = want;
    return OK;
}

/* The sources after the first use its vocabulary. Files of a set that exists need not. */
static err_t source_make(struct job_spec *job, int i, bool new_train, struct out_progress *progress, struct why *why)
{
    struct job_data *d = &job->data;
    char what[32], **found, **hash = i ? &d->more_hashes[i - 1] : &d->train_hash;
    int n;
    if (!new_train && set_exists(job, *hash))
        return OK;
    snprintf(what, sizeof(what), "data.train[%d]", i);
    err_t err = data_resolve("/", &d->train[i], 1, &table_containers, &found, &n, NULL, why);
    if (err)
        return why_prefix(why, err, "%s", what);
    const struct data_files source = {what, found, n, i ? d->train_hash : NULL, hash, new_train};
    err = set_prepare(job, &source, progress, why);
    data_paths_free(found, n);
    return err;
}

static err_t sources_make(struct job_spec *job, bool new_train, struct out_progress *progress, struct why *why)
{
    struct job_data *d = &job->data;
    err_t err = OK;
    for (int i = 0; !err && i < d->n_train; i++)
        err = source_make(job, i, new_train, progress, why);
    return err;
}

static err_t train_make(struct job_spec *job, bool new_train, struct out_progress *progress, struct why *why)
{
    struct job_data *d = &job->data;
    const struct data_files train = {"data.train", d->train, d->n_train, NULL, &d->train_hash, new_train};
    err_t err = more_hashes_fit(d);
    if (err)
        return why_set(why, err, "%s", err_text(err));
    return mixture_is(d) ? sources_make(job, new_train, progress, why) : set_prepare(job, &train, progress, why);
}

static err_t data_make(struct job_spec *job, bool new_train, struct out_progress *progress, struct why *why)
{
    struct job_data *d = &job->data;
    err_t err = train_make(job, new_train, progress, why);
    const struct data_files others[] = {{"data.valid", d->valid, d->n_valid, d->train_hash, &d->valid_hash, false},
                                        {"data.test", d->test, d->n_test, d->train_hash, &d->test_hash, false}};
    for (int i = 0; !err && i < 2; i++)
        err = others[i].n ? set_prepare(job, &others[i], progress, why) : OK;
    return err;
}

static err_t set_check(const struct job_spec *job, const char *what, const char *hash, int64_t *ret_tokens,
                       int64_t *ret_samples, struct why *why)
{
    struct data_set *set;
    struct data_view *view;
    err_t err = data_open(job->data.cache, hash, &set, why);
    if (err)
        return why_prefix(why, err, "%s", what);
    err = view_open(set, &job->data, job->train.seq, job->model.labels, &view, why);
    if (err) {
        why_prefix(why, err, "%s", what);
    } else {
        *ret_tokens = data_tokens(set);
        *ret_samples = view_samples(view);
        view_close(view);
    }
    data_close(set);
    return err;
}

static err_t vocab_check(struct job_spec *job, int64_t vocab, struct why *why)
{
    if (!job->model.vocab)
        job->model.vocab = vocab;
    if (job->model.vocab < vocab)
        return why_set(why, ERR_INVALID,
                       "model.vocab: %" PRId64 " is too small, the data has %" PRId64
                       " tokens. Set it to 0 (as many as the data has) or to at least %" PRId64,
                       job->model.vocab, vocab, vocab);
    return OK;
}

static err_t data_check(struct job_spec *job, struct spec_facts *ret, struct why *why)
{
    const struct job_data *d = &job->data;
    err_t err = spec_mix_check(job, ret, why);
    if (!err && d->n_valid)
        err = set_check(job, "data.valid", d->valid_hash, &ret->valid_tokens, &ret->valid_samples, why);
    if (!err && d->n_test)
        err = set_check(job, "data.test", d->test_hash, &ret->test_tokens, &ret->test_samples, why);
    return err ? err : vocab_check(job, ret->vocab, why);
}

/* ---- plan ---- */

/* What is wanted of a plan. `most`: no rank is compiled if work_of() is larger; 0: no limit, and no forecast.
 * `machine`: as in spec_plan. */
struct plan_wish {
    double most;
    const char *machine;
};

static err_t forecast_of(const struct job_spec *job, const char *machine, const struct program *programs, int n,
                         struct spec_facts *ret, struct why *why)
{
    struct planner_rates r;
    err_t err = planner_rates(machine, job, &r, why);
    err = err ? err : planner_forecast(&r, programs, n, ret, why);
    planner_rates_fini(&r);
    return err;
}

static err_t plan_facts(const struct job_spec *job, const struct program *programs, int n, const struct plan_wish *wish,
                        struct spec_facts *ret, struct why *why)
{
    ret->micros = calloc((size_t)n, sizeof(*ret->micros));
    if (!ret->micros)
        return ERR_NOMEM;
    ret->n_micros = programs[0].n_micros;
    for (int rank = 0; rank < n; rank++)
        ret->micros[rank] = programs[rank].end_micro - programs[rank].first_micro;
    return wish->most > 0 ? forecast_of(job, wish->machine, programs, n, ret, why) : OK;
}

static err_t plan_of_all(const struct job_spec *job, const struct graph *g, int n, const struct plan_wish *wish,
                         struct spec_facts *ret, struct why *why)
{
    struct program *programs = calloc((size_t)n, sizeof(*programs));
    if (!programs)
        return why_set(why, ERR_NOMEM, "out of memory for the plans of %d workers", n);
    err_t err = plan_compile_all(job, g, MODE_TRAIN, n, programs, why);
    if (!err)
        err = plan_check(g, programs, n, why);
    if (!err)
        err = plan_facts(job, programs, n, wish, ret, why);
    for (int rank = 0; rank < n; rank++)
        program_fini(&programs[rank]);
    free(programs);
    return err;
}

static err_t memory_facts(const struct job_spec *job, const struct graph *g, int n, struct spec_facts *ret,
                          struct why *why)
{
    ret->workers = n;
    ret->ranks = calloc((size_t)n, sizeof(*ret->ranks));
    err_t err = ret->ranks ? plan_memory_of_ranks(job, g, ret->ranks, why) : ERR_NOMEM;
    for (int rank = 0; rank < n && !err; rank++)
        if (ret->ranks[rank].total_bytes > ret->memory.total_bytes)
            ret->memory = ret->ranks[rank];
    return err;
}

static int64_t most_bytes(const struct plan_memory *ranks, int n)
{
    int64_t most = 0;
    for (int rank = 0; rank < n; rank++)
        most = ranks[rank].total_bytes > most ? ranks[rank].total_bytes : most;
    return most;
}

/* The job with another way to divide and to keep the rows of experts; false: it may not have that. */
static bool expert_choice(const struct job_spec *job, enum spec_rows rows, enum recompute recompute, double room,
                          struct job_spec *ret)
{
    *ret = *job;
    ret->parallel.expert_load = rows == SPEC_BALANCED ? EXPERT_LOAD_BALANCED : EXPERT_LOAD_ROUTED;
    ret->parallel.expert_rows = rows == SPEC_ROUNDS ? room : 0;
    ret->parallel.recompute = recompute;
    return rows == SPEC_ROUTED || (rows == SPEC_BALANCED ? job_may_balance(ret) : job_may_round(ret));
}

/* What the job would need with each of them. A schedule that splits backwards is found to allow no rounds when the job
 * is compiled. */
static err_t expert_facts(const struct job_spec *job, const struct graph *g, int n, struct spec_facts *ret,
                          struct why *why)
{
    struct plan_memory *ranks = calloc((size_t)n, sizeof(*ranks));
    err_t err = ranks ? OK : ERR_NOMEM;
    ret->expert_rows = job->parallel.expert_rows > 0 ? job->parallel.expert_rows : 1.25;
    for (enum spec_rows rows = SPEC_ROUTED; rows < SPEC_ROWS; rows++)
        for (int i = 0; i < SPEC_RECOMPUTES && !err; i++) {
            struct job_spec other;
            if (!expert_choice(job, rows, spec_recomputes[i], ret->expert_rows, &other))
                continue;
            err = plan_memory_of_ranks(&other, g, ranks, why);
            ret->expert_bytes[rows][i] = err ? 0 : most_bytes(ranks, n);
            err = rows == SPEC_ROUNDS && err == ERR_INVALID ? OK : err;
        }
    free(ranks);
    return err;
}

/* Number of graph nodes that all ranks execute in a step. The time to compile and check a plan is proportional to it.
 */
static double work_of(const struct job_spec *job, const struct graph *g, const struct mesh *mesh)
{
    int replicas = mesh->size[AXIS_DP] * mesh->size[AXIS_FSDP];
    double micros = ceil((double)job->train.global_batch / (double)job->train.micro_batch / replicas);
    return (double)mesh_workers(mesh) / mesh->size[AXIS_PP] * g->n_nodes * (micros + 4);
}

/* Computes memory, and compiles and checks the plan. */
static err_t plan_make(const struct job_spec *job, const struct plan_wish *wish, struct spec_facts *ret,
                       struct why *why)
{
    struct graph g = {0};
    struct mesh mesh;
    const double most = wish->most;
    err_t err = plan_mesh(job, &mesh, why);
    if (err)
        return err;
    err = graph_build(&job->model, job->train.seq, &g, why);
    if (err)
        return err;
    ret->rates = plan_rates_of(job);
    err = memory_facts(job, &g, mesh_workers(&mesh), ret, why);
    if (!err && (most == 0 || work_of(job, &g, &mesh) <= most))
        err = plan_of_all(job, &g, mesh_workers(&mesh), wish, ret, why);
    if (!err && ret->micros && most > 0 && job->model.experts)
        err = expert_facts(job, &g, mesh_workers(&mesh), ret, why);
    ret->params = g.n_params;
    ret->flops_per_token = graph_flops_per_token(&g, &job->model, job->train.seq, true);
    graph_fini(&g);
    return err;
}

void spec_facts_fini(struct spec_facts *f)
{
    free(f->sources);
    free(f->micros);
    free(f->ranks);
    forecast_fini(&f->forecast);
    f->sources = NULL;
    f->micros = NULL;
    f->ranks = NULL;
}

/* ---- all of it ---- */

/* Stores the cache folder in the spec, because the worker's environment may differ from ours. */
static err_t cache_fix(struct job_spec *job, struct why *why)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char path[PATH_MAX];
    bool xdg = cache && cache[0] == '/';
    if (job->data.cache[0])
        return OK;
    if (!xdg && !(home && home[0]))
        return why_set(why, ERR_INVALID, "neither XDG_CACHE_HOME nor HOME is set. Set data.cache in the job file");
    int n = snprintf(path, sizeof(path), "%s%s/dtd/data", xdg ? cache : home, xdg ? "" : "/.cache");
    if (n < 0 || (size_t)n >= sizeof(path))
        return why_set(why, ERR_LIMIT, "the path of the cache folder is too long");
    return spec_text_set(&job->data.cache, path);
}

/* A job with a range of workers may run on parallel.min_workers: that plan must be valid and fit as well. */
static err_t least_fits(const struct job_spec *job, int64_t node_bytes, struct why *why)
{
    struct job_spec least = *job;
    struct spec_facts facts = {0};
    if (!job->parallel.min_workers || job->parallel.min_workers == job->parallel.workers || job->parallel.automatic)
        return OK; /* layout_choose has looked at the fewest workers */
    least.parallel.workers = job->parallel.min_workers;
    err_t err = plan_make(&least, &(struct plan_wish){0}, &facts, why);
    if (!err)
        err = plan_fits(&least, node_bytes, why);
    spec_facts_fini(&facts);
    return err ? why_prefix(why, err, "with parallel.min_workers (%lld)", (long long)least.parallel.workers) : OK;
}

static err_t layout_choose(struct job_spec *job, struct spec_facts *facts, struct why *why)
{
    struct plan_choice choice = {0};
    if (!job->parallel.automatic)
        return OK;
    err_t err = planner_auto_complete(job, &choice, why);
    if (!err)
        snprintf(facts->chosen, sizeof(facts->chosen), "%s", choice.why);
    return err;
}

/* The steps that submit and plan share, in order of cost. `facts` is empty before; the caller frees it in any case.
 */
static err_t facts_make(struct job_spec *job, bool new_train, const struct plan_wish *wish,
                        struct out_progress *progress, struct spec_facts *facts, struct why *why)
{
    err_t err = cache_fix(job, why);
    if (!err)
        err = data_make(job, new_train, progress, why);
    if (!err)
        err = data_check(job, facts, why);
    if (!err)
        err = layout_choose(job, facts, why);
    if (!err)
        err = plan_make(job, wish, facts, why);
    return err ? err : meminfo_available(&facts->node_bytes, why);
}

/* Hands the facts to the caller, or frees them after an error. */
static err_t facts_return(err_t err, struct spec_facts *facts, struct spec_facts *ret)
{
    if (err)
        spec_facts_fini(facts);
    else
        *ret = *facts;
    return err;
}

err_t spec_complete(struct job_spec *job, bool new_train, struct out_progress *progress, struct spec_facts *ret,
                    struct why *why)
{
    struct spec_facts facts = {0};
    err_t err = facts_make(job, new_train, &(struct plan_wish){0}, progress, &facts, why);
    if (!err) {
        err = plan_fits(job, facts.node_bytes, why);
        if (err)
            planner_nearest_here(job, facts.node_bytes, why);
    }
    if (!err)
        err = least_fits(job, facts.node_bytes, why);
    return facts_return(err, &facts, ret);
}

/* The largest work_of() that `dtctl plan` compiles, checks and forecasts: about half a second of one core. */
#define PLAN_WORK 40000

err_t spec_plan(struct job_spec *job, const char *machine, struct out_progress *progress, struct spec_facts *ret,
                struct why *why)
{
    struct spec_facts facts = {0};
    err_t err = facts_make(job, false, &(struct plan_wish){PLAN_WORK, machine}, progress, &facts, why);
    return facts_return(err, &facts, ret);
}

err_t spec_plan_model(const struct job_spec *job, const char *machine, struct spec_facts *ret, struct why *why)
{
    struct spec_facts facts = {0};
    err_t err = plan_make(job, &(struct plan_wish){PLAN_WORK, machine}, &facts, why);
    return facts_return(err, &facts, ret);
}
