/* What goes over between two slots of a pipeline's schedule: sends, receives, and what is waited for. Private to
 * pipeline.c, which makes an action of each. */
#ifndef DTD_COMMON_PLAN_COMPILE_PIPELINE_EXCHANGE_H
#define DTD_COMMON_PLAN_COMPILE_PIPELINE_EXCHANGE_H

#include "common/plan/compile/internal.h"
#include "common/plan/compile/stages.h"

struct exchanges;

/* Of this rank's row, whose microbatches are [0, micros) of the schedule's: what is of others neither comes nor goes.
 * `chunks` are compiled. The caller keeps both alive. NULL with c->err; freed by exchanges_free. */
struct exchanges *exchanges_new(struct compiler *c, const struct pipeline_chunk *chunks, int micros);
void exchanges_free(struct exchanges *x); /* NULL is legal */

/* The ops between slot i - 1 and slot i; of i 0 to the row's length, each once, in this order. None where nothing goes
 * over. */
struct op_range exchange_before(struct compiler *c, struct exchanges *x, int i);

#endif
