/* Any bytes as a record (first byte 0) or a snapshot (otherwise) of the replicated log. An accepted record must apply
 * without a crash, and an accepted record or snapshot that is written must read back the same. */
#include "daemon/control/state/state.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

static void apply_twice(struct state *s, const struct record *r)
{
    struct state_result result;
    struct record again = *r;
    require(state_apply(s, r, &result) == OK);
    again.job = 1; /* the existing job */
    require(state_apply(s, &again, &result) == OK);
}

static void snapshot_is_stable(const struct state *s)
{
    struct buf a = {0}, b = {0};
    struct state *copy;
    require(state_new(&copy) == OK);
    require(state_snapshot(s, &a) == OK);
    require(state_restore(copy, a.data, a.len) == OK);
    require(state_snapshot(copy, &b) == OK);
    require(a.len == b.len && memcmp(a.data, b.data, a.len) == 0);
    state_free(copy);
    buf_fini(&a);
    buf_fini(&b);
}

static void try_record(struct state *s, const uint8_t *data, size_t size)
{
    struct record r, back;
    struct buf bytes = {0};
    if (record_decode(data, size, &r))
        return;
    apply_twice(s, &r);
    if (record_encode(&r, &bytes) == OK) {
        require(record_decode(bytes.data, bytes.len, &back) == OK);
        require(back.kind == r.kind && back.job == r.job && back.wall_ms == r.wall_ms);
        record_fini(&back);
    }
    buf_fini(&bytes);
    record_fini(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct state *s;
    struct state_result result;
    const struct record first = {.kind = RECORD_SUBMITTED, .wall_ms = 1, .submitted = {.spec = "name: x\n"}};
    if (!size)
        return 0;
    require(state_new(&s) == OK);
    require(state_apply(s, &first, &result) == OK);
    if (data[0])
        (void)!state_restore(s, data + 1, size - 1);
    else
        try_record(s, data + 1, size - 1);
    snapshot_is_stable(s);
    state_free(s);
    return 0;
}
