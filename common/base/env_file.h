/* A file with variables for a command that must not stand in dtd's log, on a command line or in a file that others can
 * read: a line KEY=VALUE for each, the value to the end of the line. Empty lines and lines that begin with # are
 * skipped. `dtctl run --env-file` checks it, and `dt-worker --command` reads it as the user, on the command's node. */
#ifndef DTD_COMMON_BASE_ENV_FILE_H
#define DTD_COMMON_BASE_ENV_FILE_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>

/* Variable of the command with the file's absolute path. */
#define ENV_FILE_VARIABLE "DTD_ENV_FILE"

struct env_file {
    char *text;   /* what `words` point into */
    char **words; /* n of them: "KEY=VALUE" */
    int n;
};

/* ERR_INVALID: no such file, one that other users may read or write, or a line that is no variable; `why` names file,
 * line and remedy. Freed by env_file_fini. */
NODISCARD err_t env_file_read(const char *path, struct env_file *ret, struct why *why);
/* The same for the text of a file. */
NODISCARD err_t env_file_parse(const char *path, const char *text, size_t len, struct env_file *ret, struct why *why);
void env_file_fini(struct env_file *f); /* legal on a zeroed one; overwrites the values */

/* Whether the name of a variable is that of a secret, such as HF_TOKEN or WANDB_API_KEY. `word`: "KEY=VALUE". */
bool env_is_secret(const char *word);

#endif
