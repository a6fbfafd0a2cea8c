/* The memory that processes of this node may still take. Any thread. */
#ifndef DTD_COMMON_BASE_MEMINFO_H
#define DTD_COMMON_BASE_MEMINFO_H

#include "common/base/err.h"

#include <stdint.h>

/* MemAvailable, or less if a control group of this process, or one above it, has a limit. */
NODISCARD err_t meminfo_available(int64_t *ret_bytes, struct why *why);

#endif
