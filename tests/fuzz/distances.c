/* Distances of NUMA nodes, which come from sysfs. The first byte is the number of nodes. */
#include "daemon/control/local/topology.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t row[TOPOLOGY_MAX_NODES] = {0};
    char *text = size ? malloc(size) : NULL;
    if (!text)
        return 0;
    int n = data[0] % (TOPOLOGY_MAX_NODES + 1);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    bool taken = topology_parse_distances(text, n, row) == OK;
    for (int i = 0; i < TOPOLOGY_MAX_NODES; i++)
        if (taken && i < n ? row[i] < 10 : row[i] != 0)
            abort();
    free(text);
    return 0;
}
