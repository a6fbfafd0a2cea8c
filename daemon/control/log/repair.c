/* libraft closes a full segment by cutting it to its size and renaming it to FIRST-LAST, and ignores a failure. The
 * next segment is closed later. After a restart libraft finds a closed segment whose predecessor is missing, and
 * entries of an open segment that it takes for newer ones. The name follows from the gap, if the entries of the oldest
 * open segments fill it exactly. Otherwise nothing is changed, and libraft reports what it finds.
 *
 * A gap behind which a snapshot lies may be one that the snapshot has left. It counts only if the log would also end
 * as many entries behind the last stored one as there are in the gap. */
#include "daemon/control/log/repair.h"

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "daemon/control/log/segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SEGMENTS_MAX 4096             /* of each kind; a snapshot removes old ones, so there are few */
#define SEGMENT_MAX_BYTES (64u << 20) /* far above every configured segment */

struct closed_segment {
    uint64_t first, last;
};

struct open_segment {
    unsigned long long counter;
    struct log_segment found;
};

struct folder {
    char path[PATH_MAX];
    struct closed_segment closed[SEGMENTS_MAX];
    struct open_segment open[SEGMENTS_MAX];
    int n_closed, n_open;
    uint64_t snapshot; /* index of the newest; 0: none */
};

static int compare_closed(const void *a, const void *b)
{
    const struct closed_segment *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

static int compare_open(const void *a, const void *b)
{
    const struct open_segment *x = a, *y = b;
    return (x->counter > y->counter) - (x->counter < y->counter);
}

static void add_name(struct folder *f, const char *name)
{
    struct closed_segment c;
    struct open_segment o;
    uint64_t term, index;
    if (sscanf(name, "snapshot-%" SCNu64 "-%" SCNu64, &term, &index) == 2)
        f->snapshot = index > f->snapshot ? index : f->snapshot;
    else if (sscanf(name, "open-%llu", &o.counter) == 1 && f->n_open < SEGMENTS_MAX)
        f->open[f->n_open++] = o;
    else if (sscanf(name, "%16" SCNu64 "-%16" SCNu64, &c.first, &c.last) == 2 && f->n_closed < SEGMENTS_MAX)
        f->closed[f->n_closed++] = c;
}

static err_t examine(const struct folder *f, struct open_segment *o, struct why *why)
{
    char path[PATH_MAX + 40];
    struct buf bytes = {0};
    snprintf(path, sizeof(path), "%s/open-%llu", f->path, o->counter);
    err_t err = file_read(path, SEGMENT_MAX_BYTES, &bytes);
    if (err)
        return why_set(why, err, "%s: %s", path, err_text(err));
    log_segment_examine(bytes.data ? bytes.data : (const uint8_t *)"", bytes.len, &o->found);
    buf_fini(&bytes);
    return OK;
}

static err_t read_folder(struct folder *f, struct why *why)
{
    err_t err = OK;
    DIR *dir = opendir(f->path);
    if (!dir)
        return why_set(why, err_from_errno(errno), "%s: %s", f->path, strerror(errno));
    for (struct dirent *e; (e = readdir(dir));)
        add_name(f, e->d_name);
    closedir(dir);
    qsort(f->closed, (size_t)f->n_closed, sizeof(*f->closed), compare_closed);
    qsort(f->open, (size_t)f->n_open, sizeof(*f->open), compare_open);
    for (int i = 0; i < f->n_open && f->n_closed && !err; i++)
        err = examine(f, &f->open[i], why);
    return err;
}

/* The entries in front of the last gap between closed segments, or in front of all of them. False: no gap. */
static bool find_gap(const struct folder *f, struct closed_segment *ret)
{
    for (int i = f->n_closed - 1; i >= 0; i--) {
        uint64_t first = i ? f->closed[i - 1].last + 1 : f->snapshot + 1;
        *ret = (struct closed_segment){first, f->closed[i].first - 1};
        if (f->closed[i].first > first)
            return true;
    }
    return false;
}

static uint64_t last_entry(const struct folder *f)
{
    uint64_t ret = f->closed[f->n_closed - 1].last;
    for (int i = 0; i < f->n_open; i++)
        ret += f->open[i].found.entries;
    return ret;
}

/* Number of open segments, the oldest first, whose entries fill the gap; 0: they do not. */
static int fit(const struct folder *f, const struct closed_segment *gap, uint64_t stored)
{
    uint64_t want = gap->last - gap->first + 1, n = 0;
    if (f->snapshot >= gap->last && last_entry(f) != stored + want)
        return 0;
    for (int i = 0; i < f->n_open && n < want; i++) {
        if (f->open[i].found.has_rest || f->open[i].found.is_unreadable)
            return 0;
        n += f->open[i].found.entries;
        if (n == want)
            return i + 1;
    }
    return 0;
}

static err_t close_segment(const struct folder *f, const struct open_segment *o, uint64_t first, struct why *why)
{
    char from[PATH_MAX + 40], to[PATH_MAX + 40];
    snprintf(from, sizeof(from), "%s/open-%llu", f->path, o->counter);
    snprintf(to, sizeof(to), "%s/%016" PRIu64 "-%016" PRIu64, f->path, first, first + o->found.entries - 1);
    log_warn("a full segment of the log was left open and is closed path=%s name=%s", from, to);
    int fd = open(from, O_WRONLY | O_CLOEXEC);
    err_t err = fd < 0 || ftruncate(fd, (off_t)o->found.used_bytes) || fsync(fd) ? err_from_errno(errno) : OK;
    if (fd >= 0)
        close(fd);
    if (!err && rename(from, to))
        err = err_from_errno(errno);
    err = err ? err : file_sync_dir(f->path);
    return err ? why_set(why, err, "%s cannot be closed: %s", from, err_text(err)) : OK;
}

err_t log_repair_segments(const char *dir, uint64_t stored, struct why *why)
{
    struct closed_segment gap = {0};
    struct folder *f = calloc(1, sizeof(*f));
    if (!f)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    snprintf(f->path, sizeof(f->path), "%s/log", dir);
    err_t err = read_folder(f, why);
    int n = !err && find_gap(f, &gap) ? fit(f, &gap, stored) : 0;
    for (int i = 0; i < n && !err; i++) {
        if (!f->open[i].found.entries)
            continue;
        err = close_segment(f, &f->open[i], gap.first, why);
        gap.first += f->open[i].found.entries;
    }
    free(f);
    return err;
}
