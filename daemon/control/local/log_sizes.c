/* Always the log that is the largest now is halved, so a long log loses most of its text before a short one loses any.
 */
#include "daemon/control/local/log_sizes.h"

#include <stddef.h>

static int64_t left_of(const struct log_size *s)
{
    return s->keep ? s->keep : s->used;
}

void log_sizes_choose(struct log_size *logs, int n, int64_t want)
{
    for (int i = 0; i < n; i++)
        logs[i].keep = 0;
    while (want > 0) {
        struct log_size *most = NULL;
        for (int i = 0; i < n; i++)
            if (left_of(&logs[i]) > LOG_SIZES_LEAST_BYTES && (!most || left_of(&logs[i]) > left_of(most)))
                most = &logs[i];
        if (!most)
            return;
        int64_t left = left_of(most);
        most->keep = left / 2;
        want -= left - most->keep;
    }
}
