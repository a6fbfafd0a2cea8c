/* A branch grows when a leader's commit index does. The logs of all other voters are compared with it. */
#include "tests/sim/check.h"

#include "common/base/hash.h"
#include "tests/sim/disk.h"

#include <assert.h>
#include <endian.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define STATE_EVERY 32  /* whole states are compared only at multiples of this index, to save time */
#define MAX_TERMS 16384 /* far more terms than the elections of a run */

struct branch {
    struct fact *facts; /* of index 1, 2, ... */
    uint64_t n, cap, last_record;
    int leader_of[MAX_TERMS];
    int founder;     /* the host that has continued alone; 0: of the first branch */
    bool has_others; /* another host has applied a record of it */
};

static struct branch branches[CHECK_MAX_BRANCHES];
static int newest;
static check_record_fn on_record;

struct voter voters[MAX_HOSTS + 1];
int (*check_host_of)(const struct voter *v, raft_id id);

void check_init(check_record_fn fn)
{
    memset(branches, 0, sizeof(branches));
    newest = 0;
    on_record = fn;
}

static struct branch *branch_of(const struct voter *v)
{
    return &branches[v->branch];
}

static struct fact *fact_at(const struct branch *b, uint64_t index)
{
    return index && index <= b->n ? &b->facts[index - 1] : NULL;
}

const struct fact *check_fact(uint64_t index)
{
    return fact_at(&branches[newest], index);
}

uint64_t check_committed(void)
{
    return branches[newest].n;
}

uint64_t check_records(void)
{
    return branches[newest].last_record;
}

static int host_of(const struct voter *v, raft_id id)
{
    return check_host_of ? check_host_of(v, id) : (int)id;
}

static const struct raft *raft_of(const struct voter *v)
{
    return &v->log->raft;
}

/* ---- printing ---- */

static void say_members(const struct voter *v)
{
    struct log_member members[LOG_MAX_MEMBERS];
    static const char *const roles[] = {[LOG_SPARE] = "spare", [LOG_STANDBY] = "standby", [LOG_VOTER] = "voter"};
    int n = v->log ? log_members(v->log, members) : 0;
    for (int i = 0; i < n; i++)
        printf(" %d:%s", (int)members[i].id, roles[members[i].role]);
    if (v->log)
        printf("; last entry %llu, stored %llu, commit %llu, change at %llu\n", raft_last_index(&v->log->raft),
               v->log->raft.last_stored, v->log->raft.commit_index, v->log->raft.configuration_uncommitted_index);
}

void check_print(void)
{
    for (int id = 1; id <= world.n_hosts; id++) {
        const struct voter *v = &voters[id];
        printf("host %d: %s, %s, term %" PRIu64 ", applied %" PRIu64 ", log %s (%s)\n", id,
               v->host->is_up ? "up" : "down", v->log ? log_state(v->log) : "closed", v->log ? log_term(v->log) : 0,
               v->applied, v->log ? fsm_name(&v->log->fsm) : "-",
               v->log && log_warning(v->log) ? log_warning(v->log) : "no warning");
        say_members(v);
    }
}

/* ---- committed ---- */

/* Number of voters, in the configuration of `v`, that have an entry of this term on their disks; *ret_n: of all. */
static int holders(const struct voter *v, uint64_t index, raft_term term, int *ret_n)
{
    const struct raft_configuration *conf = &raft_of(v)->configuration;
    int have = 0;
    *ret_n = 0;
    for (unsigned i = 0; i < conf->n; i++) {
        if (conf->servers[i].role != RAFT_VOTER)
            continue;
        int host = host_of(v, conf->servers[i].id);
        const struct files *f = &disks[host].log;
        *ret_n += 1;
        have += host && ((f->snapshot && f->snapshot->index >= index) || files_term(f, index) == term);
    }
    return have;
}

static void check_majority(const struct voter *v, uint64_t index, raft_term term)
{
    int n, have = holders(v, index, term, &n);
    if (2 * have <= n)
        broken("host %d leads term %llu and considers %" PRIu64 " committed, which is on the disks of %d of %d voters",
               v->host->id, raft_of(v)->current_term, index, have, n);
}

/* A leader whose disk has failed may consider committed what is only on the disks of the others. */
static const struct stored *elsewhere(const struct voter *v, uint64_t index)
{
    int n;
    for (int id = 1; id <= world.n_hosts && v->log->faults.err; id++) {
        const struct stored *e = files_entry(&disks[id].log, index);
        if (e && 2 * holders(v, index, e->term, &n) > n)
            return e;
    }
    return NULL;
}

static void put_fact(struct branch *b, const struct fact *f)
{
    if (b->n == b->cap) {
        b->cap = b->cap ? 2 * b->cap : 1024;
        b->facts = realloc(b->facts, b->cap * sizeof(struct fact));
        assert(b->facts);
    }
    b->facts[b->n++] = *f;
    if (f->type == RAFT_COMMAND)
        b->last_record = b->n;
}

static struct fact fact_of(const struct stored *e, raft_term committed_in)
{
    return (struct fact){.term = e->term,
                         .committed_in = committed_in,
                         .type = e->type,
                         .hash = e->hash,
                         .data = e->data,
                         .len = e->len};
}

static void add_fact(const struct voter *v, uint64_t index)
{
    struct branch *b = branch_of(v);
    const struct stored *e = disk_newest(&disks[v->host->id], index);
    e = e ? e : elsewhere(v, index);
    assert(index == b->n + 1);
    if (!e)
        broken("host %d considers %" PRIu64 " committed and does not have it", v->host->id, index);
    if (raft_of(v)->state == RAFT_LEADER)
        check_majority(v, index, e->term);
    const struct fact f = fact_of(e, raft_of(v)->current_term);
    put_fact(b, &f);
}

static void check_commits(struct voter *v)
{
    uint64_t commit = raft_of(v)->commit_index;
    const struct disk *disk = &disks[v->host->id];
    const struct branch *b = branch_of(v);
    if (v->opening != raft_of(v)->io->impl)
        v->commit_checked = 0; /* libraft was opened again, as after a log that ran out of space */
    v->opening = raft_of(v)->io->impl;
    if (commit < v->commit_checked)
        broken("the commit index of host %d went back from %" PRIu64 " to %" PRIu64, v->host->id, v->commit_checked,
               commit);
    for (uint64_t i = v->commit_checked + 1; i <= commit; i++) {
        if (i > b->n) {
            add_fact(v, i);
            continue;
        }
        /* libraft may know what a failed disk has not stored, and has not removed what it replaces */
        const struct stored *e = v->log->faults.err ? NULL : disk_newest(disk, i);
        if (e && e->hash != b->facts[i - 1].hash)
            broken("host %d has a different committed entry %" PRIu64 " (term %llu) than the ledger (term %llu)",
                   v->host->id, i, e->term, b->facts[i - 1].term);
    }
    v->commit_checked = commit;
}

/* ---- leaders ---- */

/* A leader has what was committed in earlier terms; its votes may arrive after a later term has begun. */
static void check_complete(const struct voter *v, raft_term term)
{
    const struct disk *disk = &disks[v->host->id];
    const struct branch *b = branch_of(v);
    for (uint64_t i = disk->log.snapshot ? disk->log.snapshot->index + 1 : 1; i <= b->n; i++) {
        const struct stored *e = disk_newest(disk, i);
        if (b->facts[i - 1].committed_in >= term)
            return;
        if (!e || e->hash != b->facts[i - 1].hash)
            broken("host %d leads term %llu without the committed entry %" PRIu64 " of term %llu", v->host->id, term, i,
                   b->facts[i - 1].term);
    }
}

static void check_leader(struct voter *v)
{
    const struct raft *raft = raft_of(v);
    int *leader = branch_of(v)->leader_of;
    if (raft->state != RAFT_LEADER || raft->current_term == v->term_checked)
        return;
    raft_term term = v->term_checked = raft->current_term;
    assert(term < MAX_TERMS);
    trace("host %d leads term %llu", v->host->id, term);
    if (leader[term] && leader[term] != v->host->id)
        broken("hosts %d and %d lead term %llu", leader[term], v->host->id, term);
    leader[term] = v->host->id;
    check_complete(v, term);
}

/* log.h promises that a leading voter has applied all entries from before its term. */
static void check_lead(struct voter *v)
{
    const struct branch *b = branch_of(v);
    raft_term term = raft_of(v)->current_term;
    if (!log_leads(v->log) || raft_of(v)->state != RAFT_LEADER || v->lead_checked == term)
        return;
    v->lead_checked = term;
    for (uint64_t i = v->applied + 1; i <= b->n; i++)
        if (b->facts[i - 1].term < term && b->facts[i - 1].type == RAFT_COMMAND)
            broken("host %d reports that it leads term %llu but has not applied %" PRIu64, v->host->id, term, i);
}

/* A committed change of the members must not count as uncommitted: otherwise no later change would be possible. */
static void check_change(const struct voter *v)
{
    const struct raft *raft = raft_of(v);
    if (raft->configuration_uncommitted_index && raft->configuration_uncommitted_index <= raft->last_applied)
        broken("host %d considers the change at %llu uncommitted but has applied up to %llu", v->host->id,
               raft->configuration_uncommitted_index, raft->last_applied);
}

void check_event(struct host *host)
{
    struct voter *v = &voters[host->on->id];
    if (!host->id || host->on != host || !host->is_up || !v->log || !v->log->raft_is_open || v->log->raft_is_closing)
        return;
    check_leader(v);
    check_commits(v);
    check_lead(v);
    check_change(v);
}

/* ---- applied ---- */

static uint64_t chain(uint64_t before, uint64_t index, const void *bytes, size_t len, const struct state_result *result)
{
    struct hash h;
    const uint64_t about[4] = {before, index, result->job, (uint64_t)(int64_t)result->err << 1 | result->repeated};
    hash_init(&h);
    hash_add(&h, about, sizeof(about));
    hash_add(&h, bytes, len);
    return hash_end(&h);
}

static uint64_t state_hash(const struct state *state)
{
    struct buf bytes = {0};
    struct hash h;
    err_t err = state_snapshot(state, &bytes);
    assert(!err);
    hash_init(&h);
    if (bytes.len)
        hash_add(&h, bytes.data, bytes.len);
    buf_fini(&bytes);
    return hash_end(&h);
}

static void check_record(const struct voter *v, const struct fact *f, uint64_t index, const void *bytes, size_t len)
{
    uint64_t stored;
    if (!f || index > raft_of(v)->commit_index)
        broken("host %d applies %" PRIu64 ", which is not committed", v->host->id, index);
    memcpy(&stored, f->data, sizeof(stored));
    if (f->type != RAFT_COMMAND || le64toh(stored) != len ||
        memcmp((const char *)f->data + sizeof(stored), bytes, len) != 0)
        broken("host %d applies an entry that differs from the committed %" PRIu64, v->host->id, index);
}

/* The skipped entries must not be records. */
static void check_order(const struct voter *v, uint64_t index)
{
    const struct branch *b = branch_of(v);
    if (index <= v->applied)
        broken("host %d applies %" PRIu64 " after %" PRIu64, v->host->id, index, v->applied);
    for (uint64_t i = v->applied + 1; i < index; i++)
        if (b->facts[i - 1].type == RAFT_COMMAND)
            broken("host %d applies %" PRIu64 " but skipped the record %" PRIu64, v->host->id, index, i);
}

static void check_state(const struct voter *v, struct fact *f, uint64_t index)
{
    uint64_t hash = index % STATE_EVERY ? 0 : state_hash(v->state);
    if (f->is_applied && (f->chain != v->chain || f->state_hash != hash))
        broken("the state of host %d at %" PRIu64 " differs from that of the other hosts", v->host->id, index);
    f->is_applied = true;
    f->chain = v->chain;
    f->state_hash = hash;
}

void check_applied(struct voter *v, uint64_t index, const void *bytes, size_t len, const struct record *record,
                   const struct state_result *result)
{
    check_commits(v);
    struct branch *b = branch_of(v);
    struct fact *f = fact_at(b, index);
    b->has_others = b->has_others || v->host->id != b->founder;
    check_record(v, f, index, bytes, len);
    check_order(v, index);
    v->applied = index;
    v->chain = chain(v->chain, index, bytes, len, result);
    bool is_first = !f->is_applied;
    if (is_first)
        f->result = *result;
    check_state(v, f, index);
    if (is_first)
        on_record(v->branch, index, record, result);
}

void check_restored(struct voter *v)
{
    const struct fact *f = fact_at(branch_of(v), v->applied);
    if (v->applied && (!f || !f->is_applied || f->chain != v->chain))
        broken("host %d restores a state at %" PRIu64 " that no host had", v->host->id, v->applied);
    if (f && f->state_hash && state_hash(v->state) != f->state_hash)
        broken("host %d restores a state at %" PRIu64 " that differs from the saved one", v->host->id, v->applied);
}

/* ---- branches ---- */

/* The records of the new branch, once more: the ledgers of jobs are made from them. */
static void replay(int branch)
{
    for (uint64_t i = 1; i <= branches[branch].n; i++) {
        const struct fact *f = &branches[branch].facts[i - 1];
        struct record r;
        uint64_t len;
        if (f->type != RAFT_COMMAND || !f->is_applied)
            continue;
        memcpy(&len, f->data, sizeof(len));
        err_t err = record_decode((const char *)f->data + sizeof(len), le64toh(len), &r);
        assert(!err);
        on_record(branch, i, &r, &f->result);
        record_fini(&r);
    }
}

static bool is_alone(const struct voter *v)
{
    const struct branch *b = branch_of(v);
    return b->founder == v->host->id && !b->has_others;
}

/* Entries that `from` has not committed are committed in the new branch, because there is no other voter. */
static void copy_log(const struct voter *v, const struct branch *from, struct branch *to)
{
    const struct files *f = &disks[v->host->id].log;
    for (uint64_t i = to->n + 1; i <= files_last(f); i++) {
        const struct stored *e = files_entry(f, i);
        const struct fact *known = fact_at(from, i);
        bool is_same = known && (!e || e->hash == known->hash);
        if (!e && !known)
            broken("the snapshot of host %d is of index %" PRIu64 ", which is not committed", v->host->id, i);
        const struct fact fresh = is_same ? *known : fact_of(e, 0);
        put_fact(to, &fresh);
    }
}

/* It has made a branch before, and no other voter has joined it. Then it must have all that was committed. */
static int continue_again(const struct voter *v)
{
    struct branch *b = branch_of(v);
    const struct files *f = &disks[v->host->id].log;
    for (uint64_t i = 1; i <= b->n; i++) {
        const struct stored *e = files_entry(f, i);
        if (i > files_last(f) || (e && e->hash != b->facts[i - 1].hash))
            broken("host %d continues alone again without the committed entry %" PRIu64, v->host->id, i);
    }
    copy_log(v, b, b);
    return v->branch;
}

int check_fork(struct voter *v)
{
    if (is_alone(v))
        return continue_again(v);
    if (newest + 1 == CHECK_MAX_BRANCHES)
        broken("the cluster was recovered %d times", newest + 1);
    newest++;
    branches[newest].founder = v->host->id;
    copy_log(v, branch_of(v), &branches[newest]);
    trace("host %d continues alone: branch %d has entries up to %" PRIu64 ", the one before had them up to %" PRIu64,
          v->host->id, newest, branches[newest].n, branch_of(v)->n);
    v->branch = newest;
    replay(newest);
    return newest;
}

void check_sent(const struct host *host, const struct raft_message *message)
{
    const struct raft_append_entries_result *result = &message->append_entries_result;
    const struct files *f = &disks[host->id].log;
    if (message->type != RAFT_APPEND_ENTRIES_RESULT || result->rejected)
        return;
    if (result->last_log_index > files_last(f) && (!f->snapshot || result->last_log_index > f->snapshot->index))
        broken("host %d reports entries up to %llu on its disk but has them up to %llu", host->id,
               result->last_log_index, files_last(f));
}
