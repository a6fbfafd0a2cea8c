/* A load fills the caller's arena with the requested boxes. While a load is in progress, no other request of its slot
 * is started: after the crash of a worker, its load must not write into the arena while the next worker uses it. */
#include "daemon/io/io.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct load_work {
    struct io_work work;
    struct io_request *request;
    struct io_spec spec; /* of a checkpoint of another job, whose names the spec may map; else empty */
    struct io_arena_slot *arena;
    struct ckpt_read_stats stats;
    struct ckpt_scalar *scalars;
    int n_scalars;
    int64_t started_ms;
};

/* Checks that the checkpoint has the tensor, with the shape that the worker's model expects. */
static err_t shape_check(const struct ckpt *c, const struct io_request *r, const struct ckpt_piece *p, struct why *why)
{
    const struct ckpt_tensor *t = ckpt_find(c, p->fqn);
    if (!t)
        return why_set(why, ERR_NOTFOUND, "%s has no tensor %.200s: it is a checkpoint of another model", r->path,
                       p->fqn);
    bool same = t->ndim == p->ndim;
    for (int d = 0; same && d < t->ndim; d++)
        same = t->shape[d] == p->shape[d];
    return same ? OK
                : why_set(why, ERR_INVALID, "%.200s has another shape in %s: it is a checkpoint of another model",
                          p->fqn, r->path);
}

static err_t tensors_read(struct load_work *l, struct ckpt *c, struct why *why)
{
    const struct io_request *r = l->request;
    struct ckpt_want *wants = calloc((size_t)r->n_pieces + 1, sizeof(*wants));
    if (!wants)
        return why_set(why, ERR_NOMEM, "out of memory for %d boxes", r->n_pieces);
    err_t err = OK;
    for (int i = 0; i < r->n_pieces && !err; i++) {
        const struct ckpt_piece *p = &r->pieces[i];
        err = shape_check(c, r, p, why);
        wants[i] = (struct ckpt_want){p->fqn, p->box, p->dtype, (void *)(uintptr_t)p->data};
    }
    if (!err)
        err = ckpt_read(c, wants, r->n_pieces, &l->stats, why);
    free(wants);
    return err;
}

static err_t scalar_copy(const struct ckpt_scalar *s, const char *name, struct ckpt_scalar *ret)
{
    *ret = *s;
    ret->fqn = strdup(name);
    ret->s = s->s ? strdup(s->s) : NULL;
    return ret->fqn && (ret->s || !s->s) ? OK : ERR_NOMEM;
}

/* Values that are missing or are not plain values are left out. */
static err_t scalars_read(struct load_work *l, struct ckpt *c, struct why *why)
{
    const struct io_request *r = l->request;
    l->scalars = calloc((size_t)r->n_names + 1, sizeof(*l->scalars));
    err_t err = l->scalars ? OK : why_set(why, ERR_NOMEM, "out of memory for %d values", r->n_names);
    for (int i = 0; i < r->n_names && !err; i++) {
        struct ckpt_scalar s;
        err = ckpt_scalar(c, r->names[i], &s, why);
        if (err == ERR_NOTFOUND || (!err && s.kind == CKPT_OPAQUE)) {
            err = OK;
            continue;
        }
        if (!err)
            err = scalar_copy(&s, r->names[i], &l->scalars[l->n_scalars++]);
    }
    return err;
}

static void load_run(struct io_work *w)
{
    struct load_work *l = (struct load_work *)w;
    struct io_arena *arena;
    struct ckpt *c;
    w->err = io_arena_get(l->arena, l->request, &arena, &w->why);
    if (w->err)
        return;
    w->err = ckpt_open(l->request->path, &c, &w->why);
    if (!w->err) {
        ckpt_share_reads(c, &w->io->claims);
        w->err = ckpt_rename(c, l->spec.map, l->spec.n_map, &w->why);
        if (!w->err)
            w->err = tensors_read(l, c, &w->why);
        if (!w->err)
            w->err = scalars_read(l, c, &w->why);
        ckpt_close(c);
    }
    io_arena_put(l->arena, arena);
}

static void load_free(struct load_work *l)
{
    for (int i = 0; i < l->n_scalars; i++) {
        free(l->scalars[i].fqn);
        free(l->scalars[i].s);
    }
    free(l->scalars);
    io_spec_fini(&l->spec);
    io_request_free(l->request);
    free(l);
}

static void load_done(struct io_work *w)
{
    struct load_work *l = (struct load_work *)w;
    struct io *io = w->io;
    struct rpc_call *call = l->request->call;
    io->loading[l->request->slot]--;
    l->request->call = NULL;
    if (w->err)
        log_error("load failed path=%s slot=%d error=%s why=\"%s\"", l->request->path, l->request->slot,
                  err_name(w->err), w->why.text);
    else
        log_info("loaded path=%s slot=%d needed=%" PRId64 " read=%" PRId64 " ms=%" PRId64, l->request->path,
                 l->request->slot, l->stats.bytes_needed, l->stats.bytes_read, clock_mono_ms() - l->started_ms);
    if (call && w->err)
        rpc_fail(call, w->err, "%s", w->why.text);
    else if (call)
        rpc_worker_load_done(call, &l->stats, l->scalars, l->n_scalars);
    load_free(l);
    io_retry(io);
}

void io_load_take(struct io *io, struct io_request *r)
{
    struct load_work *l = calloc(1, sizeof(*l));
    bool foreign = io->spec.yaml && strcmp(r->path, io->spec.resume_from) == 0;
    if (!l || (foreign && io_spec_copy(&io->spec, &l->spec))) {
        free(l);
        rpc_fail(r->call, ERR_NOMEM, "out of memory");
        r->call = NULL;
        io_request_free(r);
        return;
    }
    if (io->writing[r->slot])
        io->writing[r->slot]->spoilt = true;
    l->request = r;
    l->work.run = load_run;
    l->work.done = load_done;
    l->arena = &io->arenas[r->slot];
    l->started_ms = clock_mono_ms();
    io->loading[r->slot]++;
    io_arena_touch(io, r->slot);
    io_work_start(io, &l->work);
}
