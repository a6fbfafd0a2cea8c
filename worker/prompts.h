/* A file of prompts: one per line, or JSON lines, each a string or an object with a string `prompt`. */
#ifndef DTD_WORKER_PROMPTS_H
#define DTD_WORKER_PROMPTS_H

#include "common/base/err.h"

struct prompts {
    char **text;
    int n;
};

/* ERR_INVALID names the file and the line. A file without a prompt is refused. */
NODISCARD err_t prompts_read(const char *path, struct prompts *ret, struct why *why);
void prompts_fini(struct prompts *p); /* legal on a zeroed one */

#endif
