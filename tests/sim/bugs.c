/* Bugs between two functions, by the linker's --wrap. Bugs inside a stand-in are in the stand-in: bug(BUG_...). */
#include "tests/sim/bugs.h"

#include "common/base/clock.h"
#include "daemon/control/log/faults.h"
#include "daemon/control/log/libraft_fixes.h"
#include "daemon/control/log/log.h"
#include "daemon/control/state/internal.h"
#include "tests/sim/world.h"

#include <assert.h>
#include <raft.h>
#include <stdlib.h>
#include <string.h>

enum bug_kind bug_planted;

#define ALL_BUGS(X) BUG_LIST(X) CONTROL_BUG_LIST(X) DISK_BUG_LIST(X)

const char *bug_text(enum bug_kind kind)
{
#define X(name, text) [BUG_##name] = text,
    static const char *const texts[] = {[BUG_NONE] = "none", ALL_BUGS(X)};
#undef X
    return texts[kind];
}

const char *bug_name(enum bug_kind kind)
{
#define X(name, text) [BUG_##name] = #name,
    static const char *const names[] = {[BUG_NONE] = "NONE", ALL_BUGS(X)};
#undef X
    return names[kind];
}

enum bug_kind bug_find(const char *text)
{
    int kind = atoi(text);
    if (kind > 0)
        return kind < N_BUGS ? (enum bug_kind)kind : N_BUGS;
    while (kind < N_BUGS && strcmp(bug_name((enum bug_kind)kind), text))
        kind++;
    return (enum bug_kind)kind;
}

/* ---- proposals ---- */

err_t __real_log_propose(struct log *log, const void *record, size_t len, log_callback cb, void *arg);
err_t __wrap_log_propose(struct log *log, const void *record, size_t len, log_callback cb, void *arg);

struct answer {
    log_callback cb;
    void *arg;
};

static void answer(void *arg, err_t err, uint64_t index, const void *result)
{
    struct answer a = *(struct answer *)arg;
    static const char nothing[LOG_RESULT_BYTES] __attribute__((aligned(16)));
    free(arg);
    if (bug(BUG_NEVER_ANSWERED) && err)
        return;
    bool claims_success = bug(BUG_LOST_LEAD_IS_OK) && err;
    a.cb(a.arg, claims_success ? OK : err, index, claims_success ? nothing : result);
    if (bug(BUG_ANSWERED_TWICE) && !err && index % 50 == 0)
        a.cb(a.arg, err, index, result);
}

static void ignore_answer(void *arg, err_t err, uint64_t index, const void *result)
{
    (void)arg, (void)err, (void)index, (void)result;
}

err_t __wrap_log_propose(struct log *log, const void *record, size_t len, log_callback cb, void *arg)
{
    if (bug(BUG_REFUSED_AND_DONE) && world_chance(FROM_WORLD, 0.05)) {
        err_t err = __real_log_propose(log, record, len, ignore_answer, NULL);
        return err ? err : ERR_AGAIN;
    }
    struct answer *a = malloc(sizeof(*a));
    assert(a);
    *a = (struct answer){cb, arg};
    err_t err = __real_log_propose(log, record, len, answer, a);
    if (err)
        free(a);
    return err;
}

int __real_raft_apply(struct raft *r, struct raft_apply *req, const struct raft_buffer bufs[], const unsigned n,
                      raft_apply_cb cb);
int __wrap_raft_apply(struct raft *r, struct raft_apply *req, const struct raft_buffer bufs[], const unsigned n,
                      raft_apply_cb cb);

int __wrap_raft_apply(struct raft *r, struct raft_apply *req, const struct raft_buffer bufs[], const unsigned n,
                      raft_apply_cb cb)
{
    void *result;
    if (bug(BUG_APPLIED_BEFORE_COMMITTED) && r->state == RAFT_LEADER)
        r->fsm->apply(r->fsm, bufs, &result);
    return __real_raft_apply(r, req, bufs, n, cb);
}

/* ---- the lead ---- */

int __real_raft_barrier(struct raft *r, struct raft_barrier *req, raft_barrier_cb cb);
int __wrap_raft_barrier(struct raft *r, struct raft_barrier *req, raft_barrier_cb cb);

static void barrier_done(void *arg)
{
    struct raft_barrier *req = arg;
    req->cb(req, 0);
}

int __wrap_raft_barrier(struct raft *r, struct raft_barrier *req, raft_barrier_cb cb)
{
    if (!bug(BUG_LEADS_BEFORE_BARRIER))
        return __real_raft_barrier(r, req, cb);
    req->cb = cb;
    world_after(world.current, 1, barrier_done, req);
    return 0;
}

/* ---- libraft's own defects ---- */

void __real_libraft_fixes_install(struct raft_io *io);
void __wrap_libraft_fixes_install(struct raft_io *io);

void __wrap_libraft_fixes_install(struct raft_io *io)
{
    if (!bug(BUG_NOT_FIXED))
        __real_libraft_fixes_install(io);
}

bool __real_libraft_fixes_may_snapshot(const struct raft *raft);
bool __wrap_libraft_fixes_may_snapshot(const struct raft *raft);

bool __wrap_libraft_fixes_may_snapshot(const struct raft *raft)
{
    return bug(BUG_SNAPSHOT_BETWEEN_CHANGES) || __real_libraft_fixes_may_snapshot(raft);
}

/* ---- a disk that fails ---- */

void __real_log_faults_look(struct raft_io *io);
void __wrap_log_faults_look(struct raft_io *io);

void __wrap_log_faults_look(struct raft_io *io)
{
    if (!bug(BUG_FAILED_WRITE_IGNORED))
        __real_log_faults_look(io);
}

int64_t __real_log_faults_append_since(const struct log_faults *f);
int64_t __wrap_log_faults_append_since(const struct log_faults *f);

int64_t __wrap_log_faults_append_since(const struct log_faults *f)
{
    return bug(BUG_WAITING_IGNORED) ? 0 : __real_log_faults_append_since(f);
}

/* ---- the state ---- */

err_t __real_record_decode(const void *data, size_t len, struct record *ret);
err_t __wrap_record_decode(const void *data, size_t len, struct record *ret);

err_t __wrap_record_decode(const void *data, size_t len, struct record *ret)
{
    err_t err = __real_record_decode(data, len, ret);
    if (!err && bug(BUG_REQUEST_ID_IGNORED))
        ret->has_request = false;
    return err;
}

err_t __real_state_apply(struct state *s, const struct record *r, struct state_result *ret);
err_t __wrap_state_apply(struct state *s, const struct record *r, struct state_result *ret);

err_t __wrap_state_apply(struct state *s, const struct record *r, struct state_result *ret)
{
    struct record changed = *r;
    if (bug(BUG_CLOCK_IN_APPLY))
        changed.wall_ms = clock_wall_ms();
    if (bug(BUG_APPLY_SKIPS) && world.current->id == 2 && r->request_id[0] % 100 == 7)
        return OK;
    err_t err = __real_state_apply(s, &changed, ret);
    if (bug(BUG_ANSWER_OF_ANOTHER) && ret->repeated)
        ret->job = s->next_job - 1;
    if (bug(BUG_EPOCH_GOES_BACK) && r->kind == RECORD_EPOCH && ret->err == ERR_STALE)
        ret->err = OK;
    if (bug(BUG_ENDED_TWICE) && r->kind == RECORD_ENDED && ret->err == ERR_STALE)
        ret->err = OK;
    return err;
}

void __real_state_adopt(struct state *s, struct state *fresh);
void __wrap_state_adopt(struct state *s, struct state *fresh);

void __wrap_state_adopt(struct state *s, struct state *fresh)
{
    __real_state_adopt(s, fresh);
    if (bug(BUG_REQUEST_ID_NOT_SAVED))
        s->n_requests = 0;
    if (bug(BUG_RESTORE_ADDS))
        s->next_job++;
}
