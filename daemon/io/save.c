/* A save consists of the parts of all ranks for one (epoch, step).
 *
 *   OPEN --- every part WRITTEN ---> COMMITTING ---> DONE (ok)
 *     \---- a part failed, a newer epoch --------------> DONE (err), its folder removed
 *
 * If the job has several dtd-ios, only the committer commits, after its own parts are written and it has found those of
 * the others. The others have no state COMMITTING and remove only their own unfinished parts:
 *
 *   OPEN --- own parts WRITTEN ---> WAITING ---> COMMITTING (the committer), DONE (the others)       gather.c
 *
 * A worker may repeat a call at any time (after a lost connection or a restart of dtd-io); the state of the part
 * determines the answer. A save that is DONE stays in the list until its epoch ends, so that a late rank receives the
 * result. Writing a part first checks the directory for a step that an earlier dtd-io process has committed. */
#include "daemon/io/io.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#define MAX_WORLD 65536 /* bounds the memory that one malformed Save request can allocate */

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
    rpc_worker_event(call, true);
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

/* ---- the list of saves ---- */

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
    *s = (struct io_save){.io = io,
                          .epoch = r->epoch,
                          .step = r->step,
                          .world = r->world,
                          .n_own = io_share_count(&io->share, r->world),
                          .shared = io->share.on,
                          .committer = io->share.committer,
                          .me = io->share.me,
                          .loss = (double)NAN};
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

/* True: neither a thread nor an open call refers to the save. */
static bool save_is_idle(const struct io_save *s)
{
    return s->state == SAVE_DONE && !s->n_writing && !s->removing && !s->look.running;
}

void io_save_sweep(struct io *io)
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

struct clear_work {
    struct io_work work;
    struct io_save *save;
    struct ckpt_shared_save at; /* with several dtd-ios: where to leave the result for the others */
    int *unwritten, n_unwritten;
    err_t code;
    struct why reason;
    char root[PATH_MAX], path[PATH_MAX];
};

/* The committer writes the file `failed`, which ends the save for all dtd-ios. The file remains until its epoch ends.
 * On a full disk there may be no room for it until the partial folder has been removed. */
static void committer_clear(struct clear_work *c, struct why *why)
{
    bool publish = c->save->shared && c->code != ERR_STALE;
    err_t err = publish ? ckpt_failed_put(&c->at, -1, c->code, c->reason.text, why) : OK;
    c->work.err = ckpt_partial_remove(c->path, why);
    if (err && ckpt_failed_put(&c->at, -1, c->code, c->reason.text, why) && !c->work.err)
        c->work.err = err;
}

static void clear_run(struct io_work *w)
{
    struct clear_work *c = (struct clear_work *)w;
    if (c->save->committer)
        committer_clear(c, &w->why);
    for (int i = 0; i < c->n_unwritten && !w->err; i++)
        w->err = ckpt_failed_put(&c->at, c->unwritten[i], c->code, c->reason.text, &w->why);
}

static void clear_free(struct clear_work *c)
{
    free(c->unwritten);
    free(c);
}

static void clear_done(struct io_work *w)
{
    struct clear_work *c = (struct clear_work *)w;
    if (w->err)
        log_warn("failed save not cleared path=%s why=\"%s\"", c->path, w->why.text);
    c->save->removing = false;
    io_save_sweep(w->io);
    clear_free(c);
}

/* On a dtd-io that does not commit: lists its own ranks whose part will not be written. */
static bool unwritten_list(const struct io_save *s, struct clear_work *c)
{
    c->unwritten = calloc((size_t)s->world, sizeof(*c->unwritten));
    for (int r = 0; c->unwritten && r < s->world; r++)
        if (!s->committer && s->parts[r].state != PART_WRITTEN && io_share_owns(&s->io->share, r))
            c->unwritten[c->n_unwritten++] = r;
    return c->unwritten;
}

/* Removes the files of a failed save immediately, so that the next save can use the space. */
static void save_clear(struct io_save *s)
{
    struct io *io = s->io;
    bool nothing = !s->committer && (s->failed_by_committer || s->err == ERR_STALE);
    struct clear_work *c = nothing || s->removing || !io->spec.root ? NULL : calloc(1, sizeof(*c));
    if (!c)
        return;
    c->work.run = clear_run;
    c->work.done = clear_done;
    c->save = s;
    c->code = s->err;
    c->reason = s->reason;
    c->at = (struct ckpt_shared_save){.root = c->root, .me = s->me, .step = s->step, .world = s->world};
    if (strlen(io->spec.root) >= sizeof(c->root) || !unwritten_list(s, c) ||
        ckpt_partial_dir_of(io->spec.root, s->step, &s->me, c->path, sizeof(c->path))) {
        clear_free(c);
        return;
    }
    strcpy(c->root, io->spec.root);
    s->removing = true;
    io_work_start_dir(io, &c->work);
}

/* Only `reason` is passed on to the other dtd-ios (save_clear), and each of them adds the name of the step itself. */
void io_save_fail(struct io_save *s, err_t err, const char *reason, bool failed_by_committer)
{
    struct io *io = s->io;
    if (s->state == SAVE_DONE)
        return;
    s->state = SAVE_DONE;
    s->look.on = false;
    s->failed_by_committer = failed_by_committer;
    s->err = err;
    snprintf(s->reason.text, sizeof(s->reason.text), "%s", reason);
    why_set(&s->why, err, "step-%" PRId64 " was not saved: %s", s->step, reason);
    log_error("save failed step=%" PRId64 " epoch=%" PRIu64 " error=%s why=\"%s\"", s->step, s->epoch, err_name(err),
              reason);
    answer_all(s);
    if (err == ERR_OWNED)
        io_owner_lost(io, reason);
    else if (err != ERR_STALE && !failed_by_committer)
        io_report(io, IO_SAVE_FAILED, s->epoch, NULL, NULL, s->why.text);
    if (!s->n_writing)
        save_clear(s);
}

/* info NULL: another dtd-io has committed the save and reports it to control. */
void io_save_succeed(struct io_save *s, const struct ckpt_info *info, const char *path)
{
    s->state = SAVE_DONE;
    s->look.on = false;
    log_info("save committed step=%" PRId64 " epoch=%" PRIu64 " bytes=%" PRId64, s->step, s->epoch,
             info ? info->bytes : 0);
    if (info && s->committer)
        io_report(s->io, IO_COMMITTED, s->epoch, info, path, s->low);
    answer_all(s);
    for (int r = 0; r < s->world; r++) { /* parts are large; repeated calls do not need them */
        ckpt_part_free(s->parts[r].part);
        s->parts[r].part = NULL;
    }
}

/* ---- committing ---- */

struct commit_work {
    struct io_work work;
    struct io_save *save;
    struct io_spec spec; /* a copy: the loop may replace io->spec meanwhile */
    char path[PATH_MAX];
    struct ckpt_part **parts;
    char low[200];
    struct ckpt_info info;
};

static err_t commit_info(struct commit_work *c, struct why *why)
{
    if (ckpt_step_dir(c->spec.root, c->save->step, c->path, sizeof(c->path)))
        return why_set(why, ERR_LIMIT, "the path %.200s is too long", c->spec.root);
    return ckpt_info(c->path, &c->info, why);
}

static err_t superseded(const struct commit_work *c)
{
    char dir[PATH_MAX];
    struct why why = {{0}};
    if (ckpt_partial_dir_of(c->spec.root, c->save->step, &c->save->me, dir, sizeof(dir)) == OK &&
        ckpt_partial_remove(dir, &why))
        log_warn("partial folder not removed path=%s why=\"%s\"", dir, why.text);
    return OK;
}

/* Called only after the rename: if this committer is killed before, the next one finds all parts by the index. */
static void index_remove(const struct commit_work *c)
{
    const struct ckpt_shared_save at = {.root = c->spec.root, .me = c->save->me, .step = c->save->step};
    struct why why;
    if (ckpt_index_remove(&at, &why))
        log_warn("index not removed why=\"%s\"", why.text);
}

/* Sets the warning `low` before a save fails for lack of space: less than two checkpoints fit. */
static void check_space(struct commit_work *c)
{
    struct statvfs st;
    int64_t free_bytes = statvfs(c->path, &st) ? INT64_MAX : (int64_t)(st.f_bavail * st.f_frsize);
    if (free_bytes < 2 * c->info.bytes)
        snprintf(c->low, sizeof(c->low),
                 "the checkpoint folder is low on space: %" PRId64 " MiB are free, and a checkpoint needs %" PRId64
                 " MiB",
                 free_bytes >> 20, (c->info.bytes >> 20) + 1);
}

static void commit_run(struct io_work *w)
{
    struct commit_work *c = (struct commit_work *)w;
    struct buf vocab = {0}, hf = {0};
    struct why why = {{0}};
    if (io_spec_vocab(c->spec.cache, c->spec.data_hash, &vocab, &why)) /* the checkpoint is usable without it */
        log_error("vocabulary not stored why=\"%s\"", why.text);
    if (io_spec_hf(&c->spec, c->save->step, &hf, &why)) /* only an export to Hugging Face needs it */
        log_error("files of the imported model not stored why=\"%s\"", why.text);
    const struct ckpt_commit commit = {.root = c->spec.root,
                                       .step = c->save->step,
                                       .epoch = c->save->epoch,
                                       .job_yaml = c->spec.yaml,
                                       .vocab = vocab.len ? vocab.data : NULL,
                                       .vocab_bytes = vocab.len,
                                       .hf = hf.len ? hf.data : NULL,
                                       .hf_bytes = hf.len,
                                       .loss = c->save->loss,
                                       .me = &c->save->me};
    w->err = ckpt_commit(&commit, c->parts, c->save->world, &w->why);
    if (w->err == OK)
        w->err = commit_info(c, &w->why);
    else if (w->err == ERR_EXISTS && commit_info(c, &why) == OK)
        w->err = superseded(c); /* this step has been committed before, by this or another process */
    if (!w->err && c->save->shared)
        index_remove(c);
    if (!w->err)
        check_space(c);
    buf_fini(&vocab);
    buf_fini(&hf);
}

static void commit_free(struct commit_work *c)
{
    free(c->parts);
    io_spec_fini(&c->spec);
    free(c);
}

static void commit_done(struct io_work *w)
{
    struct commit_work *c = (struct commit_work *)w;
    struct io_save *s = c->save;
    struct io *io = w->io;
    bool rolled_back = s->epoch < io->epoch && s->step > io->resume_step; /* the queued EPOCH will set it aside */
    if (w->err)
        io_save_fail(s, w->err, w->why.text, false);
    else if (rolled_back)
        io_save_fail(s, ERR_STALE, "its epoch has ended", false);
    else {
        memcpy(s->low, c->low, sizeof(s->low));
        io_save_succeed(s, &c->info, c->path);
    }
    commit_free(c);
    io_save_sweep(io);
}

static struct commit_work *commit_new(struct io_save *s)
{
    struct commit_work *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->work.run = commit_run;
    c->work.done = commit_done;
    c->save = s;
    c->parts = calloc((size_t)s->world, sizeof(*c->parts));
    if (!c->parts || io_spec_copy(&s->io->spec, &c->spec)) {
        commit_free(c);
        return NULL;
    }
    for (int r = 0; r < s->world; r++)
        c->parts[r] = s->parts[r].part;
    return c;
}

void io_save_commit(struct io_save *s)
{
    struct commit_work *c = commit_new(s);
    if (!c) {
        io_save_fail(s, ERR_NOMEM, "out of memory", false);
        return;
    }
    s->look.on = false;
    s->state = SAVE_COMMITTING;
    io_work_start_dir(s->io, &c->work);
}

/* ---- writing a part ---- */

struct write_work {
    struct io_work work;
    struct io_request *request;
    struct io_part *part;
    struct io_arena_slot *arena;
    bool shared, committer;
    bool durable;             /* the part has an index, and the committer may rely on it */
    bool failed_by_committer; /* the committer had already failed the save */
    struct ckpt_shared_save at;
    char root[PATH_MAX];
    struct ckpt_part *written; /* NULL with OK: the step had already been committed */
    struct ckpt_info info;
    char path[PATH_MAX];
};

static bool committed_before(struct write_work *w)
{
    return ckpt_step_dir(w->root, w->request->step, w->path, sizeof(w->path)) == OK &&
           ckpt_info(w->path, &w->info, NULL) == OK;
}

static err_t part_write(struct write_work *w, struct why *why)
{
    struct io_request *r = w->request;
    struct io_arena *arena;
    char dir[PATH_MAX];
    err_t err = ckpt_partial_dir_of(w->root, r->step, &w->at.me, dir, sizeof(dir));
    if (err)
        return why_set(why, err, "the path %.200s is too long", w->root);
    err = io_arena_get(w->arena, r, &arena, why);
    if (err)
        return err;
    err = ckpt_part_write(dir, r->rank, r->pieces, r->n_pieces, r->scalars, r->n_scalars, &w->written, why);
    io_arena_put(w->arena, arena);
    return err;
}

/* If a part could not be written because the save was decided and its folder removed meanwhile, reports that decision
 * instead of the error of the write. */
static void use_earlier_decision(struct write_work *w)
{
    struct why why;
    err_t err = ckpt_failed_get(&w->at, &why);
    if (!err && ckpt_prepared(w->root, &w->at.me, &why) == ERR_STALE)
        err = ERR_STALE;
    if (!err)
        return;
    w->failed_by_committer = true;
    w->work.err = err;
    w->work.why = why;
}

/* A part with an index is never written again, because the committer may be renaming its folder at this moment. The
 * index is looked for before the committed step: since it is removed after the step has appeared, finding neither in
 * this order means that neither exists. */
static void write_run(struct io_work *work)
{
    struct write_work *w = (struct write_work *)work;
    struct why why;
    work->err = ckpt_lease_check(w->root, &w->at.me, &work->why);
    if (!work->err && w->shared)
        work->err = ckpt_failed_get(&w->at, &work->why);
    w->failed_by_committer = work->err && work->err != ERR_OWNED && !w->committer;
    w->durable =
        !work->err && w->shared && !w->committer && ckpt_index_get(&w->at, w->request->rank, &w->written, &why) == OK;
    if (work->err || w->durable || committed_before(w))
        return;
    work->err = part_write(w, &work->why);
    if (work->err && w->shared && !w->committer)
        use_earlier_decision(w);
}

static void index_run(struct io_work *work)
{
    struct write_work *w = (struct write_work *)work;
    work->err = ckpt_index_put(&w->at, w->written, &work->why);
    w->durable = !work->err;
}

/* The index is published only after the loop has checked that the worker did not reuse its arena during the write. */
static bool needs_index(const struct write_work *w)
{
    return w->shared && !w->committer && !w->work.err && w->written && !w->durable && !w->part->spoilt &&
           w->part->save->state <= SAVE_WAITING;
}

static void part_written(struct io_save *s, struct io_part *p)
{
    p->state = PART_WRITTEN;
    s->n_written++;
    if (p->call)
        rpc_worker_event(p->call, false);
    if (s->committer && s->n_written == s->world)
        io_save_commit(s);
    else if (s->shared && s->state == SAVE_OPEN && (!s->committer || s->n_written == s->n_own))
        io_gather_begin(s);
}

static void write_done(struct io_work *work)
{
    struct write_work *w = (struct write_work *)work;
    struct io_part *p = w->part;
    struct io_save *s = p->save;
    struct io *io = work->io;
    if (io->writing[w->request->slot] == p)
        io->writing[w->request->slot] = NULL;
    if (needs_index(w)) {
        work->run = index_run;
        io_work_start(io, work);
        return;
    }
    s->n_writing--;
    p->state = PART_NONE;
    p->part = w->written;
    if (s->state == SAVE_DONE && s->err && !s->n_writing)
        save_clear(s);
    else if (s->state > SAVE_WAITING)
        ; /* the save has been decided because of another rank */
    else if (p->spoilt && !w->durable)
        io_save_fail(s, ERR_CANCELED, "the worker reused its arena before the part was written", false);
    else if (work->err)
        io_save_fail(s, work->err, work->why.text, w->failed_by_committer);
    else if (!w->written)
        io_save_succeed(s, &w->info, w->path);
    else
        part_written(s, p);
    io_request_free(w->request);
    free(w);
    io_save_sweep(io);
}

static void write_start(struct io *io, struct io_part *p, struct io_request *r)
{
    struct write_work *w = calloc(1, sizeof(*w));
    if (!w || strlen(io->spec.root) >= sizeof(w->root)) {
        free(w);
        io_request_free(r);
        io_save_fail(p->save, ERR_NOMEM, "out of memory", false);
        return;
    }
    strcpy(w->root, io->spec.root);
    w->work.run = write_run;
    w->work.done = write_done;
    w->request = r;
    w->part = p;
    w->arena = &io->arenas[r->slot];
    w->shared = p->save->shared;
    w->committer = p->save->committer;
    w->at = (struct ckpt_shared_save){.root = w->root, .me = p->save->me, .step = r->step, .world = r->world};
    r->call = NULL; /* moved to the part */
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
        rpc_fail(r->call, ERR_INVALID, "invalid rank %d of %d or step %" PRId64, r->rank, r->world, r->step);
    else if (s && s->world != r->world)
        rpc_fail(r->call, ERR_INVALID, "step-%" PRId64 " is being saved by %d ranks, not %d", r->step, s->world,
                 r->world);
    else if (r->epoch < io->epoch)
        rpc_fail(r->call, ERR_STALE, "epoch %" PRIu64 " has ended, the current epoch is %" PRIu64, r->epoch, io->epoch);
    else if (!io_share_owns(&io->share, r->rank))
        rpc_fail(r->call, ERR_INVALID, "rank %d of epoch %" PRIu64 " has no worker on this node", r->rank, r->epoch);
    else
        return OK;
    return ERR_INVALID;
}

/* Attaches the call to the part. An earlier call of the same rank fails. */
static void part_adopt(struct io_part *p, struct io_request *r)
{
    part_fail(p, ERR_CANCELED, "the save was requested again");
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
        rpc_worker_event(p->call, false);
    }
    io_request_free(r);
}

void io_save_expire(struct io *io)
{
    for (struct io_save *s = io->saves; s; s = s->next)
        if (s->epoch < io->epoch && s->state <= SAVE_WAITING)
            io_save_fail(s, ERR_STALE, "its epoch has ended", false);
    io_save_sweep(io);
}
