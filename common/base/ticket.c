/* See ticket.h. dtd writes and reads tickets, but the reader checks everything: a worker that is started by hand with
 * another file as descriptor 3 must report that, and must not connect to an arbitrary path. */
#include "common/base/ticket.h"

#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_SLOTS 4096

#define HEX_BYTES (2 * TICKET_TOKEN_BYTES + 1)

static void print_token(const uint8_t token[TICKET_TOKEN_BYTES], char ret[HEX_BYTES])
{
    for (int i = 0; i < TICKET_TOKEN_BYTES; i++)
        snprintf(ret + 2 * i, 3, "%02x", token[i]);
}

err_t ticket_make(const struct ticket *t, int *ret_fd)
{
    char text[TICKET_MAX_BYTES], own[HEX_BYTES], io[HEX_BYTES];
    print_token(t->token, own);
    print_token(t->io_token, io);
    int n = snprintf(text, sizeof(text), "token=%s\nio_token=%s\ncontrol=%s\nio=%s\nslots=%d\n", own, io, t->control,
                     t->io, t->slots);
    int fd = memfd_create("dtd-ticket", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return err_from_errno(errno);
    err_t err = file_pwrite_all(fd, text, (size_t)n, 0);
    if (!err && fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL))
        err = err_from_errno(errno);
    if (err) {
        close(fd);
        return err;
    }
    *ret_fd = fd;
    return OK;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool parse_hex(uint8_t ret[TICKET_TOKEN_BYTES], const char *value)
{
    if (strlen(value) != 2 * TICKET_TOKEN_BYTES)
        return false;
    for (int i = 0; i < TICKET_TOKEN_BYTES; i++) {
        int hi = hex_digit(value[2 * i]), lo = hex_digit(value[2 * i + 1]);
        if (hi < 0 || lo < 0)
            return false;
        ret[i] = (uint8_t)(hi * 16 + lo);
    }
    return true;
}

static bool parse_token(struct ticket *t, const char *value)
{
    return parse_hex(t->token, value);
}

static bool parse_io_token(struct ticket *t, const char *value)
{
    return parse_hex(t->io_token, value);
}

static bool parse_control(struct ticket *t, const char *value)
{
    return value[0] == '/' && (size_t)snprintf(t->control, sizeof(t->control), "%s", value) < sizeof(t->control);
}

static bool parse_io(struct ticket *t, const char *value)
{
    return value[0] == '/' && (size_t)snprintf(t->io, sizeof(t->io), "%s", value) < sizeof(t->io);
}

static bool parse_slots(struct ticket *t, const char *value)
{
    char *end;
    long n = strtol(value, &end, 10);
    t->slots = (int)n;
    return *value && !*end && n >= 1 && n <= MAX_SLOTS;
}

static const struct {
    const char *key;
    bool (*parse)(struct ticket *t, const char *value);
} keys[] = {{"token", parse_token},
            {"io_token", parse_io_token},
            {"control", parse_control},
            {"io", parse_io},
            {"slots", parse_slots}};
#define N_KEYS (sizeof(keys) / sizeof(*keys))

/* Parses one NUL-terminated line and marks its key in `seen`. */
static err_t parse_line(const char *line, struct ticket *t, unsigned *seen, struct why *why)
{
    for (size_t k = 0; k < N_KEYS; k++) {
        size_t n = strlen(keys[k].key);
        if (strncmp(line, keys[k].key, n) != 0 || line[n] != '=')
            continue;
        if (*seen & (1u << k))
            return why_set(why, ERR_CORRUPT, "ticket: duplicate key %s", keys[k].key);
        *seen |= 1u << k;
        return keys[k].parse(t, line + n + 1) ? OK
                                              : why_set(why, ERR_CORRUPT, "ticket: invalid value of %s", keys[k].key);
    }
    return why_set(why, ERR_CORRUPT, "ticket: unknown key");
}

err_t ticket_parse(const char *text, size_t len, struct ticket *ret, struct why *why)
{
    struct ticket t = {.slots = 0};
    unsigned seen = 0;
    char line[512];
    if (len > TICKET_MAX_BYTES)
        return why_set(why, ERR_LIMIT, "ticket: longer than %d bytes", TICKET_MAX_BYTES);
    for (size_t at = 0; at < len;) {
        const char *nl = memchr(text + at, '\n', len - at);
        size_t n = nl ? (size_t)(nl - text) - at : 0;
        if (!nl || n >= sizeof(line) || memchr(text + at, '\0', n))
            return why_set(why, ERR_CORRUPT, "ticket: a line has no newline, is too long, or contains a NUL");
        memcpy(line, text + at, n);
        line[n] = '\0';
        err_t err = parse_line(line, &t, &seen, why);
        if (err)
            return err;
        at += n + 1;
    }
    if (seen != (1u << N_KEYS) - 1)
        return why_set(why, ERR_CORRUPT, "ticket: a key is missing");
    *ret = t;
    return OK;
}

err_t ticket_read(int fd, struct ticket *ret, struct why *why)
{
    char text[TICKET_MAX_BYTES];
    struct stat st;
    if (fstat(fd, &st))
        return why_set(why, err_from_errno(errno),
                       "descriptor %d is not a ticket (%s): dtd starts this program; do not start it by hand", fd,
                       strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size > TICKET_MAX_BYTES)
        return why_set(why, ERR_CORRUPT,
                       "descriptor %d is not a ticket: dtd starts this program; do not start it by hand", fd);
    err_t err = file_pread_all(fd, text, (size_t)st.st_size, 0);
    return err ? why_set(why, err, "ticket: %s", err_text(err)) : ticket_parse(text, (size_t)st.st_size, ret, why);
}
