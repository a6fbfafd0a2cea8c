/* An existing file is not replaced: it may be the job file itself. */
#include "client/planner/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

err_t planner_write_job(const char *path, const struct job_spec *job, const struct plan_layout *l, struct why *why)
{
    struct job_spec best = *job; /* borrows all strings */
    struct buf text = {0};
    plan_layout_apply(l, &best);
    err_t err = job_print(&best, &text);
    FILE *f = err ? NULL : fopen(path, "wx");
    if (!err && !f)
        err = why_set(why, ERR_IO, "--write %s: %s", path, strerror(errno));
    if (f && (fwrite(text.data, 1, text.len, f) != text.len || fflush(f) != 0))
        err = why_set(why, ERR_IO, "--write %s: %s", path, strerror(errno));
    if (f && fclose(f) != 0 && !err)
        err = why_set(why, ERR_IO, "--write %s: %s", path, strerror(errno));
    buf_fini(&text);
    return err;
}
