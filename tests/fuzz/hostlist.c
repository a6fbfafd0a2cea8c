/* Lists of hosts, which come from the environment. */
#include "common/base/hostlist.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char **names, *text = malloc(size + 1);
    struct why why = {""};
    int n;
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (hostlist_expand(text, &names, &n, &why) == OK) {
        for (int i = 0; i < n; i++)
            if (!names[i][0] || strlen(names[i]) > HOSTLIST_NAME_MAX)
                abort();
        free(names);
    } else if (!why.text[0]) {
        abort();
    }
    free(text);
    return 0;
}
