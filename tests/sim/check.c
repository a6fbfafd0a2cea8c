/* The ledger grows when a leader's commit index does. The logs of all other voters are compared with the ledger. */
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

static struct {
    struct fact *facts; /* of index 1, 2, ... */
    uint64_t n, cap, last_record;
    int leader_of[MAX_TERMS];
    check_record_fn on_record;
} ledger;

struct voter voters[MAX_HOSTS + 1];

void check_init(check_record_fn on_record)
{
    memset(&ledger, 0, sizeof(ledger));
    ledger.on_record = on_record;
}

const struct fact *check_fact(uint64_t index)
{
    return index && index <= ledger.n ? &ledger.facts[index - 1] : NULL;
}

uint64_t check_committed(void)
{
    return ledger.n;
}

uint64_t check_records(void)
{
    return ledger.last_record;
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

static void check_majority(const struct voter *v, uint64_t index, raft_term term)
{
    const struct raft_configuration *conf = &raft_of(v)->configuration;
    int n = 0, have = 0;
    for (unsigned i = 0; i < conf->n; i++) {
        if (conf->servers[i].role != RAFT_VOTER)
            continue;
        const struct files *f = &disks[conf->servers[i].id].log;
        n++;
        have += (f->snapshot && f->snapshot->index >= index) || files_term(f, index) == term;
    }
    if (2 * have <= n)
        broken("host %d leads term %llu and considers %" PRIu64 " committed, which is on the disks of %d of %d voters",
               v->host->id, raft_of(v)->current_term, index, have, n);
}

/* A leader whose disk has failed may consider committed what is only on the disks of the others. */
static const struct stored *elsewhere(const struct voter *v, uint64_t index)
{
    const struct stored *found = NULL;
    for (int id = 1; id <= world.n_hosts && v->log->faults.err; id++) {
        const struct stored *e = files_entry(&disks[id].log, index);
        if (e && (!found || e->term > found->term))
            found = e;
    }
    return found;
}

static void add_fact(const struct voter *v, uint64_t index)
{
    const struct stored *e = disk_newest(&disks[v->host->id], index);
    e = e ? e : elsewhere(v, index);
    assert(index == ledger.n + 1);
    if (!e)
        broken("host %d considers %" PRIu64 " committed and does not have it", v->host->id, index);
    if (raft_of(v)->state == RAFT_LEADER)
        check_majority(v, index, e->term);
    if (ledger.n == ledger.cap) {
        ledger.cap = ledger.cap ? 2 * ledger.cap : 1024;
        ledger.facts = realloc(ledger.facts, ledger.cap * sizeof(struct fact));
        assert(ledger.facts);
    }
    ledger.facts[ledger.n++] = (struct fact){.term = e->term,
                                             .committed_in = raft_of(v)->current_term,
                                             .type = e->type,
                                             .hash = e->hash,
                                             .data = e->data,
                                             .len = e->len};
    if (e->type == RAFT_COMMAND)
        ledger.last_record = index;
}

static void check_commits(struct voter *v)
{
    uint64_t commit = raft_of(v)->commit_index;
    const struct disk *disk = &disks[v->host->id];
    if (v->opening != raft_of(v)->io->impl)
        v->commit_checked = 0; /* libraft was opened again, as after a log that ran out of space */
    v->opening = raft_of(v)->io->impl;
    if (commit < v->commit_checked)
        broken("the commit index of host %d went back from %" PRIu64 " to %" PRIu64, v->host->id, v->commit_checked,
               commit);
    for (uint64_t i = v->commit_checked + 1; i <= commit; i++) {
        if (i > ledger.n) {
            add_fact(v, i);
            continue;
        }
        const struct stored *e = disk_newest(disk, i);
        if (e && e->hash != ledger.facts[i - 1].hash)
            broken("host %d has a different committed entry %" PRIu64 " (term %llu) than the ledger (term %llu)",
                   v->host->id, i, e->term, ledger.facts[i - 1].term);
    }
    v->commit_checked = commit;
}

/* ---- leaders ---- */

/* A leader has what was committed in earlier terms; its votes may arrive after a later term has begun. */
static void check_complete(const struct voter *v, raft_term term)
{
    const struct disk *disk = &disks[v->host->id];
    for (uint64_t i = disk->log.snapshot ? disk->log.snapshot->index + 1 : 1; i <= ledger.n; i++) {
        const struct stored *e = disk_newest(disk, i);
        if (ledger.facts[i - 1].committed_in >= term)
            return;
        if (!e || e->hash != ledger.facts[i - 1].hash)
            broken("host %d leads term %llu without the committed entry %" PRIu64 " of term %llu", v->host->id, term, i,
                   ledger.facts[i - 1].term);
    }
}

static void check_leader(struct voter *v)
{
    const struct raft *raft = raft_of(v);
    if (raft->state != RAFT_LEADER || raft->current_term == v->term_checked)
        return;
    raft_term term = v->term_checked = raft->current_term;
    assert(term < MAX_TERMS);
    trace("host %d leads term %llu", v->host->id, term);
    if (ledger.leader_of[term] && ledger.leader_of[term] != v->host->id)
        broken("hosts %d and %d lead term %llu", ledger.leader_of[term], v->host->id, term);
    ledger.leader_of[term] = v->host->id;
    check_complete(v, term);
}

/* log.h promises that a leading voter has applied all entries from before its term. */
static void check_lead(struct voter *v)
{
    raft_term term = raft_of(v)->current_term;
    if (!log_leads(v->log) || raft_of(v)->state != RAFT_LEADER || v->lead_checked == term)
        return;
    v->lead_checked = term;
    for (uint64_t i = v->applied + 1; i <= ledger.n; i++)
        if (ledger.facts[i - 1].term < term && ledger.facts[i - 1].type == RAFT_COMMAND)
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
    if (index <= v->applied)
        broken("host %d applies %" PRIu64 " after %" PRIu64, v->host->id, index, v->applied);
    for (uint64_t i = v->applied + 1; i < index; i++)
        if (ledger.facts[i - 1].type == RAFT_COMMAND)
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
    struct fact *f = (struct fact *)check_fact(index);
    check_record(v, f, index, bytes, len);
    check_order(v, index);
    v->applied = index;
    v->chain = chain(v->chain, index, bytes, len, result);
    bool is_first = !f->is_applied;
    if (is_first)
        f->result = *result;
    check_state(v, f, index);
    if (is_first)
        ledger.on_record(index, record, result);
}

void check_restored(struct voter *v)
{
    const struct fact *f = check_fact(v->applied);
    if (v->applied && (!f || !f->is_applied || f->chain != v->chain))
        broken("host %d restores a state at %" PRIu64 " that no host had", v->host->id, v->applied);
    if (f && f->state_hash && state_hash(v->state) != f->state_hash)
        broken("host %d restores a state at %" PRIu64 " that differs from the saved one", v->host->id, v->applied);
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
