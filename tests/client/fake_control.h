/* A control process that only talks: answers dtctl's calls from a script of misfortunes. Lives on a thread of its own.
 */
#ifndef DTD_TESTS_CLIENT_FAKE_CONTROL_H
#define DTD_TESTS_CLIENT_FAKE_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

struct fake_script {
    int drop_submits; /* connections that are closed instead of answering a Submit, after having taken it */
    int drop_watches; /* Watch streams that break after some metrics */
    int drop_metrics;
    bool hang; /* Watch goes on for ever, until there is a Cancel */
    int steps;
    const char *end_state;                  /* what becomes of the job */
    const char *checkpoint_dir, *spec_yaml; /* of the job that is there; may be NULL */
};

struct fake_control; /* one at a time in a process */
/* Listens at `<state dir>/control.sock`; makes the folder and holds its dtd.lock. */
struct fake_control *fake_start(const char *state_dir, const struct fake_script *script);
void fake_stop(struct fake_control *f);

/* After fake_stop as well: what was asked. */
struct fake_seen {
    int submits, jobs; /* calls, and distinct request ids */
    int watches, metrics, cancels;
    int64_t metrics_from; /* of the last Metrics call */
};
struct fake_seen fake_seen(struct fake_control *f);
/* Of the last Submit; "" before one. Live as long as f. */
const char *fake_spec(struct fake_control *f);
const char *fake_parent(struct fake_control *f);
void fake_free(struct fake_control *f);

#endif
