/* See greeting.h. The decoder is strict: a single unexpected byte ends the tunnel, because only a different program or
 * an attacker with a key would send it. */
#include "common/tunnel/greeting.h"

#include "common/tunnel/address.h"

#include <string.h>

static const uint8_t magic[4] = {'D', 'T', 'D', 'T'};

enum { AT_VERSION = 4, AT_STATUS, AT_PURPOSE, AT_NAME_LEN, AT_ARGUMENT_LEN };

size_t greeting_encode(const struct greeting *g, uint8_t ret[GREETING_MAX_BYTES])
{
    size_t name = strlen(g->name), argument = strlen(g->argument);
    memcpy(ret, magic, sizeof(magic));
    ret[AT_VERSION] = g->version;
    ret[AT_STATUS] = g->status;
    ret[AT_PURPOSE] = (uint8_t)g->purpose;
    ret[AT_NAME_LEN] = (uint8_t)name;
    ret[AT_ARGUMENT_LEN] = (uint8_t)argument;
    ret[AT_ARGUMENT_LEN + 1] = (uint8_t)(argument >> 8);
    size_t at = GREETING_HEADER_BYTES;
    memcpy(ret + at, g->name, name);
    at += name;
    memcpy(ret + at, g->argument, argument);
    at += argument;
    if (g->version != 2)
        return at;
    memcpy(ret + at, g->public_key, IDENTITY_BYTES);
    memcpy(ret + at + IDENTITY_BYTES, g->proof, IDENTITY_PROOF_BYTES);
    return at + GREETING_IDENTITY_BYTES;
}

static size_t identity_bytes(uint8_t version)
{
    return version == 2 ? GREETING_IDENTITY_BYTES : 0;
}

size_t greeting_length(const uint8_t header[GREETING_HEADER_BYTES])
{
    size_t name = header[AT_NAME_LEN];
    size_t argument = header[AT_ARGUMENT_LEN] | (size_t)header[AT_ARGUMENT_LEN + 1] << 8;
    if (memcmp(header, magic, sizeof(magic)) != 0 || !name || name > TUNNEL_NAME_MAX || argument > TUNNEL_ARGUMENT_MAX)
        return 0;
    return GREETING_HEADER_BYTES + name + argument + identity_bytes(header[AT_VERSION]);
}

bool greeting_argument_valid(const char *argument, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (argument[i] < ' ' || argument[i] > '~')
            return false;
    return len <= TUNNEL_ARGUMENT_MAX;
}

err_t greeting_decode(const uint8_t *data, size_t len, struct greeting *ret, struct why *why)
{
    if (len < GREETING_HEADER_BYTES || greeting_length(data) != len)
        return why_set(why, ERR_PROTO, "its greeting is not a greeting of dtd");
    size_t name_len = data[AT_NAME_LEN], identity = identity_bytes(data[AT_VERSION]);
    size_t argument_len = len - GREETING_HEADER_BYTES - name_len - identity;
    const char *name = (const char *)data + GREETING_HEADER_BYTES;
    struct greeting g = {.version = data[AT_VERSION], .status = data[AT_STATUS]};
    if (!node_name_valid(name, name_len))
        return why_set(why, ERR_PROTO, "the name in its greeting is not a valid node name");
    if (!greeting_argument_valid(name + name_len, argument_len))
        return why_set(why, ERR_PROTO, "the argument in its greeting has a byte that is not visible ASCII");
    if (data[AT_PURPOSE] < TUNNEL_RPC || data[AT_PURPOSE] > TUNNEL_STORE)
        return why_set(why, ERR_PROTO, "its greeting has the unknown purpose %d", data[AT_PURPOSE]);
    g.purpose = (enum tunnel_purpose)data[AT_PURPOSE];
    memcpy(g.name, name, name_len);
    memcpy(g.argument, name + name_len, argument_len);
    if (identity) {
        memcpy(g.public_key, data + len - GREETING_IDENTITY_BYTES, IDENTITY_BYTES);
        memcpy(g.proof, data + len - IDENTITY_PROOF_BYTES, IDENTITY_PROOF_BYTES);
    }
    *ret = g;
    return OK;
}

const char *greeting_status_text(uint8_t status)
{
    static const char *const texts[] = {
#define X(name, value, text) [value] = (text),
        GREETING_STATUS_LIST(X)
#undef X
    };
    return status < sizeof(texts) / sizeof(*texts) && texts[status] ? texts[status] : "for an unknown reason";
}
