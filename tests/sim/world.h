/* The simulated world: one clock, one queue of events, hosts that can stop. Everything that happens is an event of one
 * queue, ordered by virtual time and, within a microsecond, by a number drawn from the seed; every random choice comes
 * from the seed and a counter per purpose. So a seed is a run, to the last byte.
 *
 * A host is a computer on which at most one process lives; further processes on it are hosts, too, which go by its
 * clocks (`on`). What a process began dies with it: its events carry its `life` and are dropped when that is over.
 * Memory of a process that was killed is not freed; a run is a process of its own. The world is global because what it
 * stands in for (clock_gettime, libuv) takes no argument. One thread. */
#ifndef DTD_TESTS_SIM_WORLD_H
#define DTD_TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#define MAX_HOSTS 8       /* computers, numbered from 1 */
#define MAX_PROCESSES 400 /* and the processes on them beside the one that has the computer's number */
#define US_PER_MS INT64_C(1000)
#define US_PER_S INT64_C(1000000)

struct event;
typedef void (*event_fn)(void *arg);

enum stream {
    FROM_WORLD,
    FROM_NETWORK,
    FROM_DISK,
    FROM_FAULTS,
    FROM_CLIENTS,
    FROM_OPERATOR,
    FROM_CLOCK,
    FROM_RAFT,
    FROM_WORKERS,
    N_STREAMS
};

struct host {
    int id;
    struct host *on; /* the computer */
    bool is_up;
    unsigned life;            /* counts starts and ends */
    int64_t stalled_until;    /* nothing of it runs before: SIGSTOP, a hypervisor's pause */
    int dies_after;           /* effects on disk or network before the process is killed in the middle; 0: never */
    bool is_dying;            /* killed in this event: what the rest of it does has no effect */
    int64_t rate_ppm;         /* its clocks' error */
    int64_t wall_offset_us;   /* of the wall clock */
    uint64_t pid;             /* of the process, for people */
    TAILQ_HEAD(, hook) hooks; /* run before and after each of its events, as a loop's prepare and check handles */
};

/* What runs on each turn of a host's loop; `at_end` after its event, else before. In the order of libuv: newest first.
 */
struct hook {
    TAILQ_ENTRY(hook) link;
    void (*fn)(void *arg);
    void *arg;
    bool is_on, at_start, at_end;
};

struct world {
    uint64_t seed;
    int64_t now_us;
    int n_hosts;
    struct host hosts[MAX_PROCESSES + 1]; /* 0: nobody's: the network, faults, clients */
    struct host *current;
    bool is_tracing;
    uint64_t events, drawn[N_STREAMS];
    uint64_t print; /* of all events: equal in two runs of a seed */
    void (*after_event)(struct host *host);
    void (*on_death)(struct host *host); /* at the end of the event in which it was killed */
};
extern struct world world;

void world_init(uint64_t seed, int n_hosts);
/* Runs until `end_us`, or until `done` says so after an event (it may be NULL). */
void world_run(int64_t end_us, bool (*done)(void));

/* Calls fn(arg) on the host `delay_us` from now; never within this call. Owned by the world; dropped with the host's
 * life. The event of host 0 lives for ever. */
struct event *world_after(struct host *host, int64_t delay_us, event_fn fn, void *arg);
void world_cancel(struct event *event); /* not of one that runs or has run */

uint64_t world_draw(enum stream from);
int64_t world_between(enum stream from, int64_t low, int64_t high); /* both included */
bool world_chance(enum stream from, double p);

/* One more process on a computer, not begun yet. */
struct host *host_beside(struct host *computer);
/* A process begins on the host, or ends without a word. */
void host_up(struct host *host);
void host_down(struct host *host);
void host_die(struct host *host); /* in the middle of its event */
_Noreturn void host_exit(void);   /* the process whose event it is ends itself, at once */
/* Asked before each effect: false if the process is dead by now. */
bool host_acts(struct host *host);
void host_stall(struct host *host, int64_t us);
void host_hook(struct host *host, struct hook *hook);
int64_t host_mono_us(const struct host *host);
int64_t host_wall_us(const struct host *host);

void trace(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A promise was broken: says so and ends the process by exit code 1. */
_Noreturn void broken(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
