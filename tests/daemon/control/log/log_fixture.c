#include "tests/daemon/control/log/log_fixture.h"

#include "common/base/clock.h"

/* libraft 0.22.1 leaks the configurations of its snapshots and changes; fixed after it. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libraft.so";
}

static uint64_t mix(uint64_t hash, uint64_t number)
{
    return (hash ^ number) * 0x100000001b3u + 1;
}

uint64_t machine_hash_of(uint64_t first, uint64_t last)
{
    uint64_t hash = 0;
    for (uint64_t i = first; i <= last; i++)
        hash = mix(hash, i);
    return hash;
}

static void *test_copy(const void *data, size_t len)
{
    void *copy = malloc(len + 1);
    assert_non_null(copy);
    if (len)
        memcpy(copy, data, len);
    return copy;
}

static err_t apply(void *arg, const void *record, size_t len, uint64_t index, void *result)
{
    struct fixture *f = arg;
    uint64_t number;
    assert_true(len >= sizeof(number) && index > 0);
    memcpy(&number, record, sizeof(number));
    f->machine.count++;
    f->machine.last = number;
    f->machine.hash = mix(f->machine.hash, number);
    memcpy(result, &f->machine.count, sizeof(uint64_t));
    return OK;
}

static err_t freeze(void *arg, void **ret)
{
    struct fixture *f = arg;
    f->snapshots++;
    *ret = test_copy(&f->machine, sizeof(f->machine));
    return OK;
}

void (*fixture_writes)(void);

static err_t write_frozen(const void *frozen, struct pieces *ret)
{
    if (fixture_writes)
        fixture_writes();
    return pieces_borrow(ret, frozen, sizeof(((struct fixture *)NULL)->machine));
}

static err_t read_state(const void *data, size_t len, void **ret)
{
    if (len != sizeof(((struct fixture *)NULL)->machine))
        return ERR_CORRUPT;
    *ret = test_copy(data, len);
    return OK;
}

static void adopt(void *arg, void *fresh)
{
    struct fixture *f = arg;
    f->restores++;
    memcpy(&f->machine, fresh, sizeof(f->machine));
    free(fresh);
}

static void on_ready(void *owner, err_t err, const char *why)
{
    struct fixture *f = owner;
    f->ready = !err;
    f->ready_calls++;
    f->ready_err = err;
    snprintf(f->why, sizeof(f->why), "%s", why);
}

static void on_warning(void *owner, const char *warning)
{
    struct fixture *f = owner;
    f->warnings += warning != NULL;
}

void fixture_start(struct fixture *f, const char *dir)
{
    assert_int_equal(uv_loop_init(&f->loop), 0);
    f->closed = false;
    f->ready = false;
    f->ready_calls = 0;
    const struct log_config config = {
        .loop = &f->loop,
        .dir = dir,
        .machine = {f, apply, freeze, write_frozen, free, read_state, adopt, free},
        .owner = f,
        .on_ready = on_ready,
        .on_warning = on_warning,
        .segment_bytes = FIXTURE_SEGMENT,
        .reserve_bytes = FIXTURE_RESERVE,
        .snapshot_threshold = f->threshold,
        .snapshot_trailing = f->threshold / 4,
        .snapshot_part = 1000,
    };
    assert_ok(log_start(&config, &f->log));
}

bool fixture_is_answered(struct fixture *f)
{
    return f->ready_calls > 0;
}

void fixture_open(struct fixture *f, const char *dir)
{
    fixture_start(f, dir);
    if (!fixture_pump(f, fixture_is_answered, 30000))
        fail_msg("the log is not ready after 30 s: %s", log_warning(f->log) ? log_warning(f->log) : "no warning");
    assert_int_equal(f->ready_calls, 1);
}

static void on_closed(void *owner)
{
    ((struct fixture *)owner)->closed = true;
}

void fixture_close(struct fixture *f)
{
    log_close(f->log, on_closed);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    assert_true(f->closed);
    assert_int_equal(uv_loop_close(&f->loop), 0);
}

static void proposed(void *arg, err_t err, uint64_t index, const void *result)
{
    struct fixture *f = arg;
    (void)index;
    if (err) {
        assert_true(err == ERR_CANCELED || err == ERR_NOSPACE);
        f->canceled++;
        return;
    }
    f->done++;
    memcpy(&f->last_result, result, sizeof(f->last_result));
}

err_t fixture_propose(struct fixture *f, uint64_t number, size_t padding)
{
    char record[65536];
    memset(record, 0x5a, sizeof(record)); /* no zeros, so that the end of a file's last record can be found */
    memcpy(record, &number, sizeof(number));
    assert_true(padding <= sizeof(record) - sizeof(number));
    return log_propose(f->log, record, sizeof(number) + padding, proposed, f);
}

bool fixture_is_ready(struct fixture *f)
{
    return f->ready;
}

static void tick(uv_timer_t *timer)
{
    (void)timer;
}

bool fixture_pump(struct fixture *f, bool (*done)(struct fixture *f), int ms)
{
    uv_timer_t timer;
    uv_timer_init(&f->loop, &timer);
    uv_timer_start(&timer, tick, 1, 1);
    int64_t end = clock_mono_ms() + ms;
    bool is_done;
    while (!(is_done = done && done(f)) && clock_mono_ms() < end)
        uv_run(&f->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&f->loop, UV_RUN_NOWAIT);
    return is_done;
}

void fixture_pump_ms(struct fixture *f, int ms)
{
    fixture_pump(f, NULL, ms);
}
