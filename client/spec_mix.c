/* An item of data.train keeps its pattern in the spec, because the list of a submitted job must still show which files
 * belong to which source. */
#include "client/spec_mix.h"

#include "common/data/mixture.h"
#include "common/data/tables.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

static err_t item_resolve(char **item, const char *folder, struct why *why)
{
    char path[PATH_MAX], **found;
    int n;
    int len =
        snprintf(path, sizeof(path), "%s%s%s", (*item)[0] == '/' ? "" : folder, (*item)[0] == '/' ? "" : "/", *item);
    if (len < 0 || (size_t)len >= sizeof(path))
        return why_set(why, ERR_LIMIT, "%.80s: the path is too long", *item);
    err_t err = data_resolve("/", (char *const[]){path}, 1, &table_containers, &found, &n, NULL, why);
    if (err)
        return err;
    data_paths_free(found, n);
    return spec_text_set(item, path) ? why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM)) : OK;
}

err_t spec_mix_resolve(struct job_spec *job, const char *folder, struct why *why)
{
    err_t err = OK;
    for (int i = 0; !err && i < job->data.n_train; i++)
        err = item_resolve(&job->data.train[i], folder, why);
    return err ? why_prefix(why, err, "data.train") : OK;
}

err_t spec_mix_check(const struct job_spec *job, struct spec_facts *ret, struct why *why)
{
    struct mixture m;
    const int64_t positions = job->train.steps * job->train.global_batch;
    err_t err = mixture_open(job, &m, why);
    if (err)
        return err;
    ret->vocab = data_vocab(m.sources[0].set);
    ret->sources = calloc((size_t)m.n, sizeof(*ret->sources));
    ret->n_sources = ret->sources ? m.n : 0;
    for (int i = 0; i < ret->n_sources; i++) {
        ret->train_tokens += data_tokens(m.sources[i].set);
        ret->train_samples += view_samples(m.sources[i].view);
        ret->sources[i] = (struct spec_source){.samples = view_samples(m.sources[i].view),
                                               .taken = order_count(m.order, i, positions),
                                               .passes = mixture_passes(&m, i, positions),
                                               .filled = view_filled(m.sources[i].view)};
    }
    mixture_close(&m);
    return ret->sources ? OK : why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
}
