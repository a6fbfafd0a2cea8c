/* An identity is accepted only in the form in which it is printed. The parser prints the parsed values again and
 * compares the texts, so every identity has exactly one spelling. */
#include "worker/comm/wire/codec.h"

#include <arpa/inet.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAGIC 0x31577444u /* "DtW1" */

err_t wire_address_make(const char *text, uint16_t port, union wire_address *ret)
{
    memset(ret, 0, sizeof(*ret));
    if (inet_pton(AF_INET, text, &ret->v4.sin_addr) == 1) {
        ret->v4.sin_family = AF_INET;
        ret->v4.sin_port = htons(port);
        return OK;
    }
    if (inet_pton(AF_INET6, text, &ret->v6.sin6_addr) != 1)
        return ERR_INVALID;
    ret->v6.sin6_family = AF_INET6;
    ret->v6.sin6_port = htons(port);
    return OK;
}

static bool is_own(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ret = fd >= 0 && bind(fd, a->ai_addr, a->ai_addrlen) == 0;
    if (fd >= 0)
        close(fd);
    return ret;
}

err_t wire_address_find(const char *text, uint16_t port, union wire_address *ret)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    char number[INET6_ADDRSTRLEN];
    err_t err = wire_address_make(text, port, ret);
    if (!err || !text[0] || getaddrinfo(text, NULL, &hints, &list) || !list)
        return err;
    const struct addrinfo *a = list;
    while (a && !is_own(a))
        a = a->ai_next;
    a = a ? a : list;
    if (getnameinfo(a->ai_addr, a->ai_addrlen, number, sizeof(number), NULL, 0, NI_NUMERICHOST) == 0)
        err = wire_address_make(number, port, ret);
    freeaddrinfo(list);
    return err;
}

err_t wire_address_parse(const char *value, size_t bytes, union wire_address *ret)
{
    char text[WIRE_ADDRESS_MAX], *end;
    if (bytes == 0 || bytes >= sizeof(text))
        return ERR_PROTO;
    memcpy(text, value, bytes);
    text[bytes] = '\0';
    char *space = strchr(text, ' ');
    if (!space || strlen(text) != bytes || space[1] < '0' || space[1] > '9')
        return ERR_PROTO;
    *space = '\0';
    unsigned long port = strtoul(space + 1, &end, 10);
    if (*end || port == 0 || port > UINT16_MAX || wire_address_make(text, (uint16_t)port, ret))
        return ERR_PROTO;
    return OK;
}

void wire_address_print(const union wire_address *a, char *ret)
{
    char text[INET6_ADDRSTRLEN] = "?";
    const bool v6 = a->any.sa_family == AF_INET6;
    const void *address = v6 ? (const void *)&a->v6.sin6_addr : (const void *)&a->v4.sin_addr;
    inet_ntop(a->any.sa_family, address, text, sizeof(text));
    snprintf(ret, WIRE_ADDRESS_MAX, "%s %u", text, ntohs(v6 ? a->v6.sin6_port : a->v4.sin_port));
}

socklen_t wire_address_bytes(const union wire_address *a)
{
    return a->any.sa_family == AF_INET6 ? sizeof(a->v6) : sizeof(a->v4);
}

size_t wire_identity_print(const struct wire_identity *id, char *ret)
{
    return (size_t)snprintf(ret, WIRE_IDENTITY_MAX, "dtd-comm/1 epoch=%" PRIu64 " from=%d to=%d lane=%d world=%d",
                            id->epoch, id->from, id->to, id->lane, id->world);
}

err_t wire_identity_parse(const void *value, size_t bytes, struct wire_identity *ret)
{
    char text[WIRE_IDENTITY_MAX], again[WIRE_IDENTITY_MAX];
    struct wire_identity id;
    if (bytes == 0 || bytes >= sizeof(text))
        return ERR_PROTO;
    memcpy(text, value, bytes);
    text[bytes] = '\0';
    if (sscanf(text, "dtd-comm/1 epoch=%20" SCNu64 " from=%9d to=%9d lane=%9d world=%9d", &id.epoch, &id.from, &id.to,
               &id.lane, &id.world) != 5)
        return ERR_PROTO;
    if (wire_identity_print(&id, again) != bytes || memcmp(again, value, bytes) != 0)
        return ERR_PROTO;
    *ret = id;
    return OK;
}

static void store_le(uint8_t *to, uint64_t x, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (uint8_t)(x >> 8 * i);
}

static uint64_t load_le(const uint8_t *from, int bytes)
{
    uint64_t x = 0;
    for (int i = 0; i < bytes; i++)
        x |= (uint64_t)from[i] << 8 * i;
    return x;
}

void wire_header_put(const struct wire_header *h, uint8_t *ret)
{
    store_le(ret, MAGIC, 4);
    store_le(ret + 4, h->number, 4);
    store_le(ret + 8, h->bytes, 8);
}

err_t wire_header_get(const uint8_t *data, struct wire_header *ret)
{
    if (load_le(data, 4) != MAGIC || load_le(data + 8, 8) > WIRE_MESSAGE_MAX)
        return ERR_PROTO;
    *ret = (struct wire_header){(uint32_t)load_le(data + 4, 4), load_le(data + 8, 8)};
    return OK;
}
