#include "tests/sim/control/ledger.h"

#include "daemon/control/job/internal.h"
#include "tests/lib/versions.h"
#include "tests/sim/bugs.h"
#include "tests/sim/control/branches.h"
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
#define BRANCHED_US (15 * US_PER_S) /* how long an answer may be of the generation before */
#define GENERATION_EPOCHS 1000      /* EPOCHS_PER_GENERATION of daemon/control/job/epoch.c */
#define CANCELED_US (30 * US_PER_S) /* how long a cancelled job may end otherwise: its end may have been under way */

struct epoch {
    uint64_t number, index; /* index: of its record; 0: not recorded yet */
    int n;
    struct {
        int node, slot, pid; /* pid of the process in it now; 0: none */
        int left;            /* pid of the last process that left it */
    } member[MAX_RANKS];
    uint32_t done; /* bits of ranks */
    bool has_incident;
};

struct job_facts {
    uint64_t id, index; /* index: of the record that has made it */
    uint64_t request;
    bool has_new_key;         /* older dtds cannot read its spec */
    uint64_t canceled, ended; /* index of the record; 0: none */
    int64_t canceled_us;
    enum state_end end;
    uint64_t newest; /* number of the newest epoch; 0: none yet */
    struct epoch *epochs[MAX_EPOCHS];
    int n_epochs;
    bool was_reported; /* a client got an answer with this job */
    int64_t reported_us;
    char reported_end[16]; /* "": none yet */
    int64_t reported_end_us;
};

struct history {
    struct job_facts jobs[MAX_JOBS]; /* from 1 on */
    uint64_t n_jobs, next_job;       /* next_job: the number of the next one */
    uint64_t generation;
    struct {
        uint64_t index; /* index of the record that drained it; 0: not drained */
        int64_t crowded_since;
    } nodes[MAX_HOSTS + 1];
    uint64_t refused[MAX_JOBS];
    int n_refused;
};

static struct history *histories[CHECK_MAX_BRANCHES]; /* NULL: there is no such branch */
static int newest;
static struct history *parent; /* while the records of a new branch are read; else NULL */

void ledger_init(void)
{
    memset(histories, 0, sizeof(histories));
    newest = 0;
    histories[0] = calloc(1, sizeof(*histories[0]));
    assert(histories[0]);
    histories[0]->next_job = 1;
}

bool ledger_is_drained(int node)
{
    return histories[newest]->nodes[node].index != 0;
}

uint64_t ledger_jobs(void)
{
    return histories[newest]->n_jobs;
}

uint64_t ledger_number(uint64_t nth)
{
    return histories[newest]->jobs[nth].id;
}

static struct job_facts *find_job(struct history *h, uint64_t id)
{
    for (uint64_t i = h->n_jobs; i; i--)
        if (h->jobs[i].id == id)
            return &h->jobs[i];
    return NULL;
}

static struct job_facts *job_of(struct history *h, uint64_t id)
{
    struct job_facts *j = find_job(h, id);
    if (!j)
        broken("there is no job %" PRIu64, id);
    return j;
}

uint64_t ledger_nth(const struct machine *m, uint64_t job)
{
    struct history *h = histories[m->branch];
    return (uint64_t)(job_of(h, job) - h->jobs);
}

static struct epoch *find_epoch(struct job_facts *j, uint64_t number)
{
    for (int i = j->n_epochs - 1; i >= 0; i--)
        if (j->epochs[i]->number == number)
            return j->epochs[i];
    return NULL;
}

static struct epoch *epoch_of(struct job_facts *j, uint64_t number)
{
    struct epoch *e = find_epoch(j, number);
    if (e)
        return e;
    assert(j->n_epochs < MAX_EPOCHS);
    e = j->epochs[j->n_epochs++] = calloc(1, sizeof(struct epoch));
    assert(e);
    e->number = number;
    return e;
}

/* ---- records ---- */

/* The other branches must not have given the number to another job. */
static void check_number(const struct history *h, uint64_t index, uint64_t id)
{
    for (int i = 0; i <= newest; i++) {
        struct history *other = histories[i];
        const struct job_facts *j = other != h ? find_job(other, id) : NULL;
        if (j && j->index != index)
            broken("job %" PRIu64 " of the record at %" PRIu64 " has the number of another one, at %" PRIu64, id, index,
                   j->index);
    }
}

static void on_submitted(struct history *h, uint64_t index, const struct record *r, uint64_t id)
{
    uint64_t request;
    const char *name = strstr(r->submitted.spec, "name: job-");
    assert(name && h->n_jobs + 1 < MAX_JOBS);
    request = strtoull(name + 10, NULL, 10);
    check_number(h, index, id);
    if (id != h->next_job)
        broken("the record at %" PRIu64 " creates job %" PRIu64 ", but the next one is %" PRIu64, index, id,
               h->next_job);
    for (uint64_t i = 1; i <= h->n_jobs; i++)
        if (h->jobs[i].request == request)
            broken("request %" PRIu64 " has created job %" PRIu64 " and now creates %" PRIu64, request, h->jobs[i].id,
                   id);
    for (int i = 0; i < h->n_refused; i++)
        if (h->refused[i] == request)
            broken("request %" PRIu64 " was refused but is job %" PRIu64, request, id);
    h->next_job++;
    struct job_facts *j = &h->jobs[++h->n_jobs];
    j->id = id;
    j->index = index;
    j->request = request;
    j->has_new_key = strstr(r->submitted.spec, VERSIONS_KEY) != NULL;
}

/* A recovery leaves room for epochs that only the lost voters had. */
static uint64_t next_epoch(const struct history *h, const struct job_facts *j)
{
    uint64_t least = j->newest && h->generation > 1 ? (h->generation - 1) * GENERATION_EPOCHS : 0;
    return (j->newest > least ? j->newest : least) + 1;
}

/* Processes run on, and are in the same epochs in both branches. */
static void carry_processes(const struct job_facts *j, struct epoch *e)
{
    struct job_facts *before = parent ? find_job(parent, j->id) : NULL;
    const struct epoch *old = before ? find_epoch(before, e->number) : NULL;
    for (int r = 0; old && e->index == old->index && r < e->n; r++)
        e->member[r] = old->member[r];
    e->done = old && e->index == old->index ? old->done : 0;
}

static void on_epoch(struct history *h, uint64_t index, const struct record *r)
{
    struct job_facts *j = job_of(h, r->job);
    const uint64_t number = r->epoch.epoch;
    if (number != next_epoch(h, j))
        broken("job %" PRIu64 " goes from epoch %" PRIu64 " to %" PRIu64, r->job, j->newest, number);
    if (j->newest && !epoch_of(j, j->newest)->has_incident)
        broken("job %" PRIu64 " has epoch %" PRIu64 ", but no incident is recorded for the epoch before", r->job,
               number);
    if (j->canceled && world.now_us - j->canceled_us > CANCELED_US)
        broken("job %" PRIu64 " was canceled but gets epoch %" PRIu64, r->job, number);
    struct epoch *e = epoch_of(j, number);
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
    carry_processes(j, e);
    trace("job %d has epoch %d from step %d, rank 0 on node %d", (int)r->job, (int)number, (int)r->epoch.resume_step,
          e->member[0].node);
}

static void on_ended(struct history *h, uint64_t index, const struct record *r)
{
    struct job_facts *j = job_of(h, r->job);
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
    const struct job_facts *j = find_job(histories[m->branch], job);
    if (j && j->has_new_key && !j->ended && !versions_can_read(m))
        broken("host %d leads with an older dtd and kills a process of job %" PRIu64 ", which it cannot read",
               m->host->id, job);
}

static void on_lineage(struct history *h, int branch, const struct record *r)
{
    for (int i = 0; i < r->lineage.n_gone; i++)
        h->nodes[branch_host(branch, r->lineage.gone[i])].index = 0; /* a node that has left is not drained */
    if (r->lineage.generation <= h->generation)
        broken("generation %" PRIu64 " follows generation %" PRIu64, r->lineage.generation, h->generation);
    h->generation = r->lineage.generation;
    branch_generation(branch, h->generation);
    h->next_job += r->lineage.generation > 1 ? STATE_RECOVERY_GAP : 0;
}

void ledger_record(int branch, uint64_t index, const struct record *r, const struct state_result *result)
{
    if (!histories[branch]) {
        histories[branch] = calloc(1, sizeof(*histories[branch]));
        assert(histories[branch]);
        histories[branch]->next_job = 1;
        newest = branch;
    }
    struct history *h = histories[branch];
    if (result->err || result->repeated)
        return;
    switch (r->kind) {
    case RECORD_SUBMITTED:
        on_submitted(h, index, r, result->job);
        break;
    case RECORD_DESIRED:
        if (!job_of(h, r->job)->canceled) {
            job_of(h, r->job)->canceled = index;
            job_of(h, r->job)->canceled_us = world.now_us;
        }
        break;
    case RECORD_EPOCH:
        on_epoch(h, index, r);
        break;
    case RECORD_ENDED:
        on_ended(h, index, r);
        break;
    case RECORD_INCIDENT:
        if (!r->incident.event) /* else an event of the nodes or of a slow rank, which ends no epoch */
            epoch_of(job_of(h, r->job), r->incident.epoch)->has_incident = true;
        break;
    case RECORD_NODE_ADMIN:
        h->nodes[machine_of(r->node_admin.name)->host->id].index = r->node_admin.drained ? index : 0;
        break;
    case RECORD_NODE_LEFT:
        h->nodes[machine_of(r->node_left.name)->host->id].index = 0;
        break;
    case RECORD_LINEAGE:
        on_lineage(h, branch, r);
        break;
    default:
        break;
    }
}

void ledger_fork_begin(int from)
{
    parent = histories[from];
}

/* What the records of the new branch have is lost by no node of it, so all answers from now on have to know it. */
void ledger_fork_end(int to)
{
    struct history *h = histories[to];
    assert(h && parent);
    if (h == parent) {
        parent = NULL;
        return;
    }
    for (uint64_t i = 1; i <= h->n_jobs; i++) {
        h->jobs[i].was_reported = true;
        h->jobs[i].reported_us = world.now_us;
    }
    memcpy(h->refused, parent->refused, sizeof(h->refused));
    h->n_refused = parent->n_refused;
    parent = NULL;
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

static struct history *history_here(void)
{
    return histories[voters[world.current->id].branch];
}

/* The node that sends START must use the newest epoch that it has applied, and must not have applied a cancel or an
 * end. */
err_t __wrap_rpc_worker_start(struct rpc_call *attend, const struct worker_start *s)
{
    struct worker_start sent = *s;
    struct history *h = history_here();
    const char *name = strstr(s->yaml, "name: job-");
    if (bug(BUG_OLD_EPOCH_STARTED) && s->epoch > 1)
        sent.epoch--;
    uint64_t request = strtoull(name + 10, NULL, 10), known = 0, id = 0;
    for (uint64_t i = 1; i <= h->n_jobs; i++)
        id = h->jobs[i].request == request ? h->jobs[i].id : id;
    struct job_facts *j = job_of(h, id);
    for (int e = 0; e < j->n_epochs; e++)
        if (j->epochs[e]->index && j->epochs[e]->index <= applied_here() && j->epochs[e]->number > known)
            known = j->epochs[e]->number;
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
    uint64_t index = history_here()->nodes[machine_of(node)->host->id].index;
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
    struct job_facts *j = job_of(histories[m->branch], job);
    struct epoch *e = find_epoch(j, epoch);
    (void)step;
    if (!e || !e->index)
        broken("job %" PRIu64 " begins epoch %" PRIu64 ", which is not recorded", job, epoch);
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

static void leave_epochs(struct job_facts *j, int pid)
{
    for (int i = 0; i < j->n_epochs; i++)
        for (int k = 0; k < j->epochs[i]->n; k++)
            if (j->epochs[i]->member[k].pid == pid) {
                j->epochs[i]->member[k].pid = 0;
                j->epochs[i]->member[k].left = pid;
            }
}

void ledger_left(uint64_t job, int pid)
{
    for (int i = 0; i <= newest; i++) {
        struct job_facts *j = find_job(histories[i], job);
        if (j)
            leave_epochs(j, pid);
    }
}

/* The process may be in the epoch in several branches, and only control knows in which it goes on. */
void ledger_done(uint64_t job, uint64_t epoch, int rank, const struct machine *m)
{
    const struct epoch *e = epoch_of(job_of(histories[m->branch], job), epoch);
    for (int i = 0; i <= newest; i++) {
        struct job_facts *j = find_job(histories[i], job);
        struct epoch *same = j ? find_epoch(j, epoch) : NULL;
        if (same && same->index == e->index)
            same->done |= 1u << rank;
    }
}

static int workers_on(const struct history *h, int node)
{
    int n = 0;
    for (uint64_t id = 1; id <= h->n_jobs; id++)
        for (int i = 0; i < h->jobs[id].n_epochs; i++)
            for (int k = 0; k < h->jobs[id].epochs[i]->n; k++)
                n += h->jobs[id].epochs[i]->member[k].pid && h->jobs[id].epochs[i]->member[k].node == node;
    return n;
}

void ledger_tick(void)
{
    for (int id = 1; id <= world.n_hosts; id++) {
        struct history *h = histories[machines[id].branch];
        int n = workers_on(h, id);
        if (n <= machines[id].slots || !machines[id].host->is_up)
            h->nodes[id].crowded_since = world.now_us;
        else if (world.now_us - h->nodes[id].crowded_since > CROWDED_US)
            broken("node %d has %d slots and %d workers", id, machines[id].slots, n);
    }
}

/* ---- answers to clients ---- */

/* NULL: an answer may be of the branch from which the computer has just come. */
static struct history *history_of(const struct machine *m)
{
    bool is_settled = !m->branched_us || world.now_us - m->branched_us > BRANCHED_US;
    return is_settled ? histories[m->branch] : NULL;
}

void ledger_answered_submitted(const struct machine *m, uint64_t request, uint64_t job)
{
    struct history *h = history_of(m);
    if (!h)
        return;
    struct job_facts *j = job_of(h, job);
    if (j->request != request)
        broken("request %" PRIu64 " is answered with job %" PRIu64 ", which belongs to request %" PRIu64, request, job,
               j->request);
    if (!j->was_reported)
        j->reported_us = world.now_us;
    j->was_reported = true;
}

void ledger_answered_refused(const struct machine *m, uint64_t request, const char *text)
{
    struct history *h = history_of(m);
    for (uint64_t i = 1; h && i <= h->n_jobs; i++)
        if (h->jobs[i].request == request)
            broken("request %" PRIu64 " is job %" PRIu64 " but is refused: %s", request, h->jobs[i].id, text);
    assert(!h || h->n_refused < MAX_JOBS);
    if (h)
        h->refused[h->n_refused++] = request;
}

void ledger_answered_canceled(const struct machine *m, uint64_t job)
{
    struct history *h = history_of(m);
    const struct job_facts *j = h ? job_of(h, job) : NULL;
    if (j && !j->canceled && !j->ended)
        broken("a client got the answer that job %" PRIu64 " is canceled, which is not recorded", job);
}

static const char *name_of(enum state_end end)
{
    return end == END_DONE ? "done" : end == END_FAILED ? "failed" : end == END_CANCELED ? "canceled" : "";
}

void ledger_answered_status(const struct machine *m, uint64_t job, const char *state, int64_t asked_us)
{
    struct history *h = history_of(m);
    if (!h)
        return;
    struct job_facts *j = job_of(h, job);
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

void ledger_answered_no_job(const struct machine *m, uint64_t job, int64_t asked_us)
{
    struct history *h = history_of(m);
    const struct job_facts *j = h ? find_job(h, job) : NULL;
    if (j && j->was_reported && asked_us - j->reported_us > STALE_US)
        broken("a client got the answer that there is no job %" PRIu64 ", after an answer that named it", job);
}

/* ---- end of a run ---- */

bool ledger_all_ended(void)
{
    const struct history *h = histories[newest];
    for (uint64_t i = 1; i <= h->n_jobs; i++)
        if (!h->jobs[i].ended)
            return false;
    return true;
}

static void print_job(struct job_facts *j)
{
    const struct epoch *e = j->newest ? epoch_of(j, j->newest) : NULL;
    printf("job %" PRIu64 "%s, epoch %" PRIu64 ", processes %d", j->id, j->canceled ? " (canceled)" : "", j->newest,
           process_count(j->id));
    for (int k = 0; e && k < e->n; k++)
        printf(" %d:%d", e->member[k].node, e->member[k].slot);
    for (int id = 1; id <= world.n_hosts; id++) {
        struct job *x =
            machines[id].node && machines[id].node->jobs.leads ? jobs_find(&machines[id].node->jobs, j->id) : NULL;
        if (x)
            printf("; node %d leads and has it in %s: %s", id, fsm_name(&x->phase), x->reason);
    }
    printf("\n");
}

void ledger_print(void)
{
    struct history *h = histories[newest];
    for (uint64_t i = 1; i <= h->n_jobs; i++)
        if (!h->jobs[i].ended)
            print_job(&h->jobs[i]);
}
