#include "tests/daemon/control/log/formats_log.h"

#include "common/base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* So small that the records of write_format.c give a snapshot with entries behind it. */
#define THRESHOLD 20
#define TRAILING 4

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void on_ready(void *owner, err_t err, const char *why)
{
    struct formats_log *f = owner;
    f->is_ready = true;
    f->err = err;
    snprintf(f->why, sizeof(f->why), "%s", why ? why : "");
}

static void on_closed(void *owner)
{
    ((struct formats_log *)owner)->is_closed = true;
}

static void turn(struct formats_log *f, int64_t until)
{
    uv_run(&f->loop, UV_RUN_ONCE);
    if (clock_mono_ms() > until)
        fail("log", "nothing happens for 30 s");
}

void formats_log_open(struct formats_log *f, const char *dir)
{
    *f = (struct formats_log){.is_ready = false};
    if (uv_loop_init(&f->loop) || state_new(&f->replica.state))
        fail("log", "no memory");
#if __has_include("daemon/control/state/clock.h")
    f->replica.clock = &f->clock;
#endif
    const struct log_config config = {
        .loop = &f->loop,
        .dir = dir,
        .machine = replica_machine(&f->replica),
        .owner = f,
        .on_ready = on_ready,
        .segment_bytes = 256u << 10,
        .reserve_bytes = 512u << 10,
#if __has_include("daemon/control/log/snapshot.h")
        .snapshot_part = 1000,
#endif
        .snapshot_threshold = THRESHOLD,
        .snapshot_trailing = TRAILING
    };
    if (log_start(&config, &f->replica.log))
        fail(dir, "the log does not start");
    for (int64_t until = clock_mono_ms() + 30000; !f->is_ready || (!f->err && !log_leads(f->replica.log));)
        turn(f, until);
}

static void on_added(void *arg, err_t err, uint64_t index, const void *result)
{
    const struct state_result *r = result;
    (void)index;
    ((struct formats_log *)arg)->waiting--;
    if (err || r->err)
        fail("record", err_text(err ? err : r->err));
}

void formats_log_add(struct formats_log *f, struct record *r)
{
    err_t err = replica_propose(&f->replica, r, on_added, f);
    if (err)
        fail("record", err_text(err));
    f->waiting++;
    for (int64_t until = clock_mono_ms() + 30000; f->waiting;)
        turn(f, until);
}

void formats_log_close(struct formats_log *f)
{
    log_close(f->replica.log, on_closed);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    if (!f->is_closed || uv_loop_close(&f->loop))
        fail("log", "it does not close");
    state_free(f->replica.state);
}
