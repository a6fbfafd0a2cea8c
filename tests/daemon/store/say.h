/* Encoder for requests of the c10d protocol, for the tests of daemon/store. */
#ifndef DTD_TESTS_DAEMON_STORE_SAY_H
#define DTD_TESTS_DAEMON_STORE_SAY_H

#include "common/base/buf.h"
#include "daemon/store/wire.h"

/* Appends a request. `fields`, a letter each: s a string (const char *), b bytes (const void *, size_t), n a number
 * (uint64_t), w a word (uint32_t). Aborts when out of memory. */
void say(struct buf *b, enum wire_op op, const char *fields, ...);
void say_hello(struct buf *b); /* VALIDATE */
/* "01 0200 6b" and the like, blanks anywhere. */
void say_hex(struct buf *b, const char *hex);

#endif
