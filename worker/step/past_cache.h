/* A copy of bytes that this processor does not read again: large ones are written past its cache, which saves reading
 * the lines of the destination first and leaves the cache to the next step. They are visible to other threads and
 * processes as those of memcpy. Pure; any thread. */
#ifndef DTD_WORKER_STEP_PAST_CACHE_H
#define DTD_WORKER_STEP_PAST_CACHE_H

#include <stddef.h>

void copy_past_cache(void *to, const void *from, size_t bytes);

#endif
