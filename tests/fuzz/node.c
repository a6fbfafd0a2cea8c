/* dtd's own configuration. */
#include "common/conf/node.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct node_conf conf;
    struct why why = {0};
    if (!node_conf_parse("fuzz", (const char *)data, size, &conf, &why))
        node_conf_fini(&conf);
    else if (!why.text[0])
        abort();
    return 0;
}
