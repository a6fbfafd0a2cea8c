/* dtctl ckpt: lists, inspects and verifies checkpoints. Where a command needs one step, a folder of checkpoints means
 * its newest step, and a number means the folder of that job. Only a job's number needs a daemon. */
#include "client/client.h"
#include "client/commands.h"
#include "client/follow.h"
#include "client/json.h"
#include "client/spec.h"

#include "common/base/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ckpt_args {
    struct global *global;
    const char *path;
    bool no_hash;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct ckpt_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 'H':
        a->no_hash = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->path)
            argp_error(state, "one folder at a time");
        a->path = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which checkpoint folder or job?");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- a job's folder ---- */

/* ret: `path` itself, or the checkpoint folder of the job that it names. */
static err_t folder_find(struct global *g, const char *path, char ret[PATH_MAX], struct why *why)
{
    struct client_job job;
    int64_t id;
    if (!arg_number(path, INT64_MAX, &id)) {
        if ((size_t)snprintf(ret, PATH_MAX, "%s", path) >= PATH_MAX)
            return why_set(why, ERR_LIMIT, "%s: the path is too long", path);
        return OK;
    }
    err_t err = client_job_by_id(g, path, &job, why);
    if (err)
        return err;
    snprintf(ret, PATH_MAX, "%s", job.checkpoint_dir);
    client_job_fini(&job);
    return ret[0] ? OK : why_set(why, ERR_NOTFOUND, "job %s has no checkpoint folder", path);
}

err_t ckpt_step_find(struct global *g, const char *path, char ret[PATH_MAX], struct why *why)
{
    char folder[PATH_MAX], root[PATH_MAX];
    err_t err = folder_find(g, path, folder, why);
    return err ? err : spec_find_step(folder, -1, ret, PATH_MAX, root, why);
}

/* ---- ls ---- */

/* Indices of the two checkpoints that the table marks. best: the lowest loss, or the newer of equal ones, as in
 * control's retention; final: the last step of its job. -1: none. */
struct ls_marks {
    int best, final;
};

static int best_of(const struct ckpt_info *list, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!isnan(list[i].loss) && (best < 0 || list[i].loss <= list[best].loss))
            best = i;
    return best;
}

/* False as well when the checkpoint cannot be read or has no job file. */
static bool is_final(const char *root, int64_t step)
{
    char dir[PATH_MAX];
    struct ckpt *ckpt;
    struct buf yaml = {0};
    struct job_spec job = {0};
    if (ckpt_step_dir(root, step, dir, sizeof(dir)) || ckpt_open(dir, &ckpt, NULL))
        return false;
    bool final = ckpt_small_file(ckpt, CKPT_JOB_FILE, &yaml, NULL) == OK &&
                 job_parse(CKPT_JOB_FILE, (const char *)yaml.data, yaml.len, NULL, 0, &job, NULL) == OK &&
                 job.train.steps == step;
    job_fini(&job);
    buf_fini(&yaml);
    ckpt_close(ckpt);
    return final;
}

static struct ls_marks marks_of(const char *root, const struct ckpt_info *list, int n)
{
    return (struct ls_marks){best_of(list, n), n && is_final(root, list[n - 1].step) ? n - 1 : -1};
}

static void ls_table(const struct ckpt_info *list, int n, const struct ls_marks *marks)
{
    static const struct out_column columns[] = {{"STEP", true, 0}, {"EPOCH", true, 4},      {"LOSS", true, 0},
                                                {"SIZE", true, 3}, {"COMMITTED", false, 1}, {"WRITTEN_BY", false, 2},
                                                {"", false, 0}};
    struct out_table t;
    char number[OUT_NUMBER];
    out_table_init(&t, columns, sizeof(columns) / sizeof(columns[0]));
    for (int i = 0; i < n; i++) {
        int r = out_table_row(&t);
        out_table_set(&t, r, 0, "%" PRId64, list[i].step);
        if (list[i].manifest)
            out_table_set(&t, r, 1, "%" PRIu64, list[i].epoch);
        if (!isnan(list[i].loss))
            out_table_set(&t, r, 2, "%.4f", list[i].loss);
        out_table_set(&t, r, 3, "%s", out_bytes(list[i].bytes, number));
        out_table_set(&t, r, 4, "%s", out_time(list[i].committed_ms, number));
        out_table_set(&t, r, 5, "%s", list[i].manifest ? "dtd" : "another program (no manifest)");
        out_table_set(&t, r, 6, "%s%s%s", i == marks->best ? "best" : "",
                      i == marks->best && i == marks->final ? ", " : "", i == marks->final ? "final" : "");
    }
    out_table_print(&t, stdout, -1);
    out_table_fini(&t);
}

static json_t *ls_json(const char *root, const struct ckpt_info *list, int n, const struct ls_marks *marks)
{
    json_t *array = json_array();
    char path[PATH_MAX];
    for (int i = 0; i < n; i++) {
        if (ckpt_step_dir(root, list[i].step, path, sizeof(path)))
            snprintf(path, sizeof(path), "%s", root);
        json_array_append_new(array, json_pack("{s:I, s:I, s:I, s:o, s:I, s:b, s:b, s:b, s:o}", "step",
                                               (json_int_t)list[i].step, "epoch", (json_int_t)list[i].epoch, "bytes",
                                               (json_int_t)list[i].bytes, "loss", out_json_real(list[i].loss),
                                               "committed_ms", (json_int_t)list[i].committed_ms, "manifest",
                                               list[i].manifest, "best", i == marks->best, "final", i == marks->final,
                                               "path", json_of_text(path, strlen(path))));
    }
    return array;
}

static int ckpt_ls(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {.parser = parse,
                                     .children = global_children,
                                     .args_doc = "FOLDER|JOB",
                                     .doc = "Lists the complete checkpoints of a folder, oldest first. The loss is the "
                                            "validation loss if the job evaluates, else the training loss of the step. "
                                            "The best checkpoint has the lowest loss; the final one is the last step."
                                            "\vExample:\n  dtctl ckpt ls checkpoints/first-job"};
    struct ckpt_args args = {.global = g};
    struct ckpt_info *list;
    struct why why = {0};
    char root[PATH_MAX];
    int n, code = EXIT_DONE;
    command_parse(&argp, argc, argv, &args);
    err_t err = folder_find(g, args.path, root, &why);
    if (!err && access(root, R_OK | X_OK))
        err = why_set(&why, err_from_errno(errno), "%s: %s", root, strerror(errno));
    if (!err)
        err = ckpt_scan(root, &list, &n, &why);
    if (err)
        return command_fail(err, &why);
    const struct ls_marks marks = marks_of(root, list, n);
    if (g->format != OUT_TEXT)
        code = command_json(g, ls_json(root, list, n, &marks));
    else if (n)
        ls_table(list, n, &marks);
    else
        printf("%s: no complete checkpoint\n", root);
    free(list);
    return code;
}

/* ---- inspect ---- */

static void shape_print(const struct ckpt_tensor *t, char *ret, size_t size)
{
    size_t n = (size_t)snprintf(ret, size, "[");
    for (int d = 0; d < t->ndim && n < size; d++)
        n += (size_t)snprintf(ret + n, size - n, "%s%" PRId64, d ? ", " : "", t->shape[d]);
    if (n < size)
        snprintf(ret + n, size - n, "]");
}

static err_t tensors_print(struct ckpt *ckpt, bool hash, struct why *why)
{
    static const struct out_column columns[] = {
        {"TENSOR", false, 0}, {"TYPE", false, 2}, {"SHAPE", false, 1}, {"CHUNKS", true, 3}, {"SHA256", false, 0}};
    const struct ckpt_tensor *list;
    char shape[256], sha[65] = "-";
    struct out_table t;
    err_t err = OK;
    int n = ckpt_tensors(ckpt, &list);
    out_table_init(&t, columns, 4 + hash);
    for (int i = 0; !err && i < n; i++) {
        int r = out_table_row(&t);
        if (hash)
            err = ckpt_tensor_hash(ckpt, list[i].fqn, sha, why);
        shape_print(&list[i], shape, sizeof(shape));
        out_table_set(&t, r, 0, "%s", list[i].fqn);
        out_table_set(&t, r, 1, "%s", dtype_name(list[i].dtype));
        out_table_set(&t, r, 2, "%s", shape);
        out_table_set(&t, r, 3, "%d", list[i].n_chunks);
        if (hash)
            out_table_set(&t, r, 4, "%.16s", sha);
    }
    if (!err)
        out_table_print(&t, stdout, -1);
    out_table_fini(&t);
    return err;
}

static err_t scalars_json(struct ckpt *ckpt, json_t **ret, struct why *why)
{
    json_t *values = json_object();
    const char *name;
    for (int i = 0; (name = ckpt_scalar_name(ckpt, i)); i++) {
        struct ckpt_scalar value;
        err_t err = ckpt_scalar(ckpt, name, &value, why);
        if (!err && json_object_set_new(values, name, json_of_scalar(&value)))
            err = why_set(why, ERR_NOMEM, "out of memory");
        if (err) {
            json_decref(values);
            return err;
        }
    }
    *ret = values;
    return OK;
}

/* PyTorch stores a dozen values per parameter group. The text output omits them; JSON has them. */
static bool scalar_is_internal(const char *name)
{
    return strncmp(name, "optimizer.param_groups.", 23) == 0 || strncmp(name, "lr_scheduler.", 13) == 0;
}

static void scalars_print(json_t *scalars)
{
    json_t *value;
    const char *name;
    int n_internal = 0;
    json_object_foreach(scalars, name, value)
    {
        char *text = scalar_is_internal(name) ? NULL : json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
        if (text)
            printf("%s = %s\n", name, text);
        else
            n_internal++;
        free(text);
    }
    if (n_internal)
        printf("and %d values of the optimizer and the schedule, which -o json shows\n", n_internal);
}

static err_t inspect_print(struct ckpt *ckpt, const char *dir, bool hash, struct why *why)
{
    char number[OUT_NUMBER];
    json_t *scalars;
    printf("%s  step %" PRId64 "  epoch %" PRIu64 "  loss %s%s\n", dir, ckpt_step(ckpt), ckpt_epoch(ckpt),
           out_real(ckpt_loss(ckpt), 6, number),
           ckpt_has_manifest(ckpt) ? "" : "  (no manifest: written by another program)");
    err_t err = tensors_print(ckpt, hash, why);
    if (!err)
        err = scalars_json(ckpt, &scalars, why);
    if (err)
        return err;
    scalars_print(scalars);
    json_decref(scalars);
    return OK;
}

static json_t *tensor_json(const struct ckpt_tensor *t, const char *sha)
{
    json_t *shape = json_array();
    for (int d = 0; d < t->ndim; d++)
        json_array_append_new(shape, json_integer(t->shape[d]));
    return json_pack("{s:o, s:s, s:o, s:i, s:s*}", "name", json_of_text(t->fqn, strlen(t->fqn)), "dtype",
                     dtype_name(t->dtype), "shape", shape, "chunks", t->n_chunks, "sha256", sha);
}

static err_t tensors_json(struct ckpt *ckpt, bool hash, json_t **ret, struct why *why)
{
    const struct ckpt_tensor *list;
    json_t *tensors = json_array();
    char sha[65];
    int n = ckpt_tensors(ckpt, &list);
    for (int i = 0; i < n; i++) {
        err_t err = hash ? ckpt_tensor_hash(ckpt, list[i].fqn, sha, why) : OK;
        if (!err && json_array_append_new(tensors, tensor_json(&list[i], hash ? sha : NULL)))
            err = why_set(why, ERR_NOMEM, "out of memory");
        if (err) {
            json_decref(tensors);
            return err;
        }
    }
    *ret = tensors;
    return OK;
}

static err_t inspect_json(struct ckpt *ckpt, const char *dir, bool hash, json_t **ret, struct why *why)
{
    json_t *tensors = NULL, *scalars;
    err_t err = tensors_json(ckpt, hash, &tensors, why);
    if (err)
        return err;
    err = scalars_json(ckpt, &scalars, why);
    if (err) {
        json_decref(tensors);
        return err;
    }
    *ret = json_pack("{s:o, s:I, s:I, s:o, s:b, s:o, s:o}", "path", json_of_text(dir, strlen(dir)), "step",
                     (json_int_t)ckpt_step(ckpt), "epoch", (json_int_t)ckpt_epoch(ckpt), "loss",
                     out_json_real(ckpt_loss(ckpt)), "manifest", ckpt_has_manifest(ckpt), "tensors", tensors, "scalars",
                     scalars);
    return OK;
}

static int ckpt_inspect(struct global *g, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"no-hash", 'H', 0, 0, "Do not compute SHA-256 of the tensors, which reads all their bytes", 0}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "FOLDER|JOB",
        .doc = "Shows the tensors of a checkpoint with type, shape, number of chunks and SHA-256 of their bytes in "
               "row-major "
               "order, and its scalars. A folder of checkpoints means its newest one."
               "\vExamples:\n  dtctl ckpt inspect checkpoints/first-job/step-300\n"
               "  dtctl ckpt inspect checkpoints/first-job -o json | jq -r '.tensors[] | [.name, .sha256] | @tsv'"};
    struct ckpt_args args = {.global = g};
    struct ckpt *ckpt;
    struct why why = {0};
    char dir[PATH_MAX];
    json_t *json = NULL;
    command_parse(&argp, argc, argv, &args);
    err_t err = ckpt_step_find(g, args.path, dir, &why);
    if (!err)
        err = ckpt_open(dir, &ckpt, &why);
    if (err)
        return command_fail(err, &why);
    if (g->format == OUT_TEXT)
        err = inspect_print(ckpt, dir, !args.no_hash, &why);
    else
        err = inspect_json(ckpt, dir, !args.no_hash, &json, &why);
    ckpt_close(ckpt);
    if (err)
        return command_fail(err, &why);
    return g->format == OUT_TEXT ? EXIT_DONE : command_json(g, json);
}

/* ---- verify ---- */

struct verify {
    struct out_progress progress;
    int64_t bytes;
};

static void on_verify(int64_t done, int64_t total, void *arg)
{
    struct verify *v = arg;
    char line[96], a[OUT_NUMBER], b[OUT_NUMBER];
    int64_t now = clock_mono_ms();
    v->bytes = total;
    if (!out_progress_due(&v->progress, now))
        return;
    snprintf(line, sizeof(line), "verifying  %.0f%%  %s of %s", total > 0 ? 100.0 * (double)done / (double)total : 0,
             out_bytes(done, a), out_bytes(total, b));
    out_progress_draw(&v->progress, now, line);
}

static int print_verdict(const struct global *g, const char *dir, int64_t bytes, err_t err, const struct why *why)
{
    char number[OUT_NUMBER];
    if (g->format != OUT_TEXT) {
        int code = command_json(g, json_pack("{s:o, s:b, s:I, s:o*}", "path", json_of_text(dir, strlen(dir)), "whole",
                                             err == OK, "bytes", (json_int_t)bytes, "reason",
                                             err ? json_of_text(why->text, strlen(why->text)) : NULL));
        return code ? code : err ? EXIT_ERROR : EXIT_DONE;
    }
    if (!err) {
        printf("%s is complete: %s read and verified\n", dir, out_bytes(bytes, number));
        return EXIT_DONE;
    }
    command_fail(err, why);
    return EXIT_ERROR;
}

static int ckpt_verify_run(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .children = global_children,
        .args_doc = "FOLDER|JOB",
        .doc =
            "Reads every byte of a checkpoint and compares it with the checksums. If a byte is wrong, prints the file "
            "and the extent and exits with 1. A folder of checkpoints means its newest one.\vExample:\n  dtctl ckpt "
            "verify checkpoints/first-job/step-300"};
    struct ckpt_args args = {.global = g};
    struct verify verify = {0};
    struct why why = {0};
    char dir[PATH_MAX];
    command_parse(&argp, argc, argv, &args);
    err_t err = ckpt_step_find(g, args.path, dir, &why);
    if (err)
        return command_fail(err, &why);
    out_progress_init(&verify.progress, stderr);
    err = ckpt_verify(dir, on_verify, &verify, &why);
    out_progress_clear(&verify.progress);
    return print_verdict(g, dir, verify.bytes, err, &why);
}

/* ---- the subcommands ---- */

static const struct command table[] = {
    {"ls", "list the checkpoints of a folder or a job", ckpt_ls},
    {"inspect", "show tensors, hashes and scalars of one checkpoint", ckpt_inspect},
    {"verify", "verify every byte of a checkpoint", ckpt_verify_run},
    {"export", "export the parameters as a Hugging Face model", cmd_ckpt_export},
    {"import", "make a checkpoint from a Hugging Face model", cmd_ckpt_import},
    {"upcycle", "make a model with experts from a dense one", cmd_ckpt_upcycle},
};

int cmd_ckpt(struct global *g, int argc, char **argv)
{
    return command_group(table, sizeof(table) / sizeof(table[0]), argv[0], g, argc, argv);
}
