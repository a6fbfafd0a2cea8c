/* The ticket that dtd-io and dt-worker inherit as descriptor 3: a sealed memfd with a bounded number of key=value lines
 * (token io_token control io slots). It contains secret tokens, so it is never passed in argv, the environment or a
 * file. */
#ifndef DTD_COMMON_BASE_TICKET_H
#define DTD_COMMON_BASE_TICKET_H

#include "common/base/err.h"
#include "common/base/key_lines.h"

#include <stddef.h>
#include <stdint.h>

#define TICKET_TOKEN_BYTES 32
#define TICKET_MAX_BYTES KEY_LINES_MAX

struct ticket {
    uint8_t token[TICKET_TOKEN_BYTES];    /* of this process; control uses it to distinguish process starts */
    uint8_t io_token[TICKET_TOKEN_BYTES]; /* of the job; workers authenticate to dtd-io with it */
    char control[256], io[256];           /* socket paths */
    int slots;                            /* number of worker processes of the job on this node */
};

/* Creates a memfd (close-on-exec, sealed against writing) with the ticket's text. The caller closes it. */
NODISCARD err_t ticket_make(const struct ticket *t, int *ret_fd);
/* Reads and checks the complete ticket in `fd`, from offset 0; does not close fd. Every key must occur exactly once. */
NODISCARD err_t ticket_read(int fd, struct ticket *ret, struct why *why);
/* The same for bytes in memory; the fuzzer calls it. */
NODISCARD err_t ticket_parse(const char *text, size_t len, struct ticket *ret, struct why *why);

#endif
