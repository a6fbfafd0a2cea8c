/* Thins out a metrics file that has reached its limit. Of the older three quarters of its bytes, one of two
 * neighbouring rows remains; the newest quarter stays whole. Rows that were thinned out n times are 2^n steps apart, so
 * that a curve keeps its shape, and a job of any length has a file of limited size. Blocks on files; a thread of a
 * pool. */
#ifndef DTD_DAEMON_CONTROL_JOB_METRICS_THIN_H
#define DTD_DAEMON_CONTROL_JOB_METRICS_THIN_H

#include "common/base/err.h"

#include <stdint.h>

struct metrics_thinned {
    int64_t rows, kept; /* of the older part */
    int64_t bytes;      /* of the result */
};

/* Writes the first `size` bytes of the file `from`, which are whole lines, to the empty file `to`. Of two rows the one
 * with more values remains, so that validation losses outlive other rows, else the newer one. The first row always
 * remains, and so does the first one of an epoch that repeats steps, because it replaces rows of the epoch before it
 * (metrics_load). Lines that are no rows are left out. */
NODISCARD err_t metrics_thin(int from, int64_t size, int to, struct metrics_thinned *ret);

#endif
