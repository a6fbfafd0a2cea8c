/* A log with a small state machine that records what it applies, and helpers that wait. */
#ifndef DTD_TESTS_DAEMON_CONTROL_LOG_LOG_FIXTURE_H
#define DTD_TESTS_DAEMON_CONTROL_LOG_LOG_FIXTURE_H

#include "daemon/control/log/log.h"
#include "tests/lib/test.h"

#include <stdbool.h>

#define FIXTURE_SEGMENT (256u << 10)
#define FIXTURE_RESERVE (512u << 10)

/* Records are numbers; the machine keeps their count, the last one, and a hash over their order. */
struct machine {
    uint64_t count, last, hash;
};

struct fixture {
    uv_loop_t loop;
    struct log *log;
    struct machine machine;
    bool ready, closed;
    int ready_calls, restores, snapshots, warnings;
    err_t ready_err;
    char why[512];
    int done, canceled; /* proposals */
    uint64_t last_result;
    unsigned threshold;
};

/* Called in the thread that writes a snapshot; NULL: nothing. */
extern void (*fixture_writes)(void);

void fixture_open(struct fixture *f, const char *dir);  /* waits until the log is ready or has failed to open */
void fixture_start(struct fixture *f, const char *dir); /* does not wait */
void fixture_close(struct fixture *f);                  /* waits; keeps the counters */
err_t fixture_propose(struct fixture *f, uint64_t number, size_t padding);
bool fixture_pump(struct fixture *f, bool (*done)(struct fixture *f), int ms);
void fixture_pump_ms(struct fixture *f, int ms);
bool fixture_is_ready(struct fixture *f);
bool fixture_is_answered(struct fixture *f);             /* ready or failed to open */
uint64_t machine_hash_of(uint64_t first, uint64_t last); /* of the numbers first..last in order */

#endif
