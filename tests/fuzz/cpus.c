/* Lists of CPUs, which come from sysfs: an accepted list, printed and read again, gives the same set. */
#include "common/base/cpus.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX 1024

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t set[MAX / 8], again[MAX / 8];
    char list[8 * MAX], cut[24],
        *text = malloc(size ? size : 1); /* exactly this size, so that the sanitizer detects a read after the end */
    if (!text)
        return 0;
    memcpy(text, data, size);
    if (cpus_parse(text, size, MAX, set) == OK) {
        cpus_print(set, MAX, list, sizeof(list));
        cpus_print(set, MAX, cut, sizeof(cut));
        if (cpus_parse(list, strlen(list), MAX, again) || memcmp(set, again, sizeof(set)) != 0)
            abort();
        if (strlen(cut) >= sizeof(cut) || (strlen(list) < sizeof(cut) - sizeof(",..") && strcmp(cut, list) != 0))
            abort();
    }
    free(text);
    return 0;
}
