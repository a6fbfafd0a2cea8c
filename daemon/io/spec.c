/* The job's spec: dtd-io needs four values of it, and its text, which is stored in every checkpoint. */
#include "daemon/io/io.h"

#include "common/conf/job.h"
#include "common/data/data.h"

#include <stdlib.h>
#include <string.h>

void io_spec_fini(struct io_spec *s)
{
    free(s->yaml);
    free(s->root);
    free(s->cache);
    free(s->data_hash);
    *s = (struct io_spec){0};
}

static err_t spec_copy(const struct job_spec *job, const char *yaml, struct io_spec *ret)
{
    *ret = (struct io_spec){.yaml = strdup(yaml),
                            .root = strdup(job->checkpoint.dir ? job->checkpoint.dir : ""),
                            .cache = strdup(job->data.cache ? job->data.cache : ""),
                            .data_hash = strdup(job->data.train_hash ? job->data.train_hash : ""),
                            .orphan_ms = job->run.orphan_seconds * 1000};
    return ret->yaml && ret->root && ret->cache && ret->data_hash ? OK : ERR_NOMEM;
}

err_t io_spec_parse(struct io_spec *s, const char *yaml, struct why *why)
{
    struct job_spec job;
    struct io_spec next;
    err_t err = job_parse("job", yaml, strlen(yaml), NULL, 0, &job, why);
    if (err)
        return err;
    err = spec_copy(&job, yaml, &next);
    job_fini(&job);
    if (!err && next.root[0] != '/')
        err = why_set(why, ERR_INVALID, "checkpoint.dir is \"%s\": it must be an absolute path", next.root);
    else if (err)
        why_set(why, err, "out of memory for the job's spec");
    if (err) {
        io_spec_fini(&next);
        return err;
    }
    io_spec_fini(s);
    *s = next;
    return OK;
}

err_t io_spec_vocab(const char *cache, const char *hash, struct buf *ret, struct why *why)
{
    struct data_set *d;
    size_t len;
    if (!*hash)
        return OK;
    err_t err = data_open(cache, hash, &d, why);
    if (err)
        return err;
    const void *text = tokenizer_vocab_file(data_tokenizer(d), &len);
    err = text ? buf_append(ret, text, len) : OK;
    data_close(d);
    return err;
}
