/* `dt-worker --measure`: measures the values of a machine file for this node, and prints lines of JSON on standard
 * output. Before each turn {"doing": TEXT, "share": S, "limit_s": L}: S is the share of the work that is done, and what
 * is not needed is left out after L seconds. At the end one object with the figures in units of one (bytes, operations,
 * seconds); steps of jobs by which the client judges its forecasts; the part of the time in which other programs had
 * the cores; and unless `brief` the table of times (common/plan/estimate/table.h) in one string. Rates are those of one
 * core while all cores do the same, because every core has a worker. Storage is that of `folder`. Only processors are
 * measured; ERR_UNSUPPORTED on a node with GPUs. */
#ifndef DTD_WORKER_MEASURE_H
#define DTD_WORKER_MEASURE_H

#include "common/base/err.h"

#include <stdbool.h>

NODISCARD err_t measure_print(bool brief, const char *folder, struct why *why);

#endif
