/* A job without weights is a mixture of one source. */
#include "common/data/mixture.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

const char *mixture_hash(const struct job_data *d, int source)
{
    return source ? d->more_hashes[source - 1] : d->train_hash;
}

/* Names the source of a mixture in an error. */
static err_t source_fail(const struct job_data *d, int i, err_t err, struct why *why)
{
    if (!err || !mixture_is(d))
        return err ? why_prefix(why, err, "data.train") : OK;
    return why_prefix(why, err, "data.train[%d]", i);
}

static err_t source_open(const struct job_spec *job, int i, struct mixture_source *s, struct why *why)
{
    err_t err = data_open(job->data.cache, mixture_hash(&job->data, i), &s->set, why);
    err = err ? err : view_open(s->set, &job->data, job->train.seq, job->model.labels, &s->view, why);
    return source_fail(&job->data, i, err, why);
}

static err_t passes_read(const struct job_data *d, struct mixture_source *sources, struct why *why)
{
    for (int i = 0; i < d->n_passes; i++) {
        char *end;
        const long long passes = strtoll(d->passes[i], &end, 10);
        if (end == d->passes[i] || *end || passes < 0)
            return why_set(why, ERR_INVALID,
                           "data.passes: \"%.40s\" is not a number of passes: write a whole number, or 0 for no limit",
                           d->passes[i]);
        sources[i].passes = passes;
    }
    return OK;
}

static err_t weights_read(const struct job_data *d, struct mixture_source *sources, int n, struct why *why)
{
    int64_t weights[ORDER_MAX_SOURCES] = {1};
    err_t err = mixture_is(d) ? order_weights(d->weights, n, weights, why) : OK;
    for (int i = 0; !err && i < n; i++)
        sources[i].weight = weights[i];
    return err ? why_prefix(why, err, "data.weights") : OK;
}

static err_t order_make(const struct job_spec *job, struct mixture *m, struct why *why)
{
    struct order_source *s = calloc((size_t)m->n, sizeof(*s));
    const int64_t needed = job->train.steps * job->train.global_batch;
    err_t err = s ? OK : ERR_NOMEM;
    for (int i = 0; !err && i < m->n; i++)
        s[i] = (struct order_source){.samples = view_samples(m->sources[i].view),
                                     .weight = m->sources[i].weight,
                                     .passes = m->sources[i].passes};
    err = err ? err
              : order_new(s, m->n, job->train.seed, job->data.shuffle,
                          order_block_samples(view_stride(&job->data, m->seq)), &m->order);
    free(s);
    if (err)
        return why_set(why, err, "%s", err_text(err));
    if (order_end(m->order) < needed)
        return why_set(why, ERR_INVALID,
                       "data.passes: the sources give %" PRId64 " samples, but %" PRId64 " steps of %" PRId64
                       " samples need %" PRId64 ". Allow more passes (0: no limit), or set train.steps to at most "
                       "%" PRId64,
                       order_end(m->order), job->train.steps, job->train.global_batch, needed,
                       order_end(m->order) / job->train.global_batch);
    return OK;
}

err_t mixture_open(const struct job_spec *job, struct mixture *ret, struct why *why)
{
    const struct job_data *d = &job->data;
    struct mixture m = {.seq = job->train.seq, .n = mixture_is(d) ? d->n_weights : 1};
    if (m.n > 1 && d->n_more_hashes != m.n - 1)
        return why_set(why, ERR_INVALID, "data.more_hashes: %d hashes for %d sources", d->n_more_hashes, m.n);
    m.sources = calloc((size_t)m.n, sizeof(*m.sources));
    err_t err = m.sources ? OK : why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    err = err ? err : weights_read(d, m.sources, m.n, why);
    err = err ? err : passes_read(d, m.sources, why);
    for (int i = 0; !err && i < m.n; i++)
        err = source_open(job, i, &m.sources[i], why);
    err = err ? err : order_make(job, &m, why);
    if (err) {
        mixture_close(&m);
        return err;
    }
    *ret = m;
    return OK;
}

void mixture_close(struct mixture *m)
{
    for (int i = 0; m->sources && i < m->n; i++) {
        view_close(m->sources[i].view);
        data_close(m->sources[i].set);
    }
    order_free(m->order);
    free(m->sources);
    *m = (struct mixture){0};
}

bool mixture_masks(const struct mixture *m)
{
    bool masks = false;
    for (int i = 0; i < m->n; i++)
        masks = masks || view_masks(m->sources[i].view);
    return masks;
}

static err_t find(const struct mixture *m, int64_t position, const struct data_view **ret, int64_t *ret_sample)
{
    int source;
    if (position >= order_end(m->order))
        return ERR_INVALID;
    order_at(m->order, position, &source, ret_sample);
    *ret = m->sources[source].view;
    return OK;
}

err_t mixture_sample(const struct mixture *m, int64_t position, int32_t *ret_ids, int32_t *ret_targets)
{
    const struct data_view *v;
    int64_t sample;
    err_t err = find(m, position, &v, &sample);
    return err ? err : view_sample(v, sample, ret_ids, ret_targets);
}

err_t mixture_begins(const struct mixture *m, int64_t position, int32_t *ret)
{
    const struct data_view *v;
    int64_t sample;
    err_t err = find(m, position, &v, &sample);
    return err ? err : view_begins(v, sample, ret);
}

err_t mixture_count(const struct mixture *m, int64_t position, int64_t *ret)
{
    const struct data_view *v;
    int64_t sample;
    err_t err = find(m, position, &v, &sample);
    return err ? err : view_count(v, sample, ret);
}

double mixture_passes(const struct mixture *m, int source, int64_t positions)
{
    return (double)order_count(m->order, source, positions) / (double)view_samples(m->sources[source].view);
}
