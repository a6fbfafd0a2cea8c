/* memcpy of glibc does the same, but only from three quarters of the last cache on. */
#include "common/base/past_cache.h"

#include <stdint.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>

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
    _mm_sfence(); /* a later store of this thread, by which others learn of these, does not order them */
}

void copy_past_cache(void *to, const void *from, size_t bytes)
{
    const size_t before = -(uintptr_t)to % LINE, head = before < bytes ? before : bytes;
    const size_t lines = (bytes - head) / LINE, done = head + lines * LINE;
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
