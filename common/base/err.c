/* Names and texts of the codes, and sentences. */
#include "common/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *err_name(err_t err)
{
    switch (err) {
#define X(name, value, text) \
    case name:               \
        return #name;
        ERR_LIST(X)
#undef X
    default:
        return "ERR_?";
    }
}

const char *err_text(err_t err)
{
    switch (err) {
#define X(name, value, text) \
    case name:               \
        return text;
        ERR_LIST(X)
#undef X
    default:
        return "unknown error";
    }
}

err_t err_from_errno(int errnum)
{
    static const struct {
        int errnum;
        err_t err;
    } table[] = {
        {0, OK},
        {ENOMEM, ERR_NOMEM},
        {EINVAL, ERR_INVALID},
        {ENOENT, ERR_NOTFOUND},
        {ESRCH, ERR_NOTFOUND},
        {EEXIST, ERR_EXISTS},
        {ENOTEMPTY, ERR_EXISTS},
        {ENOSPC, ERR_NOSPACE},
        {EDQUOT, ERR_NOSPACE},
        {EFBIG, ERR_LIMIT},
        {EMFILE, ERR_LIMIT},
        {ENFILE, ERR_LIMIT},
        {EACCES, ERR_DENIED},
        {EPERM, ERR_DENIED},
        {EPIPE, ERR_CLOSED},
        {ECONNRESET, ERR_CLOSED},
        {ECONNREFUSED, ERR_CLOSED},
        {ETIMEDOUT, ERR_TIMEOUT},
        {ECANCELED, ERR_CANCELED},
        {EBUSY, ERR_BUSY},
        {EAGAIN, ERR_AGAIN},
        {ENOSYS, ERR_UNSUPPORTED},
        {EOPNOTSUPP, ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (table[i].errnum == errnum)
            return table[i].err;
    return ERR_IO;
}

err_t why_set(struct why *why, err_t err, const char *fmt, ...)
{
    if (why) {
        va_list ap;
        va_start(ap, fmt);
        vsnprintf(why->text, sizeof(why->text), fmt, ap);
        va_end(ap);
    }
    return err;
}

err_t why_prefix(struct why *why, err_t err, const char *fmt, ...)
{
    if (why) {
        const struct why old = *why;
        va_list ap;
        va_start(ap, fmt);
        int n = vsnprintf(why->text, sizeof(why->text), fmt, ap);
        va_end(ap);
        /* If the sentence does not fit, its end is cut off: the prefix is the new information. */
        if (n > 0 && (size_t)n + 3 < sizeof(why->text)) {
            strcpy(why->text + n, ": ");
            size_t room = sizeof(why->text) - (size_t)n - 3, len = strnlen(old.text, sizeof(old.text));
            memcpy(why->text + n + 2, old.text, len < room ? len : room);
            why->text[n + 2 + (len < room ? len : room)] = '\0';
        }
    }
    return err;
}
