/* The log drives the state machine of control's node.c. A header with values for the checks is added in front of its
 * snapshots. */
#include "tests/sim/voter.h"

#include "tests/sim/bugs.h"
#include "tests/sim/check.h"
#include "tests/sim/disk.h"
#include "tests/sim/libraft.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define SNAPSHOT_THRESHOLD 48 /* production: 1024; small, so that a run has many snapshots */
#define SNAPSHOT_TRAILING 16

/* ---- the machine ---- */

static err_t machine_apply(void *arg, const void *bytes, size_t len, uint64_t index, void *result)
{
    struct voter *v = arg;
    struct record r;
    err_t err = record_decode(bytes, len, &r);
    if (err)
        return err;
    err = state_apply(v->state, &r, result);
    if (!err && !v->host->is_dying)
        check_applied(v, index, bytes, len, &r, result);
    record_fini(&r);
    return err;
}

static err_t machine_snapshot(void *arg, struct buf *ret)
{
    struct voter *v = arg;
    const struct voter_mark mark = {v->applied, v->chain};
    err_t err = buf_append(ret, &mark, sizeof(mark));
    return err ? err : state_snapshot(v->state, ret);
}

static err_t machine_restore(void *arg, const void *data, size_t len)
{
    struct voter *v = arg;
    struct voter_mark mark;
    if (len < sizeof(mark))
        return ERR_CORRUPT;
    memcpy(&mark, data, sizeof(mark));
    err_t err = state_restore(v->state, (const char *)data + sizeof(mark), len - sizeof(mark));
    if (err)
        return err;
    v->applied = mark.applied;
    v->chain = mark.chain;
    trace("restored %llu", (unsigned long long)mark.applied);
    if (!v->host->is_dying)
        check_restored(v);
    return OK;
}

/* ---- life ---- */

static void gone(void *arg)
{
    world.on_death(arg);
}

static void on_ready(void *owner, err_t err, const char *why)
{
    struct voter *v = owner;
    if (err == ERR_IO) { /* as the supervisor, and a user who has replaced the disk */
        trace("cannot open its log: %s", why);
        world_after(v->host, 0, gone, v->host);
        return;
    }
    if (err && !v->host->is_dying)
        broken("the log of host %d cannot be opened: %s (%s)", v->host->id, why, err_text(err));
    v->is_ready = true;
}

static void begin(void *arg)
{
    struct voter *v = arg;
    const struct log_config config = {
        .loop = &v->loop,
        .dir = "/state",
        .id = (uint64_t)v->host->id,
        .joins = v->host->id != 1,
        .machine = {v, machine_apply, machine_snapshot, machine_restore},
        .owner = v,
        .on_ready = on_ready,
        .segment_bytes = 64u << 10,
        .reserve_bytes = 256u << 10,
        .snapshot_threshold = SNAPSHOT_THRESHOLD,
        .snapshot_trailing = SNAPSHOT_TRAILING,
    };
    uv_loop_init(&v->loop);
    err_t err = state_new(&v->state);
    if (!err)
        err = log_start(&config, &v->log);
    assert(!err);
}

void voter_start(struct host *host)
{
    struct voter *v = &voters[host->id];
    host_up(host);
    trace("host %d starts", host->id);
    *v = (struct voter){.host = host};
    world_after(host, world_between(FROM_FAULTS, 0, 20000), begin, v);
}

void voter_kill(struct host *host)
{
    if (!host->is_up)
        return;
    trace("host %d is killed", host->id);
    host_down(host);
    libraft_forget(host);
    disk_crash(&disks[host->id]);
    voters[host->id].log = NULL;
}

static void on_closed(void *owner)
{
    struct voter *v = owner;
    v->log = NULL;
    world_after(v->host, 0, gone, v->host);
}

static void stop(void *arg)
{
    struct voter *v = arg;
    if (v->log && !v->is_stopping) {
        trace("stops");
        v->is_stopping = true;
        log_close(v->log, on_closed);
    }
}

void voter_stop(struct host *host)
{
    if (host->is_up)
        world_after(host, 0, stop, &voters[host->id]);
}

bool voter_is_open(const struct voter *v)
{
    return v->host && v->host->is_up && v->log && v->is_ready && !v->is_stopping && !v->host->is_dying;
}
