/* What may fail on this node besides processes: space for the state, memory. What is low is warned of (`dtctl node`,
 * the service's status) before it is used up; and a worker that the kernel killed for want of memory is told apart from
 * one that somebody killed. Loop thread; blocking for some files of /proc only. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_HEALTH_H
#define DTD_DAEMON_CONTROL_LOCAL_HEALTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct health {
    int64_t due_ms, oom_ms; /* oom_ms: when the kernel was last seen to have killed; 0: never */
    int64_t oom_kills;      /* its count; -1: it says none */
    char warning[200];      /* "": nothing is low */
};

void health_init(struct health *h);
/* Now and then; `dir`: of the state. */
void health_tick(struct health *h, const char *dir);
/* Of a process here that SIGKILL has just ended: whether the kernel has killed for want of memory in these seconds. */
bool health_oom(struct health *h);

/* The number behind `key` in lines of "key number" or "key: number kB"; -1: there is none. Pure. */
int64_t health_number(const char *text, const char *key);
/* What is low, to `ret`; the sizes in bytes. Pure. */
void health_warn(int64_t disk_free, int64_t disk_size, int64_t memory_free, int64_t memory_size, char *ret,
                 size_t size);

#endif
