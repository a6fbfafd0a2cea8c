/* The lease of the checkpoint directory (common/ckpt/lease.h). The dtd-io that commits takes it before anything is
 * written there, and renews it until it exits.
 *
 *   SCAN    the lease is free: take it
 *           it is of this job: leave it, because only an epoch that is in the log replaces an earlier one
 *           it is of another job and has not changed yet: the command waits, and looks again every LOOK_MS
 *           it is of this job in the cluster before a recovery: take it
 *           it is of another job that renews it, or of this job in a recovered cluster: the answer is the refusal, and
 * control fails the job before it starts EPOCH   the same, except that a lease of an earlier process of this job is
 * replaced at once
 *
 * Dirwork takes and releases the lease. The renewal runs beside dirwork, where a commit may take minutes. Both use
 * io_owner under its lock; everything else here runs on the loop. */
#include "daemon/io/io.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_MS 500 /* a quarter of CKPT_LEASE_RENEW_MS: a renewal is seen soon after it was written */
/* Sockets of a system-wide dtd are here. Its DTD_DIR is no setting of a user, so messages do not name it. */
#define SYSTEM_SOCKETS "/run/dtd/"

/* ---- in a thread ---- */

static struct ckpt_lease_info lease_mine(const struct io_owner *o, const struct ckpt_writer_id *me)
{
    struct ckpt_lease_info l = {.by = *me, .renew_ms = (uint32_t)o->renew_ms, .pid = (uint32_t)getpid()};
    if (gethostname(l.host, sizeof(l.host) - 1))
        l.host[0] = '\0';
    snprintf(l.dtd_dir, sizeof(l.dtd_dir), "%s", o->dtd_dir);
    return l;
}

/* Makes the directory too: the lease is the first file in it. */
static err_t lease_begin(struct io_owner *o, const char *root, const struct ckpt_writer_id *me, struct why *why)
{
    const struct ckpt_lease_info mine = lease_mine(o, me);
    err_t err = file_make_dirs(root, 0777);
    if (err)
        return why_set(why, err, "cannot create checkpoint.dir %s: %s", root, err_text(err));
    err = ckpt_lease_take(root, &mine, o->watch.generation, &o->lease, why);
    if (!err)
        log_info("lease taken root=%s generation=%" PRIu64, root, o->lease.info.generation);
    return err;
}

static err_t lease_wait(struct io_owner *o, const char *root, const struct ckpt_lease_info *l, struct why *why)
{
    char owner[400];
    ckpt_lease_describe(l, owner, sizeof(owner));
    if (!o->told)
        log_warn("lease observed root=%s owner=\"%s\" next=\"taken over if it is not renewed\"", root, owner);
    o->told = true;
    return why_set(why, ERR_AGAIN, "%s belongs to %s; it is taken over if it is not renewed", root, owner);
}

static err_t lease_seek(struct io_owner *o, const char *root, const struct ckpt_writer_id *me, uint64_t take_over,
                        bool scan, struct why *why)
{
    enum ckpt_lease_state state;
    struct ckpt_lease_info l;
    err_t err = ckpt_lease_look(root, me, take_over, &o->watch, &state, &l, why);
    if (err)
        return err;
    if (state == CKPT_LEASE_LIVING)
        return ckpt_lease_refuse(root, &l, true, why);
    if (state == CKPT_LEASE_WAIT)
        return lease_wait(o, root, &l, why);
    bool is_ours = state == CKPT_LEASE_OWN_JOB && l.by.generation == me->generation;
    if (is_ours && scan)
        return OK;
    if (is_ours && l.by.epoch > me->epoch && me->submitted_ms)
        return why_set(why, ERR_STALE, "epoch %" PRIu64 " has ended: %s belongs to epoch %" PRIu64, me->epoch, root,
                       l.by.epoch);
    return lease_begin(o, root, me, why);
}

err_t io_owner_take(struct io_owner *o, const char *root, const struct ckpt_writer_id *me, uint64_t take_over,
                    bool scan, struct why *why)
{
    err_t err = ERR_STALE;
    uv_mutex_lock(&o->lock);
    if (o->lease.info.generation) {
        if (!scan)
            o->lease.info.by = *me;
        o->lease.info.by.generation = me->generation;
        err = ckpt_lease_renew(root, &o->lease, why);
        if (err == ERR_OWNED || err == ERR_STALE)
            ckpt_lease_drop(&o->lease);
        else
            err = OK; /* still held: what prevents the renewal also fails the next write, which reports it */
    }
    if (err == ERR_STALE) /* not held, or an earlier process of this job, which control had replaced, has taken it */
        err = lease_seek(o, root, me, take_over, scan, why);
    if (err != ERR_AGAIN)
        o->told = false;
    uv_mutex_unlock(&o->lock);
    return err;
}

struct owner_work {
    struct io_work work;
    struct io_owner *owner;
    char root[PATH_MAX];
};

static void renew_run(struct io_work *w)
{
    struct owner_work *r = (struct owner_work *)w;
    struct io_owner *o = r->owner;
    uv_mutex_lock(&o->lock);
    if (o->lease.info.generation)
        w->err = ckpt_lease_renew(r->root, &o->lease, &w->why);
    if (w->err == ERR_OWNED || w->err == ERR_STALE)
        ckpt_lease_drop(&o->lease);
    uv_mutex_unlock(&o->lock);
}

static void release_run(struct io_work *w)
{
    struct io_owner *o = ((struct owner_work *)w)->owner;
    uv_mutex_lock(&o->lock);
    w->err = ckpt_lease_release(&o->lease, &w->why);
    uv_mutex_unlock(&o->lock);
}

/* ---- on the loop ---- */

static struct owner_work *owner_work_new(struct io *io, void (*run)(struct io_work *), void (*done)(struct io_work *))
{
    struct owner_work *r = io->spec.root && strlen(io->spec.root) < PATH_MAX ? calloc(1, sizeof(*r)) : NULL;
    if (!r)
        return NULL;
    r->work.run = run;
    r->work.done = done;
    r->owner = &io->owner;
    strcpy(r->root, io->spec.root);
    return r;
}

/* Control fails the job. Saves that are open, and later ones, fail with the same sentence. */
void io_owner_lost(struct io *io, const char *text)
{
    struct io_share *s = &io->share;
    if (s->refusal == ERR_OWNED)
        return;
    s->refusal = ERR_OWNED;
    s->ready.on = false;
    snprintf(s->why.text, sizeof(s->why.text), "%s", text);
    log_error("lease lost why=\"%s\"", text);
    uv_timer_stop(&io->owner.renew);
    io_report(io, IO_LOST, io->epoch, NULL, NULL, text);
    for (struct io_save *save = io->saves; save; save = save->next)
        if (save->state <= SAVE_WAITING)
            io_save_fail(save, ERR_OWNED, text, false);
    io_retry(io); /* refuses the deferred saves */
}

static void renew_done(struct io_work *w)
{
    struct io *io = w->io;
    struct io_owner *o = &io->owner;
    o->renewing = false;
    if (w->err == ERR_OWNED) {
        io_owner_lost(io, w->why.text);
    } else if (w->err == ERR_STALE) {
        log_info("lease left why=\"%s\"", w->why.text);
        uv_timer_stop(&o->renew);
    } else if (w->err && w->err != o->warned) {
        log_warn("lease not renewed why=\"%s\"", w->why.text);
    }
    o->warned = w->err;
    free(w);
}

static void renew_due(uv_timer_t *timer)
{
    struct io *io = timer->data;
    struct owner_work *r = io->owner.renewing ? NULL : owner_work_new(io, renew_run, renew_done);
    if (!r)
        return;
    io->owner.renewing = true;
    io_work_start(io, &r->work);
}

void io_owner_keep(struct io *io)
{
    struct io_owner *o = &io->owner;
    if (!io->quitting && !uv_is_active((uv_handle_t *)&o->renew))
        uv_timer_start(&o->renew, renew_due, (uint64_t)o->renew_ms, (uint64_t)o->renew_ms);
}

static void look_due(uv_timer_t *timer)
{
    struct io *io = timer->data;
    struct io_work *w = io->owner.waiting;
    io->owner.waiting = NULL;
    if (w)
        io_work_start_dir(io, w);
}

void io_owner_wait(struct io *io, struct io_work *w)
{
    io_owner_forget(io);
    w->err = OK;
    io->owner.waiting = w;
    uv_timer_start(&io->owner.look, look_due, LOOK_MS, 0);
}

void io_owner_forget(struct io *io)
{
    struct io_work *w = io->owner.waiting;
    io->owner.waiting = NULL;
    if (!w)
        return;
    w->err = ERR_CANCELED;
    w->done(w);
}

static void release_done(struct io_work *w)
{
    if (w->err)
        log_warn("lease not released why=\"%s\"", w->why.text);
    free(w);
}

void io_owner_release(struct io *io)
{
    struct owner_work *r = owner_work_new(io, release_run, release_done);
    uv_timer_stop(&io->owner.renew);
    uv_timer_stop(&io->owner.look);
    io_owner_forget(io);
    if (r)
        io_work_start_dir(io, &r->work);
}

err_t io_owner_start(struct io *io)
{
    struct io_owner *o = &io->owner;
    const char *control = io->ticket.control, *slash = strrchr(control, '/');
    if (slash && strncmp(control, SYSTEM_SOCKETS, strlen(SYSTEM_SOCKETS)) != 0)
        snprintf(o->dtd_dir, sizeof(o->dtd_dir), "%.*s", (int)(slash - control), control);
    uv_timer_init(&io->loop, &o->renew);
    uv_timer_init(&io->loop, &o->look);
    o->renew.data = o->look.data = io;
    o->lease.fd = -1;
    return uv_mutex_init(&o->lock) ? ERR_NOMEM : OK;
}

void io_owner_stop(struct io *io)
{
    uv_close((uv_handle_t *)&io->owner.renew, NULL);
    uv_close((uv_handle_t *)&io->owner.look, NULL);
}

void io_owner_fini(struct io *io)
{
    ckpt_lease_drop(&io->owner.lease);
    uv_mutex_destroy(&io->owner.lock);
}
