/* Any text as a key file: it is refused with a message, or gives a valid ring whose own text reads back the same. */
#include "common/tunnel/key.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct key_ring ring, again;
    struct why why = {""};
    char text[KEY_FILE_MAX];
    if (key_file_parse("file", (const char *)data, size, &ring, &why)) {
        if (!strstr(why.text, "file"))
            abort();
        return 0;
    }
    for (int i = 0; i < ring.n; i++)
        if (!ring.keys[i].version || (i && ring.keys[i].version <= ring.keys[i - 1].version))
            abort();
    size_t len = key_file_print(&ring, text);
    if (len != size || key_file_parse("file", text, len, &again, &why) || memcmp(&ring, &again, sizeof(ring)) != 0)
        abort();
    return 0;
}
