/* The scalars of a checkpoint, one row per name. torch.optim.AdamW rejects a state dict in which one of its options is
 * missing, so each parameter has all of them, with the values that describe our update. */
#include "worker/step/snapshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct group_values {
    double lr, initial_lr, beta1, beta2, eps, weight_decay;
};

struct option {
    const char *name;
    enum ckpt_scalar_kind kind;
    size_t value; /* offset in struct group_values of the first number; for BOOL the value itself */
};

static const struct option options[] = {
    {"lr", CKPT_FLOAT, offsetof(struct group_values, lr)},
    {"initial_lr", CKPT_FLOAT, offsetof(struct group_values, initial_lr)},
    {"betas", CKPT_FLOAT_PAIR, offsetof(struct group_values, beta1)},
    {"eps", CKPT_FLOAT, offsetof(struct group_values, eps)},
    {"weight_decay", CKPT_FLOAT, offsetof(struct group_values, weight_decay)},
    {"amsgrad", CKPT_BOOL, 0},
    {"maximize", CKPT_BOOL, 0},
    {"foreach", CKPT_NONE, 0},
    {"capturable", CKPT_BOOL, 0},
    {"differentiable", CKPT_BOOL, 0},
    {"fused", CKPT_NONE, 0},
    {"decoupled_weight_decay", CKPT_BOOL, 1},
};
#define N_OPTIONS (sizeof(options) / sizeof(options[0]))

static err_t set_name(struct ckpt_scalar *s, const char *format, const char *a, const char *b)
{
    return asprintf(&s->fqn, format, a, b) < 0 ? (s->fqn = NULL, ERR_NOMEM) : OK;
}

static err_t set_option(struct ckpt_scalar *s, const struct option *o, const char *param, const struct group_values *v)
{
    char format[] = "optimizer.param_groups.%s.%s";
    const double *number = (const double *)(const void *)((const char *)v + o->value);
    s->kind = o->kind;
    if (o->kind == CKPT_BOOL)
        s->i = (int64_t)o->value;
    if (o->kind == CKPT_FLOAT || o->kind == CKPT_FLOAT_PAIR)
        s->f[0] = number[0];
    if (o->kind == CKPT_FLOAT_PAIR)
        s->f[1] = number[1];
    return set_name(s, format, param, o->name);
}

static err_t set_int(struct ckpt_scalar *s, const char *name, int64_t value)
{
    s->kind = CKPT_INT;
    s->i = value;
    return set_name(s, "%s%s", name, "");
}

static err_t fill(const struct engine *e, struct ckpt_scalar *s)
{
    const struct job_train *t = &e->config.job->train;
    struct group_values v = {job_lr(t, e->step), t->lr, t->beta1, t->beta2, t->eps, 0.0};
    err_t err = set_int(s++, SNAPSHOT_STEP, e->step);
    err = err ? err : set_int(s++, SNAPSHOT_TOKENS, e->position * t->seq);
    err = err ? err : set_int(s++, "lr_scheduler.last_epoch", e->step);
    err = err ? err : set_int(s++, SNAPSHOT_POSITION, e->position);
    for (int i = 0; !err && i < e->config.graph->n_tensors; i++) {
        const struct graph_tensor *g = &e->config.graph->tensors[i];
        if (g->kind != GT_PARAM)
            continue;
        v.weight_decay = g->decay ? t->weight_decay : 0.0;
        for (size_t o = 0; !err && o < N_OPTIONS; o++)
            err = set_option(s++, &options[o], g->name, &v);
    }
    return err;
}

err_t snapshot_scalars(const struct engine *e, struct ckpt_scalar **ret, int *ret_n)
{
    int n = 4;
    for (int i = 0; i < e->config.graph->n_tensors; i++)
        n += e->config.graph->tensors[i].kind == GT_PARAM ? (int)N_OPTIONS : 0;
    struct ckpt_scalar *s = calloc((size_t)n, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    err_t err = fill(e, s);
    if (err) {
        snapshot_scalars_free(s, n);
        return err;
    }
    *ret = s;
    *ret_n = n;
    return OK;
}

void snapshot_scalars_free(struct ckpt_scalar *scalars, int n)
{
    for (int i = 0; scalars && i < n; i++)
        free(scalars[i].fqn);
    free(scalars);
}
