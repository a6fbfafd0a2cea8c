/* Any bytes as the timeline of a step: they are refused with a message; otherwise writing and reading the timeline
 * gives the same. */
#include "common/plan/estimate/measured.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *print_timeline(const struct measured *m, size_t *ret_len)
{
    char *text = NULL;
    FILE *out = open_memstream(&text, ret_len);
    if (!out)
        abort();
    measured_print(m, out);
    if (fclose(out))
        abort();
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct measured m, again;
    struct why why = {""};
    size_t len;
    if (measured_read((const char *)data, size, "x", &m, &why)) {
        if (!why.text[0])
            abort();
        return 0;
    }
    char *text = print_timeline(&m, &len);
    if (measured_read(text, len, "again", &again, NULL) || again.did.n != m.did.n || again.world != m.world)
        abort();
    free(text);
    measured_fini(&again);
    measured_fini(&m);
    return 0;
}
