/* The attempt of a line follows from the marks that the supervisor writes into the log of a slot. A slot may have had
 * other ranks in earlier attempts. So when a rank continues in another log, its lines count only from the first mark of
 * an attempt that the rank has not written yet. Files are opened for each chunk, because a job may have more ranks than
 * a process has descriptors. */
#include "client/log_files.h"

#include "common/base/file.h"
#include "common/base/log_mark.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

err_t log_files_init(struct log_files *l, const char *dir, struct why *why)
{
    *l = (struct log_files){.dir = dir};
    if (file_make_dirs(dir, 0777) == OK)
        return OK;
    return why_set(why, ERR_INVALID, "--log-dir %s: %s", dir, strerror(errno));
}

void log_files_fini(struct log_files *l)
{
    free(l->rank);
    *l = (struct log_files){0};
}

static struct log_file *file_of(struct log_files *l, int rank)
{
    if (rank < l->n)
        return &l->rank[rank];
    struct log_file *all = reallocarray(l->rank, (size_t)rank + 1, sizeof(*all));
    if (!all)
        return NULL;
    for (int k = l->n; k <= rank; k++)
        all[k] = (struct log_file){.attempt = -1, .written = -1};
    l->rank = all;
    l->n = rank + 1;
    return &all[rank];
}

/* The first text of an attempt replaces a file of an earlier run. */
static err_t append(struct log_files *l, int rank, struct log_file *f, const char *text, size_t len)
{
    char path[PATH_MAX];
    bool first = f->attempt > f->written;
    if (len == 0 || f->attempt < 0 || (f->later && !first))
        return OK;
    if ((size_t)snprintf(path, sizeof(path), "%s/attempt-%d/rank-%d.log", l->dir, f->attempt, rank) >= sizeof(path)) {
        errno = ENAMETOOLONG;
        return ERR_IO;
    }
    char *slash = strrchr(path, '/');
    *slash = '\0';
    if (first && file_make_dirs(path, 0777))
        return ERR_IO;
    *slash = '/';
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | (first ? O_TRUNC : O_APPEND), 0666);
    if (fd < 0)
        return ERR_IO;
    err_t err = file_write_all(fd, text, len);
    int e = errno;
    close(fd);
    errno = e;
    f->written = f->attempt;
    f->later = false;
    return err;
}

err_t log_files_write(struct log_files *l, int rank, bool moved, bool begins, const char *text, size_t len)
{
    struct log_file *f = file_of(l, rank);
    const char *end = text + len, *from = text;
    err_t err = f ? OK : ERR_NOMEM;
    if (!err && moved) {
        f->attempt = begins ? 0 : -1;
        f->later = true;
    }
    for (const char *line = text; !err && line < end;) {
        const char *nl = memchr(line, '\n', (size_t)(end - line)), *next = nl ? nl + 1 : end;
        int attempt = nl ? log_mark_attempt(line, (size_t)(nl - line)) : -1;
        if (attempt >= 0) {
            size_t before = (size_t)(line - from);
            err = append(l, rank, f, from, before ? before - 1 : 0); /* without the mark's first newline */
            f->attempt = attempt;
            from = next;
        }
        line = next;
    }
    return err ? err : append(l, rank, f, from, (size_t)(end - from));
}
