/* A job whose workers run a command of the user. They have no connection to control: they are configured by their
 * environment, with the variables that torchrun sets, are controlled by signals, and report only by their exit status.
 * Their processes start after the epoch record is committed. The epoch's c10d store opens with the first process on
 * each node; with run.master_addr there is none, and rank 0 opens one of its own. Neither a process nor the store is
 * used by a later epoch. */
#include "daemon/control/job/internal.h"

#include "common/base/caller.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/ports.h"
#include "daemon/control/local/error_file.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How long slots have to be free before a command is restarted to use them. The restart costs the work since the
 * script's last checkpoint, so a node that is up for a moment only must not cause it; nodes that join together are
 * taken by one restart. */
#define GROW_MS 5000
#define LEAVE_MS 12000 /* time of grace when this dtd shuts down: below the supervisor's limit for a shutdown */

/* ---- position of a rank ---- */

struct place {
    int group, n_groups; /* number of its node in the order of ranks; number of the job's nodes */
    int local_rank, local_world;
};

static struct place place_of(const struct job *j, int rank)
{
    struct place p = {.n_groups = j->n_ios};
    for (int k = 0; k < j->n_workers; k++)
        if (j->workers[k].p.node == j->workers[rank].p.node) {
            p.local_rank += k < rank;
            p.local_world++;
        }
    while (p.group < j->n_ios && j->ios[p.group].p.node != j->workers[rank].p.node)
        p.group++;
    return p;
}

/* ---- the rendezvous of an epoch ---- */

/* Ports below the range from which Linux takes those of outgoing connections (32768 to 60999), so none of these is in
 * use by chance. Jobs of a user that run at the same time get different ones, and so do PORTS_PER_JOB attempts in a
 * row: a worker of an earlier attempt that still runs on a node that was cut off cannot connect to the next one. Users
 * with a private dtd each have jobs of the same numbers, hence the uid, times a prime number. */
#define PORT_FIRST 20000
#define PORTS 10000
#define PORTS_PER_JOB 16

static bool own_rendezvous(const struct job *j)
{
    return j->spec.run.master_addr[0] != '\0';
}

/* A range may be too small for different ports of all jobs; then the script reports that its port is in use, and the
 * next attempt has another one. */
static int master_port(const struct job *j)
{
    const char *own = j->spec.run.ports;
    struct ports range;
    if (j->spec.run.master_port)
        return (int)j->spec.run.master_port;
    if (!ports_parse(own && own[0] ? own : j->jobs->local->conf->cluster.ports, &range) || !range.first)
        range = (struct ports){PORT_FIRST, PORT_FIRST + PORTS - 1};
    const uint64_t n = (uint64_t)ports_count(&range), attempts = n < PORTS_PER_JOB ? n : PORTS_PER_JOB;
    return range.first + (int)((j->id + j->uid * 97) % (n / attempts) * attempts + j->epoch % attempts);
}

/* A node outside a cluster has no address, and is the job's only one. */
static const char *master_addr(const struct job *j)
{
    const char *given = j->spec.run.master_addr, *first = j->workers[0].p.node->address;
    if (strcmp(given, JOB_MASTER_AUTO) != 0)
        return given;
    return first[0] ? first : "127.0.0.1";
}

/* ---- the environment ---- */

struct env {
    char **words;
    int n;
    bool failed;
};

static void env_add(struct env *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void env_add(struct env *e, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&e->words[e->n], fmt, ap) >= 0)
        e->n++;
    else
        e->failed = true;
    va_end(ap);
}

/* Lists the GPUs in the order of local ranks: scripts select device LOCAL_RANK. */
static void env_add_gpus(struct env *e, const struct job *j, int rank)
{
    char list[CHANNEL_MAX_SLOTS * 8] = "";
    size_t at = 0;
    for (int k = 0; k < j->n_workers; k++)
        if (j->workers[k].p.node == j->workers[rank].p.node && at < sizeof(list))
            at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%d", at ? "," : "", j->workers[k].device);
    env_add(e, "CUDA_VISIBLE_DEVICES=%s", list);
}

#define OWN_VARIABLES 32 /* at least the number of variables that env_fill_own and the defaults add */

static void env_fill_own(struct env *e, const struct job *j, int rank)
{
    struct place p = place_of(j, rank);
    bool own = own_rendezvous(j);
    env_add(e, "MASTER_ADDR=%s", own ? master_addr(j) : "127.0.0.1");
    if (own) /* otherwise each node adds its port of dtd's store */
        env_add(e, "MASTER_PORT=%d", master_port(j));
    env_add(e, "RANK=%d", rank);
    env_add(e, "WORLD_SIZE=%d", j->n_workers);
    env_add(e, "LOCAL_RANK=%d", p.local_rank);
    env_add(e, "LOCAL_WORLD_SIZE=%d", p.local_world);
    env_add(e, "GROUP_RANK=%d", p.group);
    env_add(e, "GROUP_WORLD_SIZE=%d", p.n_groups);
    env_add(e, "ROLE_NAME=default");
    env_add(e, "ROLE_RANK=%d", rank);
    env_add(e, "ROLE_WORLD_SIZE=%d", j->n_workers);
    env_add(e, "TORCHELASTIC_RESTART_COUNT=%d", j->restarts);
    env_add(e, "TORCHELASTIC_MAX_RESTARTS=%" PRId64, j->spec.run.restarts);
    env_add(e, "TORCHELASTIC_RUN_ID=%" PRIu64, j->id);
    env_add(e, "TORCHELASTIC_USE_AGENT_STORE=%s", own ? "False" : "True"); /* False: rank 0 opens the store */
    if (job_gpus(&j->spec))
        env_add_gpus(e, j, rank);
}

static bool is_among(char *const *words, int n, const char *word)
{
    bool found = false;
    for (int i = 0; i < n && !found; i++)
        found = caller_same_key(words[i], word);
    return found;
}

/* Adds the words whose names are not among the variables so far, nor among those that the node adds. */
static void env_add_others(struct env *e, char *const *words, int n_words)
{
    static char *const of_node[] = {"MASTER_PORT=", ERROR_FILE_ENV "="};
    int n = e->n;
    for (int i = 0; i < n_words; i++)
        if (!is_among(e->words, n, words[i]) && !is_among(of_node, 2, words[i]))
            env_add(e, "%s", words[i]);
}

static void env_add_default(struct env *e, const char *word)
{
    if (!is_among(e->words, e->n, word))
        env_add(e, "%s", word);
}

/* The variables of this rank take precedence over those of run.env, and these over those of the caller. A name that the
 * caller has several times stays so. */
static void env_fill(struct env *e, const struct job *j, int rank)
{
    const struct job_run *run = &j->spec.run;
    env_fill_own(e, j, rank);
    env_add_others(e, run->env, run->n_env);
    env_add_others(e, run->caller_env, run->n_caller_env);
    env_add_default(e, "TORCH_NCCL_ASYNC_ERROR_HANDLING=1");
    env_add_default(e, "PYTHONUNBUFFERED=1"); /* otherwise print() is not in the log until 8 KiB are full */
    if (place_of(j, rank).local_world > 1)
        env_add_default(e, "OMP_NUM_THREADS=1");
}

void job_command_env_free(char **env, int n)
{
    for (int i = 0; i < n; i++)
        free(env[i]);
    free(env);
}

static err_t env_make(const struct job *j, int rank, char ***ret, int *ret_n)
{
    size_t most = (size_t)j->spec.run.n_env + (size_t)j->spec.run.n_caller_env + OWN_VARIABLES;
    struct env e = {.words = calloc(most, sizeof(*e.words))};
    if (!e.words)
        return ERR_NOMEM;
    env_fill(&e, j, rank);
    if (e.failed) {
        job_command_env_free(e.words, e.n);
        return ERR_NOMEM;
    }
    *ret = e.words;
    *ret_n = e.n;
    return OK;
}

/* ---- exits ---- */

/* Puts into the reason how the workers of a canceled job are being stopped. command_stopped replaces it by how they
 * ended. */
static void say_how_it_stops(struct job *j)
{
    if (job_ends_late(j))
        job_reason_how(j, "; its workers received SIG%s, and those that still run after %" PRId64 " s are killed",
                       sigabbrev_np(j->spec.run.stop_signal), job_grace_ms(j) / 1000);
}

static void terminate_workers(struct job *j)
{
    bool any = false;
    for (int k = 0; k < j->n_workers; k++) {
        struct job_process *p = &j->workers[k].p;
        if (p->killed || !job_process_running(p))
            continue;
        job_process_kill(j, p, j->spec.run.stop_signal);
        any = true;
    }
    if (!any)
        return;
    j->signaled_ms = clock_mono_ms();
    j->killed_ms = 0;
    say_how_it_stops(j);
}

static bool was_killed(const struct job_worker *w)
{
    return w->p.signal == SIGKILL && w->p.has_exit && w->p.exit_signal == SIGKILL;
}

static bool ended_after_signal(const struct job_worker *w)
{
    return w->p.killed && w->p.has_exit && !was_killed(w);
}

static bool is_unknown(const struct job_worker *w)
{
    return w->p.killed && !w->p.has_exit;
}

/* Adds "worker rank 0, 1 WORDS", or "all 8 workers WORDS". */
static void add_words(const struct job *j, bool (*pick)(const struct job_worker *w), const char *words, char *ret,
                      size_t size)
{
    char who[80], all[40];
    size_t at = strlen(ret);
    int n = job_workers_name(j, pick, who, sizeof(who));
    if (!n)
        return;
    snprintf(all, sizeof(all), "all %d workers", n);
    if (n == j->n_workers && n > 1)
        snprintf(who, sizeof(who), "%s", all);
    else if (strlen(who) + 1 == sizeof(who)) /* the list is too long */
        snprintf(who, sizeof(who), "%d of %d workers", n, j->n_workers);
    snprintf(ret + at, size - at, "%s%s %s", at ? ", " : "", who, words);
}

static void name_kill(const struct job *j, char *ret, size_t size)
{
    if (j->signaled_ms)
        snprintf(ret, size, "received SIGKILL after %" PRId64 " s of grace",
                 (j->killed_ms - j->signaled_ms + 500) / 1000);
    else
        snprintf(ret, size, "received SIGKILL at once");
}

/* Reports how the workers ended. That some of them ended by their signal is reported only for a canceled job: after the
 * failure of a worker it is what is expected. */
static void command_stopped(struct job *j)
{
    char killed[64], after[64], words[400] = "";
    if (!j->signaled_ms && !j->killed_ms)
        return;
    name_kill(j, killed, sizeof(killed));
    snprintf(after, sizeof(after), "ended after SIG%s", sigabbrev_np(j->spec.run.stop_signal));
    if (job_ends_late(j))
        add_words(j, ended_after_signal, after, words, sizeof(words));
    add_words(j, was_killed, killed, words, sizeof(words));
    if (job_ends_late(j))
        add_words(j, is_unknown, "ended with an unknown status", words, sizeof(words));
    log_info("workers have stopped job=%" PRIu64 " how=\"%s\"", j->id, words);
    if (job_ends_late(j))
        job_reason_how(j, "%s%s", words[0] ? "; " : "", words);
    else if (words[0] && !j->leaving)
        job_incident_killed(j, j->reason, words);
    j->signaled_ms = j->killed_ms = 0;
}

static bool ended_well(const struct job_process *p)
{
    return p->state == PROCESS_ENDED && p->has_exit && !p->exit_signal && p->exit_status == 0;
}

static void command_changed(struct job *j, struct job_worker *w)
{
    w->done = w->epoch == j->epoch && ended_well(&w->p);
    w->ready = w->done || (w->epoch == j->epoch && w->p.state == PROCESS_LIVE);
}

void job_command_stranded(struct job *j, const struct job_process *p)
{
    char seen[400];
    if (!job_in_epoch(j) || j->stopping || own_rendezvous(j))
        return;
    snprintf(seen, sizeof(seen), "dtd-control of %s was restarted, and the c10d store of epoch %" PRIu64 " is lost",
             p->node->name, j->epoch);
    job_epoch_again(j, seen);
}

static bool command_adopted(struct job *j)
{
    bool all = true;
    const struct job_process *stranded = NULL;
    for (int k = 0; k < j->n_workers; k++) {
        struct job_worker *w = &j->workers[k];
        w->epoch = w->epoch ? w->epoch : j->epoch; /* nodes of an older version do not report it */
        command_changed(j, w);
        all = all && w->ready;
        if (job_process_running(&w->p) && w->p.stranded && !own_rendezvous(j))
            stranded = &w->p;
    }
    if (stranded)
        job_command_stranded(j, stranded);
    else if (all)
        job_move(j, PHASE_STEPPING, "all workers are running");
    return stranded || all;
}

/* ---- its phases ---- */

static bool command_gather(struct job *j)
{
    job_move(j, PHASE_SCANNING, "a command has no dtd-io");
    return true;
}

static bool is_on_lost_node(const struct job_worker *w)
{
    return w->p.node->state == NODE_LOST;
}

/* Processes of a command start only after their epoch record is committed. */
static bool command_load(struct job *j)
{
    if (!job_none(j, is_on_lost_node)) {
        job_epoch_lost(j, 0, false, "a node was lost before epoch %" PRIu64 " started there", j->epoch);
        return true;
    }
    j->kind->need(j, true);
    if (j->stopping)
        return true;
    if (!job_none(j, job_worker_is_not_ready))
        return false;
    job_move(j, PHASE_STEPPING, "all workers are running");
    job_incident_recovered(j);
    return true;
}

/* Steps and checkpoints of a command are unknown to dtd, so hangs are not detected, and the job grows by a restart, as
 * torchrun's agents do. */
static void command_watch(struct job *j)
{
    job_look_for_room(j, "a restart");
    if (j->may_grow && j->n_workers < j->max_workers && clock_mono_ms() - j->room_since_ms >= GROW_MS)
        job_grow(j);
}

static int64_t command_grace_ms(const struct job *j)
{
    int64_t grace_ms = job_grace_ms(j);
    if (j->leaving)
        return grace_ms < LEAVE_MS ? grace_ms : LEAVE_MS;
    if (j->signaled_ms && j->grace_ms < 0) /* canceled while it recovers: the time counts from the signal */
        grace_ms -= clock_mono_ms() - j->signaled_ms;
    return grace_ms > 0 ? grace_ms : 0;
}

/* A command is controlled only by signals. */
static void command_signal(struct job *j)
{
    bool quits = j->phase.state == PHASE_QUITTING && (job_ends_late(j) || job_may_quit(j));
    if ((j->phase.state == PHASE_ENDING || quits) && !job_past_deadline(j))
        terminate_workers(j);
}

/* ---- its processes ---- */

/* There is no dtd-io and no connection to watch. A worker that has exited is not restarted in the same epoch. */
static void command_need(struct job *j, bool workers)
{
    for (int k = 0; k < j->n_workers && !j->stopping && workers; k++) {
        struct job_worker *w = &j->workers[k];
        if (w->epoch == j->epoch || !job_process_is_due(&w->p))
            continue;
        if (!job_worker_start(j, w))
            return;
        if (w->p.state == PROCESS_ASKED)
            w->epoch = j->epoch;
    }
}

static err_t command_complete_spawn(struct job *j, const struct job_process *p, struct process_spawn *x,
                                    char ***ret_env)
{
    *ret_env = NULL;
    x->command = j->spec.command;
    x->n_command = j->spec.n_command;
    x->epoch = j->epoch;
    x->store_node = own_rendezvous(j) ? NULL : job_committer(j)->p.node->name;
    x->caller = j->spec.run.caller;
    err_t err = env_make(j, job_process_rank(j, p), ret_env, &x->n_env);
    x->env = *ret_env;
    return err;
}

/* There is no dtd-io whose exit would release the job on its node. */
static void command_left(struct job *j, struct job_io *io)
{
    if (node_view_release(io->p.node, j->jobs, j->id, false))
        log_info("job not released, the node cannot be reached job=%" PRIu64 " node=%s", j->id, io->p.node->name);
}

static const char *command_worker_state(const struct job *j, const struct job_worker *w)
{
    static const char *const names[] = {[PROCESS_ABSENT] = "absent",
                                        [PROCESS_ASKED] = "starting",
                                        [PROCESS_LIVE] = "running",
                                        [PROCESS_ENDED] = "ended"};
    return names[w->p.state];
}

const struct job_kind job_kind_command = {
    .done = "every worker ended with exit status 0",
    .gather = command_gather,
    .load = command_load,
    .watch = command_watch,
    .adopted = command_adopted,
    .grace_ms = command_grace_ms,
    .need = command_need,
    .complete_spawn = command_complete_spawn,
    .changed = command_changed,
    .stopped = command_stopped,
    .left = command_left,
    .command = command_signal,
    .worker_state = command_worker_state,
};
