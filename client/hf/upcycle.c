/* The new checkpoint is one of step 0, as an import writes it: parameters, the job file and the tokenizer's vocabulary.
 * Its job has no hashes of data, so it may be trained on other files than the dense model.
 *
 * With equal experts the routed output is the feed-forward's times the sum of the weights. So the first forward is the
 * dense model's if the rule of the router makes that sum 1; the gradients of the experts differ from the first step on,
 * because each gets other tokens. Shared experts would add to the output and are refused. */
#include "client/hf/upcycle.h"

#include "client/spec.h"
#include "common/base/rng.h"
#include "common/ckpt/ckpt.h"
#include "common/plan/models/build.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EPOCH 1                 /* the first epoch of a job, although no job has run */
#define PART ((int64_t)1 << 30) /* bytes of a file, except for a larger tensor; as in an import */

struct upcycling {
    const struct upcycle *x;
    struct upcycle_done *done;
    struct why *why;
    struct ckpt *ckpt;
    struct buf yaml, vocab, hf; /* small files of the dense checkpoint */
    struct job_spec dense, job;
    struct graph graph;
    struct ckpt_part **parts;
    int n_parts;
};

static err_t no_memory(struct upcycling *u)
{
    return why_set(u->why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
}

/* ---- the jobs ---- */

static err_t dense_read(struct upcycling *u)
{
    const char *dir = u->x->step_dir;
    err_t err = ckpt_open(dir, &u->ckpt, u->why);
    err = err ? err : ckpt_small_file(u->ckpt, CKPT_JOB_FILE, &u->yaml, u->why);
    if (err == ERR_NOTFOUND)
        return why_set(u->why, err,
                       "%s has no %s, which describes the model: only checkpoints written by dtd can be "
                       "upcycled",
                       dir, CKPT_JOB_FILE);
    if (!err)
        err = job_parse(dir, (const char *)u->yaml.data, u->yaml.len, NULL, 0, &u->dense, u->why);
    if (err)
        return err;
    if (u->dense.model.arch != ARCH_LLAMA || u->dense.model.experts)
        return why_set(u->why, ERR_UNSUPPORTED, "%s: %s", dir,
                       u->dense.model.experts ? "the model has experts already"
                                              : "only a llama can have experts (model.arch)");
    return spec_check_model(&u->dense, u->ckpt, dir, u->why);
}

/* Only keys of the experts, and the seed, may change: with these put back, the job continues the dense one. */
static err_t changes_check(struct upcycling *u)
{
    struct job_spec rest = u->job;
    const struct job_model *a = &u->dense.model;
    struct job_model *b = &rest.model;
    b->experts = a->experts;
    b->experts_per_token = a->experts_per_token;
    b->expert_ffn = a->expert_ffn;
    b->moe_every = a->moe_every;
    b->dense_layers = a->dense_layers;
    b->router = a->router;
    b->router_norm = a->router_norm;
    b->router_bias = a->router_bias;
    b->router_scale = a->router_scale;
    b->router_groups = a->router_groups;
    b->router_groups_kept = a->router_groups_kept;
    b->router_group_best = a->router_group_best;
    rest.train.seed = u->dense.train.seed;
    if (b->shared_experts)
        return why_set(u->why, ERR_INVALID,
                       "model.shared_experts: shared experts would add to the output of the dense "
                       "model's feed-forward: leave the key out");
    return job_resume_check(&u->dense, &rest, u->why);
}

static err_t out_resolve(struct upcycling *u)
{
    char cwd[PATH_MAX];
    if (spec_text_set(&u->job.checkpoint.dir, u->x->out))
        return no_memory(u);
    if (!getcwd(cwd, sizeof(cwd)))
        return why_set(u->why, err_from_errno(errno), "the current folder: %s", strerror(errno));
    return job_paths_resolve(&u->job, cwd, u->why);
}

/* The job of the new checkpoint: no step of it has run, and its data are not prepared. */
static err_t job_make(struct upcycling *u)
{
    struct job_spec *j = &u->job;
    err_t err = job_parse(u->x->step_dir, (const char *)u->yaml.data, u->yaml.len, u->x->sets, u->x->n_sets, j, u->why);
    if (err)
        return err;
    if (!j->model.experts)
        return why_set(u->why, ERR_INVALID, "model.experts is 0: how many experts? (--experts N)");
    err = changes_check(u);
    if (err)
        return err;
    spec_map_clear(j);
    j->checkpoint.optimizer = OPTIMIZER_AUTO;
    char **const none[] = {&j->data.train_hash, &j->data.valid_hash, &j->data.test_hash, &j->checkpoint.resume_from,
                           &j->checkpoint.take_over};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        if (spec_text_set(none[i], ""))
            return no_memory(u);
    return out_resolve(u);
}

static bool weights_have_sum_1(const struct job_model *m)
{
    return m->router_scale == 1 && (m->router == ROUTER_SOFTMAX_TOPK || m->router_norm);
}

/* ---- tensors ---- */

/* The dense model's name of an expert's tensor: layers.N.moe.experts.wK -> layers.N.feed_forward.wK.weight. */
static void dense_name(const char *name, char *ret, size_t size)
{
    static const char part[] = ".moe.experts.";
    const char *at = strstr(name, part);
    snprintf(ret, size, "%.*s.feed_forward.%s.weight", (int)(at - name), name, at + strlen(part));
}

/* Reads a tensor of the dense model, which must have this shape. The caller frees *ret. */
static err_t dense_tensor(struct upcycling *u, const char *name, int ndim, const int64_t *shape, enum dtype *ret_type,
                          void **ret)
{
    const struct ckpt_tensor *t = ckpt_find(u->ckpt, name);
    struct ckpt_read_stats stats;
    struct ckpt_want want = {.fqn = name, .box = {.ndim = ndim}};
    int64_t n = 1;
    bool same = t && t->ndim == ndim;
    for (int d = 0; same && d < ndim; d++) {
        same = t->shape[d] == shape[d];
        n *= want.box.size[d] = shape[d];
    }
    if (!same)
        return why_set(u->why, ERR_INVALID,
                       "%s: %s has another shape in the model with experts. Set model.expert_ffn "
                       "to 0: an expert is as wide as the feed-forward",
                       u->x->step_dir, name);
    want.dtype = t->dtype;
    want.dst = malloc((size_t)n * dtype_bytes(t->dtype));
    err_t err = want.dst ? ckpt_read(u->ckpt, &want, 1, &stats, u->why) : no_memory(u);
    *ret_type = t->dtype;
    *ret = want.dst;
    return err;
}

/* A tensor that the dense model does not have, as training would start it (engine_fill_state). */
static err_t fresh_tensor(struct upcycling *u, const struct graph_tensor *t, int64_t n, void **ret)
{
    float *x = malloc((size_t)n * sizeof(*x));
    for (int64_t i = 0; x && i < n; i++)
        x[i] = t->init == INIT_NORMAL
                   ? (float)(t->init_std * rng_normal(u->job.train.seed, rng_stream(t->name), (uint64_t)i))
                   : 0;
    *ret = x;
    return x ? OK : no_memory(u);
}

/* Appends the pieces of a tensor: one, or one for each expert, which share their data. *ret_data: freed by the caller
 * after the pieces are written. */
static err_t pieces_add(struct upcycling *u, const struct graph_tensor *t, struct ckpt_piece *pieces, int *n,
                        void **ret_data)
{
    char name[GRAPH_NAME_MAX + 16];
    struct ckpt_piece p = {.fqn = t->name, .dtype = DT_F32};
    const int copies = t->experts ? (int)t->experts : 1, lead = t->experts ? 1 : 0;
    p.ndim = graph_shape(t, p.shape);
    p.box.ndim = p.ndim;
    memcpy(p.box.size, p.shape, sizeof(p.shape));
    snprintf(name, sizeof(name), "%s", t->name);
    if (t->experts)
        dense_name(t->name, name, sizeof(name));
    err_t err = strstr(t->name, ".moe.router.") || t->kind == GT_STATE
                    ? fresh_tensor(u, t, box_elements(&p.box), ret_data)
                    : dense_tensor(u, name, p.ndim - lead, p.shape + lead, &p.dtype, ret_data);
    p.data = *ret_data;
    for (int e = 0; !err && e < copies; e++) {
        if (t->experts) {
            p.box.offset[0] = e;
            p.box.size[0] = 1;
        }
        u->done->bytes += box_elements(&p.box) * (int64_t)dtype_bytes(p.dtype);
        u->done->params += box_elements(&p.box);
        pieces[(*n)++] = p;
    }
    u->done->tensors++;
    return err;
}

/* Writes a part with the tensors from `*at` on that fit into it, and moves *at behind them. */
static err_t part_write(struct upcycling *u, const char *dir, struct ckpt_piece *pieces, void **data, int *at)
{
    const struct graph *g = &u->graph;
    const int64_t before = u->done->bytes;
    int n = 0, n_data = 0;
    err_t err = OK;
    for (; !err && *at < g->n_tensors && (!n || u->done->bytes - before < PART); ++*at)
        if (graph_is_stored(&g->tensors[*at]))
            err = pieces_add(u, &g->tensors[*at], pieces, &n, &data[n_data++]);
    if (!err && n)
        err = ckpt_part_write(dir, u->n_parts, pieces, n, NULL, 0, &u->parts[u->n_parts], u->why);
    u->n_parts += !err && n;
    for (int i = 0; i < n_data; i++) {
        free(data[i]);
        data[i] = NULL;
    }
    return err;
}

static err_t parts_write(struct upcycling *u, const char *dir)
{
    size_t room = 1;
    for (int i = 0; i < u->graph.n_tensors; i++)
        room += u->graph.tensors[i].experts ? (size_t)u->graph.tensors[i].experts : 1;
    struct ckpt_piece *pieces = calloc(room, sizeof(*pieces));
    void **data = calloc(room, sizeof(*data));
    u->parts = calloc(room, sizeof(struct ckpt_part *));
    const bool made = pieces && data && u->parts;
    err_t err = made ? OK : no_memory(u);
    for (int at = 0; made && !err && at < u->graph.n_tensors;)
        err = part_write(u, dir, pieces, data, &at);
    free(data);
    free(pieces);
    return err;
}

/* ---- the checkpoint ---- */

static err_t small_read(struct upcycling *u, const char *name, struct buf *ret)
{
    err_t err = ckpt_small_file(u->ckpt, name, ret, u->why);
    return err == ERR_NOTFOUND ? OK : err;
}

static err_t commit(struct upcycling *u)
{
    struct buf yaml = {0};
    struct ckpt_commit c = {.root = u->job.checkpoint.dir, .step = 0, .epoch = EPOCH, .loss = (double)NAN};
    err_t err = small_read(u, CKPT_VOCAB_FILE, &u->vocab);
    err = err ? err : small_read(u, CKPT_HF_FILE, &u->hf);
    err = err ? err : spec_print(&u->job, &yaml) ? no_memory(u) : OK;
    c.job_yaml = (const char *)yaml.data;
    c.vocab = u->vocab.len ? u->vocab.data : NULL;
    c.vocab_bytes = u->vocab.len;
    c.hf = u->hf.len ? u->hf.data : NULL;
    c.hf_bytes = u->hf.len;
    err = err ? err : ckpt_commit(&c, u->parts, u->n_parts, u->why);
    buf_fini(&yaml);
    return err;
}

static err_t checkpoint_write(struct upcycling *u)
{
    const char *root = u->job.checkpoint.dir;
    char dir[PATH_MAX];
    if (ckpt_partial_dir(root, 0, EPOCH, dir, sizeof(dir)) ||
        ckpt_step_dir(root, 0, u->done->path, sizeof(u->done->path)))
        return why_set(u->why, ERR_LIMIT, "%s: the path is too long", root);
    err_t err = parts_write(u, dir);
    err = err ? err : commit(u);
    if (err && ckpt_partial_remove(dir, NULL))
        why_prefix(u->why, err, "%s is left over", dir);
    return err;
}

static void describe(struct upcycling *u)
{
    const struct graph *g = &u->graph;
    u->done->experts = u->job.model.experts;
    u->done->seed = u->job.train.seed;
    u->done->layers = g->n_routers;
    u->done->same = weights_have_sum_1(&u->job.model);
}

static void upcycling_fini(struct upcycling *u)
{
    for (int i = 0; i < u->n_parts; i++)
        ckpt_part_free(u->parts[i]);
    free(u->parts);
    buf_fini(&u->yaml);
    buf_fini(&u->vocab);
    buf_fini(&u->hf);
    graph_fini(&u->graph);
    job_fini(&u->job);
    job_fini(&u->dense);
    ckpt_close(u->ckpt);
}

err_t upcycle_run(const struct upcycle *x, struct upcycle_done *ret, struct why *why)
{
    struct upcycle_done done = {0};
    struct upcycling u = {.x = x, .done = &done, .why = why};
    err_t err = dense_read(&u);
    err = err ? err : job_make(&u);
    err = err ? err : graph_build(&u.job.model, u.job.train.seq, &u.graph, why);
    err = err ? err : spec_check_dir(&u.job, NULL, why);
    err = err ? err : spec_check_owner(&u.job, OWNER_IMPORT, why);
    err = err ? err : checkpoint_write(&u);
    if (!err)
        describe(&u);
    upcycling_fini(&u);
    if (!err)
        *ret = done;
    return err;
}
