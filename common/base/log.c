/* Each line is built in one buffer and written by one write(2), so lines of processes that share a file do not mix.
 * Nothing is allocated, because logging must work when memory is exhausted. */
#include "common/base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static const char *log_program = "dtd";
static enum log_level log_level = LOG_INFO;

void log_init(const char *program)
{
    log_program = program;
    const char *env = getenv("DTD_LOG");
    for (int i = 0; env && i <= LOG_DEBUG; i++)
        if (strcmp(env, level_names[i]) == 0)
            log_level = (enum log_level)i;
}

void log_level_set(enum log_level level)
{
    const char *env = getenv("DTD_LOG");
    if (!env || !*env)
        log_level = level;
}

void log_at(enum log_level level, const char *fmt, ...)
{
    if (level > log_level)
        return;
    int saved = errno;
    char line[2048];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof(line) - n, ".%03ldZ %s %s[%d]: ", now.tv_nsec / 1000000, level_names[level],
                          log_program, (int)getpid());
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
    va_end(ap);
    n += m < 0 ? 0 : (size_t)m;
    if (n > sizeof(line) - 2)
        n = sizeof(line) - 2;
    line[n++] = '\n';
    ssize_t r = write(STDERR_FILENO, line, n);
    (void)r; /* there is no other place to report this error */
    errno = saved;
}
