/* index.json of prepared data: as it is, and with a correct checksum, because otherwise no input would reach the code
 * after the checksum's test. */
#include "common/data/index.h"
#include "common/data/sha.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void parse_index(const void *text, size_t len)
{
    struct data_index x;
    struct buf again = {0};
    if (index_parse(text, len, &x, NULL))
        return;
    if (index_print(&x, &again))
        abort();
    index_fini(&x);
    if (index_parse(again.data, again.len, &x, NULL))
        abort();
    index_fini(&x);
    buf_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char seal[65];
    parse_index(data, size);
    json_t *object = json_loadb((const char *)data, size, JSON_REJECT_DUPLICATES, NULL);
    if (json_is_object(object)) {
        json_object_del(object, "sha256");
        char *text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
        if (text && !sha_of(text, strlen(text), seal) && !json_object_set_new(object, "sha256", json_string(seal))) {
            char *sealed = json_dumps(object, 0);
            if (sealed)
                parse_index(sealed, strlen(sealed));
            free(sealed);
        }
        free(text);
    }
    json_decref(object);
    return 0;
}
