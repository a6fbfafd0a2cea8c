/* The streams are those of the CPU device, identified by a table; their `dev` is this device, so calls arrive here. */
#include "tests/worker/record_device.h"

#include "tests/lib/test.h"

#define MAX_LOG 200000
#define MAX_STREAMS 8
#define MAX_TASKS 4096
#define LAZY 2

/* A task that waits on the copy stream: a copy, or the record of an event (dst NULL). */
struct task {
    void *dst;
    const void *src;
    size_t bytes;
    struct dev_event *event;
};

static struct {
    struct dev dev;
    struct dev *cpu;
    struct rec_entry *log;
    int n_log, counts[REC_KINDS], live[REC_KINDS];
    struct kern_stream *streams[MAX_STREAMS];
    int n_streams;
    struct task tasks[MAX_TASKS];
    int n_tasks;
    err_t (*at_sync)(struct why *why);
} rec;

static int stream_index(const struct kern_stream *s)
{
    for (int i = 0; i < rec.n_streams; i++)
        if (rec.streams[i] == s)
            return i;
    return -1;
}

static void note(enum rec_kind kind, const void *event, const struct kern_stream *s, size_t bytes)
{
    assert_true(rec.n_log < MAX_LOG);
    rec.log[rec.n_log++] =
        (struct rec_entry){.kind = kind, .event = event, .stream = s ? stream_index(s) : -1, .bytes = bytes};
    rec.counts[kind]++;
    rec.live[kind]++;
}

/* ---- the copy stream ---- */

static bool lazy(const struct kern_stream *s)
{
    return stream_index(s) == LAZY;
}

static void put_task(struct task t)
{
    assert_true(rec.n_tasks < MAX_TASKS);
    rec.tasks[rec.n_tasks++] = t;
}

/* Runs the first n tasks. */
static void do_tasks(int n)
{
    for (int i = 0; i < n; i++)
        if (rec.tasks[i].dst)
            memcpy(rec.tasks[i].dst, rec.tasks[i].src, rec.tasks[i].bytes);
    memmove(rec.tasks, rec.tasks + n, (size_t)(rec.n_tasks - n) * sizeof(rec.tasks[0]));
    rec.n_tasks -= n;
}

/* Number of tasks up to and including the last record of the event; 0: the event is complete. */
static int tasks_before(const struct dev_event *e)
{
    for (int i = rec.n_tasks; i > 0; i--)
        if (rec.tasks[i - 1].event == e)
            return i;
    return 0;
}

/* ---- the table ---- */

static err_t rec_facts(struct dev *d, struct dev_facts *ret, struct why *why)
{
    return d ? dev_facts(rec.cpu, ret, why) : ERR_INVALID;
}

static const struct kern_ops *rec_kernels(enum dtype dtype)
{
    return dev_kernels(rec.cpu, dtype);
}

static err_t rec_alloc(struct dev *d, size_t bytes, const char *what, void **ret, struct why *why)
{
    note(REC_ALLOC, d, NULL, bytes);
    return dev_alloc(rec.cpu, bytes, what, ret, why);
}

static void rec_free(struct dev *d, void *p, size_t bytes)
{
    note(REC_FREE, d, NULL, bytes);
    dev_free(rec.cpu, p, bytes);
}

static err_t rec_host_alloc(struct dev *d, size_t bytes, const char *what, void **ret, struct why *why)
{
    note(REC_HOST_ALLOC, d, NULL, bytes);
    return dev_host_alloc(rec.cpu, bytes, what, ret, why);
}

static void rec_host_free(struct dev *d, void *p, size_t bytes)
{
    note(REC_HOST_FREE, d, NULL, bytes);
    dev_host_free(rec.cpu, p, bytes);
}

static err_t rec_host_pin(struct dev *d, void *p, size_t bytes, struct why *why)
{
    note(REC_PIN, p, NULL, bytes);
    return d ? dev_host_pin(rec.cpu, p, bytes, why) : ERR_INVALID;
}

static void rec_host_unpin(struct dev *d, void *p)
{
    note(REC_UNPIN, d, NULL, 0);
    dev_host_unpin(rec.cpu, p);
}

static err_t rec_stream_new(struct dev *d, int threads, bool urgent, struct kern_stream **ret, struct why *why)
{
    assert_true(rec.n_streams < MAX_STREAMS && urgent == (rec.n_streams == 1));
    err_t err = dev_stream_new(rec.cpu, threads, urgent, ret, why);
    if (err)
        return err;
    (*ret)->dev = d;
    rec.streams[rec.n_streams++] = *ret;
    note(REC_STREAM_NEW, NULL, *ret, 0);
    return OK;
}

static void rec_stream_free(struct kern_stream *s)
{
    if (lazy(s))
        do_tasks(rec.n_tasks);
    note(REC_STREAM_FREE, NULL, s, 0);
    for (int i = 0; i < rec.n_streams; i++)
        if (rec.streams[i] == s)
            rec.streams[i] = NULL;
    s->dev = rec.cpu;
    dev_stream_free(s);
    if (rec.live[REC_STREAM_FREE] == rec.live[REC_STREAM_NEW])
        rec.n_streams = 0; /* the streams of the next engine are counted from 0 */
}

static err_t rec_stream_sync(struct kern_stream *s, struct why *why)
{
    err_t (*fn)(struct why *) = rec.at_sync;
    note(REC_STREAM_SYNC, NULL, s, 0);
    if (lazy(s))
        do_tasks(rec.n_tasks);
    rec.at_sync = NULL;
    return fn ? fn(why) : OK;
}

static void *rec_stream_native(struct kern_stream *s)
{
    return s;
}

static err_t rec_zero(struct kern_stream *s, void *p, size_t bytes)
{
    note(REC_ZERO, NULL, s, bytes);
    assert_false(lazy(s));
    memset(p, 0, bytes);
    return OK;
}

static err_t rec_copy(struct kern_stream *s, void *dst, const void *src, size_t bytes)
{
    note(REC_COPY, NULL, s, bytes);
    if (lazy(s))
        put_task((struct task){dst, src, bytes, NULL});
    else
        memcpy(dst, src, bytes);
    return OK;
}

static err_t rec_event_new(struct dev *d, bool timed, struct dev_event **ret)
{
    err_t err = d ? dev_event_new(rec.cpu, timed, ret) : ERR_INVALID;
    note(REC_EVENT_NEW, err ? NULL : *ret, NULL, 0);
    return err;
}

static void rec_event_free(struct dev_event *e)
{
    note(REC_EVENT_FREE, e, NULL, 0);
    assert_int_equal(tasks_before(e), 0);
    dev_event_free(rec.cpu, e);
}

static err_t rec_event_record(struct dev_event *e, struct kern_stream *s)
{
    note(REC_RECORD, e, s, 0);
    if (lazy(s))
        put_task((struct task){.event = e});
    return rec.cpu->ops->event_record(e, s);
}

static err_t rec_event_wait(struct dev_event *e, struct kern_stream *s)
{
    note(REC_WAIT, e, s, 0);
    if (!lazy(s))
        do_tasks(tasks_before(e));
    return OK;
}

static err_t rec_event_sync(struct dev_event *e, struct why *why)
{
    note(REC_EVENT_SYNC, e, NULL, 0);
    do_tasks(tasks_before(e));
    return dev_event_sync(rec.cpu, e, why);
}

static bool rec_event_over(struct dev_event *e)
{
    return tasks_before(e) == 0;
}

static double rec_event_ms(const struct dev_event *from, const struct dev_event *to)
{
    return dev_event_ms(rec.cpu, from, to);
}

static void rec_range_begin(const char *name)
{
    note(REC_RANGE, NULL, NULL, 0);
    snprintf(rec.log[rec.n_log - 1].text, sizeof(rec.log->text), "%s", name);
}

static void rec_range_end(void)
{
    note(REC_RANGE, NULL, NULL, 0);
}

static const struct dev_ops rec_ops = {
    .name = "record",
    .host_memory = false,
    .facts = rec_facts,
    .kernels = rec_kernels,
    .alloc = rec_alloc,
    .free = rec_free,
    .host_alloc = rec_host_alloc,
    .host_free = rec_host_free,
    .host_pin = rec_host_pin,
    .host_unpin = rec_host_unpin,
    .stream_new = rec_stream_new,
    .stream_free = rec_stream_free,
    .stream_sync = rec_stream_sync,
    .stream_native = rec_stream_native,
    .zero = rec_zero,
    .copy = rec_copy,
    .event_new = rec_event_new,
    .event_free = rec_event_free,
    .event_record = rec_event_record,
    .event_wait = rec_event_wait,
    .event_sync = rec_event_sync,
    .event_over = rec_event_over,
    .event_ms = rec_event_ms,
    .range_begin = rec_range_begin,
    .range_end = rec_range_end,
};

/* ---- for the test ---- */

struct dev *rec_open(void)
{
    assert_null(rec.cpu);
    assert_int_equal(dev_open("cpu", 0, &rec.cpu, NULL), OK);
    rec.dev.ops = &rec_ops;
    rec.log = calloc(MAX_LOG, sizeof(*rec.log));
    assert_non_null(rec.log);
    return &rec.dev;
}

void rec_close(struct dev *d)
{
    static const enum rec_kind pairs[][2] = {{REC_ALLOC, REC_FREE},
                                             {REC_HOST_ALLOC, REC_HOST_FREE},
                                             {REC_PIN, REC_UNPIN},
                                             {REC_EVENT_NEW, REC_EVENT_FREE},
                                             {REC_STREAM_NEW, REC_STREAM_FREE}};
    assert_ptr_equal(d, &rec.dev);
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        assert_int_equal(rec.live[pairs[i][0]], rec.live[pairs[i][1]]);
    dev_close(rec.cpu);
    free(rec.log);
    memset(&rec, 0, sizeof(rec));
}

int rec_count(enum rec_kind kind)
{
    return rec.counts[kind];
}

const struct rec_entry *rec_log(int *ret_n)
{
    *ret_n = rec.n_log;
    return rec.log;
}

void rec_forget(void)
{
    rec.n_log = 0;
    memset(rec.counts, 0, sizeof(rec.counts));
}

int rec_waiting(void)
{
    int n = 0;
    for (int i = 0; i < rec.n_tasks; i++)
        n += rec.tasks[i].dst != NULL;
    return n;
}

void rec_at_sync(err_t (*fn)(struct why *why))
{
    rec.at_sync = fn;
}
