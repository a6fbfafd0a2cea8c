/* Commands to a job's processes. A command follows from the phase and from the commands already sent on the process's
 * present connection, so that a reconnect of the process or of a new dtd-control needs no code of its own. A command
 * that cannot be sent is sent by the next tick. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"

#include <stdlib.h>
#include <string.h>

#define IO_LINES_MS 1000 /* dtd-io appends to a file on a shared file system: one write per second, not per step */
#define IO_LINES_KEEP (64u << 10)

/* A full disk must not keep finished processes alive; their end is recorded when there is space. */
bool job_may_quit(const struct job *j)
{
    return j->end_logged || j->leaving || j->jobs->outbox.err;
}

static enum worker_command wanted_command(const struct job *j, const struct job_worker *w)
{
    switch ((enum job_phase)j->phase.state) {
    case PHASE_LOADING:
        return w->epoch != j->epoch ? COMMAND_START : COMMAND_NONE;
    case PHASE_STEPPING:
        return j->moving && !w->done && w->command != COMMAND_STOP ? COMMAND_STOP : COMMAND_NONE;
    case PHASE_ENDING:
        return w->idle || w->command == COMMAND_END ? COMMAND_NONE : COMMAND_END;
    case PHASE_DRAINING:
        return w->done || w->command == COMMAND_STOP ? COMMAND_NONE : COMMAND_STOP;
    case PHASE_QUITTING:
        return w->command == COMMAND_QUIT || !job_may_quit(j) ? COMMAND_NONE : COMMAND_QUIT;
    default:
        return COMMAND_NONE;
    }
}

/* Numbers nodes in the order of ranks, as the dtd-ios are. */
static int *nodes_of(const struct job *j)
{
    int *ret = calloc((size_t)j->n_workers, sizeof(*ret));
    for (int k = 0; ret && k < j->n_workers; k++)
        while (j->ios[ret[k]].p.node != j->workers[k].p.node)
            ret[k]++;
    return ret;
}

static err_t send_start(struct job *j, int rank)
{
    struct job_worker *w = &j->workers[rank];
    bool many = j->n_ios > 1;
    int *node_of = many ? nodes_of(j) : NULL;
    if (many && !node_of)
        return ERR_NOMEM;
    const struct worker_start s = {.epoch = j->epoch,
                                   .rank = rank,
                                   .world = j->n_workers,
                                   .yaml = j->layout.yaml ? j->layout.yaml : j->yaml,
                                   .resume_path = j->resume_path,
                                   .resume_step = j->resume_step,
                                   .node_of = node_of,
                                   .secret = many ? j->secret : NULL,
                                   .address = w->p.node->address[0] ? w->p.node->address : NULL};
    err_t err = j->jobs->out->worker_start(w->p.attend, &s);
    free(node_of);
    if (!err) {
        w->epoch = j->epoch;
        w->ready = w->done = w->idle = false;
    }
    return err;
}

static void command_worker(struct job *j, int rank)
{
    struct job_worker *w = &j->workers[rank];
    enum worker_command want = wanted_command(j, w);
    err_t err = OK;
    switch (want) {
    case COMMAND_NONE:
        return;
    case COMMAND_START:
        err = send_start(j, rank);
        break;
    case COMMAND_END:
        err = j->jobs->out->worker_end(w->p.attend, w->epoch);
        break;
    case COMMAND_STOP:
        err = j->jobs->out->worker_stop(w->p.attend, w->epoch, j->save_at_stop || j->moving);
        break;
    case COMMAND_QUIT:
        err = j->jobs->out->worker_quit(w->p.attend);
        break;
    }
    if (!err)
        w->command = want;
}

/* Keeps the last 64 KiB that were sent, for a dtd-io that replaces this one. */
static void send_io_lines(struct job *j)
{
    struct buf *b = &j->io_lines;
    bool all = j->phase.state >= PHASE_QUITTING || j->jobs->nodes->next; /* another leader would read them there */
    if (b->len == j->io_sent || (!all && clock_mono_ms() < j->io_lines_ms))
        return;
    if (j->jobs->out->io_metrics(job_committer(j)->p.attend, (const char *)b->data + j->io_sent, b->len - j->io_sent))
        return;
    j->io_lines_ms = clock_mono_ms() + IO_LINES_MS;
    j->io_sent = b->len;
    if (b->len > 2 * IO_LINES_KEEP) {
        const uint8_t *from = memchr(b->data + b->len - IO_LINES_KEEP, '\n', IO_LINES_KEEP);
        size_t cut = (size_t)(from - b->data) + 1;
        memmove(b->data, b->data + cut, b->len - cut);
        b->len -= cut;
        j->io_sent -= cut;
    }
}

static void send_epoch(struct job *j, struct job_io *io)
{
    const struct job_io *committer = job_committer(j);
    struct io_epoch e = {.epoch = j->epoch,
                         .resume_step = job_io_step(j),
                         .submitted_ms = j->submitted_ms,
                         .generation = jobs_generation(j->jobs),
                         .yaml = j->yaml,
                         .committer = io == committer,
                         .n_ios = j->n_ios,
                         .node = io->p.node->name,
                         .committer_node = committer->p.node->name};
    e.ranks = calloc((size_t)j->n_workers + 1, sizeof(*e.ranks));
    for (int k = 0; e.ranks && j->n_ios > 1 && k < j->n_workers; k++)
        if (j->workers[k].p.node == io->p.node)
            e.ranks[e.n_ranks++] = k;
    if (e.ranks && j->jobs->out->io_epoch(io->p.attend, &e) == OK)
        io->epoch = j->epoch;
    free(e.ranks);
}

static void command_committer(struct job *j, struct job_io *io)
{
    struct rpc_call *call = io->p.attend;
    bool in_epoch = job_in_epoch(j);
    if (io->scan == SCAN_DUE && (j->phase.state == PHASE_SCANNING || in_epoch) &&
        j->jobs->out->io_scan(call, j->yaml, j->submitted_ms, jobs_generation(j->jobs)) == OK) {
        io->scan = SCAN_ASKED;
        job_scan_forget(j);
    }
    if (io->scan == SCAN_DONE && in_epoch && io->epoch != j->epoch)
        send_epoch(j, io);
    if (io->epoch && io->epoch == j->epoch)
        send_io_lines(j);
    if (io->epoch && io->epoch == j->epoch)
        job_usage_send(j, call);
    if (io->epoch)
        job_usage_ask(j, call);
    if (j->history == HISTORY_DUE && io->epoch && j->jobs->out->io_history(call, j->history_at) == OK)
        j->history = HISTORY_ASKED;
}

/* The dtd-ios of other nodes write the parts of their workers and do not touch folders. */
static void command_io(struct job *j, struct job_io *io)
{
    struct rpc_call *call = io->p.attend;
    if (!call)
        return;
    if (io == job_committer(j))
        command_committer(j, io);
    else if (job_in_epoch(j) && io->epoch != j->epoch)
        send_epoch(j, io);
    if (j->phase.state == PHASE_QUITTING && job_workers_gone(j) && job_may_quit(j) && !io->quit_sent &&
        j->jobs->out->io_quit(call) == OK)
        io->quit_sent = true;
}

void job_commands(struct job *j)
{
    for (int i = 0; i < j->n_ios; i++)
        command_io(j, &j->ios[i]);
    for (int k = 0; k < j->n_workers; k++)
        if (j->workers[k].p.attend)
            command_worker(j, k);
    job_profile_tick(j);
}
