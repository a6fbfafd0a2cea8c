/* Any bytes as a recording of steps: they are refused with a message; otherwise writing and reading gives the same, and
 * the rows of a trace can be made of them. */
#include "client/profile/profile.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct recorded r, again;
    struct buf text = {0};
    struct lanes lanes;
    struct why why = {""};
    if (recorded_read((const char *)data, size, "x", &r, &why)) {
        if (!why.text[0])
            abort();
        return 0;
    }
    if (recorded_print(&r, &text) || recorded_read((const char *)text.data, text.len, "again", &again, NULL) ||
        again.n_events != r.n_events || again.n_calls != r.n_calls || again.world != r.world)
        abort();
    if (lanes_of(&r, &lanes))
        abort();
    lanes_fini(&lanes);
    recorded_fini(&again);
    recorded_fini(&r);
    buf_fini(&text);
    return 0;
}
