/* A save whose parts are written on several nodes. The committer looks for the indexes of the other nodes' parts until
 * it has found all of them. The others look for its commit, or for the file by which it declares the save failed. The
 * committer takes the number of ranks from the Save requests of its own workers. */
#include "daemon/io/io.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct look_work {
    struct io_work work;
    struct io_save *save;
    struct ckpt_shared_save at;
    char *root;
    int *missing;             /* of the committer: ranks whose part is missing */
    struct ckpt_part **found; /* the part found for each of them, or NULL */
    int n_missing;
};

static void look_free(struct look_work *l)
{
    for (int i = 0; i < l->n_missing && l->found; i++)
        ckpt_part_free(l->found[i]);
    free(l->found);
    free(l->missing);
    free(l->root);
    free(l);
}

/* ---- in a thread ---- */

static void parts_run(struct io_work *w)
{
    struct look_work *l = (struct look_work *)w;
    w->err = ckpt_held(l->root, &l->at.me, &w->why);
    for (int i = 0; i < l->n_missing && !w->err; i++) {
        w->err = ckpt_index_get(&l->at, l->missing[i], &l->found[i], &w->why);
        if (w->err == ERR_AGAIN)
            w->err = OK;
    }
}

static void outcome_run(struct io_work *w)
{
    struct look_work *l = (struct look_work *)w;
    w->err = ckpt_outcome(&l->at, &w->why);
}

/* ---- on the loop ---- */

/* Prints the missing ranks as "2, 3, 8", as many as fit. */
static void ranks_name(const struct look_work *l, char *ret, size_t size)
{
    size_t at = 0;
    ret[0] = '\0';
    for (int i = 0; i < l->n_missing; i++) {
        if (l->found[i] || l->save->parts[l->missing[i]].state == PART_WRITTEN)
            continue;
        if (at + 24 > size) {
            snprintf(ret + at, size - at, ", ..");
            return;
        }
        at += (size_t)snprintf(ret + at, size - at, "%s%d", at ? ", " : "", l->missing[i]);
    }
}

static void parts_take(struct io_save *s, struct look_work *l)
{
    for (int i = 0; i < l->n_missing; i++) {
        struct io_part *p = &s->parts[l->missing[i]];
        if (!l->found[i] || p->state == PART_WRITTEN)
            continue;
        p->part = l->found[i];
        p->state = PART_WRITTEN;
        l->found[i] = NULL;
        s->n_written++;
    }
}

static void fail_timeout(struct io_save *s, const struct look_work *l)
{
    char ranks[256], text[512];
    if (s->committer) {
        ranks_name(l, ranks, sizeof(ranks));
        snprintf(text, sizeof(text),
                 "no part arrived within %" PRId64 " ms from rank %s of %d: see io.log on the nodes of these ranks",
                 s->io->save_wait_ms, ranks, s->world);
    } else {
        snprintf(text, sizeof(text),
                 "the committing node did not commit it within %" PRId64 " ms: see io.log on that node",
                 2 * s->io->save_wait_ms);
    }
    io_save_fail(s, ERR_TIMEOUT, text, false);
}

static void look_done(struct io_work *w)
{
    struct look_work *l = (struct look_work *)w;
    struct io_save *s = l->save;
    struct io *io = w->io;
    s->look.running = false;
    if (s->state == SAVE_WAITING && s->committer && !w->err)
        parts_take(s, l);
    if (s->state != SAVE_WAITING)
        ; /* the save has been decided meanwhile */
    else if (s->committer ? s->n_written == s->world : !w->err)
        s->committer ? io_save_commit(s) : io_save_succeed(s, NULL, NULL);
    else if (w->err && w->err != ERR_AGAIN)
        io_save_fail(s, w->err, w->why.text, !s->committer);
    else if (clock_mono_ms() >= s->look.deadline_ms)
        fail_timeout(s, l);
    else
        io_poll_again(io, &s->look);
    look_free(l);
    io_save_sweep(io);
}

static struct look_work *look_new(struct io_save *s)
{
    struct look_work *l = calloc(1, sizeof(*l));
    if (!l)
        return NULL;
    l->save = s;
    l->root = strdup(s->io->spec.root);
    l->missing = calloc((size_t)s->world, sizeof(*l->missing));
    l->found = calloc((size_t)s->world, sizeof(*l->found));
    if (!l->root || !l->missing || !l->found) {
        look_free(l);
        return NULL;
    }
    l->at = (struct ckpt_shared_save){.root = l->root, .me = s->me, .step = s->step, .world = s->world};
    for (int r = 0; r < s->world && s->committer; r++)
        if (s->parts[r].state != PART_WRITTEN)
            l->missing[l->n_missing++] = r;
    return l;
}

void io_gather_look(struct io_save *s)
{
    struct look_work *l = look_new(s);
    if (!l) {
        s->look.running = false;
        io_poll_again(s->io, &s->look);
        return;
    }
    l->work.run = s->committer ? parts_run : outcome_run;
    l->work.done = look_done;
    io_work_start(s->io, &l->work);
}

void io_gather_begin(struct io_save *s)
{
    s->state = SAVE_WAITING;
    log_debug("save waits step=%" PRId64 " epoch=%" PRIu64 " written=%d of=%d", s->step, s->epoch, s->n_written,
              s->world);
    io_poll_begin(s->io, &s->look, s->committer ? s->io->save_wait_ms : 2 * s->io->save_wait_ms);
}
