/* The handshake between ranks of different nodes before authentication, and the headers between messages. An accepted
 * identity prints as it was, an accepted address as one with the same meaning. */
#include "worker/comm/wire/codec.h"

#include <assert.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct wire_identity id;
    union wire_address at, again;
    struct wire_header h;
    char text[WIRE_IDENTITY_MAX];
    uint8_t bytes[WIRE_HEADER_BYTES];
    if (wire_identity_parse(data, size, &id) == OK)
        assert(wire_identity_print(&id, text) == size && memcmp(text, data, size) == 0);
    if (wire_address_parse((const char *)data, size, &at) == OK) {
        wire_address_print(&at, text);
        assert(wire_address_parse(text, strlen(text), &again) == OK && memcmp(&at, &again, sizeof(at)) == 0);
    }
    if (size >= WIRE_HEADER_BYTES && wire_header_get(data, &h) == OK) {
        wire_header_put(&h, bytes);
        assert(memcmp(bytes, data, sizeof(bytes)) == 0);
    }
    return 0;
}
