/* Any bytes as a ticket: they are refused with a message, or all fields are within their bounds. */
#include "common/base/ticket.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ticket t;
    struct why why = {""};
    err_t err = ticket_parse((const char *)data, size, &t, &why);
    if (err ? !why.text[0] : t.slots < 1 || t.control[0] != '/' || t.io[0] != '/' || !memchr(t.io, 0, sizeof(t.io)))
        abort();
    return 0;
}
