/* `dt-worker --measure`: measures the values of a machine file for the processors of this node, and prints lines of
 * JSON on standard output: {"doing": TEXT, "part": I, "parts": N} before each part, and at the end one object with the
 * figures, and unless `brief` the table of times (common/plan/estimate/table.h) in one string, in units of one (bytes,
 * operations, seconds). Rates are those of one core while all cores do the same, because every core has a worker. Only
 * processors are measured; ERR_UNSUPPORTED on a node with GPUs. */
#ifndef DTD_WORKER_MEASURE_H
#define DTD_WORKER_MEASURE_H

#include "common/base/err.h"

#include <stdbool.h>

NODISCARD err_t measure_print(bool brief, struct why *why);

#endif
