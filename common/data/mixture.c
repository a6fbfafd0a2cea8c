/* A job without weights is a mixture of one source. */
#include "common/data/mixture.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *mixture_hash(const struct job_data *d, int source)
{
    return source ? d->more_hashes[source - 1] : d->train_hash;
}

static err_t too_short(const struct mixture_source *s, const struct job_spec *job, int i, struct why *why)
{
    char which[64] = "";
    if (mixture_is(&job->data))
        snprintf(which, sizeof(which), "source %d has ", i + 1);
    const int64_t tokens = data_tokens(s->set);
    return why_set(why, ERR_INVALID,
                   "data.train: %s%" PRId64 " tokens, but one sample of train.seq %" PRId64 " needs %" PRId64
                   ". Provide more text, or set train.seq to at most %" PRId64,
                   which, tokens, job->train.seq, job->train.seq + 1, tokens > 1 ? tokens - 1 : 1);
}

static err_t source_open(const struct job_spec *job, int i, struct mixture_source *s, struct why *why)
{
    err_t err = data_open(job->data.cache, mixture_hash(&job->data, i), &s->set, why);
    if (err)
        return why_prefix(why, err, "data.train");
    s->samples = data_samples(s->set, job->train.seq);
    return s->samples < 1 ? too_short(s, job, i, why) : OK;
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
        s[i] = (struct order_source){
            .samples = m->sources[i].samples, .weight = m->sources[i].weight, .passes = m->sources[i].passes};
    err = err ? err : order_new(s, m->n, job->train.seed, job->data.shuffle, order_block_samples(m->seq), &m->order);
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
    for (int i = 0; m->sources && i < m->n; i++)
        data_close(m->sources[i].set);
    order_free(m->order);
    free(m->sources);
    *m = (struct mixture){0};
}

err_t mixture_sample(const struct mixture *m, int64_t position, int32_t *ret_ids, int32_t *ret_targets)
{
    int source;
    int64_t sample;
    if (position >= order_end(m->order))
        return ERR_INVALID;
    order_at(m->order, position, &source, &sample);
    return data_sample(m->sources[source].set, m->seq, sample, ret_ids, ret_targets);
}

double mixture_passes(const struct mixture *m, int source, int64_t positions)
{
    return (double)order_count(m->order, source, positions) / (double)m->sources[source].samples;
}
