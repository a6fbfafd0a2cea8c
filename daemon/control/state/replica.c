/* See replica.h. The log carries bytes; records are encoded and decoded here. */
#include "daemon/control/state/replica.h"

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

static err_t snapshot(void *arg, struct buf *ret)
{
    return state_snapshot(((const struct replica *)arg)->state, ret);
}

static err_t restore(void *arg, const void *data, size_t len)
{
    const struct replica *r = arg;
    err_t err = state_restore(r->state, data, len);
    if (!err)
        state_clock_seen(r->clock, state_clock_of(r->state));
    return err;
}

struct log_machine replica_machine(struct replica *r)
{
    return (struct log_machine){r, apply, snapshot, restore};
}

err_t replica_encode(const struct replica *r, const struct record *record, struct buf *ret)
{
    struct record stamped = *record;
    stamped.clock_ms = state_clock_ms(r->clock);
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
