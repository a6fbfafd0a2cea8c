/* Checks the checkpoint from which a job resumes. Shapes alone do not identify a model: the number of heads, the base
 * of the rotary positions and the meaning of a token have no shape. A part of the optimizer state would be worse than
 * none: each rank would restart the moments of its own part, so the result would depend on the layout. */
#include "client/spec.h"

#include "common/data/data.h"
#include "common/plan/models/build.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void spec_map_clear(struct job_spec *job)
{
    for (int i = 0; i < job->checkpoint.n_map; i++)
        free(job->checkpoint.map[i]);
    free(job->checkpoint.map);
    job->checkpoint.map = NULL;
    job->checkpoint.n_map = 0;
}

err_t spec_open_step(const struct job_spec *job, const char *dir, struct ckpt **ret, struct why *why)
{
    struct ckpt *c;
    err_t err = ckpt_open(dir, &c, why);
    if (err)
        return err;
    err = ckpt_rename(c, job->checkpoint.map, job->checkpoint.n_map, why);
    if (err)
        ckpt_close(c);
    else
        *ret = c;
    return err;
}

/* ---- the optimizer state ---- */

struct optimizer_facts {
    int have, lack;                    /* tensors of the state */
    char lacking[GRAPH_NAME_MAX + 64]; /* the first that is missing, or has another shape or type */
    float updates;                     /* of the first parameter; -1: none */
    char other[GRAPH_NAME_MAX + 64];   /* the first with another number of updates */
    float other_updates;
};

static bool is_real(enum dtype t)
{
    return t == DT_F32 || t == DT_F64 || t == DT_BF16 || t == DT_F16;
}

static void moment_look(const struct graph_tensor *t, struct ckpt *ckpt, const char *what, struct optimizer_facts *f)
{
    char name[GRAPH_NAME_MAX + 64];
    snprintf(name, sizeof(name), "optimizer.state.%s.%s", t->name, what);
    const struct ckpt_tensor *have = ckpt_find(ckpt, name);
    int64_t want[GRAPH_SHAPE_MAX];
    int ndim = graph_shape(t, want);
    bool fits = have && have->ndim == ndim && is_real(have->dtype);
    for (int d = 0; fits && d < ndim; d++)
        fits = have->shape[d] == want[d];
    f->have += fits;
    f->lack += !fits;
    if (!fits && !f->lacking[0])
        strcpy(f->lacking, name);
}

/* Number of updates of a parameter: a tensor without dimensions. */
static err_t updates_look(const struct graph_tensor *t, struct ckpt *ckpt, struct optimizer_facts *f, struct why *why)
{
    char name[GRAPH_NAME_MAX + 64];
    float n = -1;
    struct ckpt_read_stats stats;
    snprintf(name, sizeof(name), "optimizer.state.%s.step", t->name);
    const struct ckpt_tensor *have = ckpt_find(ckpt, name);
    if (!have || have->ndim || !is_real(have->dtype)) {
        f->lack++;
        if (!f->lacking[0])
            strcpy(f->lacking, name);
        return OK;
    }
    const struct ckpt_want want = {.fqn = name, .dtype = DT_F32, .dst = &n};
    err_t err = ckpt_read(ckpt, &want, 1, &stats, why);
    if (err)
        return err;
    f->have++;
    if (f->updates < 0)
        f->updates = n;
    if (n != f->updates && !f->other[0]) {
        strcpy(f->other, name);
        f->other_updates = n;
    }
    return OK;
}

static err_t optimizer_look(const struct job_spec *job, struct ckpt *ckpt, struct optimizer_facts *ret, struct why *why)
{
    struct graph g;
    *ret = (struct optimizer_facts){.updates = -1};
    err_t err = graph_build(&job->model, job->train.seq, &g, why);
    if (err)
        return err;
    for (int i = 0; !err && i < g.n_tensors; i++) {
        if (g.tensors[i].kind != GT_PARAM)
            continue;
        moment_look(&g.tensors[i], ckpt, "exp_avg", ret);
        moment_look(&g.tensors[i], ckpt, "exp_avg_sq", ret);
        err = updates_look(&g.tensors[i], ckpt, ret, why);
    }
    graph_fini(&g);
    return err;
}

#define REMEDY "To start the optimizer state at zero: --optimizer=fresh"

/* Turns `auto` into one decision for all workers. */
static err_t optimizer_decide(struct job_spec *job, struct ckpt *ckpt, const char *dir, struct why *why)
{
    struct optimizer_facts f;
    enum optimizer_policy *policy = &job->checkpoint.optimizer;
    err_t err = *policy == OPTIMIZER_FRESH ? OK : optimizer_look(job, ckpt, &f, why);
    if (err)
        return err;
    if (*policy == OPTIMIZER_FRESH || (*policy == OPTIMIZER_AUTO && !f.have)) {
        fprintf(stderr, "dtctl: note: %s: %s; its moments and its count of updates start at zero\n", dir,
                *policy == OPTIMIZER_FRESH ? "the optimizer state is not loaded" : "there is no optimizer state");
        *policy = OPTIMIZER_FRESH;
        return OK;
    }
    if (f.lack)
        return why_set(why, ERR_INVALID,
                       "%s: the optimizer state is incomplete: %s is missing or has another shape or "
                       "type (%d of %d tensors). " REMEDY,
                       dir, f.lacking, f.lack, f.lack + f.have);
    if (f.other[0])
        return why_set(
            why, ERR_INVALID,
            "%s: the optimizer state contradicts itself: %s is %g, that of the first parameter is %g. " REMEDY, dir,
            f.other, (double)f.other_updates, (double)f.updates);
    *policy = OPTIMIZER_REQUIRE;
    return OK;
}

/* ---- the keys ---- */

/* The schedule depends on train.steps: with more of them, a rate that had decayed rises again. */
static void rate_note(const struct job_spec *before, const struct job_spec *job, int64_t step)
{
    double old = job_lr(&before->train, step < before->train.steps ? step : before->train.steps);
    double new = job_lr(&job->train, step);
    if (!before->data.train_hash[0] || fabs(new - old) <= 0.01 * fabs(old))
        return;
    fprintf(stderr,
            "dtctl: note: the learning rate goes from %.3g to %.3g at step %" PRId64
            ", because train.steps, train.lr or "
            "the schedule changed. To keep the rate: --set train.schedule=constant --set train.lr=%.6g --set "
            "train.warmup=0\n",
            old, new, step, old);
}

static err_t keys_check(const struct job_spec *job, struct ckpt *ckpt, const char *dir, struct why *why)
{
    struct buf yaml = {0};
    struct job_spec before = {0};
    err_t err = ckpt_small_file(ckpt, CKPT_JOB_FILE, &yaml, why);
    if (err == ERR_NOTFOUND) {
        buf_fini(&yaml);
        return OK; /* of PyTorch's own */
    }
    err = err ? err : job_parse(dir, (const char *)yaml.data, yaml.len, NULL, 0, &before, why);
    err = err ? err : job_resume_check(&before, job, why);
    if (!err)
        rate_note(&before, job, ckpt_step(ckpt));
    job_fini(&before);
    buf_fini(&yaml);
    return err;
}

err_t spec_check_resume(struct job_spec *job, struct ckpt *ckpt, const char *dir, struct why *why)
{
    err_t err = keys_check(job, ckpt, dir, why);
    err = err ? err : spec_names_adopt(job, ckpt, dir, why);
    err = err ? err : spec_check_model(job, ckpt, dir, why);
    return err ? err : optimizer_decide(job, ckpt, dir, why);
}

/* ---- the vocabulary ---- */

static err_t vocab_compare(const struct job_spec *job, const struct buf *vocab, const char *dir, struct why *why)
{
    struct data_set *set;
    struct tokenizer *t = NULL;
    err_t err = data_open(job->data.cache, job->data.train_hash, &set, why);
    if (err)
        return err;
    err = tokenizer_new_from(job->data.tokenizer, vocab->data, vocab->len, job->data.lowercase, &t, why);
    if (err)
        why_prefix(why, err, "%s/%s", dir, CKPT_VOCAB_FILE);
    else if (!tokenizer_same(t, data_tokenizer(set)))
        err = why_set(why, ERR_INVALID,
                      "%s has another vocabulary than the training data: the same ids would mean other tokens. Use the "
                      "tokenizer files that belong to the checkpoint; the checkpoint's own vocabulary is in %s/%s",
                      dir, dir, CKPT_VOCAB_FILE);
    tokenizer_free(t);
    data_close(set);
    return err;
}

err_t spec_check_vocab(const struct job_spec *job, struct ckpt *ckpt, const char *dir, struct why *why)
{
    struct buf vocab = {0};
    if (job->data.tokenizer == TOKENIZER_BYTES)
        return OK;
    err_t err = ckpt_small_file(ckpt, CKPT_VOCAB_FILE, &vocab, why);
    if (err == ERR_NOTFOUND)
        err = OK; /* of PyTorch's own */
    else if (!err)
        err = vocab_compare(job, &vocab, dir, why);
    buf_fini(&vocab);
    return err;
}
