/* Status codes of every dtd function that can fail, and the sentence that goes with one.
 *
 * Codes of other libraries (errno, uv, raft, yaml) are converted where they enter and logged there, once. A code says
 * what the caller may do about it; the sentence in `struct why` says to a person what happened and what to do next. */
#ifndef DTD_COMMON_BASE_ERR_H
#define DTD_COMMON_BASE_ERR_H

#define NODISCARD __attribute__((warn_unused_result))

/* X(name, value, text). Values are on the wire (rpc error replies): never renumber, only append. */
#define ERR_LIST(X)                                                  \
    X(OK, 0, "ok")                                                   \
    X(ERR_NOMEM, -1, "out of memory")                                \
    X(ERR_INVALID, -2, "what was asked cannot be done as written")   \
    X(ERR_NOTFOUND, -3, "not found")                                 \
    X(ERR_EXISTS, -4, "already there")                               \
    X(ERR_IO, -5, "input or output failed")                          \
    X(ERR_NOSPACE, -6, "no space left")                              \
    X(ERR_CORRUPT, -7, "data does not match its checksum or format") \
    X(ERR_LIMIT, -8, "a limit was exceeded")                         \
    X(ERR_PROTO, -9, "the peer broke the protocol")                  \
    X(ERR_DENIED, -10, "not permitted")                              \
    X(ERR_CLOSED, -11, "the connection is closed")                   \
    X(ERR_TIMEOUT, -12, "the deadline passed")                       \
    X(ERR_CANCELED, -13, "canceled")                                 \
    X(ERR_BUSY, -14, "busy")                                         \
    X(ERR_AGAIN, -15, "not now, try again")                          \
    X(ERR_STALE, -16, "of an epoch that has ended")                  \
    X(ERR_UNSUPPORTED, -17, "not supported")                         \
    X(ERR_INTERNAL, -18, "a promise of our own was broken")

#define X(name, value, text) name = (value),
enum err { ERR_LIST(X) };
#undef X
typedef int err_t;

/* A sentence for a person; owned by the caller, may be NULL everywhere it is taken. */
struct why {
    char text[1024];
};

const char *err_name(err_t err);  /* "ERR_NOMEM"; "ERR_?" for an unknown value */
const char *err_text(err_t err);  /* "out of memory" */
err_t err_from_errno(int errnum); /* positive errno -> err_t */
/* Writes the sentence and returns `err`, so that a failing path is one statement. */
err_t why_set(struct why *why, err_t err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Puts "prefix: " before what is there already; returns `err`. */
err_t why_prefix(struct why *why, err_t err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

#endif
