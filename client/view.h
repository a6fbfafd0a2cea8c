/* State of a watched job and its one-line progress display. Pure functions: the caller draws the line. */
#ifndef DTD_CLIENT_VIEW_H
#define DTD_CLIENT_VIEW_H

#include "client/client.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct view {
    char job[32], name[64], state[16];
    int64_t step, steps;
    struct metric last; /* newest values; an optional one stays until a later step has it again */
    double step_s;      /* smoothed over some ten steps; NAN: unknown */
    int64_t workers;
    int64_t printed_step, printed_ms; /* of the last line that was printed to a pipe; step -1: none */
};

void view_init(struct view *v, const char *job);
void view_status(struct view *v, const struct client_job *job);
void view_metric(struct view *v, const struct metric *m);
/* Seconds until the last step at the present speed; NAN: unknown, or the job is not running. */
double view_eta(const struct view *v);
/* "job 1 first-job  step 120/300  40%  loss 2.412  3.4k tok/s  ETA 1m 12s  2 workers", for a terminal of
 * `columns` with a progress bar, or less if that does not fit: step, loss and ETA stay. One column remains free. 0: no
 * terminal. */
void view_line(const struct view *v, int columns, char *ret, size_t size);
/* For output to a pipe. view_line_due: a line is due at the first step, at every 5 % of the steps, after 10 s, and at
 * the last step. view_line_printed: records that the caller has printed the line. */
bool view_line_due(const struct view *v, int64_t now_ms);
void view_line_printed(struct view *v, int64_t now_ms);

#endif
