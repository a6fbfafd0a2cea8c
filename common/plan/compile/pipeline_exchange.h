/* Messages between two slots of a pipeline's schedule: sends, receives and waits. Private to pipeline.c, which makes an
 * action of each exchange. */
#ifndef DTD_COMMON_PLAN_COMPILE_PIPELINE_EXCHANGE_H
#define DTD_COMMON_PLAN_COMPILE_PIPELINE_EXCHANGE_H

#include "common/plan/compile/internal.h"
#include "common/plan/compile/stages.h"

struct exchanges;

/* The exchanges of this rank's row. The replica has microbatches [0, micros) of the schedule's; messages of others are
 * skipped. `chunks` must be compiled; the caller keeps `c` and `chunks` until exchanges_free. NULL after a failure,
 * with c->err set. */
struct exchanges *exchanges_new(struct compiler *c, const struct pipeline_chunk *chunks, int micros);
void exchanges_free(struct exchanges *x); /* NULL is legal */

/* The ops between slot i - 1 and slot i; empty where there is no message. Called once for each i from 0 to the row's
 * length, in this order. */
struct op_range exchange_before(struct compiler *c, struct exchanges *x, int i);

#endif
