/* Copies between processors. The lines of a window are in the cache of the rank that read them last, and an ordinary
 * store has to take each of them back before the next one can retire. A non-temporal store takes no line: it discards
 * the other copies and writes the line as a whole. For 64 KiB this takes 2 us instead of up to 28. With more ranks than
 * processors (no spins) the reader often runs on the same processor, and ordinary stores leave the lines in its cache.
 */
#include "worker/comm/shm/shm.h"

#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

/* Below this size the few lines are faster from cache to cache, because the reader then does not wait for memory. */
#define PASS_LEAST 4096
#define LINE 64

static void pass_lines(uint8_t *to, const uint8_t *from, size_t lines)
{
    for (size_t i = 0; i < lines; i++, to += LINE, from += LINE) {
        const __m128i *x = (const __m128i *)(const void *)from;
        __m128i a = _mm_loadu_si128(x), b = _mm_loadu_si128(x + 1), c = _mm_loadu_si128(x + 2),
                d = _mm_loadu_si128(x + 3);
        __m128i *y = (__m128i *)(void *)to;
        _mm_stream_si128(y, a);
        _mm_stream_si128(y + 1, b);
        _mm_stream_si128(y + 2, c);
        _mm_stream_si128(y + 3, d);
    }
    _mm_sfence(); /* these stores are not ordered by an atomic store that follows */
}

void shm_pass(const struct shm_comm *s, void *to, const void *from, size_t bytes)
{
    if (bytes < PASS_LEAST || !s->spins) {
        memcpy(to, from, bytes);
        return;
    }
    const size_t head = -(uintptr_t)to % LINE, lines = (bytes - head) / LINE, done = head + lines * LINE;
    memcpy(to, from, head);
    pass_lines((uint8_t *)to + head, (const uint8_t *)from + head, lines);
    memcpy((uint8_t *)to + done, (const uint8_t *)from + done, bytes - done);
}
#else
void shm_pass(const struct shm_comm *s, void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif
