/* The job's spec: dtd-io needs a few values of it, and its text, which is stored in every checkpoint. */
#include "daemon/io/io.h"

#include "common/base/caller.h"

#include "common/ckpt/ckpt.h"
#include "common/conf/job.h"
#include "common/data/data.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

void io_spec_fini(struct io_spec *s)
{
    free(s->yaml);
    free(s->root);
    free(s->cache);
    free(s->data_hash);
    free(s->tensorboard);
    free(s->wandb);
    free(s->report);
    free(s->resume_from);
    for (int i = 0; i < s->n_map; i++)
        free(s->map[i]);
    free(s->map);
    *s = (struct io_spec){0};
}

err_t io_spec_copy(const struct io_spec *from, struct io_spec *ret)
{
    *ret = (struct io_spec){.yaml = strdup(from->yaml),
                            .root = strdup(from->root),
                            .cache = strdup(from->cache),
                            .data_hash = strdup(from->data_hash),
                            .tensorboard = strdup(from->tensorboard),
                            .wandb = strdup(from->wandb),
                            .report = strdup(from->report),
                            .resume_from = strdup(from->resume_from),
                            .map = calloc((size_t)from->n_map + 1, sizeof(*ret->map)),
                            .take_over = from->take_over,
                            .orphan_ms = from->orphan_ms};
    while (ret->map && ret->n_map < from->n_map && (ret->map[ret->n_map] = strdup(from->map[ret->n_map])))
        ret->n_map++;
    if (ret->yaml && ret->root && ret->cache && ret->data_hash && ret->tensorboard && ret->wandb && ret->report &&
        ret->resume_from && ret->map && ret->n_map == from->n_map)
        return OK;
    io_spec_fini(ret);
    return ERR_NOMEM;
}

static char *or_empty(char *text)
{
    return text ? text : (char *)(uintptr_t) "";
}

static err_t spec_take(const struct job_spec *job, const char *yaml, struct io_spec *ret)
{
    const struct io_spec s = {.yaml = (char *)(uintptr_t)yaml,
                              .root = or_empty(job->checkpoint.dir),
                              .cache = or_empty(job->data.cache),
                              .data_hash = or_empty(job->data.train_hash),
                              .tensorboard = or_empty(job->run.tensorboard),
                              .wandb = or_empty(job->run.wandb),
                              .report = or_empty(job->run.report),
                              .resume_from = or_empty(job->checkpoint.resume_from),
                              .map = job->checkpoint.map,
                              .n_map = job->checkpoint.n_map,
                              .take_over = strtoull(or_empty(job->checkpoint.take_over), NULL, 16),
                              .orphan_ms = job->run.orphan_seconds * 1000};
    return io_spec_copy(&s, ret);
}

err_t io_spec_parse(struct io_spec *s, const char *yaml, struct why *why)
{
    struct job_spec job;
    struct io_spec next;
    err_t err = job_parse("job", yaml, strlen(yaml), NULL, 0, &job, why);
    if (err)
        return err;
    err = spec_take(&job, yaml, &next);
    next.umask = job_umask(&job);
    caller_limits_apply_text(job.run.limits);
    job_fini(&job);
    if (!err && next.root[0] != '/')
        err = why_set(why, ERR_INVALID, "checkpoint.dir is \"%s\": it must be an absolute path", next.root);
    else if (err)
        return why_set(why, err, "out of memory for the job's spec");
    if (err) {
        io_spec_fini(&next);
        return err;
    }
    io_spec_fini(s);
    *s = next;
    (void)umask((mode_t)s->umask);
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

/* OK without a text if the checkpoint has no such file, or there is no checkpoint. */
static err_t hf_read(const char *dir, struct buf *ret, struct why *why)
{
    struct ckpt *c;
    err_t err = ckpt_open(dir, &c, why);
    if (err)
        return err == ERR_NOTFOUND ? OK : err;
    err = ckpt_small_file(c, CKPT_HF_FILE, ret, why);
    ckpt_close(c);
    return err == ERR_NOTFOUND ? OK : err;
}

err_t io_spec_hf(const struct io_spec *s, int64_t step, struct buf *ret, struct why *why)
{
    struct ckpt_info *list;
    char dir[PATH_MAX];
    int64_t newest = -1;
    int n;
    err_t err = ckpt_scan(s->root, &list, &n, why);
    if (err)
        return err;
    for (int i = 0; i < n; i++)
        if (list[i].step < step && list[i].step > newest)
            newest = list[i].step;
    free(list);
    if (newest < 0)
        return s->resume_from[0] ? hf_read(s->resume_from, ret, why) : OK;
    err = ckpt_step_dir(s->root, newest, dir, sizeof(dir));
    return err ? why_set(why, err, "%s: the path is too long", s->root) : hf_read(dir, ret, why);
}
