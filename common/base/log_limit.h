/* A limit of the log lines that a stranger can cause as often as he likes, such as those about refused connections: 20
 * at once, then one a second. The others are counted. One object for each place; any thread, one at a time. */
#ifndef DTD_COMMON_BASE_LOG_LIMIT_H
#define DTD_COMMON_BASE_LOG_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#define LOG_LIMIT_LINES 20
#define LOG_LIMIT_LINE_MS 1000

/* Zeroed, it has its whole credit. */
struct log_limit {
    int64_t used_ms, at_ms; /* used_ms: LOG_LIMIT_LINE_MS for each line, less the time since */
    uint64_t left_out;
};

/* Whether a line may be logged at this monotonic time; if not, it is counted. */
bool log_limit_take(struct log_limit *l, int64_t now_ms);
/* The number of lines that were left out since the last call. */
uint64_t log_limit_left_out(struct log_limit *l);
/* As log_limit_take by the clock. Before the next line that may be logged it logs how many of `what` were left out. */
bool log_limit_line(struct log_limit *l, const char *what);

#endif
