/* A heap of events. The seed orders events with equal time, so that different seeds try different orders of
 * simultaneous events. An event of a stalled host waits until the stall ends and stays in front of later ones. */
#include "tests/sim/world.h"

#include "common/base/rng.h"

#include <assert.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define WALL_BEGIN_US INT64_C(1790000000000000) /* arbitrary, a day in 2026 */
#define MONO_BEGIN_US (3600 * US_PER_S)         /* not 0, which means "never" in many places */

struct event {
    int64_t at_us;
    uint64_t tie, number;
    struct host *host;
    unsigned life;
    event_fn fn;
    void *arg;
    size_t position;         /* in the heap */
    struct event_heap *heap; /* that it is in, at `position` */
};

struct world world;
static jmp_buf exit_from;
static struct event_heap queue; /* by time */
static uint64_t next_number;

/* ---- chance ---- */

uint64_t world_draw(enum stream from)
{
    uint32_t r[4];
    rng_at(world.seed, from, world.drawn[from]++, r);
    return (uint64_t)r[0] << 32 | r[1];
}

int64_t world_between(enum stream from, int64_t low, int64_t high)
{
    assert(low <= high);
    return low + (int64_t)(world_draw(from) % (uint64_t)(high - low + 1));
}

bool world_chance(enum stream from, double p)
{
    return (double)(world_draw(from) >> 11) * 0x1p-53 < p;
}

/* ---- the heap ---- */

static bool is_before(const struct event *a, const struct event *b)
{
    if (a->at_us != b->at_us)
        return a->at_us < b->at_us;
    return a->tie != b->tie ? a->tie < b->tie : a->number < b->number;
}

static void heap_place(struct event_heap *h, size_t at, struct event *e)
{
    h->events[at] = e;
    e->position = at;
    e->heap = h;
}

static void sift_up(struct event_heap *h, size_t at)
{
    struct event *e = h->events[at];
    for (; at && is_before(e, h->events[(at - 1) / 2]); at = (at - 1) / 2)
        heap_place(h, at, h->events[(at - 1) / 2]);
    heap_place(h, at, e);
}

static void sift_down(struct event_heap *h, size_t at)
{
    struct event *e = h->events[at];
    for (size_t child; (child = 2 * at + 1) < h->n; at = child) {
        if (child + 1 < h->n && is_before(h->events[child + 1], h->events[child]))
            child++;
        if (!is_before(h->events[child], e))
            break;
        heap_place(h, at, h->events[child]);
    }
    heap_place(h, at, e);
}

static void heap_add(struct event_heap *h, struct event *e)
{
    if (h->n == h->cap) {
        h->cap = h->cap ? 2 * h->cap : 256;
        h->events = realloc(h->events, h->cap * sizeof(struct event *));
        assert(h->events);
    }
    heap_place(h, h->n++, e);
    sift_up(h, e->position);
}

static void heap_remove(struct event *e)
{
    struct event_heap *h = e->heap;
    size_t at = e->position;
    struct event *last = h->events[--h->n];
    if (last == e)
        return;
    heap_place(h, at, last);
    sift_up(h, at);
    sift_down(h, last->position);
}

/* ---- events of a stalled host ----
 *
 * All of them run at the end of the stall, in the order of their ties, and each may stall the host again. Only the next
 * one is in the queue, so that a new stall moves one event and not all. The others wait with the time 0, so that ties
 * decide alone. */

/* Puts the next one into the queue. */
static void advance(struct host *host, int64_t at_us)
{
    if (host->front || !host->waiting.n)
        return;
    struct event *e = host->waiting.events[0];
    heap_remove(e);
    e->at_us = at_us;
    heap_add(&queue, e);
    host->front = e;
}

static void put_back(struct host *host)
{
    struct event *e = host->front;
    heap_remove(e);
    e->at_us = 0;
    heap_add(&host->waiting, e);
    host->front = NULL;
}

/* The event is due, and its host is stalled. One in front that is due earlier notices the longer stall then. */
static void wait_for_host(struct event *e)
{
    struct host *host = e->host;
    if (host->front == e)
        host->front = NULL;
    heap_remove(e);
    e->at_us = 0;
    heap_add(&host->waiting, e);
    if (host->front && host->front->at_us >= host->stalled_until)
        put_back(host);
    advance(host, host->stalled_until);
}

/* The event leaves the queue: it is canceled or runs now. */
static void take_out(struct event *e)
{
    struct host *host = e->host;
    heap_remove(e);
    if (host->front == e) {
        host->front = NULL;
        advance(host, world.now_us);
    }
}

struct event *world_after(struct host *host, int64_t delay_us, event_fn fn, void *arg)
{
    struct event *e = malloc(sizeof(*e));
    assert(e && delay_us >= 0);
    *e = (struct event){
        .at_us = world.now_us + delay_us,
        .tie = world_draw(FROM_WORLD),
        .number = next_number++,
        .host = host,
        .life = host->life,
        .fn = fn,
        .arg = arg,
    };
    heap_add(&queue, e);
    return e;
}

void world_cancel(struct event *event)
{
    take_out(event);
    free(event);
}

/* ---- hosts ---- */

struct host *host_beside(struct host *computer)
{
    for (int id = MAX_HOSTS; id <= MAX_PROCESSES; id++) {
        struct host *host = &world.hosts[id];
        if (host->is_up)
            continue;
        host->on = computer;
        return host;
    }
    broken("there are more than %d processes", MAX_PROCESSES);
}

void host_up(struct host *host)
{
    assert(!host->is_up);
    host->is_up = true;
    host->life++;
    host->pid++;
    host->stalled_until = 0;
    host->is_dying = false;
    host->dies_after = 0;
    TAILQ_INIT(&host->hooks);
}

void host_down(struct host *host)
{
    assert(host->is_up);
    host->is_up = false;
    host->life++;
    TAILQ_INIT(&host->hooks);
}

void host_die(struct host *host)
{
    host->is_dying = true;
}

bool host_acts(struct host *host)
{
    if (!host->is_dying && host->dies_after && --host->dies_after == 0)
        host->is_dying = true;
    return !host->is_dying;
}

void host_exit(void)
{
    host_die(world.current);
    longjmp(exit_from, 1);
}

void host_stall(struct host *host, int64_t us)
{
    if (world.now_us + us > host->stalled_until)
        host->stalled_until = world.now_us + us;
}

void host_hook(struct host *host, struct hook *hook)
{
    TAILQ_INSERT_HEAD(&host->hooks, hook, link);
}

void host_sends(struct host *from, struct host *to, size_t bytes)
{
    if (from == to)
        return;
    from->use.messages_out++;
    from->use.bytes_out += bytes;
    to->use.messages_in++;
    to->use.bytes_in += bytes;
}

static int64_t run_by(const struct host *host)
{
    int64_t ppm = host->on->rate_ppm;
    return world.now_us + world.now_us / 1000000 * ppm + world.now_us % 1000000 * ppm / 1000000;
}

int64_t host_mono_us(const struct host *host)
{
    return MONO_BEGIN_US + run_by(host);
}

int64_t host_wall_us(const struct host *host)
{
    return WALL_BEGIN_US + run_by(host) + host->on->wall_offset_us;
}

/* ---- running ---- */

void world_init(uint64_t seed, int n_hosts)
{
    assert(n_hosts <= MAX_HOSTS);
    bool is_tracing = world.is_tracing;
    world = (struct world){.seed = seed, .n_hosts = n_hosts, .is_tracing = is_tracing};
    for (int i = 0; i <= MAX_PROCESSES; i++) {
        world.hosts[i].id = i;
        world.hosts[i].on = &world.hosts[i];
        TAILQ_INIT(&world.hosts[i].hooks);
        world.hosts[i].rate_ppm = i && i <= MAX_HOSTS ? world_between(FROM_CLOCK, -300, 300) : 0;
    }
    world.current = &world.hosts[0];
}

static void run_hooks(struct host *host, bool at_start)
{
    struct hook *next;
    for (struct hook *h = TAILQ_FIRST(&host->hooks); h; h = next) {
        next = TAILQ_NEXT(h, link);
        if (h->is_on && (at_start ? h->at_start : h->at_end))
            h->fn(h->arg);
    }
}

/* Processor time of this thread. The system call, because the function of this name is the simulation's. */
static int64_t cpu_ns(void)
{
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void charge(struct host *host, int64_t ns)
{
    struct use *u = &host->use;
    u->events++;
    u->cpu_ns += ns;
    u->longest_ns = ns > u->longest_ns ? ns : u->longest_ns;
    if (world.is_busy && host->id)
        host_stall(host, ns / 1000);
}

static void run_event(struct event *e)
{
    struct host *volatile host = e->host; /* setjmp requires volatile */
    event_fn fn = e->fn;
    void *arg = e->arg;
    world.print =
        (world.print ^ (uint64_t)world.now_us ^ e->number << 20 ^ (uint64_t)host->id << 56) * 0x9e3779b97f4a7c15u;
    world.print ^= world.print >> 29;
    free(e);
    world.current = host;
    volatile int64_t begin_ns = world.is_metered ? cpu_ns() : 0;
    if (!setjmp(exit_from)) {
        run_hooks(host, true);
        fn(arg);
        run_hooks(host, false);
    }
    world.current = &world.hosts[0];
    world.events++;
    if (world.is_metered)
        charge(host, cpu_ns() - begin_ns);
    if (host->is_dying)
        world.on_death(host);
    else if (world.after_event)
        world.after_event(host);
}

void world_run(int64_t end_us, bool (*done)(void))
{
    while (queue.n && queue.events[0]->at_us <= end_us) {
        struct event *e = queue.events[0];
        if (e->host->id && e->life != e->host->life) {
            world_cancel(e);
            continue;
        }
        if (e->at_us > world.now_us)
            world.now_us = e->at_us;
        if (e->host->stalled_until > world.now_us) {
            wait_for_host(e);
            continue;
        }
        take_out(e);
        run_event(e);
        if (done && done())
            return;
    }
    if (world.now_us < end_us)
        world.now_us = end_us;
}

/* ---- output ---- */

static void print_line(FILE *file, const char *fmt, va_list ap)
{
    fprintf(file, "%4" PRId64 ".%06" PRId64 " ", world.now_us / US_PER_S, world.now_us % US_PER_S);
    if (world.current->id)
        fprintf(file, "host %d: ", world.current->id);
    vfprintf(file, fmt, ap);
    fputc('\n', file);
}

void trace(const char *fmt, ...)
{
    if (!world.is_tracing)
        return;
    va_list ap;
    va_start(ap, fmt);
    print_line(stdout, fmt, ap);
    va_end(ap);
}

void broken(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fputs("broken at ", stdout);
    print_line(stdout, fmt, ap);
    va_end(ap);
    fflush(stdout);
    _Exit(1);
}
