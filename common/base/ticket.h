/* The ticket that dtd-io and dt-worker inherit as descriptor 3: a sealed memfd of bounded key=value lines
 * (token io_token control io slots). It carries the token, so it is never in argv, the environment or a file. */
#ifndef DTD_COMMON_BASE_TICKET_H
#define DTD_COMMON_BASE_TICKET_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

#define TICKET_TOKEN_BYTES 32
#define TICKET_MAX_BYTES 4096

struct ticket {
    uint8_t token[TICKET_TOKEN_BYTES];    /* of this process: control tells starts apart by it */
    uint8_t io_token[TICKET_TOKEN_BYTES]; /* of the job: what its workers show to its io */
    char control[256], io[256];           /* socket paths */
    int slots;                            /* worker processes of the job on this node */
};

/* A memfd (close-on-exec, sealed against writing) with the ticket's text; the caller closes it. */
NODISCARD err_t ticket_make(const struct ticket *t, int *ret_fd);
/* Reads and checks the whole ticket at `fd` (from offset 0; not closed). Every key must be there once. */
NODISCARD err_t ticket_read(int fd, struct ticket *ret, struct why *why);
/* The same on bytes in memory: what the fuzzer calls. */
NODISCARD err_t ticket_parse(const char *text, size_t len, struct ticket *ret, struct why *why);

#endif
