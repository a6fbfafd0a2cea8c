/* memcpy of glibc does the same, but only from three quarters of the last cache on. Pieces of a snapshot are smaller,
 * and together much larger. */
#include "worker/step/past_cache.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

#define LEAST ((size_t)64 << 10) /* less may still be in the cache when dtd-io reads it */
#define LINE 64

static void lines_copy(uint8_t *to, const uint8_t *from, size_t lines)
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
    _mm_sfence(); /* later stores of this thread, by which others learn of these, do not order them */
}

void copy_past_cache(void *to, const void *from, size_t bytes)
{
    if (bytes < LEAST) {
        memcpy(to, from, bytes);
        return;
    }
    const size_t head = -(uintptr_t)to % LINE, lines = (bytes - head) / LINE, done = head + lines * LINE;
    memcpy(to, from, head);
    lines_copy((uint8_t *)to + head, (const uint8_t *)from + head, lines);
    memcpy((uint8_t *)to + done, (const uint8_t *)from + done, bytes - done);
}
#else
void copy_past_cache(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
}
#endif
