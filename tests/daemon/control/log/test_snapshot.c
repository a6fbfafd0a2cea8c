/* Snapshots of the log: when they are taken, that they are written in another thread, and what happens to one that is
 * under way when the log is closed. */
#include "daemon/control/log/internal.h"
#include "daemon/control/log/sum.h"
#include "tests/daemon/control/log/log_fixture.h"

#include <semaphore.h>

static sem_t began, may_end;

static void wait_for_test(void)
{
    sem_post(&began);
    sem_wait(&may_end);
}

static void propose(struct fixture *f, uint64_t number)
{
    while (fixture_propose(f, number, 0) == ERR_AGAIN)
        fixture_pump_ms(f, 1);
}

static int wanted;

static bool has_answers(struct fixture *f)
{
    return f->done >= wanted;
}

static void propose_until_written(struct fixture *f)
{
    uint64_t i = 0;
    sem_init(&began, 0, 0);
    sem_init(&may_end, 0, 0);
    fixture_writes = wait_for_test;
    while (sem_trywait(&began)) {
        propose(f, ++i);
        fixture_pump_ms(f, 2);
    }
}

/* Were it written on the loop, the loop would wait here for ever. */
TEST(records_are_applied_while_a_snapshot_is_written)
{
    struct fixture f = {.threshold = 64}, g = {.threshold = 64};
    fixture_open(&f, test_tmpdir());
    propose_until_written(&f);
    wanted = f.done + 30; /* of those before, some may not be answered yet */
    for (int i = 0; i < 30; i++)
        propose(&f, 1000 + (uint64_t)i);
    bool is_answered = fixture_pump(&f, has_answers, 30000);
    sem_post(&may_end);
    assert_true(is_answered);
    assert_int_equal(1, f.snapshots);
    fixture_writes = NULL;
    fixture_pump_ms(&f, 200);
    fixture_close(&f);
    fixture_open(&g, test_tmpdir());
    assert_int_equal(1, g.restores);
    assert_memory_equal(&g.machine, &f.machine, sizeof(f.machine));
    fixture_close(&g);
}

static void let_it_end(uv_timer_t *timer)
{
    sem_post(&may_end);
    uv_close((uv_handle_t *)timer, NULL);
}

/* libraft must not be freed before the thread has ended. */
TEST(a_log_is_closed_while_a_snapshot_is_written)
{
    struct fixture f = {.threshold = 64}, g = {.threshold = 64};
    uv_timer_t timer;
    fixture_open(&f, test_tmpdir());
    propose_until_written(&f);
    uv_timer_init(&f.loop, &timer);
    uv_timer_start(&timer, let_it_end, 100, 0);
    fixture_close(&f);
    fixture_writes = NULL;
    fixture_open(&g, test_tmpdir());
    assert_int_equal(0, g.restores);                 /* it was given up */
    assert_true(g.machine.count >= f.machine.count); /* more: records that were stored and not answered */
    assert_int_equal(machine_hash_of(1, g.machine.count), g.machine.hash);
    fixture_close(&g);
}

#define MIB (UINT64_C(1) << 20)

/* 1,024 records, and a quarter of the state; or 64 MiB; or 16,384 records. 4 MiB count as much as 1,024 records. */
TEST(a_large_state_is_not_written_for_little)
{
    static const struct {
        uint64_t entries, log_bytes, state_bytes;
        bool is_due;
    } cases[] = {
        {1023, 100000, 0, false},           {1024, 100000, 0, true},
        {1024, 100000, 400000, true},       {1024, 100000, 400004, false},
        {20, 4 * MIB - 1, 0, false},        {20, 4 * MIB, 0, true},
        {20, 4 * MIB, 17 * MIB, false},     {2000, 30 * MIB, 119 * MIB, true},
        {2000, 29 * MIB, 119 * MIB, false}, {500, 64 * MIB, 600 * MIB, true},
        {16383, 2 * MIB, 119 * MIB, false}, {16384, 2 * MIB, 119 * MIB, true},
    };
    struct log *log = calloc(1, sizeof(*log));
    log->config.snapshot_threshold = 1024;
    log->config.snapshot_part = 4;
    log->raft.trail.snapshot.index = 5000;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        log->raft.last_applied = 5000 + cases[i].entries;
        log->snapshots.log_bytes = cases[i].log_bytes;
        log->snapshots.state_bytes = cases[i].state_bytes;
        if (log_snapshot_is_due(log) != cases[i].is_due)
            fail_msg("case %d", (int)i);
    }
    free(log);
}

static uint32_t slow_crc(uint32_t crc, const uint8_t *data, size_t len)
{
    for (size_t i = 0; i < 8 * len; i++) {
        uint32_t bit = (uint32_t)(data[i / 8] >> (7 - i % 8) & 1) ^ crc >> 31;
        crc = crc << 1 ^ (bit ? 0x04c11db7u : 0);
    }
    return crc;
}

/* The value of "123456789" is that of POSIX cksum's CRC without its last XOR. */
TEST(sums_are_those_of_single_bits)
{
    uint8_t data[100];
    assert_int_equal(0x765e7680u ^ 0xffffffffu, log_crc(0, "123456789", 9));
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)(i * 37 + i * i);
    for (size_t from = 0; from < 9; from++)
        for (size_t len = 0; len < 80; len++) {
            uint32_t expected = slow_crc(77, data + from, len);
            assert_int_equal(expected, log_crc(77, data + from, len));
            assert_int_equal(expected,
                             log_crc(log_crc(77, data + from, len / 3), data + from + len / 3, len - len / 3));
        }
}
