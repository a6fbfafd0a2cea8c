/* STATE/cluster/recovery and superseded: an accepted file, printed and read again, gives the same values. */
#include "daemon/control/cluster/lineage_file.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct lineage_file a, b;
    struct why why = {""};
    char text[LINEAGE_FILE_MAX];
    if (lineage_file_parse("fuzz", (const char *)data, size, &a, &why))
        return 0;
    size_t len = lineage_file_print(&a, text);
    if (lineage_file_parse("fuzz", text, len, &b, &why) || a.generation != b.generation || a.n_gone != b.n_gone ||
        strcmp(a.by, b.by) != 0 || a.all_gone != b.all_gone)
        abort();
    return 0;
}
