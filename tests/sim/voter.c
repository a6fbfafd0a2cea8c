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
#define SNAPSHOT_PART 1000000 /* the size of the state, to which a threshold of records is little, delays none */

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

struct frozen {
    struct voter_mark mark;
    struct state_frozen *state;
};

static err_t machine_freeze(void *arg, void **ret)
{
    struct voter *v = arg;
    struct frozen *f = malloc(sizeof(*f));
    assert(f);
    f->mark = (struct voter_mark){v->applied, v->chain};
    err_t err = state_freeze(v->state, &f->state);
    assert(!err);
    *ret = f;
    return OK;
}

static err_t machine_write(const void *frozen, struct pieces *ret)
{
    const struct frozen *f = frozen;
    err_t err = pieces_borrow(ret, &f->mark, sizeof(f->mark));
    return err ? err : state_frozen_write(f->state, ret);
}

static void machine_thaw(void *frozen)
{
    struct frozen *f = frozen;
    state_thaw(f->state);
    free(f);
}

struct fresh {
    struct voter_mark mark;
    struct state *state;
};

static err_t machine_read(const void *data, size_t len, void **ret)
{
    struct fresh *f = malloc(sizeof(*f));
    assert(f);
    err_t err = len < sizeof(f->mark) ? ERR_CORRUPT : OK;
    if (!err) {
        memcpy(&f->mark, data, sizeof(f->mark));
        err = state_read((const char *)data + sizeof(f->mark), len - sizeof(f->mark), &f->state);
    }
    if (err)
        free(f);
    else
        *ret = f;
    return err;
}

static void machine_adopt(void *arg, void *fresh)
{
    struct voter *v = arg;
    struct fresh *f = fresh;
    state_adopt(v->state, f->state);
    v->applied = f->mark.applied;
    v->chain = f->mark.chain;
    free(f);
    trace("restored %llu", (unsigned long long)v->applied);
    if (!v->host->is_dying)
        check_restored(v);
}

static void machine_drop(void *fresh)
{
    struct fresh *f = fresh;
    state_free(f->state);
    free(f);
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
        .machine = {v, machine_apply, machine_freeze, machine_write, machine_thaw, machine_read, machine_adopt,
                    machine_drop},
        .owner = v,
        .on_ready = on_ready,
        .segment_bytes = 64u << 10,
        .reserve_bytes = 256u << 10,
        .snapshot_threshold = SNAPSHOT_THRESHOLD,
        .snapshot_trailing = SNAPSHOT_TRAILING,
        .snapshot_part = SNAPSHOT_PART,
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
