/* A secret of the user, such as a join token: read from a file, from standard input or at a terminal without echo, and
 * written to a file that only he can read. Never from the command line, which every user of the machine can read in
 * /proc. Blocking. */
#ifndef DTD_CLIENT_SECRET_H
#define DTD_CLIENT_SECRET_H

#include "common/base/err.h"

#include <stddef.h>

/* Reads one line of at most size - 1 bytes. `file` NULL or "-": standard input; if that is a terminal, `what` is asked
 * for there. White space around it is removed; an empty line is an error. */
NODISCARD err_t secret_read(const char *file, const char *what, char *ret, size_t size, struct why *why);
/* Writes `text` and a newline. ERR_EXISTS if the file exists: it may have another owner or other rights. */
NODISCARD err_t secret_write(const char *file, const char *text, struct why *why);

#endif
