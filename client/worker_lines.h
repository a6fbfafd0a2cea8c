/* Prints the output of a job's workers line by line. A line that the worker ended by \r (a progress bar) is replaced by
 * the next one on a terminal; in a file or pipe it keeps its \r. */
#ifndef DTD_CLIENT_WORKER_LINES_H
#define DTD_CLIENT_WORKER_LINES_H

#include "client/client.h"
#include "client/log_files.h"
#include "client/out.h"

#include <stdbool.h>

/* How far the log of a rank has been printed. */
struct worker_line {
    char node[80]; /* position in a file: node, slot, and offset of the first byte that is not printed; "": none yet */
    int slot;
    int64_t end;
    bool again;    /* the stream has begun again: skip everything before `end` in the same file */
    bool returned; /* the last line ended with \r */
};

struct worker_lines {
    FILE *out;
    enum out_format format;
    bool silent;   /* print nothing; only write files */
    bool prefix;   /* begin each line with its rank */
    bool keep_bar; /* store a line that ends with \r in `bar` instead of printing it */
    char bar[512]; /* the newest such line, of rank `bar_rank`; "": none */
    int bar_rank;
    struct log_files *files; /* NULL: none */
    struct worker_line *rank;
    int n;
};

void worker_lines_init(struct worker_lines *l, FILE *out, enum out_format format, bool prefix);
void worker_lines_fini(struct worker_lines *l);
/* Prints a chunk of the stream. False when `out` or a file cannot be written or memory is exhausted. */
bool worker_lines_print(struct worker_lines *l, const struct client_log *chunk);
/* The next stream delivers every log from its start: skips the part that has been printed. */
void worker_lines_again(struct worker_lines *l);

#endif
