/* Draws the screens of `dtctl top`: a pure function from the model to a screen. */
#ifndef DTD_CLIENT_TOP_DRAW_H
#define DTD_CLIENT_TOP_DRAW_H

#include "client/top/glyphs.h"
#include "client/top/model.h"

void top_draw(const struct top_model *m, struct glyphs *c);

/* Indices of the jobs that filter and user select, in the chosen order. `ret` has room for n_jobs. Returns the number.
 */
int top_jobs_shown(const struct top_model *m, int *ret);
/* The ranks of the job in the chosen order. `ret` has room for all of its workers. */
int top_ranks_shown(const struct top_model *m, int *ret);

extern const int top_job_sorts, top_rank_sorts, top_maps; /* numbers of choices of s and m */

/* How the job has used its time since it was submitted, in seconds. */
enum top_time { TOP_QUEUE, TOP_START, TOP_WORK, TOP_REPEAT, TOP_DETECT, TOP_RESTART, TOP_TIMES };
struct top_ledger {
    double seconds[TOP_TIMES];
    double total;
};
void top_ledger(const struct client_job *job, double step_s, struct top_ledger *ret);

#endif
