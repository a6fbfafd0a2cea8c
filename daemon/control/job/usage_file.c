/* Each line is appended by one write. The loop only appends; joining reads and writes the whole file, so a thread does
 * it: it writes a new file and renames it, unless the old one has changed or has been removed in the meantime. The loop
 * writes nothing until then. */
#include "daemon/control/job/usage_file.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "daemon/control/local/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_PENDING_BYTES (4u << 20)
#define READ_BYTES (64u << 20)  /* a file that could not be joined for long */
#define LAST_BYTES (256u << 10) /* contains the last line of a job with up to 2000 ranks */

struct usage_halving {
    struct pool_task task;   /* first */
    struct usage_file *file; /* NULL: it has been closed */
    char *path;
    off_t limit, size; /* of the file when it began */
    int64_t window_ms;
    err_t err;
};

err_t usage_file_init(struct usage_file *f, const char *path, struct pool *pool, uint64_t key)
{
    *f = (struct usage_file){.fd = -1,
                             .path = strdup(path),
                             .window_ms = USAGE_WINDOW_MS,
                             .limit = USAGE_FILE_BYTES,
                             .pool = pool,
                             .key = key};
    return f->path ? OK : ERR_NOMEM;
}

void usage_file_fini(struct usage_file *f)
{
    if (f->path)
        usage_file_close_window(f, NULL);
    if (f->halving)
        f->halving->file = NULL;
    if (f->path && f->fd >= 0)
        close(f->fd);
    usage_sample_fini(&f->open);
    buf_fini(&f->older);
    buf_fini(&f->pending);
    free(f->path);
    *f = (struct usage_file){.fd = -1};
}

/* ---- writing ---- */

/* After an incomplete line, which a crash has left, the next one begins on a line of its own. */
static err_t end_last_line(int fd, off_t size)
{
    char last = '\n';
    if (size > 0 && pread(fd, &last, 1, size - 1) != 1)
        return err_from_errno(errno);
    return last == '\n' ? OK : file_write_all(fd, "\n", 1);
}

static err_t open_file(struct usage_file *f)
{
    char folder[PATH_MAX];
    struct stat st;
    if (f->fd >= 0)
        return OK;
    snprintf(folder, sizeof(folder), "%s", f->path);
    *strrchr(folder, '/') = '\0';
    if (mkdir(folder, 0700) && errno != EEXIST)
        return err_from_errno(errno);
    int fd = open(f->path, O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_from_errno(errno);
    err_t err = fstat(fd, &st) ? err_from_errno(errno) : end_last_line(fd, st.st_size);
    if (err) {
        close(fd);
        return err;
    }
    f->fd = fd;
    return OK;
}

static err_t write_lines(struct usage_file *f, struct buf *lines)
{
    struct stat st;
    err_t err = open_file(f);
    if (!err && fstat(f->fd, &st))
        err = err_from_errno(errno);
    if (err)
        return err;
    err = file_write_all(f->fd, lines->data, lines->len);
    if (err && ftruncate(f->fd, st.st_size))
        log_error("incomplete line not cut off path=%s error=%s", f->path, strerror(errno));
    f->size = err ? st.st_size : st.st_size + (off_t)lines->len;
    lines->len = err ? lines->len : 0;
    return err;
}

static void drop_oldest(struct usage_file *f, struct buf *lines)
{
    while (lines->len > MAX_PENDING_BYTES) {
        const uint8_t *nl = memchr(lines->data, '\n', lines->len);
        size_t n = (size_t)(nl - lines->data) + 1;
        memmove(lines->data, lines->data + n, lines->len - n);
        lines->len -= n;
        f->dropped++;
    }
}

static void halving_begin(struct usage_file *f);

void usage_file_flush(struct usage_file *f)
{
    err_t err = OK;
    if (f->halving)
        return;
    if (f->older.len)
        err = write_lines(f, &f->older);
    if (!err && f->pending.len && !f->held)
        err = write_lines(f, &f->pending);
    if (err && !f->failed)
        log_warn("usage waits in memory path=%s error=%s", f->path, err_text(err));
    if (!err && f->failed)
        log_info("usage is written again path=%s dropped=%" PRIu64, f->path, f->dropped);
    f->failed = err != OK;
    if (!err && f->size > f->limit)
        halving_begin(f);
}

void usage_file_close_window(struct usage_file *f, struct buf *ret_line)
{
    const size_t at = f->pending.len;
    if (!f->open.ranks)
        return;
    if (usage_line_format(&f->open, &f->pending))
        f->dropped++;
    else if (ret_line && buf_append(ret_line, f->pending.data + at, f->pending.len - at))
        log_warn("usage not passed on path=%s error=%s", f->path, err_text(ERR_NOMEM));
    usage_sample_fini(&f->open);
    drop_oldest(f, &f->pending);
    if (!f->failed) /* otherwise the timer tries again */
        usage_file_flush(f);
}

void usage_file_add(struct usage_file *f, const struct usage_sample *sample, struct buf *ret_line)
{
    if (f->open.ranks && !usage_sample_fits(&f->open, sample))
        usage_file_close_window(f, ret_line);
    if (f->open.ranks)
        usage_sample_join(&f->open, sample);
    else if (usage_sample_copy(sample, &f->open))
        f->dropped++;
    if (f->open.ranks && f->open.window_ms >= f->window_ms)
        usage_file_close_window(f, ret_line);
}

/* ---- older lines ---- */

/* Windows of the file have so many times the shortest duration. */
static int64_t window_like(int64_t window_ms)
{
    int64_t ret = USAGE_WINDOW_MS;
    while (2 * ret <= window_ms)
        ret *= 2;
    return ret;
}

static void take_last(struct usage_file *f, const struct usage_sample *s)
{
    const int64_t window_ms = window_like(s->window_ms);
    f->last_ms = s->wall_ms;
    f->window_ms = window_ms > f->window_ms ? window_ms : f->window_ms;
}

static void read_last(struct usage_file *f, const char *tail, size_t n)
{
    struct usage_sample s;
    const char *end = memrchr(tail, '\n', n);
    const char *before = end ? memrchr(tail, '\n', (size_t)(end - tail)) : NULL;
    const char *line = before ? before + 1 : tail;
    if (!end || usage_line_parse(line, (size_t)(end - line), &s))
        return;
    take_last(f, &s);
    usage_sample_fini(&s);
}

void usage_file_hold(struct usage_file *f)
{
    struct stat st;
    char *tail = malloc(LAST_BYTES);
    int fd = open(f->path, O_RDONLY | O_CLOEXEC);
    f->held = true;
    if (tail && fd >= 0 && fstat(fd, &st) == 0 && st.st_size > 0) {
        off_t at = st.st_size > (off_t)LAST_BYTES ? st.st_size - (off_t)LAST_BYTES : 0;
        size_t n = (size_t)(st.st_size - at);
        if (file_pread_all(fd, tail, n, at) == OK)
            read_last(f, tail, n);
    }
    if (fd >= 0)
        close(fd);
    free(tail);
}

void usage_file_before(struct usage_file *f, const char *line, size_t len)
{
    struct usage_sample s;
    if (usage_line_parse(line, len, &s))
        return;
    const bool is_new = s.wall_ms > f->last_ms;
    if (is_new)
        take_last(f, &s);
    usage_sample_fini(&s);
    if (is_new && (buf_append(&f->older, line, len) || buf_append(&f->older, "\n", 1)))
        f->dropped++;
    drop_oldest(f, &f->older);
}

void usage_file_release(struct usage_file *f)
{
    f->held = false;
    usage_file_flush(f);
}

/* ---- reading ---- */

err_t usage_file_rest(const struct usage_file *f, struct buf *ret)
{
    err_t err = buf_append(ret, f->older.data, f->older.len);
    err = err ? err : buf_append(ret, f->pending.data, f->pending.len);
    return !err && f->open.ranks ? usage_line_format(&f->open, ret) : err;
}

void usage_samples_fini(struct usage_samples *list)
{
    for (size_t i = 0; i < list->n; i++)
        usage_sample_fini(&list->sample[i]);
    free(list->sample);
    *list = (struct usage_samples){0};
}

err_t usage_samples_add(struct usage_samples *list, struct usage_sample *s)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 64;
        struct usage_sample *p = realloc(list->sample, cap * sizeof(*p));
        if (!p) {
            usage_sample_fini(s);
            return ERR_NOMEM;
        }
        list->sample = p;
        list->cap = cap;
    }
    list->sample[list->n++] = *s;
    *s = (struct usage_sample){0};
    return OK;
}

/* Lines that are not valid, such as one that a crash has cut off, are skipped. */
static err_t take_lines(struct usage_samples *list, int64_t from_ms, int64_t after_ms, const atomic_bool *stop,
                        const struct buf *text)
{
    const char *p = (const char *)text->data, *end = p + text->len, *nl;
    err_t err = OK;
    for (; !err && p < end && (nl = memchr(p, '\n', (size_t)(end - p))); p = nl + 1) {
        struct usage_sample s;
        if (stop && atomic_load(stop))
            return ERR_CANCELED;
        err = usage_line_parse(p, (size_t)(nl - p), &s);
        if (err) {
            err = err == ERR_CORRUPT ? OK : err;
            continue;
        }
        if (s.wall_ms >= from_ms && s.wall_ms > after_ms)
            err = usage_samples_add(list, &s);
        usage_sample_fini(&s);
    }
    return err;
}

err_t usage_file_load(const char *path, const struct buf *more, int64_t from_ms, const atomic_bool *stop,
                      struct usage_samples *ret)
{
    struct usage_samples list = {0};
    struct buf text = {0};
    err_t err = file_read(path, READ_BYTES, &text);
    if (err == ERR_NOTFOUND)
        err = OK;
    err = err ? err : take_lines(&list, from_ms, 0, stop, &text);
    const int64_t last_ms = list.n ? list.sample[list.n - 1].wall_ms : 0; /* `more` may have been written since */
    err = err || !more ? err : take_lines(&list, from_ms, last_ms, stop, more);
    buf_fini(&text);
    if (err)
        usage_samples_fini(&list);
    else
        *ret = list;
    return err;
}

/* ---- joining ---- */

/* Joins neighbours until each has at least `window_ms`. */
static void join_neighbours(struct usage_samples *list, int64_t window_ms)
{
    size_t n = 0; /* samples that remain */
    for (size_t i = 0; i < list->n; i++) {
        struct usage_sample *last = n ? &list->sample[n - 1] : NULL, *s = &list->sample[i];
        if (last && last->window_ms < window_ms && s->window_ms < window_ms && usage_sample_fits(last, s)) {
            usage_sample_join(last, s);
            usage_sample_fini(s);
            continue;
        }
        if (n != i) {
            list->sample[n] = *s;
            *s = (struct usage_sample){0};
        }
        n++;
    }
    list->n = n;
}

static err_t format_from(const struct usage_samples *list, size_t first, struct buf *ret)
{
    err_t err = OK;
    ret->len = 0;
    for (size_t i = first; !err && i < list->n; i++)
        err = usage_line_format(&list->sample[i], ret);
    return err;
}

static int64_t longest(const struct usage_samples *list)
{
    int64_t ms = 0;
    for (size_t i = 0; i < list->n; i++)
        ms = list->sample[i].window_ms > ms ? list->sample[i].window_ms : ms;
    return ms;
}

err_t usage_samples_halve(struct usage_samples *list, size_t max_bytes, int64_t *window_ms, struct buf *ret_lines)
{
    const int64_t before = longest(list);
    err_t err = OK;
    do {
        *window_ms *= 2;
        join_neighbours(list, *window_ms);
        err = format_from(list, 0, ret_lines);
    } while (!err && ret_lines->len > max_bytes && *window_ms <= 2 * before);
    if (err || ret_lines->len <= max_bytes)
        return err;
    /* Neighbours of different epochs are never joined: the oldest lines go. */
    const uint8_t *from = ret_lines->data + ret_lines->len - max_bytes;
    from = memchr(from, '\n', max_bytes);
    const size_t cut = from ? (size_t)(from - ret_lines->data) + 1 : ret_lines->len;
    memmove(ret_lines->data, ret_lines->data + cut, ret_lines->len - cut);
    ret_lines->len -= cut;
    return OK;
}

static bool is_unchanged(const char *path, off_t size)
{
    struct stat st;
    return stat(path, &st) == 0 && st.st_size == size;
}

/* Another usage_file of the path may have been opened since, or the job may have been removed. */
static err_t replace_file(const struct usage_halving *h, const struct buf *lines)
{
    char temporary[PATH_MAX];
    if (snprintf(temporary, sizeof(temporary), "%s.tmp", h->path) >= (int)sizeof(temporary))
        return ERR_LIMIT;
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_from_errno(errno);
    err_t err = file_write_all(fd, lines->data, lines->len);
    if (!err && fsync(fd)) /* or the renamed file may be empty after a power failure */
        err = err_from_errno(errno);
    close(fd);
    if (!err && !is_unchanged(h->path, h->size))
        err = ERR_STALE;
    if (!err && rename(temporary, h->path))
        err = err_from_errno(errno);
    if (err)
        unlink(temporary);
    return err;
}

static void halving_run(struct pool_task *task)
{
    struct usage_halving *h = (struct usage_halving *)task;
    struct usage_samples list = {0};
    struct buf lines = {0};
    h->err = usage_file_load(h->path, NULL, 0, NULL, &list);
    if (!h->err)
        h->err = usage_samples_halve(&list, (size_t)h->limit / 2, &h->window_ms, &lines);
    if (!h->err)
        h->err = replace_file(h, &lines);
    usage_samples_fini(&list);
    buf_fini(&lines);
}

static void halving_done(struct pool_task *task)
{
    struct usage_halving *h = (struct usage_halving *)task;
    struct usage_file *f = h->file;
    if (h->err)
        log_warn("usage not joined path=%s error=%s", h->path, err_text(h->err));
    if (f) {
        close(f->fd);
        f->fd = -1;
        f->halving = NULL;
        f->window_ms = h->err ? f->window_ms : h->window_ms;
        f->limit += h->err ? f->limit : 0; /* not at every line again */
        usage_file_flush(f);
    }
    free(h->path);
    free(h);
}

static void halving_begin(struct usage_file *f)
{
    struct usage_halving *h = f->pool ? calloc(1, sizeof(*h)) : NULL;
    if (!h)
        return;
    *h = (struct usage_halving){.task = {.run = halving_run, .done = halving_done},
                                .file = f,
                                .path = strdup(f->path),
                                .limit = f->limit,
                                .size = f->size,
                                .window_ms = f->window_ms};
    f->halving = h->path && pool_add(f->pool, &h->task, f->key) == OK ? h : NULL;
    if (f->halving)
        return;
    free(h->path); /* the next line tries again */
    free(h);
}
