/* See ticket.h. dtd writes and reads tickets, but the reader checks everything: a worker that is started by hand with
 * another file as descriptor 3 must report that, and must not connect to an arbitrary path. */
#include "common/base/ticket.h"

#include "common/base/file.h"
#include "common/base/key_lines.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
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

static bool read_path(const char *value, void *field, size_t size)
{
    return value[0] == '/' && key_line_text(value, field, size);
}

static bool read_slots(const char *value, void *field, size_t size)
{
    uint32_t n;
    (void)size;
    if (!key_line_number(value, &n, sizeof(n)) || n < 1 || n > MAX_SLOTS)
        return false;
    *(int *)field = (int)n;
    return true;
}

#define FIELD(name) KEY_LINE_FIELD(struct ticket, name)
static const struct key_line keys[] = {
    {"token", key_line_hex, FIELD(token)},  {"io_token", key_line_hex, FIELD(io_token)},
    {"control", read_path, FIELD(control)}, {"io", read_path, FIELD(io)},
    {"slots", read_slots, FIELD(slots)},
};
#define N_KEYS (sizeof(keys) / sizeof(*keys))

err_t ticket_parse(const char *text, size_t len, struct ticket *ret, struct why *why)
{
    struct ticket t = {.slots = 0};
    uint32_t seen = 0;
    if (len > TICKET_MAX_BYTES)
        return why_set(why, ERR_LIMIT, "ticket: longer than %d bytes", TICKET_MAX_BYTES);
    err_t err = key_lines_parse("ticket", text, len, keys, N_KEYS, &t, &seen, why);
    if (!err && seen != (1u << N_KEYS) - 1)
        err = why_set(why, ERR_CORRUPT, "ticket: a key is missing");
    if (!err)
        *ret = t;
    return err;
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
