/* Status codes of all dtd functions that can fail, and error sentences.
 *
 * Codes of other libraries (errno, uv, raft, yaml) are converted, and logged once, where they enter. By the code the
 * calling function decides how it reacts; the sentence in `struct why` explains to the user what happened and what to
 * do. */
#ifndef DTD_COMMON_BASE_ERR_H
#define DTD_COMMON_BASE_ERR_H

#define NODISCARD __attribute__((warn_unused_result))

/* X(name, value, text). Values are sent in rpc error replies: append new ones, never renumber. */
#define ERR_LIST(X)                                                  \
    X(OK, 0, "ok")                                                   \
    X(ERR_NOMEM, -1, "out of memory")                                \
    X(ERR_INVALID, -2, "invalid request")                            \
    X(ERR_NOTFOUND, -3, "not found")                                 \
    X(ERR_EXISTS, -4, "already exists")                              \
    X(ERR_IO, -5, "input/output error")                              \
    X(ERR_NOSPACE, -6, "no space left")                              \
    X(ERR_CORRUPT, -7, "data does not match its checksum or format") \
    X(ERR_LIMIT, -8, "limit exceeded")                               \
    X(ERR_PROTO, -9, "protocol error")                               \
    X(ERR_DENIED, -10, "not permitted")                              \
    X(ERR_CLOSED, -11, "the connection is closed")                   \
    X(ERR_TIMEOUT, -12, "timeout")                                   \
    X(ERR_CANCELED, -13, "canceled")                                 \
    X(ERR_BUSY, -14, "busy")                                         \
    X(ERR_AGAIN, -15, "temporarily unavailable, try again")          \
    X(ERR_STALE, -16, "the epoch has ended")                         \
    X(ERR_UNSUPPORTED, -17, "not supported")                         \
    X(ERR_INTERNAL, -18, "internal error")                           \
    X(ERR_OWNED, -19, "owned by another job")

#define X(name, value, text) name = (value),
enum err { ERR_LIST(X) };
#undef X
typedef int err_t;

/* A sentence for the user; owned by the caller. Every function that takes one accepts NULL. */
struct why {
    char text[1024];
};

const char *err_name(err_t err);  /* "ERR_NOMEM"; "ERR_?" for an unknown value */
const char *err_text(err_t err);  /* "out of memory" */
err_t err_from_errno(int errnum); /* positive errno -> err_t */
/* Writes the sentence and returns `err`, so that a failing path is one statement. */
err_t why_set(struct why *why, err_t err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "prefix: " before the sentence; returns `err`. */
err_t why_prefix(struct why *why, err_t err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
