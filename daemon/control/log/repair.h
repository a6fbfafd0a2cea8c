/* Full segments that libraft could not close, found before libraft reads its folder. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_LOG_REPAIR_H
#define DTD_DAEMON_CONTROL_LOG_REPAIR_H

#include "common/base/err.h"

#include <stdint.h>

/* Closes segments of `dir`/log that must have been closed. `stored`: index of the last entry that was stored. */
NODISCARD err_t log_repair_segments(const char *dir, uint64_t stored, struct why *why);

#endif
