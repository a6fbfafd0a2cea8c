/* Sizes around lines, and all alignments: the bytes are those of the source, and no others change. */
#include "common/base/past_cache.h"

#include "tests/lib/test.h"

#define MAX_BYTES 70000
#define EDGE 128

TEST(all_alignments)
{
    static const size_t sizes[] = {0, 1, 63, 4096, 65535, 65536, 65537, 65599, 65600, 69999};
    static uint8_t from[MAX_BYTES + EDGE], to[MAX_BYTES + 2 * EDGE], expected[MAX_BYTES + 2 * EDGE];
    for (size_t i = 0; i < sizeof(from); i++)
        from[i] = (uint8_t)(i * 7 + i / 251);
    for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
        for (size_t a = 0; a < 65; a++)
            for (size_t b = 0; b < 65; b += 13) {
                memset(to, 0xee, sizeof(to));
                memset(expected, 0xee, sizeof(expected));
                for (size_t i = 0; i < sizes[k]; i++)
                    expected[a + i] = from[b + i];
                copy_past_cache(to + a, from + b, sizes[k]);
                assert_memory_equal(to, expected, sizeof(to));
            }
}
