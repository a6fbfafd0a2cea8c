/* Resources of this node that may run out: space for the state, and memory. `dtctl node` and the service's status warn
 * before they are used up. A process that the kernel killed for lack of memory is distinguished from one that a user
 * killed, as far as the kernel reports it. Loop thread; reads some files of /proc and the kernel's log. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_HEALTH_H
#define DTD_DAEMON_CONTROL_LOCAL_HEALTH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Kills that are remembered until the end of the process is reported, which follows within milliseconds. */
#define HEALTH_KILLED_MAX 64

struct log_watch;

struct health {
    int64_t due_ms, oom_ms;          /* oom_ms: when the kernel's count of kills was last seen to grow; 0: never */
    int64_t oom_kills;               /* this count; -1: the kernel does not report it */
    int kernel_log;                  /* /dev/kmsg; -1: it cannot be read, or its process ids are not ours */
    pid_t killed[HEALTH_KILLED_MAX]; /* the processes that it named last; 0: unused */
    int n_killed;
    char limit[120];    /* what limits this node for as long as it runs; "": nothing */
    char warning[1100]; /* what is low, and the limit; "": nothing */
};

enum health_oom {
    HEALTH_OOM_NO,
    HEALTH_OOM_MAYBE, /* the kernel killed some process within 5 s, and its log, which names it, cannot be read */
    HEALTH_OOM_YES,
};

void health_init(struct health *h);
/* Call it on every tick of the loop; it checks every 5 s. `dir`: the state directory, whose disk is watched by `disk`.
 */
void health_tick(struct health *h, const char *dir, const struct log_watch *disk);
/* Whether the kernel killed this process, which SIGKILL has just ended, for lack of memory. */
enum health_oom health_oom(struct health *h, pid_t pid);
/* The process that a record of the kernel's log reports as killed for lack of memory; 0: it reports none. */
pid_t health_killed_pid(const char *record);

/* The number behind `key` in lines of "key number" or "key: number kB"; -1: no such key. */
int64_t health_number(const char *text, const char *key);
/* Writes to `ret` a sentence about what is low, or "". Sizes are in bytes. */
void health_warn(int64_t disk_free, int64_t disk_size, int64_t memory_free, int64_t memory_size, char *ret,
                 size_t size);

#endif
