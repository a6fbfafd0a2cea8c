/* Coordination of the dtd-ios of one job, one per node, which share only the checkpoint directory. They exchange state
 * by files in it (common/ckpt/shared.h), so that checkpoints can be committed while control is unreachable. Network
 * file systems do not notify other nodes of new files. Therefore a dtd-io polls. It notices a file late by at most a
 * sixteenth of the time for which it has waited: a save that takes long is not delayed by much, and causes little load
 * on the file server. One timer serves all polls. */
#include "daemon/io/io.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define WAIT_PER_PAUSE 16
#define MIN_PAUSE_MS 2   /* parts of one save are written at about the same time on all nodes; a look takes 0.1 ms */
#define MAX_PAUSE_MS 500 /* a user notices no delay of a save that has taken more than 8 s */
#define MAX_RANK 65536   /* bounds the memory that one malformed EPOCH command can allocate */

/* ---- polling ---- */

static void poll_soonest(const struct io_poll *p, int64_t *ret)
{
    if (p->on && !p->running && p->next_ms < *ret)
        *ret = p->next_ms;
}

static void poll_due(uv_timer_t *timer);

static void poll_timer_arm(struct io *io)
{
    int64_t next = INT64_MAX, now = clock_mono_ms();
    poll_soonest(&io->share.ready, &next);
    for (const struct io_save *s = io->saves; s; s = s->next)
        poll_soonest(&s->look, &next);
    if (next < INT64_MAX && !io->stopped)
        uv_timer_start(&io->poll_timer, poll_due, next > now ? (uint64_t)(next - now) : 0, 0);
}

void io_poll_begin(struct io *io, struct io_poll *p, int64_t wait_ms)
{
    int64_t now = clock_mono_ms();
    *p = (struct io_poll){.on = true, .since_ms = now, .next_ms = now, .deadline_ms = now + wait_ms};
    poll_timer_arm(io);
}

void io_poll_again(struct io *io, struct io_poll *p)
{
    int64_t now = clock_mono_ms(), pause = (now - p->since_ms) / WAIT_PER_PAUSE;
    p->next_ms = now + (pause < MIN_PAUSE_MS ? MIN_PAUSE_MS : pause < MAX_PAUSE_MS ? pause : MAX_PAUSE_MS);
    poll_timer_arm(io);
}

static bool take_turn(struct io_poll *p)
{
    if (!p->on || p->running || p->next_ms > clock_mono_ms())
        return false;
    return p->running = true;
}

static void ready_look(struct io *io);

static void poll_due(uv_timer_t *timer)
{
    struct io *io = timer->data;
    if (io->quitting)
        return;
    if (take_turn(&io->share.ready))
        ready_look(io);
    for (struct io_save *s = io->saves; s; s = s->next)
        if (take_turn(&s->look))
            io_gather_look(s);
    poll_timer_arm(io);
}

/* ---- the EPOCH command ---- */

static int rank_compare(const void *x, const void *y)
{
    const int *a = x, *b = y;
    return *a < *b ? -1 : *a > *b;
}

static err_t ranks_take(const struct io_command *c, int **ret, int *ret_n)
{
    size_t n = 0;
    int *ranks = c->n_ranks <= MAX_RANK ? calloc(c->n_ranks + 1, sizeof(*ranks)) : NULL;
    if (!ranks)
        return c->n_ranks <= MAX_RANK ? ERR_NOMEM : ERR_LIMIT;
    for (size_t i = 0; i < c->n_ranks; i++)
        ranks[i] = c->ranks[i];
    if (c->n_ranks)
        qsort(ranks, c->n_ranks, sizeof(*ranks), rank_compare);
    for (size_t i = 0; i < c->n_ranks; i++)
        if (!n || ranks[i] != ranks[n - 1])
            ranks[n++] = ranks[i];
    *ret = ranks;
    *ret_n = (int)n;
    return OK;
}

err_t io_share_take(struct io *io, const struct io_command *c)
{
    struct io_share *s = &io->share, next = {0};
    err_t err = ranks_take(c, &next.ranks, &next.n_ranks);
    if (err)
        return err;
    next.on = c->n_ios > 1 && next.n_ranks > 0;
    next.committer = c->committer;
    next.me = (struct ckpt_writer_id){
        .submitted_ms = c->submitted_ms, .epoch = c->epoch, .writer = s->me.writer, .generation = c->generation};
    snprintf(next.me.job, sizeof(next.me.job), "%s", io->job);
    snprintf(next.committer_node, sizeof(next.committer_node), "%s", c->committer_node);
    snprintf(next.node, sizeof(next.node), "%s", c->node);
    if (!next.node[0] && gethostname(next.node, sizeof(next.node) - 1))
        next.node[0] = '\0';
    free(s->ranks);
    *s = next;
    return OK;
}

bool io_share_owns(const struct io_share *s, int rank)
{
    return !s->n_ranks || bsearch(&rank, s->ranks, (size_t)s->n_ranks, sizeof(*s->ranks), rank_compare);
}

int io_share_count(const struct io_share *s, int world)
{
    int n = s->n_ranks ? 0 : world;
    for (int i = 0; i < s->n_ranks; i++)
        n += s->ranks[i] >= 0 && s->ranks[i] < world;
    return n;
}

/* ---- the directory of an epoch ---- */

struct ready_work {
    struct io_work work;
    struct ckpt_writer_id me;
    int64_t resume_step;
    char *root;
    struct io_owner *owner;
    uint64_t take_over;
};

static void prepare_run(struct io_work *w)
{
    struct ready_work *r = (struct ready_work *)w;
    w->err = io_owner_take(r->owner, r->root, &r->me, r->take_over, false, &w->why);
    if (!w->err)
        w->err = ckpt_prepare(r->root, &r->me, r->resume_step, &w->why);
}

static void prepared_run(struct io_work *w)
{
    struct ready_work *r = (struct ready_work *)w;
    w->err = ckpt_prepared(r->root, &r->me, &w->why);
}

/* Logs and reports a refusal once, not after every poll. */
static void refusal_report(struct io *io, err_t err, const char *text)
{
    struct io_share *s = &io->share;
    if (s->refusal == err && strcmp(s->why.text, text) == 0)
        return;
    s->refusal = err;
    snprintf(s->why.text, sizeof(s->why.text), "%s", text);
    log_error("epoch not prepared epoch=%" PRIu64 " why=\"%s\"", io->epoch, text);
    io_report(io, IO_SAVE_FAILED, io->epoch, NULL, NULL, text);
}

/* The committer has not written that the directory is ready: it does not run, or it uses another directory. */
static void not_ready(struct io *io)
{
    struct io_share *s = &io->share;
    struct why why;
    if (clock_mono_ms() < s->ready.deadline_ms)
        return;
    why_set(&why, ERR_INVALID,
            "checkpoint.dir %s on node %s is not the directory that %s%s sees: after %" PRId64
            " ms it is not marked as ready for epoch %" PRIu64 "; use a shared file system",
            io->spec.root, s->node, s->committer_node[0] ? "node " : "the committing node", s->committer_node,
            io->word_wait_ms, io->epoch);
    refusal_report(io, ERR_INVALID, why.text);
}

static void ready_done(struct io_work *w)
{
    struct ready_work *r = (struct ready_work *)w;
    struct io *io = w->io;
    struct io_share *s = &io->share;
    if (r->me.epoch == io->epoch) {
        s->ready.running = false;
        s->ready.on = w->err && w->err != ERR_STALE && w->err != ERR_OWNED;
        io->prepared = !w->err;
        if (!w->err)
            s->refusal = OK;
        else if (w->err == ERR_OWNED)
            io_owner_lost(io, w->why.text);
        else if (w->err == ERR_AGAIN && s->committer)
            ; /* it observes the lease of another job, for at most CKPT_LEASE_MISSED renewals */
        else if (w->err == ERR_AGAIN)
            not_ready(io);
        else
            refusal_report(io, w->err, w->why.text);
        if (s->ready.on)
            io_poll_again(io, &s->ready);
        if (s->committer && !w->err)
            io_owner_keep(io);
        io_retry(io);
    }
    free(r->root);
    free(r);
}

static void ready_look(struct io *io)
{
    struct io_share *s = &io->share;
    struct ready_work *r = calloc(1, sizeof(*r));
    char *root = strdup(io->spec.root);
    if (!r || !root) {
        free(r);
        free(root);
        s->ready.running = false;
        io_poll_again(io, &s->ready);
        return;
    }
    *r = (struct ready_work){.me = s->me,
                             .resume_step = io->resume_step,
                             .root = root,
                             .owner = &io->owner,
                             .take_over = io->spec.take_over};
    r->work.run = s->committer ? prepare_run : prepared_run;
    r->work.done = ready_done;
    if (s->committer)
        io_work_start_dir(io, &r->work);
    else
        io_work_start(io, &r->work);
}

/* Starts immediately and not by the timer, because commands after this one need the prepared directory. */
void io_share_prepare(struct io *io)
{
    io->prepared = false;
    io_poll_begin(io, &io->share.ready, io->word_wait_ms);
    io->share.ready.running = true;
    ready_look(io);
}

err_t io_share_start(struct io *io)
{
    uv_timer_init(&io->loop, &io->poll_timer);
    io->poll_timer.data = io;
    uint64_t *writer = &io->share.me.writer;
    return getrandom(writer, sizeof(*writer), 0) == (ssize_t)sizeof(*writer) ? OK : ERR_IO;
}

void io_share_stop(struct io *io)
{
    uv_close((uv_handle_t *)&io->poll_timer, NULL);
}

void io_share_fini(struct io *io)
{
    free(io->share.ranks);
}
