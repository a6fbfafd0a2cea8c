/* Checks of a spec against folders of checkpoints: which step an argument names, whether a checkpoint has this model's
 * tensors, and whether checkpoint.dir can be written. Nothing here changes a file. */
#include "client/spec.h"
#include "common/plan/models/build.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- finding a step ---- */

static bool is_step_folder(const char *path)
{
    char file[PATH_MAX];
    static const char *const signs[] = {".metadata", CKPT_MANIFEST};
    for (size_t i = 0; i < sizeof(signs) / sizeof(signs[0]); i++)
        if ((size_t)snprintf(file, sizeof(file), "%s/%s", path, signs[i]) < sizeof(file) && access(file, F_OK) == 0)
            return true;
    return false;
}

/* Newer steps that are not complete are not used. The user expects them to be, so each is reported. */
static void report_incomplete(const char *root, int64_t chosen)
{
    char dir[PATH_MAX];
    struct ckpt_info info;
    struct dirent *e;
    DIR *d = opendir(root);
    while (d && (e = readdir(d))) {
        struct why why = {""};
        int64_t step;
        int end = 0;
        if (sscanf(e->d_name, "step-%" SCNd64 "%n", &step, &end) != 1 || e->d_name[end] || step <= chosen ||
            (size_t)snprintf(dir, sizeof(dir), "%s/%s", root, e->d_name) >= sizeof(dir) || !ckpt_info(dir, &info, &why))
            continue;
        fprintf(stderr, "dtctl: note: %s. step-%" PRId64 " is used instead\n", why.text, chosen);
    }
    if (d)
        closedir(d);
}

static err_t step_choose(const char *root, int64_t step, int64_t *ret, struct why *why)
{
    struct ckpt_info *list;
    int n;
    err_t err = ckpt_scan(root, &list, &n, why);
    if (err)
        return err;
    int64_t newest = n ? list[n - 1].step : -1;
    bool found = n > 0 && step < 0;
    for (int i = 0; i < n; i++)
        found = found || list[i].step == step;
    free(list);
    if (!n)
        return why_set(why, ERR_NOTFOUND, "%s has no complete checkpoint (a folder step-N)", root);
    if (!found)
        return why_set(why, ERR_NOTFOUND,
                       "%s: there is no complete step-%" PRId64 "; the newest is step-%" PRId64 ". List them: "
                       "dtctl ckpt ls %s",
                       root, step, newest, root);
    *ret = step < 0 ? newest : step;
    if (step < 0)
        report_incomplete(root, newest);
    return OK;
}

err_t spec_find_step(const char *path, int64_t step, char *ret, size_t size, char *ret_root, struct why *why)
{
    char full[PATH_MAX];
    int64_t chosen = -1;
    if (!realpath(path, full))
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    if (is_step_folder(full) && step < 0) {
        if ((size_t)snprintf(ret, size, "%s", full) >= size)
            return why_set(why, ERR_LIMIT, "%s: the path is too long", full);
        char *slash = strrchr(full, '/');
        *(slash == full ? slash + 1 : slash) = '\0';
        strcpy(ret_root, full);
        return OK;
    }
    err_t err = step_choose(full, step, &chosen, why);
    if (err)
        return err;
    strcpy(ret_root, full);
    return ckpt_step_dir(full, chosen, ret, size);
}

/* ---- comparing with the model ---- */

static void shape_print(int ndim, const int64_t *shape, char *ret, size_t size)
{
    size_t n = (size_t)snprintf(ret, size, "[");
    for (int d = 0; d < ndim && n < size; d++)
        n += (size_t)snprintf(ret + n, size - n, "%s%" PRId64, d ? ", " : "", shape[d]);
    if (n < size)
        snprintf(ret + n, size - n, "]");
}

/* The prefix that a tensor with this name has in the checkpoint; false: no tensor's name ends with it. */
static bool prefix_find(const struct ckpt *ckpt, const char *name, char *ret, size_t size)
{
    const struct ckpt_tensor *list;
    int n = ckpt_tensors(ckpt, &list);
    size_t len = strlen(name);
    for (int i = 0; i < n; i++) {
        size_t whole = strlen(list[i].fqn);
        if (whole > len && whole - len < size && strcmp(list[i].fqn + whole - len, name) == 0 &&
            list[i].fqn[whole - len - 1] == '.' && strncmp(list[i].fqn, "optimizer.", 10) != 0) {
            snprintf(ret, size, "%.*s", (int)(whole - len), list[i].fqn);
            return true;
        }
    }
    return false;
}

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Constants that other programs save beside the parameters: tables of rotary positions, masks. */
static bool is_constant(const char *name)
{
    static const char *const ends[] = {"freqs_cis", "inv_freq", ".attn.bias", ".masked_bias", "position_ids"};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        if (ends_with(name, ends[i]))
            return true;
    return false;
}

static err_t tensor_check(const struct graph_tensor *t, const struct ckpt *ckpt, const char *dir, struct why *why)
{
    int64_t want[GRAPH_SHAPE_MAX];
    int ndim = graph_shape(t, want);
    char a[128], b[128], prefix[128];
    const struct ckpt_tensor *have = ckpt_find(ckpt, t->name);
    bool same = have && have->ndim == ndim;
    for (int d = 0; same && d < ndim; d++)
        same = have->shape[d] == want[d];
    if (same && have->dtype != DT_F32 && have->dtype != DT_F64 && have->dtype != DT_BF16 && have->dtype != DT_F16)
        return why_set(
            why, ERR_UNSUPPORTED,
            "%s: %s has a type that dtd does not load; the types are float32, float64, bfloat16 and float16. "
            "Convert the checkpoint with PyTorch",
            dir, t->name);
    if (same)
        return OK;
    shape_print(ndim, want, a, sizeof(a));
    if (!have && prefix_find(ckpt, t->name, prefix, sizeof(prefix)))
        return why_set(
            why, ERR_INVALID,
            "%s: its tensors have the prefix \"%s\" (%s%s), which this model's do not have. Read them without it: "
            "--map '%s='",
            dir, prefix, prefix, t->name, prefix);
    if (!have && t->kind == GT_STATE)
        return why_set(why, ERR_INVALID, "%s has no tensor %s, because it was trained without it: set model.%s", dir,
                       t->name, t->exact ? "aux_scope to sample or micro_batch" : "expert_bias to 0");
    if (!have)
        return why_set(why, ERR_INVALID,
                       "%s is a checkpoint of another model: it has no tensor %s %s. Use the job file "
                       "of that model, or another checkpoint. If its tensors have other names: --map FROM=TO",
                       dir, t->name, a);
    shape_print(have->ndim, have->shape, b, sizeof(b));
    return why_set(why, ERR_INVALID,
                   "%s is a checkpoint of another model: its %s is %s, this model's is %s. Use the job "
                   "file of that model, or another checkpoint",
                   dir, t->name, b, a);
}

static int name_compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A bias that only moves the choice of experts. While it is zero, the model is the same without it. */
static err_t expert_bias_check(const struct ckpt_tensor *t, struct ckpt *ckpt, const char *dir, struct why *why)
{
    struct ckpt_read_stats stats;
    float bias[JOB_MAX_EXPERTS] = {0};
    struct ckpt_want want = {.fqn = t->fqn, .box = {.ndim = t->ndim}, .dtype = DT_F32, .dst = bias};
    bool zero = t->ndim == 1 && t->shape[0] <= JOB_MAX_EXPERTS;
    want.box.size[0] = zero ? t->shape[0] : 0;
    err_t err = zero ? ckpt_read(ckpt, &want, 1, &stats, why) : OK;
    for (int64_t i = 0; !err && zero && i < t->shape[0]; i++)
        zero = bias[i] == 0;
    if (err || zero)
        return err;
    return why_set(
        why, ERR_UNSUPPORTED,
        "%s: %s moves the choice of experts, and model.expert_bias is 0, so this would be another model. Set "
        "model.expert_bias to its rate (load_balance_coeff of torchtitan)",
        dir, t->fqn);
}

static bool is_expert_bias(const char *name)
{
    return ends_with(name, ".moe.expert_bias_E") || ends_with(name, ".moe.expert_bias");
}

/* The numbers of the last step of a training with model.aux_scope batch, which no other training reads. */
static bool is_counts(const char *name)
{
    return ends_with(name, ".moe.expert_counts");
}

/* Rejects a checkpoint with a tensor that is neither a parameter of the model nor optimizer or training state, such as
 * a layer of a deeper model. */
static err_t extra_check(const char *const *names, size_t n, struct ckpt *ckpt, const char *dir, struct why *why)
{
    const struct ckpt_tensor *list;
    int n_list = ckpt_tensors(ckpt, &list);
    for (int i = 0; i < n_list; i++) {
        const char *name = list[i].fqn;
        if (strncmp(name, "optimizer.", 10) == 0 || strncmp(name, "lr_scheduler.", 13) == 0 ||
            strncmp(name, "train_state", 11) == 0 || strncmp(name, "dataloader.", 11) == 0 || is_constant(name))
            continue;
        bool known = bsearch(&name, names, n, sizeof(*names), name_compare);
        if (!known && is_counts(name)) {
            fprintf(stderr, "dtctl: note: %s: %s is not used: model.aux_scope is not batch, or model.aux_loss is 0\n",
                    dir, name);
            continue;
        }
        if (!known && is_expert_bias(name)) {
            err_t err = expert_bias_check(&list[i], ckpt, dir, why);
            if (err)
                return err;
            continue;
        }
        if (!known)
            return why_set(
                why, ERR_INVALID,
                "%s is a checkpoint of another model: this one has no tensor %s. Use the job "
                "file of that model, or another checkpoint. If the tensor has another name here: --map FROM=TO",
                dir, name);
    }
    return OK;
}

static err_t graph_check(const struct graph *g, struct ckpt *ckpt, const char *dir, struct why *why)
{
    const char **names = calloc((size_t)g->n_tensors + 1, sizeof(*names));
    size_t n = 0;
    err_t err = OK;
    if (!names)
        return why_set(why, ERR_NOMEM, "out of memory");
    for (int i = 0; !err && i < g->n_tensors; i++) {
        if (!graph_is_stored(&g->tensors[i]))
            continue;
        names[n++] = g->tensors[i].name;
        err = tensor_check(&g->tensors[i], ckpt, dir, why);
    }
    qsort(names, n, sizeof(*names), name_compare);
    if (!err)
        err = extra_check(names, n, ckpt, dir, why);
    free(names);
    return err;
}

err_t spec_check_model(const struct job_spec *job, struct ckpt *ckpt, const char *dir, struct why *why)
{
    struct graph g;
    err_t err = graph_build(&job->model, job->train.seq, &g, why);
    if (err)
        return err;
    err = graph_check(&g, ckpt, dir, why);
    graph_fini(&g);
    return err;
}

/* ---- checking checkpoint.dir ---- */

/* The nearest existing parent folder must be writable, so that missing folders can be created. */
static err_t writable_check(const char *dir, struct why *why)
{
    char path[PATH_MAX];
    struct stat st;
    if ((size_t)snprintf(path, sizeof(path), "%s", dir) >= sizeof(path))
        return why_set(why, ERR_LIMIT, "checkpoint.dir: %s: the path is too long", dir);
    while (stat(path, &st) && errno == ENOENT && strcmp(path, "/") != 0) {
        char *slash = strrchr(path, '/');
        *(slash == path ? slash + 1 : slash) = '\0';
    }
    if (stat(path, &st))
        return why_set(why, err_from_errno(errno), "checkpoint.dir: %s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return why_set(why, ERR_INVALID, "checkpoint.dir: %s is not a folder. Choose another checkpoint.dir", path);
    if (access(path, W_OK | X_OK))
        return why_set(why, ERR_INVALID, "checkpoint.dir: cannot write into %s: %s. Choose another checkpoint.dir",
                       path, strerror(errno));
    return OK;
}

/* The error for a folder with checkpoints: the remedy depends on whether they are of this model. */
static err_t explain_occupied(const struct job_spec *job, const char *step_dir, struct why *why)
{
    struct ckpt *ckpt;
    struct why other = {0};
    const char *dir = job->checkpoint.dir;
    err_t err = ckpt_open(step_dir, &ckpt, &other);
    if (!err) {
        err = spec_check_model(job, ckpt, step_dir, &other);
        ckpt_close(ckpt);
    }
    if (err)
        return why_set(why, ERR_EXISTS,
                       "checkpoint.dir: %s holds checkpoints of another model (%.500s). Choose another "
                       "checkpoint.dir for this job",
                       dir, other.text);
    return why_set(why, ERR_EXISTS,
                   "checkpoint.dir: %s holds checkpoints already, the newest is %s. To continue from it: dtctl "
                   "resume %s. To start a new job: choose another checkpoint.dir, or remove this one",
                   dir, strrchr(step_dir, '/') + 1, dir);
}

err_t spec_check_dir(const struct job_spec *job, const char *from, struct why *why)
{
    char step_dir[PATH_MAX], root[PATH_MAX], target[PATH_MAX];
    const char *dir = job->checkpoint.dir;
    err_t err = writable_check(dir, why);
    if (err || !realpath(dir, target) || (from && strcmp(from, target) == 0))
        return err;
    err = spec_find_step(dir, -1, step_dir, sizeof(step_dir), root, why);
    return err == ERR_NOTFOUND ? OK : err ? err : explain_occupied(job, step_dir, why);
}
