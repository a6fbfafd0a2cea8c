/* A job's step by its parts: the forecast that was recorded when the job was submitted (common/conf/job.h, struct
 * job_forecast) beside the measured usage of its ranks. Pure.
 *
 * The ranks with most work by their plans count (in a pipeline, those of the longest stage), since the forecast is that
 * of the slowest stage. */
#ifndef DTD_CLIENT_STEP_PARTS_H
#define DTD_CLIENT_STEP_PARTS_H

#include "common/conf/job.h"
#include "common/rpc/usage.h"

#include <jansson.h>

/* Which part of the forecast is which measured time. X(id, name in JSON, label, forecast from f, measured from u).
 *
 * compute: what is computed again is not measured apart. grads: ranks wait for the slowest one where they reduce
 * gradients. pp: a rank that idles in the bubble waits for a message. data, save, rest: the forecast has none of them;
 * rest is the part of communication without a purpose in the program (ranks wait for each other between steps), and
 * reports. */
#define STEP_PARTS(X)                                                                                  \
    X(COMPUTE, compute, "computing", f->compute_s, u->compute_s - known(u->update_s))                  \
    X(TP, tp, "tensor parallelism", f->tp_s, u->tp_s)                                                  \
    X(CP, cp, "context parallelism", f->cp_s, u->cp_s)                                                 \
    X(EP, ep, "expert exchange", f->ep_s, u->ep_s)                                                     \
    X(PP, pp, "pipeline and bubble", f->pp_s + f->bubble_s, u->pp_s)                                   \
    X(PARAMS, params, "parameter gathers", f->params_s, u->params_s)                                   \
    X(GRADS, grads, "gradient reduction", f->grads_s + f->wait_s, u->grads_s)                          \
    X(UPDATE, update, "optimizer", f->update_s, u->update_s)                                           \
    X(DATA, data, "reading samples", 0, u->data_s)                                                     \
    X(SAVE, save, "saving", 0, u->save_s)                                                              \
    X(REST, rest, "waiting between steps", 0,                                                          \
      fmax(0, u->step_s - known(u->compute_s) - known(u->data_s) - known(u->save_s) - known(u->tp_s) - \
                  known(u->cp_s) - known(u->ep_s) - known(u->pp_s) - known(u->params_s) - known(u->grads_s)))

#define X(id, ...) STEP_##id,
enum step_part { STEP_PARTS(X) STEP_PART_COUNT };
#undef X

struct step_compare {
    double forecast[STEP_PART_COUNT]; /* seconds */
    double measured[STEP_PART_COUNT]; /* NAN: unknown */
    double forecast_s, measured_s;    /* of the step; measured_s NAN: unknown */
    bool assumed, other_workers;      /* the ranks are not as many as those of the forecast */
    int largest;                      /* the part whose times differ most; -1: unknown */
    /* Reasons that the measurement shows. */
    double wait_s;  /* what these ranks wait on average until the slowest of all has computed */
    int slow_rank;  /* computes longer than SLOW times the median of the ranks with its work; -1: none */
    double slow;    /* how many times */
    double starved; /* the part of a core that a rank had while it computed, if that is too little; NAN: it is not */
};

const char *step_part_name(enum step_part part);
const char *step_part_label(enum step_part part);
/* False: the job has no forecast (it runs a command, or an older version submitted it). */
bool step_has_forecast(const struct job_forecast *f);
/* The mean of the last windows of the same ranks, without the first of them if there are others: everything is done for
 * the first time in it. Zeroed at first. */
struct step_windows {
    struct usage_sample mean; /* without ranks: there was no window */
    int n;
};
NODISCARD err_t step_windows_add(struct step_windows *w, const struct usage_sample *s); /* in the order of time */
void step_windows_fini(struct step_windows *w);
/* `s`: the mean of some windows; NULL or without ranks: nothing is measured yet. */
void step_compare(const struct job_forecast *f, const struct usage_sample *s, struct step_compare *ret);
/* Whether the part has a time in the forecast, or one in the measurement that can be seen. */
bool step_part_shown(const struct step_compare *c, enum step_part part);

#define STEP_TEXT 256
/* "step 0.52 s, forecast 0.48 s (+8 %): most of it in parameter gathers, +0.05 s"; without a measurement "forecast
 * 0.48 s". */
const char *step_line(const struct step_compare *c, char ret[STEP_TEXT]);
/* The line of a job with this file; "": the job has no forecast. */
const char *step_line_of(const char *spec_yaml, const struct usage_sample *s, char ret[STEP_TEXT]);
/* A sentence with the likely reason of the largest difference, from the measurement; "": there is no difference that
 * matters. */
const char *step_cause(const struct step_compare *c, char ret[STEP_TEXT]);
/* {"source", "assumed", "workers", "forecast_s", "step_s", "parts": [..], "largest", "text", "cause"} */
json_t *step_json(const struct job_forecast *f, const struct step_compare *c);

#endif
