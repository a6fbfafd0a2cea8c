/* See address.h. Every character of a host is checked, so that no unusual byte reaches the resolver or a log. */
#include "common/tunnel/address.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

static bool is_letter_or_digit(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool is_any_of(char c, const char *set)
{
    return c && strchr(set, c);
}

bool node_name_valid(const char *name, size_t len)
{
    if (!len || len > ADDRESS_HOST_MAX)
        return false;
    for (size_t i = 0; i < len; i++)
        if (!is_letter_or_digit(name[i]) && !is_any_of(name[i], "._-"))
            return false;
    return true;
}

/* Digits, colons, points (mapped addresses) and a zone. */
static bool v6_valid(const char *host, size_t len)
{
    if (!len || len > ADDRESS_HOST_MAX || !memchr(host, ':', len))
        return false;
    for (size_t i = 0; i < len; i++)
        if (!is_letter_or_digit(host[i]) && !is_any_of(host[i], ":.%_-"))
            return false;
    return true;
}

static bool parse_port(const char *text, uint16_t *ret)
{
    size_t n = strspn(text, "0123456789");
    long port = n && n <= 5 ? strtol(text, NULL, 10) : -1;
    if (text[n] || port < 0 || port > 65535)
        return false;
    *ret = (uint16_t)port;
    return true;
}

/* Finds the host and the text after it. */
static bool split(const char *text, const char **ret_host, size_t *ret_len, const char **ret_rest)
{
    if (text[0] != '[') {
        *ret_host = text;
        *ret_len = strcspn(text, ":");
        *ret_rest = text + *ret_len;
        return node_name_valid(text, *ret_len);
    }
    const char *end = strchr(text, ']');
    if (!end)
        return false;
    *ret_host = text + 1;
    *ret_len = (size_t)(end - text) - 1;
    *ret_rest = end + 1;
    return v6_valid(*ret_host, *ret_len);
}

err_t address_parse(const char *text, struct address *ret, struct why *why)
{
    struct address a = {.v6 = text[0] == '['};
    const char *host, *rest;
    size_t len;
    if (!split(text, &host, &len, &rest) || rest[0] != ':' || !parse_port(rest + 1, &a.port)) {
        char shown[64];
        size_t n = 0;
        for (; text[n] && n + 1 < sizeof(shown); n++)
            shown[n] = text[n] >= ' ' && text[n] < 127 ? text[n] : '?';
        shown[n] = '\0';
        return why_set(why, ERR_INVALID, "\"%s\" is not an address: write host:port or [v6]:port", shown);
    }
    memcpy(a.host, host, len);
    *ret = a;
    return OK;
}

const char *addresses_next(const char *list, char *ret, size_t size)
{
    const size_t n = strcspn(list, ",");
    if (!n)
        return NULL;
    snprintf(ret, size, "%.*s", (int)n, list);
    return list[n] ? list + n + 1 : list + n;
}

err_t addresses_parse(const char *text, struct address ret[ADDRESSES_MAX], int *ret_n, struct why *why)
{
    struct address list[ADDRESSES_MAX];
    char one[ADDRESS_TEXT_MAX + 1];
    int n = 0;
    if (strlen(text) > ADDRESS_TEXT_MAX)
        return why_set(why, ERR_INVALID, "the addresses of a node have at most %d bytes together", ADDRESS_TEXT_MAX);
    for (const char *at = text; !n || *at || at[-1] == ',';) {
        if (n == ADDRESSES_MAX)
            return why_set(why, ERR_INVALID, "a node has at most %d addresses", ADDRESSES_MAX);
        const char *next = addresses_next(at, one, sizeof(one));
        err_t err = address_parse(next ? one : "", &list[n], why);
        if (err)
            return err;
        at = next;
        n++;
    }
    memcpy(ret, list, (size_t)n * sizeof(list[0]));
    *ret_n = n;
    return OK;
}

err_t address_numeric(const struct address *a, struct sockaddr_storage *ret, socklen_t *ret_len)
{
    union {
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage any;
    } to;
    memset(&to, 0, sizeof(to));
    if (!a->v6 && uv_ip4_addr(a->host, a->port, &to.v4) == 0)
        *ret_len = sizeof(to.v4);
    else if (a->v6 && uv_ip6_addr(a->host, a->port, &to.v6) == 0)
        *ret_len = sizeof(to.v6);
    else
        return a->v6 ? ERR_INVALID : ERR_NOTFOUND;
    *ret = to.any;
    return OK;
}

int address_socket(struct sockaddr_storage *at, socklen_t *len)
{
    union {
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage any;
    } to = {.any = *at};
    const bool is_all = at->ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&to.v6.sin6_addr);
    int off = 0, fd = socket(at->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 && errno == EAFNOSUPPORT && is_all) {
        const in_port_t port = to.v6.sin6_port;
        memset(&to, 0, sizeof(to));
        to.v4.sin_family = AF_INET;
        to.v4.sin_port = port;
        *at = to.any;
        *len = sizeof(to.v4);
        return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    }
    if (fd >= 0 && is_all && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off))) {
        close(fd);
        return -1;
    }
    return fd;
}

void address_print(const struct sockaddr_storage *from, char *ret, size_t size)
{
    char host[INET6_ADDRSTRLEN] = "?";
    union {
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage any;
    } a = {.any = *from};
    if (from->ss_family == AF_INET && inet_ntop(AF_INET, &a.v4.sin_addr, host, sizeof(host)))
        snprintf(ret, size, "%s:%d", host, ntohs(a.v4.sin_port));
    else if (from->ss_family == AF_INET6 && inet_ntop(AF_INET6, &a.v6.sin6_addr, host, sizeof(host)))
        snprintf(ret, size, "[%s]:%d", host, ntohs(a.v6.sin6_port));
    else
        snprintf(ret, size, "?");
}
