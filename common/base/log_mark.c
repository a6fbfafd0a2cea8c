#include "common/base/log_mark.h"

#include "common/base/file.h"
#include "common/base/log.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

void log_mark_write(int fd, int attempt)
{
    struct stat st;
    struct tm tm;
    char when[32], number[32] = "", text[200];
    time_t now = time(NULL);
    if (fstat(fd, &st) || (!st.st_size && attempt <= 0))
        return;
    strftime(when, sizeof(when), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    if (attempt >= 0)
        snprintf(number, sizeof(number), ", attempt %d", attempt);
    int n = snprintf(text, sizeof(text), LOG_MARK "%s%s ---\n", when, number);
    if (file_write_all(fd, text, (size_t)n))
        log_warn("a line that separates the output of two processes cannot be written");
}

int log_mark_attempt(const char *line, size_t len)
{
    const size_t n = sizeof(LOG_MARK) - 2; /* without the first newline and the last byte */
    char text[120], end[8];
    int attempt;
    if (len < n || memcmp(line, &LOG_MARK[1], n) != 0)
        return -1;
    snprintf(text, sizeof(text), "%.*s", (int)(len - n), line + n);
    bool mark = sscanf(text, "%*[0-9TZ:-], attempt %9d %4s", &attempt, end) == 2 && strcmp(end, "---") == 0;
    return mark && attempt >= 0 ? attempt : -1;
}
