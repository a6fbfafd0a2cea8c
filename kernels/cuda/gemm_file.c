/* See gemm_file.h.
 *
 *     dtd algorithms 1
 *     gpu NVIDIA H200, 132 processors
 *     cublaslt 130101
 *     # what the columns are
 *     32768 3072 768 768 3072 3072 0 0 0 164 14 14 64 64 64 64 64 apart 412.250 0f3a8e91c5d2b746
 *
 * In a line with an algorithm, its 64 bytes appear as 128 hex digits in place of "apart".
 *
 * Writers lock the file exclusively and readers share the lock, so an unfinished last line is never a write in
 * progress: it was cut off and counts as damaged. A later writer terminates it first. A writer that cannot append a
 * whole line removes the part that it has written. */
#include "kernels/cuda/gemm_file.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT "dtd algorithms 1"
#define COLUMNS                                                                                             \
    "# m n k lda ldb ldc trans_a trans_b accumulate epilogue type c_type, alignments of a b c vector aux, " \
    "algorithm, microseconds, checksum\n"
/* About 30,000 choices; a job has some dozens. */
#define MOST_BYTES ((size_t)16 << 20)
/* Other processes hold the lock only while they write one line and sync it to disk. */
#define LOCK_MS 10000
#define LOCK_RETRY_US 1000

struct gemm_file {
    char path[PATH_MAX];
    int fd;
    bool takes;     /* choices can be added */
    bool torn;      /* the content ends within a line, which has been counted */
    int line;       /* lines read */
    off_t read_end; /* bytes read */
    struct gemm_choice *choices;
    int n, room;
};

/* ---- one line ---- */

/* FNV-1a */
static uint64_t checksum(const char *text, size_t length)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)text[i]) * 1099511628211u;
    return h;
}

static size_t print_algo(const struct gemm_choice *c, char *ret, size_t size)
{
    size_t n = 0;
    if (c->apart)
        return (size_t)snprintf(ret, size, "apart");
    for (int i = 0; i < GEMM_ALGO_WORDS; i++)
        n += (size_t)snprintf(ret + n, size - n, "%016" PRIx64, c->algo[i]);
    return n;
}

size_t gemm_choice_print(const struct gemm_choice *c, char ret[GEMM_LINE_BYTES])
{
    const struct gemm_key *k = &c->key;
    size_t n = (size_t)snprintf(
        ret, GEMM_LINE_BYTES,
        "%" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %d %d %d %u %d %d %u %u %u %u %u ",
        k->m, k->n, k->k, k->lda, k->ldb, k->ldc, k->trans_a, k->trans_b, k->accumulate, k->epilogue, k->type,
        k->c_type, k->a_align, k->b_align, k->c_align, k->vector_align, k->aux_align);
    n += print_algo(c, ret + n, GEMM_LINE_BYTES - n);
    n += (size_t)snprintf(ret + n, GEMM_LINE_BYTES - n, " %.3f", c->us);
    return n + (size_t)snprintf(ret + n, GEMM_LINE_BYTES - n, " %016" PRIx64, checksum(ret, n));
}

static bool parse_algo(const char *text, struct gemm_choice *c)
{
    c->apart = strcmp(text, "apart") == 0;
    if (c->apart)
        return true;
    for (int i = 0; i < GEMM_ALGO_WORDS; i++)
        if (sscanf(text + 16 * i, "%16" SCNx64, &c->algo[i]) != 1)
            return false;
    return true;
}

/* sscanf is lenient, so the result is checked: it must print as exactly the line that was read. */
bool gemm_choice_parse(const char *line, struct gemm_choice *ret)
{
    struct gemm_choice c;
    struct gemm_key *k = &c.key;
    char algo[GEMM_ALGO_WORDS * 16 + 1], again[GEMM_LINE_BYTES];
    memset(&c, 0, sizeof(c));
    int n = sscanf(line,
                   "%" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64
                   " %d %d %d %u %d %d %u %u %u %u %u %128s %lf",
                   &k->m, &k->n, &k->k, &k->lda, &k->ldb, &k->ldc, &k->trans_a, &k->trans_b, &k->accumulate,
                   &k->epilogue, &k->type, &k->c_type, &k->a_align, &k->b_align, &k->c_align, &k->vector_align,
                   &k->aux_align, algo, &c.us);
    /* A longer number is not a valid time and would not fit into a line. */
    if (n != 19 || !(c.us >= 0 && c.us < 1e12) || strlen(algo) > 128 || !parse_algo(algo, &c))
        return false;
    if (!c.apart && strlen(algo) != 128)
        return false;
    gemm_choice_print(&c, again);
    if (strcmp(again, line) != 0)
        return false;
    *ret = c;
    return true;
}

/* ---- reading ---- */

static err_t io_failed(const struct gemm_file *f, int e, const char *what, struct why *why)
{
    return why_set(why, err_from_errno(e), "%s cannot be %s: %s", f->path, what, strerror(e));
}

static err_t lock(const struct gemm_file *f, int how, struct why *why)
{
    int64_t until = clock_mono_ms() + LOCK_MS;
    while (flock(f->fd, how | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return io_failed(f, errno, "locked", why);
        if (clock_mono_ms() > until)
            return why_set(why, ERR_TIMEOUT, "%s: another process has held its lock for %d s", f->path, LOCK_MS / 1000);
        usleep(LOCK_RETRY_US);
    }
    return OK;
}

static void unlock(const struct gemm_file *f)
{
    flock(f->fd, LOCK_UN);
}

static err_t choice_keep(struct gemm_file *f, const struct gemm_choice *c)
{
    if (f->n == f->room) {
        int room = f->room ? 2 * f->room : 64;
        struct gemm_choice *more = realloc(f->choices, (size_t)room * sizeof(*more));
        if (!more)
            return ERR_NOMEM;
        f->choices = more;
        f->room = room;
    }
    f->choices[f->n++] = *c;
    return OK;
}

/* Processes a whole line of `length` bytes, or the cut-off rest of one; text[length] is 0. */
static err_t take_line(struct gemm_file *f, const char *text, size_t length)
{
    struct gemm_choice c;
    f->line++;
    if (length == 0 || text[0] == '#')
        return OK;
    if (strlen(text) != length || !gemm_choice_parse(text, &c)) {
        log_warn("algorithms line is damaged and not used file=%s line=%d", f->path, f->line);
        return OK;
    }
    c.line = f->line;
    return choice_keep(f, &c);
}

static err_t take_text(struct gemm_file *f, char *text, size_t length)
{
    char *at = text, *end = text + length;
    err_t err = OK;
    if (f->torn && length > 0 && *at == '\n') {
        f->torn = false;
        at++;
    }
    while (at < end && err == OK) {
        char *line_end = memchr(at, '\n', (size_t)(end - at));
        f->torn = line_end == NULL;
        if (line_end)
            *line_end = '\0';
        err = take_line(f, at, (size_t)((line_end ? line_end : end) - at));
        at = line_end ? line_end + 1 : end;
    }
    return err;
}

/* Reads everything that was appended since the last read; the caller holds the lock. */
static err_t read_rest(struct gemm_file *f, struct why *why)
{
    struct stat st;
    if (fstat(f->fd, &st))
        return io_failed(f, errno, "read", why);
    if (st.st_size < f->read_end || (size_t)st.st_size > MOST_BYTES)
        return why_set(why, ERR_LIMIT, "%s has %lld bytes: it was cut off, or is not an algorithm file", f->path,
                       (long long)st.st_size);
    size_t length = (size_t)(st.st_size - f->read_end);
    char *text = malloc(length + 1);
    if (!text)
        return why_set(why, ERR_NOMEM, "out of memory");
    err_t err = file_pread_all(f->fd, text, length, f->read_end);
    text[err == OK ? length : 0] = '\0';
    err = err == OK ? take_text(f, text, length) : err;
    free(text);
    if (err)
        return why_set(why, err, "%s cannot be read: %s", f->path, err_text(err));
    f->read_end = st.st_size;
    return OK;
}

/* ---- opening ---- */

static size_t print_header(const char *gpu, uint64_t library, char *ret, size_t size)
{
    return (size_t)snprintf(ret, size, FORMAT "\ngpu %s\ncublaslt %" PRIu64 "\n", gpu, library);
}

/* In a folder, the file is named after the GPU, with dashes for characters that are neither letters nor digits, and the
 * library's version. */
static err_t set_path(struct gemm_file *f, const char *path, const char *gpu, uint64_t library, struct why *why)
{
    struct stat st;
    char name[192];
    bool folder = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
    snprintf(name, sizeof(name), "/%.128s cublaslt %" PRIu64 ".txt", gpu, library);
    for (char *p = name + 1; *p; p++)
        *p = isalnum((unsigned char)*p) || *p == '.' ? *p : '-';
    int n = snprintf(f->path, sizeof(f->path), "%s%s", path, folder ? name : "");
    return (size_t)n < sizeof(f->path) ? OK : why_set(why, ERR_LIMIT, "%s: the path is too long", path);
}

static err_t open_fd(struct gemm_file *f, struct why *why)
{
    f->fd = open(f->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0644);
    f->takes = f->fd >= 0;
    if (f->fd < 0 && (errno == EACCES || errno == EROFS || errno == EPERM))
        f->fd = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (f->fd < 0 || fstat(f->fd, &st))
        return io_failed(f, errno, "opened", why);
    return S_ISREG(st.st_mode) ? OK : why_set(why, ERR_INVALID, "%s is not a file", f->path);
}

/* Writes the header of an empty file; the header of any other file must equal ours. The caller holds the lock. */
static err_t agree_on_header(struct gemm_file *f, const char *gpu, uint64_t library, struct why *why)
{
    char ours[512], text[512];
    size_t length = print_header(gpu, library, ours, sizeof(ours) - sizeof(COLUMNS));
    ssize_t n = pread(f->fd, text, length, 0);
    if (n < 0)
        return io_failed(f, errno, "read", why);
    if (n == 0 && f->takes) {
        size_t all = length + (size_t)snprintf(ours + length, sizeof(ours) - length, COLUMNS);
        err_t err = file_write_all(f->fd, ours, all);
        n = (ssize_t)length;
        memcpy(text, ours, length);
        if (err)
            return why_set(why, err, "%s cannot be written: %s", f->path, err_text(err));
    }
    if ((size_t)n != length || memcmp(text, ours, length) != 0)
        return why_set(why, ERR_STALE,
                       "%s belongs to another GPU, cuBLASLt or format: it does not begin with \"" FORMAT
                       "\", \"gpu %s\" and \"cublaslt %" PRIu64 "\"",
                       f->path, gpu, library);
    f->read_end = (off_t)length;
    f->line = 3;
    return OK;
}

err_t gemm_file_open(const char *path, const char *gpu, uint64_t library, struct gemm_file **ret, struct why *why)
{
    struct gemm_file *f = calloc(1, sizeof(*f));
    if (!f)
        return why_set(why, ERR_NOMEM, "out of memory");
    f->fd = -1;
    err_t err = set_path(f, path, gpu, library, why);
    err = err ? err : open_fd(f, why);
    err = err ? err : lock(f, f->takes ? LOCK_EX : LOCK_SH, why);
    if (!err) {
        err = agree_on_header(f, gpu, library, why);
        err = err ? err : read_rest(f, why);
        unlock(f);
    }
    if (err) {
        gemm_file_close(f);
        return err;
    }
    *ret = f;
    return OK;
}

void gemm_file_close(struct gemm_file *f)
{
    if (!f)
        return;
    if (f->fd >= 0)
        close(f->fd);
    free(f->choices);
    free(f);
}

const char *gemm_file_path(const struct gemm_file *f)
{
    return f->path;
}

bool gemm_file_takes(const struct gemm_file *f)
{
    return f->takes;
}

/* ---- choices ---- */

struct gemm_choice *gemm_file_find(struct gemm_file *f, const struct gemm_key *key)
{
    for (int i = 0; i < f->n; i++)
        if (!f->choices[i].refused && memcmp(&f->choices[i].key, key, sizeof(*key)) == 0)
            return &f->choices[i];
    return NULL;
}

void gemm_file_refuse(struct gemm_file *f, struct gemm_choice *c, const char *cause)
{
    c->refused = true;
    log_warn("algorithms line is not used file=%s line=%d why=\"%s\"", f->path, c->line, cause);
}

static void give_up(struct gemm_file *f, const struct why *why)
{
    if (f->takes)
        log_warn("algorithms are no longer chosen by timing, because they cannot be stored why=\"%s\"", why->text);
    f->takes = false;
}

void gemm_file_refresh(struct gemm_file *f)
{
    struct why why;
    err_t err = lock(f, LOCK_SH, &why);
    if (err == OK) {
        err = read_rest(f, &why);
        unlock(f);
    }
    if (err)
        give_up(f, &why);
}

/* The caller holds the lock and has read the whole file. */
static err_t append(struct gemm_file *f, const struct gemm_choice *c, struct why *why)
{
    char text[GEMM_LINE_BYTES + 2] = "\n";
    size_t begin = f->torn ? 1 : 0, n = begin + gemm_choice_print(c, text + begin);
    text[n++] = '\n';
    err_t err = file_write_all(f->fd, text, n);
    if (err == OK && fdatasync(f->fd))
        err = err_from_errno(errno);
    if (err == OK)
        return OK;
    if (ftruncate(f->fd, f->read_end))
        log_warn("algorithms a partial line may remain file=%s", f->path);
    return why_set(why, err, "%s cannot be written: %s", f->path, err_text(err));
}

bool gemm_file_add(struct gemm_file *f, const struct gemm_choice *c)
{
    struct why why;
    if (!f->takes)
        return false;
    err_t err = lock(f, LOCK_EX, &why);
    if (err == OK) {
        err = read_rest(f, &why);
        if (err == OK && !gemm_file_find(f, &c->key)) {
            err = append(f, c, &why);
            err = err ? err : read_rest(f, &why);
        }
        unlock(f);
    }
    if (err)
        give_up(f, &why);
    return err == OK;
}
