/* What a command inherits from the process that called `dtctl run`, besides folder and arguments: environment, umask,
 * resource limits, ignored and blocked signals. dtctl reads them, the job's record carries them as text (run.caller and
 * run.caller_env), and `dt-worker --command` applies them, on whatever node the command starts.
 *
 * The settings are words, separated by one space, in any order; a setting that is left out is the daemon's:
 *
 *   env                  run.caller_env is the whole environment: the daemon's variables are not passed on
 *   percent              in the command and its variables, %XX is the byte with this hexadecimal number
 *   umask=0022           octal
 *   ignored=1,2,13       signals with the disposition SIG_IGN; all others have SIG_DFL
 *   blocked=             signals in the mask
 *   nofile=1024:4096     soft and hard limit, or `unlimited`; names as of prlimit(1)
 *   niceness=5           as nice(1); `nice` is the limit of it
 *
 * A training job has only limits and niceness (run.limits), which dt-worker and dtd-io apply. */
#ifndef DTD_COMMON_BASE_CALLER_H
#define DTD_COMMON_BASE_CALLER_H

#include "common/base/buf.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

/* Variables of `dt-worker --command`: the settings, and the environment of the command as caller_pack writes it. */
#define CALLER_SETTINGS "DTD_COMMAND"
#define CALLER_ENV "DTD_COMMAND_ENV"

struct caller {
    bool env, percent;
    int umask;                 /* -1: not given */
    uint64_t ignored, blocked; /* bit s - 1: signal s */
    bool has_niceness;
    int niceness;
    bool has_limit[RLIM_NLIMITS];
    struct rlimit limit[RLIM_NLIMITS];
};

/* Reads umask, limits, niceness, ignored and blocked signals of this process, which has one thread. */
void caller_take(struct caller *ret);
/* Appends the settings, without a NUL. */
NODISCARD err_t caller_print(const struct caller *c, struct buf *ret);
/* The same with limits and niceness only. */
NODISCARD err_t caller_print_limits(const struct caller *c, struct buf *ret);
/* ERR_INVALID: an unknown word, or a value that is no legal one. "" has no setting. */
NODISCARD err_t caller_parse(const char *text, struct caller *ret);
/* prlimit's name of a limit; NULL: this file does not know it. */
const char *caller_limit_name(int resource);

/* Leaves only what was set for this user or in this shell: a niceness other than 0, and limits that are lower than
 * those of process 1. `limits` is /proc/1/limits as text. */
void caller_keep_lower(struct caller *c, const char *limits);
/* Sets limits and niceness of this process. Where it must not raise one, it gets the daemon's, and a line on standard
 * error names it. */
void caller_limits_apply(const struct caller *c);
/* The same with settings as text; "" or NULL: none. */
void caller_limits_apply_text(const char *text);

/* Whether both words, "KEY=VALUE", have the same key. */
bool caller_same_key(const char *a, const char *b);

/* Appends the words as one string without NUL. Bytes 1 separate the words; these and the escape byte 2 are escaped. */
NODISCARD err_t caller_pack(char *const *words, int n, struct buf *ret);
/* The bytes that one word needs there, with its separator. */
size_t caller_packed_bytes(const char *word);
/* Splits the string in place. Returns a list that ends with NULL, and whose words point into the string; NULL: out of
 * memory. The caller frees the list. "" is no word. */
char **caller_unpack(char *text);

/* The text with %XX for '%' and for every byte beyond ASCII; NULL: out of memory. The caller frees it. */
char *caller_percent_encode(const char *text);
/* In place. False: a % is not followed by the number of a byte other than 0. */
bool caller_percent_decode(char *text);

#endif
