/* A save is the parts of all ranks of one (epoch, step).
 *
 *   OPEN --- every part WRITTEN ---> COMMITTING ---> DONE (ok)
 *     \---- a part failed, a newer epoch --------------> DONE (err), its folder removed
 *
 * A call may come again at any time (the worker lost its connection, io was started anew): the part's state answers it.
 * A save that is DONE stays in the list while its epoch lasts, so that a rank that comes late hears what became of it.
 * What a former io committed is found in the directory, by the first thing that writing a part does. */
#include "daemon/io/io.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORLD 65536

/* ---- answering ---- */

static void part_call_gone(void *arg)
{
    struct io_part *p = arg;
    p->call = NULL;
}

static void part_fail(struct io_part *p, err_t err, const char *text)
{
    struct rpc_call *call = p->call;
    p->call = NULL;
    if (call)
        rpc_fail(call, err, "%s", text);
}

static void part_committed(struct io_part *p)
{
    struct rpc_call *call = p->call;
    p->call = NULL;
    if (!call)
        return;
    rpc_worker_say(call, true);
    rpc_end(call);
}

static void answer_all(struct io_save *s)
{
    for (int r = 0; r < s->world; r++) {
        if (s->err)
            part_fail(&s->parts[r], s->err, s->why.text);
        else
            part_committed(&s->parts[r]);
    }
}

/* ---- life ---- */

static struct io_save *save_find(struct io *io, uint64_t epoch, int64_t step)
{
    for (struct io_save *s = io->saves; s; s = s->next)
        if (s->epoch == epoch && s->step == step)
            return s;
    return NULL;
}

static struct io_save *save_new(struct io *io, const struct io_request *r)
{
    struct io_save *s = calloc(1, sizeof(*s));
    if (!s)
        return NULL;
    *s = (struct io_save){.io = io, .epoch = r->epoch, .step = r->step, .world = r->world, .loss = (double)NAN};
    s->parts = calloc((size_t)r->world, sizeof(*s->parts));
    if (!s->parts) {
        free(s);
        return NULL;
    }
    for (int i = 0; i < r->world; i++)
        s->parts[i].save = s;
    s->next = io->saves;
    io->saves = s;
    return s;
}

static void save_free(struct io_save *s)
{
    for (int r = 0; r < s->world; r++)
        ckpt_part_free(s->parts[r].part);
    free(s->parts);
    free(s);
}

/* Nothing refers to it any more: no thread, no call that would be answered through it. */
static bool save_is_idle(const struct io_save *s)
{
    return s->state == SAVE_DONE && !s->n_writing && !s->removing;
}

static void sweep(struct io *io)
{
    for (struct io_save **at = &io->saves; *at;) {
        struct io_save *s = *at;
        if (!save_is_idle(s) || s->epoch >= io->epoch) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        save_free(s);
    }
}

void io_save_fini(struct io *io)
{
    while (io->saves) {
        struct io_save *s = io->saves;
        io->saves = s->next;
        save_free(s);
    }
}

/* ---- failing ---- */

struct dir_remove {
    struct io_work work;
    struct io_save *save;
    char path[PATH_MAX];
};

static void remove_run(struct io_work *w)
{
    struct dir_remove *d = (struct dir_remove *)w;
    w->err = ckpt_partial_remove(d->path, &w->why);
}

static void remove_done(struct io_work *w)
{
    struct dir_remove *d = (struct dir_remove *)w;
    if (w->err)
        log_warn("partial folder not removed path=%s why=\"%s\"", d->path, w->why.text);
    d->save->removing = false;
    sweep(w->io);
    free(d);
}

/* The space of a save that failed goes back at once, so that the next one may have it. */
static void partial_remove(struct io_save *s)
{
    struct io *io = s->io;
    struct dir_remove *d = s->removing || !io->spec.root ? NULL : calloc(1, sizeof(*d));
    if (!d)
        return;
    d->work.run = remove_run;
    d->work.done = remove_done;
    d->save = s;
    if (ckpt_partial_dir(io->spec.root, s->step, s->epoch, d->path, sizeof(d->path))) {
        free(d);
        return;
    }
    s->removing = true;
    io_work_start_dir(io, &d->work);
}

static void save_fail(struct io_save *s, err_t err, const char *text)
{
    struct io *io = s->io;
    if (s->state == SAVE_DONE)
        return;
    s->state = SAVE_DONE;
    s->err = err;
    snprintf(s->why.text, sizeof(s->why.text), "step-%" PRId64 " is not saved: %s", s->step, text);
    log_error("save failed step=%" PRId64 " epoch=%" PRIu64 " error=%s why=\"%s\"", s->step, s->epoch, err_name(err),
              text);
    answer_all(s);
    if (err != ERR_STALE)
        io_report(io, IO_SAVE_FAILED, s->epoch, NULL, NULL, s->why.text);
    if (!s->n_writing)
        partial_remove(s);
}

static void save_succeed(struct io_save *s, const struct ckpt_info *info, const char *path)
{
    s->state = SAVE_DONE;
    log_info("save committed step=%" PRId64 " epoch=%" PRIu64 " bytes=%" PRId64, s->step, s->epoch, info->bytes);
    io_report(s->io, IO_COMMITTED, s->epoch, info, path, NULL);
    answer_all(s);
    for (int r = 0; r < s->world; r++) { /* large; what is left only answers repeats */
        ckpt_part_free(s->parts[r].part);
        s->parts[r].part = NULL;
    }
}

/* ---- committing ---- */

struct commit {
    struct io_work work;
    struct io_save *save;
    struct io_spec spec; /* copies: the loop's may change meanwhile */
    char path[PATH_MAX];
    struct ckpt_part **parts;
    struct ckpt_info info;
};

static err_t commit_info(struct commit *c, struct why *why)
{
    if (ckpt_step_dir(c->spec.root, c->save->step, c->path, sizeof(c->path)))
        return why_set(why, ERR_LIMIT, "the path %.200s is too long", c->spec.root);
    return ckpt_info(c->path, &c->info, why);
}

static err_t superseded(const struct commit *c)
{
    char dir[PATH_MAX];
    struct why why = {{0}};
    if (ckpt_partial_dir(c->spec.root, c->save->step, c->save->epoch, dir, sizeof(dir)) == OK &&
        ckpt_partial_remove(dir, &why))
        log_warn("partial folder not removed path=%s why=\"%s\"", dir, why.text);
    return OK;
}

static void commit_run(struct io_work *w)
{
    struct commit *c = (struct commit *)w;
    struct buf vocab = {0};
    struct why why = {{0}};
    if (io_spec_vocab(c->spec.cache, c->spec.data_hash, &vocab, &why)) /* a checkpoint without it is still one */
        log_error("vocabulary not stored why=\"%s\"", why.text);
    const struct ckpt_commit commit = {.root = c->spec.root,
                                       .step = c->save->step,
                                       .epoch = c->save->epoch,
                                       .job_yaml = c->spec.yaml,
                                       .vocab = vocab.len ? vocab.data : NULL,
                                       .vocab_bytes = vocab.len,
                                       .loss = c->save->loss};
    w->err = ckpt_commit(&commit, c->parts, c->save->world, &w->why);
    if (w->err == OK)
        w->err = commit_info(c, &w->why);
    else if (w->err == ERR_EXISTS && commit_info(c, &why) == OK)
        w->err = superseded(c); /* whoever was first has committed this step */
    buf_fini(&vocab);
}

static void commit_free(struct commit *c)
{
    free(c->parts);
    io_spec_fini(&c->spec);
    free(c);
}

static void commit_done(struct io_work *w)
{
    struct commit *c = (struct commit *)w;
    struct io_save *s = c->save;
    struct io *io = w->io;
    bool rolled_back = s->epoch < io->epoch && s->step > io->resume_step; /* abandoned next, by the EPOCH behind us */
    if (w->err)
        save_fail(s, w->err, w->why.text);
    else if (rolled_back)
        save_fail(s, ERR_STALE, "its epoch has ended");
    else
        save_succeed(s, &c->info, c->path);
    commit_free(c);
    sweep(io);
}

static struct commit *commit_new(struct io_save *s)
{
    const struct io_spec *spec = &s->io->spec;
    struct commit *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->work.run = commit_run;
    c->work.done = commit_done;
    c->save = s;
    c->parts = calloc((size_t)s->world, sizeof(*c->parts));
    c->spec = (struct io_spec){strdup(spec->yaml), strdup(spec->root), strdup(spec->cache), strdup(spec->data_hash), 0};
    if (!c->parts || !c->spec.yaml || !c->spec.root || !c->spec.cache || !c->spec.data_hash) {
        commit_free(c);
        return NULL;
    }
    for (int r = 0; r < s->world; r++)
        c->parts[r] = s->parts[r].part;
    return c;
}

static void commit_start(struct io_save *s)
{
    struct commit *c = commit_new(s);
    if (!c) {
        save_fail(s, ERR_NOMEM, "out of memory");
        return;
    }
    s->state = SAVE_COMMITTING;
    io_work_start_dir(s->io, &c->work);
}

/* ---- writing a part ---- */

struct write {
    struct io_work work;
    struct io_request *request;
    struct io_part *part;
    int arena;
    char root[PATH_MAX];
    struct ckpt_part *written; /* NULL with OK: the step is committed already */
    struct ckpt_info info;
    char path[PATH_MAX];
};

static bool committed_before(struct write *w)
{
    return ckpt_step_dir(w->root, w->request->step, w->path, sizeof(w->path)) == OK &&
           ckpt_info(w->path, &w->info, NULL) == OK;
}

static void write_run(struct io_work *work)
{
    struct write *w = (struct write *)work;
    struct io_request *r = w->request;
    struct io_arena arena;
    char dir[PATH_MAX];
    if (committed_before(w))
        return;
    work->err = ckpt_partial_dir(w->root, r->step, r->epoch, dir, sizeof(dir));
    if (work->err) {
        why_set(&work->why, work->err, "the path %.200s is too long", w->root);
        return;
    }
    work->err = io_arena_map(w->arena, false, r, &arena, &work->why);
    if (work->err)
        return;
    work->err =
        ckpt_part_write(dir, r->rank, r->pieces, r->n_pieces, r->scalars, r->n_scalars, &w->written, &work->why);
    io_arena_unmap(&arena);
}

static void part_written(struct io_save *s, struct io_part *p)
{
    p->state = PART_WRITTEN;
    s->n_written++;
    if (p->call)
        rpc_worker_say(p->call, false);
    if (s->n_written == s->world)
        commit_start(s);
}

static void write_done(struct io_work *work)
{
    struct write *w = (struct write *)work;
    struct io_part *p = w->part;
    struct io_save *s = p->save;
    struct io *io = work->io;
    s->n_writing--;
    p->state = PART_NONE;
    p->part = w->written;
    if (io->writing[w->request->slot] == p)
        io->writing[w->request->slot] = NULL;
    if (s->state == SAVE_DONE && s->err && !s->n_writing)
        partial_remove(s);
    else if (s->state != SAVE_OPEN)
        ; /* decided by another rank */
    else if (p->spoilt)
        save_fail(s, ERR_CANCELED, "the worker took its arena back before it was written");
    else if (work->err)
        save_fail(s, work->err, work->why.text);
    else if (!w->written)
        save_succeed(s, &w->info, w->path);
    else
        part_written(s, p);
    io_request_free(w->request);
    free(w);
    sweep(io);
}

static void write_start(struct io *io, struct io_part *p, struct io_request *r)
{
    struct write *w = calloc(1, sizeof(*w));
    if (!w || strlen(io->spec.root) >= sizeof(w->root)) {
        free(w);
        io_request_free(r);
        save_fail(p->save, ERR_NOMEM, "out of memory");
        return;
    }
    strcpy(w->root, io->spec.root);
    w->work.run = write_run;
    w->work.done = write_done;
    w->request = r;
    w->part = p;
    w->arena = io->arenas[r->slot];
    r->call = NULL; /* the part has it */
    p->state = PART_WRITING;
    p->spoilt = false;
    p->save->n_writing++;
    io->writing[r->slot] = p;
    io_work_start(io, &w->work);
}

/* ---- requests ---- */

static err_t request_check(const struct io *io, const struct io_request *r, const struct io_save *s)
{
    if (r->world < 1 || r->world > MAX_WORLD || r->rank < 0 || r->rank >= r->world || r->step < 0)
        rpc_fail(r->call, ERR_INVALID, "rank %d of %d at step %" PRId64 " cannot be", r->rank, r->world, r->step);
    else if (s && s->world != r->world)
        rpc_fail(r->call, ERR_INVALID, "step-%" PRId64 " is saved by %d ranks, not %d", r->step, s->world, r->world);
    else if (r->epoch < io->epoch)
        rpc_fail(r->call, ERR_STALE, "epoch %" PRIu64 " has ended, this is %" PRIu64, r->epoch, io->epoch);
    else
        return OK;
    return ERR_INVALID;
}

/* The call joins the part; a former one of the same rank is told to go. */
static void part_adopt(struct io_part *p, struct io_request *r)
{
    part_fail(p, ERR_CANCELED, "the save was asked for again");
    p->call = r->call;
    r->call = NULL;
    rpc_call_on_cancel(p->call, part_call_gone, p);
}

void io_save_take(struct io *io, struct io_request *r)
{
    struct io_save *s = save_find(io, r->epoch, r->step);
    if (request_check(io, r, s)) {
        r->call = NULL;
        io_request_free(r);
        return;
    }
    struct io_part *busy = io->writing[r->slot];
    if (busy && busy != (s ? &s->parts[r->rank] : NULL))
        busy->spoilt = true;
    if (!s && !(s = save_new(io, r))) {
        rpc_fail(r->call, ERR_NOMEM, "out of memory");
        r->call = NULL;
        io_request_free(r);
        return;
    }
    struct io_part *p = &s->parts[r->rank];
    if (r->rank == 0 || isnan(s->loss))
        s->loss = r->loss;
    part_adopt(p, r);
    if (s->state == SAVE_DONE) {
        answer_all(s);
    } else if (p->state == PART_NONE) {
        write_start(io, p, r);
        return;
    } else if (p->state == PART_WRITTEN) {
        rpc_worker_say(p->call, false);
    }
    io_request_free(r);
}

void io_save_expire(struct io *io)
{
    for (struct io_save *s = io->saves; s; s = s->next)
        if (s->epoch < io->epoch && s->state == SAVE_OPEN)
            save_fail(s, ERR_STALE, "its epoch has ended");
    sweep(io);
}
