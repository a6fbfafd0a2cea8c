/* The child sends frames: a head, then text, or ids and weights, or the sentence of an error. Whatever it sends is
 * checked, because a hostile file may have taken it over. */
#include "common/data/apart.h"
#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/data/table.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define FLUSH_BYTES ((size_t)1 << 16)
#define PIPE_BYTES (1 << 20) /* the child reads ahead by as much */
/* Processor time for one document, or for opening the file. Decompressing the largest batch takes a second or two; a
 * library that needs more turns in a circle. Waiting for a slow disk does not count. */
#define DOCUMENT_CPU_S 10

enum apart_kind { APART_OPENED = 1, APART_TEXT, APART_IDS, APART_WEIGHTED_IDS, APART_END, APART_ERROR };

struct apart_head {
    uint32_t kind;
    int32_t err;
    int64_t row;
    uint64_t n;    /* bytes, or ids */
    int64_t label; /* -1: none */
};

/* ---- the child ---- */

struct apart_child {
    int fd;
    struct buf out;
};

#define ALLOW(name) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

/* A crash ends the process, whatever the program or a sanitizer does about signals. */
static void reset_signals(void)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGTRAP, SIGPROF};
    for (size_t i = 0; i < sizeof(crashes) / sizeof(crashes[0]); i++)
        signal(crashes[i], SIG_DFL);
}

/* Other calls fail with EPERM. Without seccomp the process is still a process of its own. */
static void confine(int fd)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        /* write to the pipe only */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)fd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        ALLOW(read),
        ALLOW(pread64),
        ALLOW(lseek),
        ALLOW(close),
        ALLOW(mmap),
        ALLOW(munmap),
        ALLOW(mremap),
        ALLOW(mprotect),
        ALLOW(madvise),
        ALLOW(brk),
        ALLOW(futex),
        ALLOW(exit),
        ALLOW(exit_group),
        ALLOW(rt_sigprocmask),
        ALLOW(rt_sigreturn),
        ALLOW(sigaltstack),
        ALLOW(setitimer),
        ALLOW(clock_gettime),
        ALLOW(gettimeofday),
        ALLOW(getrandom),
        ALLOW(getpid),
        ALLOW(gettid),
        ALLOW(sched_yield),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog program = {.len = sizeof(code) / sizeof(code[0]), .filter = code};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

/* SIGPROF ends the process when the time is over. */
static void limit_time(void)
{
    const struct itimerval t = {.it_value.tv_sec = DOCUMENT_CPU_S};
    setitimer(ITIMER_PROF, &t, NULL);
}

static err_t flush(struct apart_child *c)
{
    err_t err = file_write_all(c->fd, c->out.data, c->out.len);
    c->out.len = 0;
    return err;
}

static err_t send_head(struct apart_child *c, enum apart_kind kind, err_t err, int64_t row, uint64_t n, int64_t label)
{
    const struct apart_head h = {.kind = kind, .err = err, .row = row, .n = n, .label = label};
    return buf_append(&c->out, &h, sizeof(h));
}

static err_t send_document(struct apart_child *c, const struct document *d)
{
    enum apart_kind kind = d->text ? APART_TEXT : d->weights ? APART_WEIGHTED_IDS : APART_IDS;
    size_t n = d->text ? d->len : (size_t)d->n_ids;
    err_t err = send_head(c, kind, OK, d->row, n, d->labelled ? d->label : -1);
    if (!err)
        err = d->text ? buf_append(&c->out, d->text, n) : buf_append(&c->out, d->ids, n * sizeof(*d->ids));
    if (!err && kind == APART_WEIGHTED_IDS)
        err = buf_append(&c->out, d->weights, n);
    return !err && c->out.len >= FLUSH_BYTES ? flush(c) : err;
}

static void send_error(struct apart_child *c, err_t err, const struct why *why)
{
    if (!send_head(c, APART_ERROR, err, 0, strlen(why->text), -1) &&
        !buf_append(&c->out, why->text, strlen(why->text)) && flush(c))
        _exit(1);
}

static void run_child(struct apart_child *c, const struct doc_format *format, struct byte_source *in,
                      const struct doc_options *o)
{
    struct doc_reader *r;
    struct document d;
    struct why why = {0};
    bool end = false;
    limit_time();
    err_t err = format->open(in, o, &r, &why);
    if (!err && (err = send_head(c, APART_OPENED, OK, 0, 0, -1)) == OK)
        err = flush(c);
    while (!err && !end) {
        limit_time();
        err = r->ops->next(r, &d, &end, &why);
        if (!err && !end && (err = send_document(c, &d)))
            why_set(&why, err, "%s: %s", in->name, err_text(err));
    }
    if (err)
        send_error(c, err, &why);
    else if (send_head(c, APART_END, OK, 0, 0, -1) || flush(c))
        _exit(1);
    _exit(0); /* nothing of the parent's is flushed or freed */
}

/* ---- the parent ---- */

struct apart_reader {
    struct doc_reader base;
    const char *name, *format;
    pid_t pid; /* 0: it has been waited for */
    int fd;
    struct buf in; /* bytes of the pipe that are not used yet, from `at` on */
    size_t at;
    struct buf text, ids, weights;
};

static err_t fail_ended(struct apart_reader *r, struct why *why)
{
    int status = 0;
    pid_t pid = r->pid;
    r->pid = 0;
    bool ended = pid && waitpid(pid, &status, 0) == pid && WIFSIGNALED(status);
    if (ended && WTERMSIG(status) == SIGPROF)
        return why_set(why, ERR_CORRUPT,
                       "%s: the library for %s took more than %d s of processor time for one row. The file is damaged",
                       r->name, r->format, DOCUMENT_CPU_S);
    if (ended)
        return why_set(why, ERR_CORRUPT,
                       "%s: the library for %s crashed (signal %d) while it read the file. The file is damaged, or was "
                       "made to attack its readers",
                       r->name, r->format, WTERMSIG(status));
    return why_set(why, ERR_IO, "%s: the process that reads the file ended early; it may have run out of memory",
                   r->name);
}

static err_t receive(struct apart_reader *r, void *ret, size_t n, struct why *why)
{
    uint8_t *to = ret;
    while (n > 0) {
        size_t there = r->in.len - r->at, some = n < there ? n : there;
        if (some > 0) {
            memcpy(to, r->in.data + r->at, some);
            r->at += some;
            to += some;
            n -= some;
            continue;
        }
        ssize_t got = read(r->fd, r->in.data, FLUSH_BYTES);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return fail_ended(r, why);
        r->at = 0;
        r->in.len = (size_t)got;
    }
    return OK;
}

/* Receives n bytes into b. */
static err_t receive_into(struct apart_reader *r, size_t n, struct buf *b, struct why *why)
{
    b->len = 0;
    if (buf_reserve(b, n + 1))
        return why_set(why, ERR_NOMEM, "%s: %s", r->name, err_text(ERR_NOMEM));
    err_t err = receive(r, b->data, n, why);
    b->len = err ? 0 : n;
    return err;
}

static err_t fail_nonsense(const struct apart_reader *r, struct why *why)
{
    return why_set(why, ERR_CORRUPT,
                   "%s: the process that reads the file sent nonsense; the file was made to attack it", r->name);
}

static err_t receive_error(struct apart_reader *r, const struct apart_head *h, struct why *why)
{
    if (h->n >= sizeof(why->text) || h->err >= 0 || strcmp(err_name(h->err), "ERR_?") == 0)
        return fail_nonsense(r, why);
    err_t err = receive_into(r, h->n, &r->text, why);
    if (err)
        return err;
    r->text.data[h->n] = '\0';
    table_clean_name((char *)r->text.data);
    return why_set(why, h->err, "%s", (char *)r->text.data);
}

static err_t receive_ids(struct apart_reader *r, const struct apart_head *h, struct document *ret, struct why *why)
{
    if (h->n > (uint64_t)TABLE_MAX_TOKENS)
        return fail_nonsense(r, why);
    err_t err = receive_into(r, h->n * sizeof(int32_t), &r->ids, why);
    if (!err && h->kind == APART_WEIGHTED_IDS)
        err = receive_into(r, h->n, &r->weights, why);
    if (err)
        return err;
    ret->ids = (const int32_t *)(const void *)r->ids.data;
    ret->n_ids = (int64_t)h->n;
    ret->weights = h->kind == APART_WEIGHTED_IDS ? r->weights.data : NULL;
    for (int64_t i = 0; i < ret->n_ids; i++)
        if (ret->ids[i] < 0 || (ret->weights && ret->weights[i] > 1))
            return fail_nonsense(r, why);
    return OK;
}

static err_t apart_next(struct doc_reader *base, struct document *ret, bool *ret_end, struct why *why)
{
    struct apart_reader *r = (struct apart_reader *)base;
    struct apart_head h = {0};
    struct document d = {0};
    err_t err = receive(r, &h, sizeof(h), why);
    if (err)
        return err;
    *ret_end = h.kind == APART_END;
    d.row = h.row;
    if (h.kind == APART_ERROR)
        return receive_error(r, &h, why);
    if (h.kind == APART_IDS || h.kind == APART_WEIGHTED_IDS)
        err = receive_ids(r, &h, &d, why);
    else if (h.kind == APART_TEXT && h.n <= (uint64_t)TABLE_MAX_TEXT)
        err = receive_into(r, h.n, &r->text, why);
    else if (h.kind != APART_END)
        err = fail_nonsense(r, why);
    if (!err && h.label != -1 && !document_label(&d, h.label))
        err = fail_nonsense(r, why);
    d.text = h.kind == APART_TEXT ? r->text.data : NULL;
    d.len = d.text ? h.n : 0;
    if (!err)
        *ret = d;
    return err;
}

static void apart_close(struct doc_reader *base)
{
    struct apart_reader *r = (struct apart_reader *)base;
    if (r->fd >= 0)
        close(r->fd);
    if (r->pid > 0) {
        kill(r->pid, SIGKILL);
        while (waitpid(r->pid, NULL, 0) < 0 && errno == EINTR)
            ;
    }
    buf_fini(&r->in);
    buf_fini(&r->text);
    buf_fini(&r->ids);
    buf_fini(&r->weights);
    free(r);
}

/* Starts the child, and waits until it has opened the file. */
static err_t start(struct apart_reader *r, const struct doc_format *format, struct byte_source *in,
                   const struct doc_options *o, struct why *why)
{
    int fds[2];
    struct apart_head h = {0};
    if (buf_reserve(&r->in, FLUSH_BYTES))
        return why_set(why, ERR_NOMEM, "%s: %s", in->name, err_text(ERR_NOMEM));
    if (pipe2(fds, O_CLOEXEC))
        return why_set(why, err_from_errno(errno), "%s: pipe: %s", in->name, strerror(errno));
    fcntl(fds[0], F_SETPIPE_SZ, PIPE_BYTES); /* else it has the usual size */
    r->fd = fds[0];
    r->pid = fork();
    if (r->pid == 0) {
        struct apart_child c = {.fd = fds[1]};
        close(fds[0]);
        reset_signals();
        confine(fds[1]);
        run_child(&c, format, in, o);
    }
    int error = errno;
    close(fds[1]);
    if (r->pid < 0) {
        r->pid = 0;
        return why_set(why, err_from_errno(error), "%s: fork: %s", in->name, strerror(error));
    }
    err_t err = receive(r, &h, sizeof(h), why);
    if (err || h.kind == APART_OPENED)
        return err;
    return h.kind == APART_ERROR ? receive_error(r, &h, why) : fail_nonsense(r, why);
}

err_t apart_open(const struct doc_format *format, struct byte_source *in, const struct doc_options *o,
                 struct doc_reader **ret, struct why *why)
{
    static const struct doc_reader_ops ops = {.next = apart_next, .close = apart_close};
    struct apart_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return why_set(why, ERR_NOMEM, "%s: %s", in->name, err_text(ERR_NOMEM));
    *r = (struct apart_reader){.base.ops = &ops, .name = in->name, .format = format->name, .fd = -1};
    err_t err = start(r, format, in, o, why);
    if (err)
        apart_close(&r->base);
    else
        *ret = &r->base;
    return err;
}
