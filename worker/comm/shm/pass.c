/* Copies between processors. The lines of a window are in the cache of the rank that read them last, and an ordinary
 * store has to take each of them back before the next one can retire. A non-temporal store takes no line: it discards
 * the other copies and writes the line as a whole. For 64 KiB this takes 2 us instead of up to 28. With more ranks than
 * processors (no spins) the reader often runs on the same processor, and ordinary stores leave the lines in its cache.
 */
#include "worker/comm/shm/shm.h"

#include "common/base/past_cache.h"

#include <string.h>

/* Below this size the few lines are faster from cache to cache, because the reader then does not wait for memory. */
#define PASS_LEAST 4096

void shm_pass(const struct shm_comm *s, void *to, const void *from, size_t bytes)
{
    if (bytes < PASS_LEAST || !s->spins)
        memcpy(to, from, bytes);
    else
        copy_past_cache(to, from, bytes);
}
