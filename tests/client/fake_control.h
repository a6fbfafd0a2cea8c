/* A stand-in for dtd-control: answers dtctl's calls, and fails some of them according to a script. It runs on a thread
 * of its own. */
#ifndef DTD_TESTS_CLIENT_FAKE_CONTROL_H
#define DTD_TESTS_CLIENT_FAKE_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

struct fake_script {
    int drop_submits; /* number of Submits that are executed, but whose connection is closed instead of a reply */
    int drop_watches; /* number of Watch streams that break after some metrics */
    int drop_metrics;
    bool thinned; /* the first half of the metrics has the first and the even steps only */
    bool hang;    /* Watch does not end until a Cancel arrives */
    int steps;
    const char *end_state;                  /* the job's last state */
    const char *checkpoint_dir, *spec_yaml; /* of the only job; may be NULL */
};

struct fake_control; /* one at a time in a process */
/* Listens at `<state dir>/control.sock`; creates the folder and holds its dtd.lock. */
struct fake_control *fake_start(const char *state_dir, const struct fake_script *script);
void fake_stop(struct fake_control *f);

/* The calls that arrived so far; may be called after fake_stop as well. */
struct fake_seen {
    int submits, jobs; /* calls, and distinct request ids */
    int watches, metrics, cancels;
    int64_t metrics_from; /* of the last Metrics call */
};
struct fake_seen fake_seen(struct fake_control *f);
/* Spec and parent of the last Submit; "" before the first. Valid until fake_free. */
const char *fake_spec(struct fake_control *f);
const char *fake_parent(struct fake_control *f);
void fake_free(struct fake_control *f);

#endif
