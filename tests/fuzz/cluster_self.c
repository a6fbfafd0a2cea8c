/* STATE/cluster/self: an accepted file, printed and read again, gives the same values. */
#include "daemon/control/cluster/self_file.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct cluster_self a, b;
    struct why why = {""};
    char text[CLUSTER_FILE_MAX];
    if (cluster_file_parse("fuzz", (const char *)data, size, &a, &why))
        return 0;
    size_t len = cluster_file_print(&a, text);
    if (cluster_file_parse("fuzz", text, len, &b, &why) || strcmp(a.name, b.name) != 0 || a.id != b.id ||
        memcmp(a.instance, b.instance, sizeof(a.instance)) != 0 || a.joins != b.joins)
        abort();
    return 0;
}
