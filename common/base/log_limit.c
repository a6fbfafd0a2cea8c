#include "common/base/log_limit.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>

bool log_limit_take(struct log_limit *l, int64_t now_ms)
{
    l->used_ms -= now_ms - l->at_ms;
    l->used_ms = l->used_ms > 0 ? l->used_ms : 0;
    l->at_ms = now_ms;
    const bool may = l->used_ms <= (LOG_LIMIT_LINES - 1) * LOG_LIMIT_LINE_MS;
    l->used_ms += may ? LOG_LIMIT_LINE_MS : 0;
    l->left_out += !may;
    return may;
}

uint64_t log_limit_left_out(struct log_limit *l)
{
    const uint64_t n = l->left_out;
    l->left_out = 0;
    return n;
}

bool log_limit_line(struct log_limit *l, const char *what)
{
    const bool may = log_limit_take(l, clock_mono_ms());
    const uint64_t left_out = may ? log_limit_left_out(l) : 0;
    if (left_out)
        log_warn("%s and not logged count=%" PRIu64, what, left_out);
    return may;
}
