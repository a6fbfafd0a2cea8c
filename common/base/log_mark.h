/* The line between the output of two processes in one log file. The supervisor writes it; control and the client find
 * it. */
#ifndef DTD_COMMON_BASE_LOG_MARK_H
#define DTD_COMMON_BASE_LOG_MARK_H

#include <stddef.h>

/* Begins the line; the time follows, then ", attempt N" for a command, and " ---". */
#define LOG_MARK "\n--- started again at "

/* Writes the line unless nothing was started before: the file is empty, and `attempt` (counted from 0; -1: none) is not
 * above 0. A failure is logged. */
void log_mark_write(int fd, int attempt);
/* The attempt that a line names, which begins behind the newline of LOG_MARK; -1: it is no mark, or names none. */
int log_mark_attempt(const char *line, size_t len);

#endif
