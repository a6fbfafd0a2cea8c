/* The wrappers over a device's table, and the table of kinds. The wrappers handle the cases that are the same for all
 * backends, such as 0 bytes and NULL, so that backends need not. */
#include "common/base/module.h"
#include "kernels/devices.h"

#include <assert.h>
#include <string.h>

/* A kind has its table here or in a module. */
struct device_kind {
    const char *name;
    const struct dev_ops *ops;
    const char *file, *symbol, *remedy;
};

static const struct device_kind kinds[] = {
    {"cpu", &cpu_device_ops, NULL, NULL, NULL},
    {"cuda", NULL, "dtd-cuda.so", "dtd_cuda_module",
     "build dtd where the CUDA toolkit is present, or set run.device: cpu"},
};

static const struct device_kind *kind_find(const char *name)
{
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return NULL;
}

static err_t module_ops(const struct device_kind *kind, const struct dev_ops **ret, struct why *why)
{
    void *symbol;
    err_t err = module_load(kind->file, kind->symbol, &symbol, why);
    if (err != OK)
        return err;
    const struct dev_module *m = symbol;
    if (m->abi != DEV_MODULE_ABI)
        return why_set(why, ERR_UNSUPPORTED,
                       "%s belongs to another version of dtd (its interface version is %d, this program's is %d)",
                       kind->file, m->abi, DEV_MODULE_ABI);
    *ret = m->device;
    return OK;
}

static err_t ops_find(const char *name, const struct dev_ops **ret, struct why *why)
{
    const struct device_kind *kind = kind_find(name);
    if (!kind)
        return why_set(why, ERR_NOTFOUND, "there is no device named \"%s\": devices are cpu and cuda", name);
    if (kind->ops) {
        *ret = kind->ops;
        return OK;
    }
    struct why cause = {{0}};
    err_t err = module_ops(kind, ret, &cause);
    return err == OK ? OK : why_set(why, err, "%s; %s", cause.text, kind->remedy);
}

err_t dev_count(const char *name, int *ret, struct why *why)
{
    const struct dev_ops *ops;
    err_t err = ops_find(name, &ops, why);
    return err == OK ? ops->count(ret, why) : err;
}

err_t dev_open(const char *name, int index, struct dev **ret, struct why *why)
{
    const struct dev_ops *ops;
    err_t err = ops_find(name, &ops, why);
    return err == OK ? ops->open(index, ret, why) : err;
}

void dev_close(struct dev *d)
{
    if (d)
        d->ops->close(d);
}

err_t dev_facts(struct dev *d, struct dev_facts *ret, struct why *why)
{
    return d->ops->facts(d, ret, why);
}

const struct kern_ops *dev_kernels(const struct dev *d, enum dtype dtype)
{
    return d->ops->kernels(dtype);
}

err_t dev_algorithms(struct dev *d, const char *path, struct why *why)
{
    return d->ops->algorithms ? d->ops->algorithms(d, path, why) : OK;
}

err_t dev_alloc(struct dev *d, size_t bytes, const char *what, void **ret, struct why *why)
{
    if (bytes > 0)
        return d->ops->alloc(d, bytes, what, ret, why);
    *ret = NULL;
    return OK;
}

void dev_free(struct dev *d, void *p, size_t bytes)
{
    if (p)
        d->ops->free(d, p, bytes);
}

err_t dev_host_alloc(struct dev *d, size_t bytes, const char *what, void **ret, struct why *why)
{
    if (bytes > 0)
        return d->ops->host_alloc(d, bytes, what, ret, why);
    *ret = NULL;
    return OK;
}

void dev_host_free(struct dev *d, void *p, size_t bytes)
{
    if (p)
        d->ops->host_free(d, p, bytes);
}

err_t dev_host_pin(struct dev *d, void *p, size_t bytes, struct why *why)
{
    return bytes > 0 ? d->ops->host_pin(d, p, bytes, why) : OK;
}

void dev_host_unpin(struct dev *d, void *p)
{
    if (p)
        d->ops->host_unpin(d, p);
}

err_t dev_stream_new(struct dev *d, int threads, bool urgent, struct kern_stream **ret, struct why *why)
{
    return d->ops->stream_new(d, threads, urgent, ret, why);
}

void dev_stream_free(struct kern_stream *s)
{
    if (s)
        s->dev->ops->stream_free(s);
}

err_t dev_stream_sync(struct kern_stream *s, struct why *why)
{
    return s->dev->ops->stream_sync(s, why);
}

void *dev_stream_native(struct kern_stream *s)
{
    return s->dev->ops->stream_native(s);
}

err_t dev_zero(struct kern_stream *s, void *p, size_t bytes)
{
    return bytes > 0 ? s->dev->ops->zero(s, p, bytes) : OK;
}

err_t dev_copy(struct kern_stream *s, void *dst, const void *src, size_t bytes)
{
    return bytes > 0 ? s->dev->ops->copy(s, dst, src, bytes) : OK;
}

err_t dev_event_new(struct dev *d, bool timed, struct dev_event **ret)
{
    return d->ops->event_new(d, timed, ret);
}

void dev_event_free(struct dev *d, struct dev_event *e)
{
    if (e)
        d->ops->event_free(e);
}

/* An event can order only streams of its own device. */
err_t dev_event_record(struct dev *d, struct dev_event *e, struct kern_stream *s)
{
    assert(s->dev == d);
    return d->ops->event_record(e, s);
}

err_t dev_event_wait(struct dev *d, struct dev_event *e, struct kern_stream *s)
{
    assert(s->dev == d);
    return d->ops->event_wait(e, s);
}

err_t dev_event_sync(struct dev *d, struct dev_event *e, struct why *why)
{
    return d->ops->event_sync(e, why);
}

bool dev_event_over(struct dev *d, struct dev_event *e)
{
    return d->ops->event_over(e);
}

double dev_event_ms(struct dev *d, const struct dev_event *from, const struct dev_event *to)
{
    return d->ops->event_ms(from, to);
}

void dev_range_begin(struct dev *d, const char *name)
{
    d->ops->range_begin(name);
}

void dev_range_end(struct dev *d)
{
    d->ops->range_end();
}
