/* A copy of bytes that this processor does not read again, written past its caches: the lines of the destination are
 * not read first, nor taken back from the caches of other processors, and the caches keep what the processor needs
 * next. The bytes are visible to other threads and processes as those of memcpy. For small copies memcpy is faster; the
 * limit depends on where the reader is, so it is the caller's. Pure; any thread. */
#ifndef DTD_COMMON_BASE_PAST_CACHE_H
#define DTD_COMMON_BASE_PAST_CACHE_H

#include <stddef.h>

void copy_past_cache(void *to, const void *from, size_t bytes);

#endif
