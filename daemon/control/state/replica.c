/* See replica.h. The log carries bytes; records are encoded and decoded here. */
#include "daemon/control/state/replica.h"

#include "common/base/clock.h"
#include "daemon/control/state/features.h"

#include <string.h>

static err_t apply(void *arg, const void *bytes, size_t len, uint64_t index, void *result)
{
    const struct replica *r = arg;
    struct record record;
    err_t err = record_decode(bytes, len, &record);
    if (err)
        return err;
    _Static_assert(RECORD_MAX_BYTES == LOG_RECORD_MAX_BYTES, "the log takes every record that can be encoded");
    _Static_assert(sizeof(struct state_result) <= LOG_RESULT_BYTES, "a result fits into the log's room for it");
    err = state_apply(r->state, &record, result);
    state_clock_seen(r->clock, record.clock_ms);
    record_fini(&record);
    return err;
}

static err_t freeze(void *arg, void **ret)
{
    struct state_frozen *frozen;
    err_t err = state_freeze(((const struct replica *)arg)->state, &frozen);
    if (!err)
        *ret = frozen;
    return err;
}

static err_t write_frozen(const void *frozen, struct pieces *ret)
{
    return state_frozen_write(frozen, ret);
}

static void thaw(void *frozen)
{
    state_thaw(frozen);
}

static err_t read_state(const void *data, size_t len, void **ret)
{
    struct state *fresh;
    err_t err = state_read(data, len, &fresh);
    if (!err)
        *ret = fresh;
    return err;
}

static void adopt(void *arg, void *fresh)
{
    const struct replica *r = arg;
    state_adopt(r->state, fresh);
    state_clock_seen(r->clock, state_clock_of(r->state));
}

static void drop(void *fresh)
{
    state_free(fresh);
}

struct log_machine replica_machine(struct replica *r)
{
    return (struct log_machine){r, apply, freeze, write_frozen, thaw, read_state, adopt, drop};
}

err_t replica_encode(const struct replica *r, const struct record *record, struct buf *ret)
{
    const uint32_t needed = record->kind == RECORD_CLUSTER_VERSION ? 1 : feature_of_record(record);
    if (needed > 1 && needed > state_version(r->state))
        return ERR_UNSUPPORTED;
    struct record stamped = *record;
    stamped.clock_ms = state_version(r->state) >= FEATURE_CLOCK ? state_clock_ms(r->clock) : 0;
    err_t err = record_encode(&stamped, ret);
    explicit_bzero(&stamped, sizeof(stamped)); /* it may have a key */
    return err;
}

err_t replica_propose(const struct replica *r, const struct record *record, log_callback cb, void *arg)
{
    struct buf bytes = {0};
    err_t err = replica_encode(r, record, &bytes);
    if (!err)
        err = log_propose(r->log, bytes.data, bytes.len, cb, arg);
    buf_fini(&bytes);
    return err;
}

int64_t replica_age_ms(const struct replica *r, int64_t wall_ms, int64_t clock_ms)
{
    const bool by_clock = clock_ms && state_cluster(r->state)->n_nodes > 0;
    const int64_t age = by_clock ? state_clock_ms(r->clock) - clock_ms : clock_wall_ms() - wall_ms;
    return age > 0 ? age : 0;
}
