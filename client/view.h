/* What is known of a job that somebody watches, and the line that says it. Pure: the caller draws. */
#ifndef DTD_CLIENT_VIEW_H
#define DTD_CLIENT_VIEW_H

#include "client/client.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct view {
    char job[32], name[64], state[16];
    int64_t step, steps;
    double loss, valid_loss, test_loss, tokens_per_s; /* NAN: unknown */
    double step_s;                                    /* smoothed over some ten steps; NAN: unknown */
    int workers;
    uint64_t epoch;
    /* of the plain lines: what the last one said */
    int64_t printed_step, printed_ms;
};

void view_init(struct view *v, const char *job);
void view_status(struct view *v, const struct client_job *job);
void view_metric(struct view *v, const struct client_metric *m);
/* Seconds to the end at the present speed; NAN when unknown or not running. */
double view_eta(const struct view *v);
/* "job 1 first-job  step 120/300  40%  loss 2.412  3.4k tok/s  ETA 1m 12s  2 workers"; `bar`: with one. */
void view_line(const struct view *v, bool bar, char *ret, size_t size);
/* In a pipe: whether it is time for a line (the first step, each 5 %, each 10 s, the last step), and that it was said.
 */
bool view_line_due(const struct view *v, int64_t now_ms);
void view_line_printed(struct view *v, int64_t now_ms);

#endif
