/* `dt-worker --measure`: measures what a machine file says about the processors of this node, in about ten seconds, and
 * prints lines of JSON on standard output: {"doing": TEXT, "part": I, "parts": N} before each part, and at the end one
 * object with the figures, in units of one (bytes, operations, seconds). Rates are those of one core while all cores do
 * the same, because every core has a worker. Only processors are measured; ERR_UNSUPPORTED on a node with GPUs. */
#ifndef DTD_WORKER_MEASURE_H
#define DTD_WORKER_MEASURE_H

#include "common/base/err.h"

NODISCARD err_t measure_print(struct why *why);

#endif
