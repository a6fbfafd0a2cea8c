/* The simulated world: one clock, one event queue, and hosts that can stop. Everything that happens is an event in this
 * queue. Events are ordered by virtual time and, within a microsecond, by a number drawn from the seed. Every random
 * choice follows from the seed and a counter per purpose, so a seed determines a run completely.
 *
 * A host is a computer with at most one process. Further processes on it are hosts too, which use the computer's clocks
 * (`on`). A process's events end with it: they carry the host's `life`, and the world drops them when it has changed.
 * Memory of a killed process is not freed, because each run is a process of its own. The world is global because the
 * functions that it replaces (clock_gettime, libuv) take no argument for it. Everything runs on one thread. */
#ifndef DTD_TESTS_SIM_WORLD_H
#define DTD_TESTS_SIM_WORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#ifndef MAX_HOSTS
#define MAX_HOSTS 8 /* computers, numbered from 1; sim-scale has more */
#endif
#define MAX_PROCESSES (MAX_HOSTS + 392) /* processes on them, besides the ones that have a computer's number */
#define US_PER_MS INT64_C(1000)
#define US_PER_S INT64_C(1000000)

struct event;

/* The first event is the one that is due next. */
struct event_heap {
    struct event **events;
    size_t n, cap;
};

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

/* What a computer has used, for sim-scale. Messages and bytes are those between computers. */
struct use {
    uint64_t events, messages_out, messages_in, bytes_out, bytes_in, files, file_bytes;
    int64_t cpu_ns, longest_ns;  /* processor time of its events; filled only if `world.is_metered` */
    int64_t memory, memory_peak; /* allocated by its events and not freed yet */
};

struct host {
    int id;
    struct host *on; /* the computer; points to itself if this is one */
    bool is_up;
    unsigned life;             /* incremented at each start and each end */
    struct event *front;       /* of the events that are due while it is stalled, the next one; NULL: none */
    struct event_heap waiting; /* the others */
    int64_t stalled_until;     /* no event of the host runs before: SIGSTOP, or a pause by the hypervisor */
    int dies_after;   /* number of effects on disk or network until the process is killed in the middle of an event; 0:
                         not at all */
    bool is_dying;    /* killed in this event: the rest of it has no effect */
    int64_t rate_ppm; /* error of the rate of its clocks */
    int64_t wall_offset_us; /* offset of the wall clock */
    uint64_t pid;           /* of the process, for traces */
    struct use use;
    TAILQ_HEAD(, hook) hooks; /* run before and after each event of the host, like a loop's prepare and check handles */
};

/* A callback for each turn of a host's loop: after the event if `at_end`, before it if `at_start`. Newest first, as in
 * libuv. */
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
    struct host hosts[MAX_PROCESSES + 1]; /* 0 is no host: the network, faults, clients */
    struct host *current;
    bool is_tracing;
    /* is_metered: processor time is measured. is_busy: an event takes the processor time that it has used, so the
     * host's next event waits; then a seed does not determine the run. */
    bool is_metered, is_busy;
    uint64_t events, drawn[N_STREAMS];
    uint64_t print; /* hash of all events: equal in two runs of a seed */
    void (*after_event)(struct host *host);
    void (*on_death)(struct host *host); /* called at the end of the event in which the host was killed */
};
extern struct world world;

void world_init(uint64_t seed, int n_hosts);
/* Runs until `end_us`, or until `done` returns true after an event (it may be NULL). */
void world_run(int64_t end_us, bool (*done)(void));

/* Calls fn(arg) on the host in `delay_us`, never within this call. The world owns the event and drops it when the
 * host's life ends; events of host 0 are never dropped. */
struct event *world_after(struct host *host, int64_t delay_us, event_fn fn, void *arg);
void world_cancel(struct event *event); /* not for an event that is running or has run */

uint64_t world_draw(enum stream from);
int64_t world_between(enum stream from, int64_t low, int64_t high); /* both ends included */
bool world_chance(enum stream from, double p);

/* Returns a new process on a computer, not started yet. */
struct host *host_beside(struct host *computer);
/* Start and end the process on the host. host_down sends no notification. */
void host_up(struct host *host);
void host_down(struct host *host);
void host_die(struct host *host); /* kills the process in the middle of its event */
_Noreturn void host_exit(void);   /* the process whose event is running exits at once */
/* Called before each effect. Returns false if the process is dead by now. */
bool host_acts(struct host *host);
void host_stall(struct host *host, int64_t us);
void host_hook(struct host *host, struct hook *hook);
/* A message of one computer has been sent to another. */
void host_sends(struct host *from, struct host *to, size_t bytes);
int64_t host_mono_us(const struct host *host);
int64_t host_wall_us(const struct host *host);

void trace(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A check failed: prints the message and exits with status 1. */
_Noreturn void broken(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
