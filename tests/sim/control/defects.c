/* Planted bugs of control as a whole, by the linker's --wrap between two of its functions: each omits one function or
 * one check. */
#include "common/base/clock.h"
#include "daemon/control/cluster/internal.h"
#include "daemon/control/cluster/text_sum.h"
#include "daemon/control/job/internal.h"
#include "daemon/control/log/sum.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"
#include "daemon/control/state/internal.h"
#include "tests/sim/bugs.h"
#include "tests/sim/control/ledger.h"
#include "tests/sim/control/machine.h"
#include "tests/sim/world.h"

#include <stdlib.h>

/* ---- records ---- */

err_t __real_outbox_add(struct outbox *o, const struct record *record, outbox_cb cb);
err_t __wrap_outbox_add(struct outbox *o, const struct record *record, outbox_cb cb);
err_t __real_replica_propose(const struct replica *n, const struct record *r, log_callback cb, void *arg);
err_t __wrap_replica_propose(const struct replica *n, const struct record *r, log_callback cb, void *arg);

struct early {
    struct outbox *outbox;
    uint64_t job;
    outbox_cb cb;
};

static void recorded_early(void *arg)
{
    const struct early *e = arg;
    const struct state_result result = {.job = e->job};
    e->cb(e->outbox->owner, e->job, &result);
}

/* The callback reads the state, so the record is applied early, too. */
static void record_early(struct outbox *o, const struct record *record, outbox_cb cb)
{
    struct state_result result = {0};
    if (state_apply(o->replica->state, record, &result))
        return;
    struct early *e = calloc(1, sizeof(*e));
    *e = (struct early){o, record->job, cb};
    world_after(world.current, 1, recorded_early, e);
}

err_t __wrap_outbox_add(struct outbox *o, const struct record *record, outbox_cb cb)
{
    if (bug(BUG_INCIDENT_FORGOTTEN) && record->kind == RECORD_INCIDENT)
        return OK;
    if (bug(BUG_END_FORGOTTEN) && record->kind == RECORD_ENDED)
        return OK;
    if (bug(BUG_EPOCH_NOT_FENCED) && record->kind == RECORD_EPOCH) {
        record_early(o, record, cb);
        return __real_outbox_add(o, record, NULL);
    }
    return __real_outbox_add(o, record, cb);
}

struct proposal_answer {
    log_callback cb;
    void *arg;
};

static void tell_early(void *arg)
{
    const struct proposal_answer *t = arg;
    const struct state_result result = {.err = OK};
    t->cb(t->arg, OK, 0, &result);
}

static void ignore_answer(void *arg, err_t err, uint64_t index, const void *result)
{
    (void)arg, (void)err, (void)index, (void)result;
}

err_t __wrap_replica_propose(const struct replica *n, const struct record *r, log_callback cb, void *arg)
{
    struct record changed = *r;
    if (bug(BUG_REQUEST_FORGOTTEN))
        changed.has_request = false;
    if (bug(BUG_CANCEL_NOT_LOGGED) && r->kind == RECORD_DESIRED) {
        struct proposal_answer *t = calloc(1, sizeof(*t));
        *t = (struct proposal_answer){cb, arg};
        world_after(world.current, 1, tell_early, t);
        return __real_replica_propose(n, r, ignore_answer, NULL);
    }
    return __real_replica_propose(n, &changed, cb, arg);
}

/* ---- time ---- */

int64_t __real_state_clock_ms(struct state_clock *c);
int64_t __wrap_state_clock_ms(struct state_clock *c);

int64_t __wrap_state_clock_ms(struct state_clock *c)
{
    return bug(BUG_CLOCK_IS_DATE) ? clock_wall_ms() : __real_state_clock_ms(c);
}

/* ---- leadership ---- */

void __real_cluster_role(struct cluster *c);
void __wrap_cluster_role(struct cluster *c);
void __real_job_adopt(struct job *j, bool late);
void __wrap_job_adopt(struct job *j, bool late);

void __wrap_cluster_role(struct cluster *c)
{
    if (!bug(BUG_LEAD_KEPT) || !c->leads)
        __real_cluster_role(c);
}

void __wrap_job_adopt(struct job *j, bool late)
{
    __real_job_adopt(j, late);
    if (bug(BUG_CANCEL_FORGOTTEN) && j->outcome == END_CANCELED && j->phase.state < PHASE_DRAINING)
        j->stopping = false;
}

/* ---- slots ---- */

void __real_node_capacity(const struct node_view *a, uint64_t job, int mine, struct placement_node *ret);
void __wrap_node_capacity(const struct node_view *a, uint64_t job, int mine, struct placement_node *ret);
void __real_job_release(struct job *j);
void __wrap_job_release(struct job *j);

void __wrap_node_capacity(const struct node_view *a, uint64_t job, int mine, struct placement_node *ret)
{
    __real_node_capacity(a, job, mine, ret);
    if (bug(BUG_SLOTS_TWICE))
        ret->used = 0;
    if (bug(BUG_DRAINED_USED) && a->state == NODE_UP && a->listed)
        ret->out = NULL;
}

void __wrap_job_release(struct job *j)
{
    struct node_view *leaked = NULL;
    for (int k = 0; k < j->n_workers && j->placed; k++)
        if (j->workers[k].p.node->state != NODE_UP)
            leaked = j->workers[k].p.node;
    __real_job_release(j);
    if (bug(BUG_SLOTS_LEAKED) && leaked)
        leaked->used++;
}

/* ---- stopping ---- */

bool __real_cluster_has_successor(const struct cluster *c);
bool __wrap_cluster_has_successor(const struct cluster *c);
bool __real_cluster_is_needed(const struct cluster *c);
bool __wrap_cluster_is_needed(const struct cluster *c);

bool __wrap_cluster_has_successor(const struct cluster *c)
{
    return !bug(BUG_NO_SUCCESSOR_MADE) && __real_cluster_has_successor(c);
}

bool __wrap_cluster_is_needed(const struct cluster *c)
{
    return !bug(BUG_VOTER_GOES) && __real_cluster_is_needed(c);
}

void __real_node_view_lost(struct jobs *n, struct node_view *a, int64_t silent_ms, const char *seen);
void __wrap_node_view_lost(struct jobs *n, struct node_view *a, int64_t silent_ms, const char *seen);

void __wrap_node_view_lost(struct jobs *n, struct node_view *a, int64_t silent_ms, const char *seen)
{
    if (!bug(BUG_LOSS_IGNORED) || a->used)
        __real_node_view_lost(n, a, silent_ms, seen);
}

/* ---- the leader's term ---- */

uint64_t __real_log_term(const struct log *log);
uint64_t __wrap_log_term(const struct log *log);

uint64_t __wrap_log_term(const struct log *log)
{
    return bug(BUG_OLD_LEADER_TAKEN) && !log_leads(log) ? UINT64_MAX : __real_log_term(log);
}

/* ---- messages between nodes ---- */

err_t __real_rpc_node_kill(struct rpc_call *attend, uint64_t job, int slot, int sig);
err_t __wrap_rpc_node_kill(struct rpc_call *attend, uint64_t job, int slot, int sig);
void __real_rpc_node_child(struct rpc_server *n, const struct child *c);
void __wrap_rpc_node_child(struct rpc_server *n, const struct child *c);

err_t __wrap_rpc_node_kill(struct rpc_call *attend, uint64_t job, int slot, int sig)
{
    ledger_killed(&machines[world.current->on->id], job);
    return bug(BUG_KILL_NOT_SENT) ? OK : __real_rpc_node_kill(attend, job, slot, sig);
}

void __real_job_process_child(struct job *j, struct job_process *p, const struct child *c);
void __wrap_job_process_child(struct job *j, struct job_process *p, const struct child *c);

void __wrap_job_process_child(struct job *j, struct job_process *p, const struct child *c)
{
    bool forgets = bug(BUG_KILL_NOT_REPEATED) && child_runs(c) && p->killed;
    p->killed = p->killed && !forgets;
    __real_job_process_child(j, p, c);
    p->killed = p->killed || forgets;
}

void __wrap_rpc_node_child(struct rpc_server *n, const struct child *c)
{
    if (!bug(BUG_END_NOT_FORWARDED) || child_runs(c))
        __real_rpc_node_child(n, c);
}

/* ---- messages of processes ---- */

void __real_job_worker_report(struct job *j, int rank, const struct worker_report *r);
void __wrap_job_worker_report(struct job *j, int rank, const struct worker_report *r);

void __wrap_job_worker_report(struct job *j, int rank, const struct worker_report *r)
{
    struct worker_report changed = *r;
    if (bug(BUG_READY_IS_DONE) && r->kind == REPORT_READY)
        changed.kind = REPORT_DONE;
    __real_job_worker_report(j, rank, &changed);
}

void __real_rpc_worker_store_put(void *owner, struct rpc_call *call, const ProtobufCMessage *request);
void __wrap_rpc_worker_store_put(void *owner, struct rpc_call *call, const ProtobufCMessage *request);

void __wrap_rpc_worker_store_put(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct job_process *p;
    const struct job *j = NULL;
    if (bug(BUG_EPOCH_TAKEN_FOR_ENDED) && !(j = rpc_caller_job(call, &p)))
        return; /* rpc_caller_job has sent the error */
    if (j && j->adopting)
        rpc_fail(call, ERR_STALE, "its epoch has ended");
    else
        __real_rpc_worker_store_put(owner, call, request);
}

/* ---- a node that was removed ---- */

err_t __real_supervisor_link_kill(struct supervisor_link *s, uint64_t job, int slot, int sig);
err_t __wrap_supervisor_link_kill(struct supervisor_link *s, uint64_t job, int slot, int sig);

err_t __wrap_supervisor_link_kill(struct supervisor_link *s, uint64_t job, int slot, int sig)
{
    const struct control *n = machines[world.current->id].node;
    bool is_kept = bug(BUG_WORKERS_KEPT) && n && cluster_is_removed(n->cluster);
    return is_kept ? OK : __real_supervisor_link_kill(s, job, slot, sig);
}

/* ---- a recovery ---- */

err_t __real_state_lineage_apply(struct state *s, const struct record *r, struct state_result *ret);
err_t __wrap_state_lineage_apply(struct state *s, const struct record *r, struct state_result *ret);

err_t __wrap_state_lineage_apply(struct state *s, const struct record *r, struct state_result *ret)
{
    uint64_t next = s->next_job;
    err_t err = __real_state_lineage_apply(s, r, ret);
    if (bug(BUG_NUMBERS_REPEAT))
        s->next_job = next;
    return err;
}

/* ---- damaged files ---- */

err_t __real_log_sum_check(const void *data, size_t len, size_t *ret_len);
err_t __wrap_log_sum_check(const void *data, size_t len, size_t *ret_len);
err_t __real_text_sum_check(const char *path, const char *text, size_t len, size_t *ret_len, struct why *why);
err_t __wrap_text_sum_check(const char *path, const char *text, size_t len, size_t *ret_len, struct why *why);

err_t __wrap_log_sum_check(const void *data, size_t len, size_t *ret_len)
{
    err_t err = __real_log_sum_check(data, len, ret_len);
    if (err != ERR_CORRUPT || !bug(BUG_DAMAGE_READ))
        return err;
    *ret_len = len - LOG_SUM_BYTES;
    return OK;
}

err_t __wrap_text_sum_check(const char *path, const char *text, size_t len, size_t *ret_len, struct why *why)
{
    err_t err = __real_text_sum_check(path, text, len, ret_len, why);
    if (err != ERR_CORRUPT || !bug(BUG_DAMAGE_READ) || len < TEXT_SUM_BYTES)
        return err;
    *ret_len = len - TEXT_SUM_BYTES;
    return OK;
}
