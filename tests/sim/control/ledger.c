#include "tests/sim/control/ledger.h"

#include "daemon/control/job/internal.h"
#include "tests/lib/versions.h"
#include "tests/sim/bugs.h"
#include "tests/sim/control/process.h"
#include "tests/sim/control/versions.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_JOBS 256
#define MAX_EPOCHS 512
#define MAX_RANKS 32
#define STALE_US (2 * US_PER_S)     /* how old the state in an isolated node's answer may be */
#define CROWDED_US (20 * US_PER_S)  /* time for killing old workers, in which a node may exceed its slots */
#define CANCELED_US (30 * US_PER_S) /* how long a cancelled job may end otherwise: its end may have been under way */

struct epoch {
    uint64_t index; /* of its record */
    int n;
    struct {
        int node, slot, pid; /* pid of the process in it now; 0: none */
        int left;            /* pid of the last process that left it */
    } member[MAX_RANKS];
    uint32_t done; /* bits of ranks */
    bool has_incident;
};

struct job_facts {
    uint64_t request;
    bool has_new_key;         /* older dtds cannot read its spec */
    uint64_t canceled, ended; /* index of the record; 0: none */
    int64_t canceled_us;
    enum state_end end;
    uint64_t newest;
    struct epoch *epochs[MAX_EPOCHS];
    bool was_reported; /* a client got an answer with this job */
    int64_t reported_us;
    char reported_end[16]; /* "": none yet */
    int64_t reported_end_us;
};

static struct {
    struct job_facts jobs[MAX_JOBS];
    uint64_t n_jobs;
    struct {
        uint64_t index; /* index of the record that drained it; 0: not drained */
        int64_t crowded_since;
    } nodes[MAX_HOSTS + 1];
    uint64_t refused[MAX_JOBS];
    int n_refused;
} all;

void ledger_init(void)
{
    memset(&all, 0, sizeof(all));
}

bool ledger_is_drained(int node)
{
    return all.nodes[node].index != 0;
}

uint64_t ledger_jobs(void)
{
    return all.n_jobs;
}

static struct job_facts *job_of(uint64_t id)
{
    if (!id || id > all.n_jobs)
        broken("there is no job %" PRIu64, id);
    return &all.jobs[id];
}

static struct epoch *epoch_of(struct job_facts *j, uint64_t epoch)
{
    assert(epoch < MAX_EPOCHS);
    if (!j->epochs[epoch])
        j->epochs[epoch] = calloc(1, sizeof(struct epoch));
    return j->epochs[epoch];
}

/* ---- records ---- */

static void on_submitted(uint64_t index, const struct record *r, uint64_t id)
{
    uint64_t request;
    const char *name = strstr(r->submitted.spec, "name: job-");
    assert(name && id < MAX_JOBS);
    request = strtoull(name + 10, NULL, 10);
    if (id != all.n_jobs + 1)
        broken("the record at %" PRIu64 " creates job %" PRIu64 " after job %" PRIu64, index, id, all.n_jobs);
    for (uint64_t i = 1; i <= all.n_jobs; i++)
        if (all.jobs[i].request == request)
            broken("request %" PRIu64 " has created job %" PRIu64 " and now creates %" PRIu64, request, i, id);
    for (int i = 0; i < all.n_refused; i++)
        if (all.refused[i] == request)
            broken("request %" PRIu64 " was refused but is job %" PRIu64, request, id);
    all.jobs[++all.n_jobs].request = request;
    all.jobs[all.n_jobs].has_new_key = strstr(r->submitted.spec, VERSIONS_KEY) != NULL;
}

static void on_epoch(uint64_t index, const struct record *r)
{
    struct job_facts *j = job_of(r->job);
    const uint64_t number = r->epoch.epoch;
    struct epoch *e = epoch_of(j, number);
    if (number != j->newest + 1)
        broken("job %" PRIu64 " goes from epoch %" PRIu64 " to %" PRIu64, r->job, j->newest, number);
    if (number > 1 && !epoch_of(j, number - 1)->has_incident)
        broken("job %" PRIu64 " has epoch %" PRIu64 ", but no incident is recorded for the epoch before", r->job,
               number);
    if (j->canceled && world.now_us - j->canceled_us > CANCELED_US)
        broken("job %" PRIu64 " was canceled but gets epoch %" PRIu64, r->job, number);
    j->newest = number;
    e->index = index;
    e->n = r->epoch.n_members;
    assert(e->n <= MAX_RANKS);
    for (int k = 0; k < e->n; k++) {
        e->member[k].node = machine_of(r->epoch.members[k].node)->host->id;
        e->member[k].slot = r->epoch.members[k].slot;
        for (int i = 0; i < k; i++)
            if (e->member[i].node == e->member[k].node && e->member[i].slot == e->member[k].slot)
                broken("ranks %d and %d of job %" PRIu64 " have the same slot", i, k, r->job);
    }
    trace("job %d has epoch %d from step %d, rank 0 on node %d", (int)r->job, (int)number, (int)r->epoch.resume_step,
          e->member[0].node);
}

static void on_ended(uint64_t index, const struct record *r)
{
    struct job_facts *j = job_of(r->job);
    const struct epoch *e = epoch_of(j, j->newest);
    if (r->ended.end == END_DONE && (!j->newest || e->done != (1u << e->n) - 1))
        broken("job %" PRIu64 " is done, but not all its ranks are", r->job);
    if (r->ended.end == END_CANCELED && !j->canceled)
        broken("job %" PRIu64 " ends as canceled, but no user canceled it", r->job);
    if (r->ended.end != END_CANCELED && j->canceled && world.now_us - j->canceled_us > CANCELED_US)
        broken("job %" PRIu64 " was canceled but ends otherwise", r->job);
    if (versions_have_clock() && r->ended.reason && strstr(r->ended.reason, "run.max_seconds"))
        broken("job %" PRIu64 " has reached its limit: %s", r->job, r->ended.reason);
    trace("job %d has ended (%d): %s", (int)r->job, (int)r->ended.end, r->ended.reason ? r->ended.reason : "");
    j->ended = index;
    j->end = r->ended.end;
}

void ledger_killed(const struct machine *m, uint64_t job)
{
    if (job && job <= all.n_jobs && all.jobs[job].has_new_key && !all.jobs[job].ended && !versions_can_read(m))
        broken("host %d leads with an older dtd and kills a process of job %" PRIu64 ", which it cannot read",
               m->host->id, job);
}

void ledger_record(uint64_t index, const struct record *r, const struct state_result *result)
{
    if (result->err || result->repeated)
        return;
    switch (r->kind) {
    case RECORD_SUBMITTED:
        on_submitted(index, r, result->job);
        break;
    case RECORD_DESIRED:
        if (!job_of(r->job)->canceled) {
            job_of(r->job)->canceled = index;
            job_of(r->job)->canceled_us = world.now_us;
        }
        break;
    case RECORD_EPOCH:
        on_epoch(index, r);
        break;
    case RECORD_ENDED:
        on_ended(index, r);
        break;
    case RECORD_INCIDENT:
        if (!r->incident.event) /* else an event of the nodes or of a slow rank, which ends no epoch */
            epoch_of(job_of(r->job), r->incident.epoch)->has_incident = true;
        break;
    case RECORD_NODE_ADMIN:
        all.nodes[machine_of(r->node_admin.name)->host->id].index = r->node_admin.drained ? index : 0;
        break;
    default:
        break;
    }
}

/* ---- commands from control to processes ---- */

err_t __real_rpc_worker_start(struct rpc_call *attend, const struct worker_start *s);
err_t __wrap_rpc_worker_start(struct rpc_call *attend, const struct worker_start *s);
bool __real_job_allocate(struct job *j);
bool __wrap_job_allocate(struct job *j);

static uint64_t applied_here(void)
{
    return voters[world.current->id].applied;
}

/* The node that sends START must use the newest epoch that it has applied, and must not have applied a cancel or an
 * end. */
err_t __wrap_rpc_worker_start(struct rpc_call *attend, const struct worker_start *s)
{
    struct worker_start sent = *s;
    const char *name = strstr(s->yaml, "name: job-");
    if (bug(BUG_OLD_EPOCH_STARTED) && s->epoch > 1)
        sent.epoch--;
    uint64_t request = strtoull(name + 10, NULL, 10), known = 0, id = 0;
    for (uint64_t i = 1; i <= all.n_jobs; i++)
        id = all.jobs[i].request == request ? i : id;
    struct job_facts *j = job_of(id);
    for (uint64_t e = 1; e <= j->newest; e++)
        known = j->epochs[e]->index <= applied_here() ? e : known;
    if (!world.current->is_dying && sent.epoch != known)
        broken("host %d starts epoch %" PRIu64 " of job %" PRIu64 ", but the newest recorded one is %" PRIu64,
               world.current->id, sent.epoch, id, known);
    /* If a cancel is applied in the same event as the epoch, control sees it after the START. */
    if ((j->canceled && j->canceled <= applied_here() && j->canceled_us < world.now_us) ||
        (j->ended && j->ended <= applied_here()))
        broken("host %d starts a rank of job %" PRIu64 ", which was %s before", world.current->id, id,
               j->ended ? "ended" : "canceled");
    return __real_rpc_worker_start(attend, &sent);
}

static bool is_drained(const char *node)
{
    uint64_t index = all.nodes[machine_of(node)->host->id].index;
    return index && index <= applied_here();
}

/* Counts the slots that the jobs of this leader have on a node. */
static int slots_taken(const struct jobs *jobs, const struct node_view *a)
{
    int taken = 0;
    for (const struct job *j = jobs->head; j; j = j->next)
        for (int k = 0; j->placed && k < j->n_workers; k++)
            taken += j->workers[k].p.node == a;
    return taken;
}

/* A drained node gets no worker that it did not have, and no node gets more workers than it has slots. */
bool __wrap_job_allocate(struct job *j)
{
    const struct node_view *before[MAX_RANKS] = {NULL};
    int n = j->n_workers;
    for (int k = 0; k < n; k++)
        before[k] = j->placed ? j->workers[k].p.node : NULL;
    bool taken = __real_job_allocate(j);
    for (int k = 0; taken && k < j->n_workers; k++) {
        bool is_new = true;
        for (int i = 0; i < n; i++)
            is_new = is_new && before[i] != j->workers[k].p.node;
        if (is_new && is_drained(j->workers[k].p.node->name))
            broken("job %" PRIu64 " is placed on %s, which is drained", j->id, j->workers[k].p.node->name);
        if (slots_taken(j->jobs, j->workers[k].p.node) > machine_of(j->workers[k].p.node->name)->slots)
            broken("job %" PRIu64 " is placed on %s, whose slots other jobs have", j->id, j->workers[k].p.node->name);
    }
    return taken;
}

/* ---- what processes did ---- */

void ledger_begun(uint64_t job, int pid, uint64_t epoch, int rank, const struct machine *m, int slot, int64_t step)
{
    struct job_facts *j = job_of(job);
    (void)step;
    if (epoch > j->newest)
        broken("job %" PRIu64 " begins epoch %" PRIu64 ", which is not recorded", job, epoch);
    struct epoch *e = epoch_of(j, epoch);
    if (rank >= e->n || e->member[rank].node != m->host->id || e->member[rank].slot != slot)
        broken("slot %d of node %d begins as rank %d of epoch %" PRIu64 " of job %" PRIu64
               ", but is recorded in another slot",
               slot, m->host->id, rank, epoch, job);
    if (e->member[rank].pid)
        broken("rank %d of epoch %" PRIu64 " of job %" PRIu64 " runs twice", rank, epoch, job);
    if (e->member[rank].left == pid)
        broken("rank %d begins epoch %" PRIu64 " of job %" PRIu64 " again, which it has left", rank, epoch, job);
    e->member[rank].pid = pid;
}

void ledger_left(uint64_t job, int pid)
{
    struct job_facts *j = job_of(job);
    for (uint64_t i = 1; i <= j->newest; i++)
        for (int k = 0; k < j->epochs[i]->n; k++)
            if (j->epochs[i]->member[k].pid == pid) {
                j->epochs[i]->member[k].pid = 0;
                j->epochs[i]->member[k].left = pid;
            }
}

void ledger_done(uint64_t job, uint64_t epoch, int rank)
{
    epoch_of(job_of(job), epoch)->done |= 1u << rank;
}

static int workers_on(int node)
{
    int n = 0;
    for (uint64_t id = 1; id <= all.n_jobs; id++)
        for (uint64_t i = 1; i <= all.jobs[id].newest; i++)
            for (int k = 0; k < all.jobs[id].epochs[i]->n; k++)
                n += all.jobs[id].epochs[i]->member[k].pid && all.jobs[id].epochs[i]->member[k].node == node;
    return n;
}

void ledger_tick(void)
{
    for (int id = 1; id <= world.n_hosts; id++) {
        int n = workers_on(id);
        if (n <= machines[id].slots || !machines[id].host->is_up)
            all.nodes[id].crowded_since = world.now_us;
        else if (world.now_us - all.nodes[id].crowded_since > CROWDED_US)
            broken("node %d has %d slots and %d workers", id, machines[id].slots, n);
    }
}

/* ---- answers to clients ---- */

void ledger_answered_submitted(uint64_t request, uint64_t job)
{
    struct job_facts *j = job_of(job);
    if (j->request != request)
        broken("request %" PRIu64 " is answered with job %" PRIu64 ", which belongs to request %" PRIu64, request, job,
               j->request);
    if (!j->was_reported)
        j->reported_us = world.now_us;
    j->was_reported = true;
}

void ledger_answered_refused(uint64_t request, const char *text)
{
    for (uint64_t i = 1; i <= all.n_jobs; i++)
        if (all.jobs[i].request == request)
            broken("request %" PRIu64 " is job %" PRIu64 " but is refused: %s", request, i, text);
    assert(all.n_refused < MAX_JOBS);
    all.refused[all.n_refused++] = request;
}

void ledger_answered_canceled(uint64_t job)
{
    const struct job_facts *j = job_of(job);
    if (!j->canceled && !j->ended)
        broken("a client got the answer that job %" PRIu64 " is canceled, which is not recorded", job);
}

static const char *name_of(enum state_end end)
{
    return end == END_DONE ? "done" : end == END_FAILED ? "failed" : end == END_CANCELED ? "canceled" : "";
}

void ledger_answered_status(uint64_t job, const char *state, int64_t asked_us)
{
    struct job_facts *j = job_of(job);
    bool is_end = strcmp(state, "done") == 0 || strcmp(state, "failed") == 0 || strcmp(state, "canceled") == 0;
    if (is_end && (!j->ended || strcmp(state, name_of(j->end)) != 0))
        broken("a client got the answer that job %" PRIu64 " is %s, but the log has \"%s\"", job, state,
               name_of(j->end));
    if (!is_end && j->reported_end[0] && asked_us - j->reported_end_us > STALE_US)
        broken("a client got the answer that job %" PRIu64 " is %s, after the answer %s", job, state, j->reported_end);
    if (is_end && !j->reported_end[0]) {
        snprintf(j->reported_end, sizeof(j->reported_end), "%s", state);
        j->reported_end_us = world.now_us;
    }
}

void ledger_answered_no_job(uint64_t job, int64_t asked_us)
{
    const struct job_facts *j = job_of(job);
    if (j->was_reported && asked_us - j->reported_us > STALE_US)
        broken("a client got the answer that there is no job %" PRIu64 ", after an answer that named it", job);
}

/* ---- end of a run ---- */

bool ledger_all_ended(void)
{
    for (uint64_t i = 1; i <= all.n_jobs; i++)
        if (!all.jobs[i].ended)
            return false;
    return true;
}

void ledger_print(void)
{
    for (uint64_t i = 1; i <= all.n_jobs; i++) {
        const struct job_facts *j = &all.jobs[i];
        if (j->ended)
            continue;
        printf("job %" PRIu64 "%s, epoch %" PRIu64 ", processes %d", i, j->canceled ? " (canceled)" : "", j->newest,
               process_count(i));
        for (int k = 0; j->newest && k < j->epochs[j->newest]->n; k++)
            printf(" %d:%d", j->epochs[j->newest]->member[k].node, j->epochs[j->newest]->member[k].slot);
        for (int id = 1; id <= world.n_hosts; id++) {
            struct job *x =
                machines[id].node && machines[id].node->jobs.leads ? jobs_find(&machines[id].node->jobs, i) : NULL;
            if (x)
                printf("; node %d leads and has it in %s: %s", id, fsm_name(&x->phase), x->reason);
        }
        printf("\n");
    }
}
