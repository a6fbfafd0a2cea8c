#include "tests/cuda_host/queue.h"

#include "tests/cuda_host/block.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE_LONG 4096
#define PATIENCE_MS 60000.0

struct host_item {
    struct host_item *next;
    struct host_work work;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct CUstream_st *streams;
static struct CUevent_st *events;
static bool running; /* a thread is running items: work must never queue or run work itself */
struct cuda_host_counts host_counts;
cudaError_t host_sticky;

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

void host_lock(void)
{
    pthread_mutex_lock(&lock);
}

void host_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* ---- streams ---- */

struct CUstream_st *host_stream_new(int device, bool legacy)
{
    struct CUstream_st *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    s->device = device;
    s->legacy = legacy;
    s->tail = &s->head;
    s->next = streams;
    s->priority = (unsigned)cuda_host_random();
    streams = s;
    return s;
}

bool host_stream_known(const struct CUstream_st *s)
{
    const struct CUstream_st *i = streams;
    while (i && i != s)
        i = i->next;
    return i != NULL;
}

static void item_free(struct host_item *i)
{
    if (i->work.drop)
        i->work.drop(i->work.arg);
    free(i);
}

static void pop(struct CUstream_st *s)
{
    struct host_item *i = s->head;
    s->head = i->next;
    if (!s->head)
        s->tail = &s->head;
    s->n--;
    s->done++;
    item_free(i);
}

void host_stream_free(struct CUstream_st *s)
{
    struct CUstream_st **at = &streams;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    while (s->head)
        pop(s);
    free(s);
}

struct CUstream_st *host_stream_of(cudaStream_t handle, int device)
{
    struct CUstream_st *s = streams;
    if (!handle || handle == cudaStreamLegacy) {
        while (s && !(s->legacy && s->device == device))
            s = s->next;
        return s ? s : host_stream_new(device, true);
    }
    if (!host_stream_known(handle))
        cuda_host_fail("a stream that was destroyed or never created: %p", (void *)handle);
    return handle;
}

void host_submit(struct CUstream_st *s, const struct host_work *w)
{
    struct host_item *i = malloc(sizeof(*i));
    if (!i)
        abort();
    *i = (struct host_item){.work = *w};
    *s->tail = i;
    s->tail = &i->next;
    s->n++;
    s->queued++;
    pthread_cond_broadcast(&changed);
    if (s->n >= QUEUE_LONG)
        host_run_some();
}

/* ---- running ---- */

/* Draws new priorities from time to time, at random intervals: for a while one stream runs as far as it can before
 * another. A fair choice at each item would hardly ever let one stream run far ahead or fall behind. */
static unsigned while_items = 8;

static void throw_dice(void)
{
    while_items = 4u << cuda_host_random() % 10;
    for (struct CUstream_st *s = streams; s; s = s->next)
        s->priority = (unsigned)cuda_host_random();
}

/* Runs one item of the stream with the highest priority that can continue. */
static bool run_one(void)
{
    unsigned below = UINT32_MAX;
    if (cuda_host_random() % while_items == 0)
        throw_dice();
    for (;;) {
        struct CUstream_st *best = NULL;
        for (struct CUstream_st *s = streams; s; s = s->next)
            if (s->head && s->priority < below && (!best || s->priority > best->priority))
                best = s;
        if (!best)
            return false;
        if (best->head->work.run(best->head->work.arg)) {
            pop(best);
            return true;
        }
        below = best->priority;
    }
}

static void burst_begin(void)
{
    running = true;
    host_memory_open(true);
}

static void burst_end(void)
{
    host_memory_open(false);
    running = false;
    pthread_cond_broadcast(&changed);
}

static void stuck(const char *what)
{
    fprintf(stderr, "cuda-host: %s: no stream can continue for a minute; they wait at:\n", what);
    for (const struct CUstream_st *s = streams; s; s = s->next)
        if (s->head)
            fprintf(stderr, "    device %d, stream %p: %s, and %zu more queued\n", s->device, (const void *)s,
                    s->head->work.name, s->n - 1);
    abort();
}

/* Waits for 0.1 ms, or until a thread queues or runs work; peers may be other processes. */
static void pause_a_little(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_nsec += 100000;
    t.tv_sec += t.tv_nsec / 1000000000;
    t.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&changed, &lock, &t);
}

void host_run_until(bool (*over)(void *arg), void *arg, const char *what)
{
    double since = 0;
    while (!over(arg)) {
        burst_begin();
        bool went = run_one();
        while (went && !over(arg))
            went = run_one();
        burst_end();
        if (went || over(arg)) {
            since = 0;
            continue;
        }
        since = since ? since : now_ms();
        if (now_ms() - since > PATIENCE_MS)
            stuck(what);
        pause_a_little();
    }
}

struct stream_mark {
    const struct CUstream_st *stream;
    uint64_t until;
};

static bool stream_over(void *arg)
{
    const struct stream_mark *m = arg;
    return !host_stream_known(m->stream) || m->stream->done >= m->until;
}

void host_run_stream(struct CUstream_st *s)
{
    struct stream_mark m = {s, s->queued};
    host_run_until(stream_over, &m, "waiting for a stream");
}

void host_run_device(int device)
{
    for (struct CUstream_st *s = streams; s; s = s->next)
        if (s->device == device && s->head) {
            host_run_stream(s);
            s = streams;
        }
}

void host_run_some(void)
{
    if (running)
        return;
    burst_begin();
    for (int n = (int)(cuda_host_random() % 16); n > 0 && run_one(); n--)
        ;
    burst_end();
}

/* ---- events ---- */

static double passed_ms; /* added by host_pass_ms */

void host_pass_ms(double ms)
{
    passed_ms += ms;
}

struct event_mark {
    struct CUevent_st *event;
    uint64_t version;
};

struct CUevent_st *host_event_new(int device, bool timed)
{
    struct CUevent_st *e = calloc(1, sizeof(*e));
    if (!e)
        abort();
    *e = (struct CUevent_st){.next = events, .device = device, .timed = timed};
    events = e;
    host_counts.events++;
    host_counts.live_events++;
    return e;
}

bool host_event_known(const struct CUevent_st *e)
{
    const struct CUevent_st *i = events;
    while (i && i != e)
        i = i->next;
    return i != NULL;
}

void host_event_free(struct CUevent_st *e)
{
    struct CUevent_st **at = &events;
    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    host_counts.live_events--;
    host_counts.unwaited_events += e->recorded > 1 && !e->waits && !e->timed;
    free(e);
}

static bool run_record(void *arg)
{
    struct event_mark *m = arg;
    if (host_event_known(m->event)) { /* destroying a recorded event is legal */
        m->event->done = m->version;
        m->event->ms = now_ms() + passed_ms;
    }
    return true;
}

static bool run_wait(void *arg)
{
    const struct event_mark *m = arg;
    return !host_event_known(m->event) || m->event->done >= m->version;
}

static void submit_mark(struct CUevent_st *e, struct CUstream_st *s, const char *name, bool (*run)(void *))
{
    struct event_mark *m = malloc(sizeof(*m));
    if (!m)
        abort();
    *m = (struct event_mark){e, e->recorded};
    host_submit(s, &(struct host_work){name, run, free, m});
}

void host_event_record(struct CUevent_st *e, struct CUstream_st *s)
{
    host_counts.records++;
    e->recorded++;
    submit_mark(e, s, "the record of an event", run_record);
}

void host_event_wait(struct CUevent_st *e, struct CUstream_st *s)
{
    host_counts.waits++;
    if (!e->recorded) {
        host_counts.fresh_waits++;
        return;
    }
    e->waits++;
    submit_mark(e, s, "the wait for an event", run_wait);
}
