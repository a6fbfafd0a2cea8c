/* Measures how busy this node is. Loop thread; reads four files of /proc and a few of /sys, every 5 s. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_LOAD_H
#define DTD_DAEMON_CONTROL_LOCAL_LOAD_H

#include "common/rpc/node_load.h"

#include <stdbool.h>
#include <stdint.h>

#define LOAD_SENSORS 8 /* a machine has one or two sensors for each socket */

struct gpus;

/* Counters since the boot. */
struct load_counters {
    uint64_t busy, all;      /* ticks of all processors */
    uint64_t received, sent; /* bytes */
};

struct load {
    int64_t due_ms, at_ms;
    struct load_counters before; /* at at_ms; 0: there was no measurement yet */
    char sensor[LOAD_SENSORS][320];
    int n_sensors;
    struct node_load now;
};

/* Finds the sensors of the processors. */
void load_init(struct load *l);
/* Call it on every tick of the loop. True: `now` is new. */
bool load_tick(struct load *l, const struct gpus *g);

/* ---- parts, for tests ---- */

/* From the text of /proc/stat; false: it has no line "cpu". */
bool load_read_cpu(const char *stat, struct load_counters *ret);
/* From the text of /proc/net/dev: the sum of the interfaces that have a device in `sysfs`, or if none has one, of all
 * but lo. Bridges and bonds would count a packet twice. */
void load_read_network(const char *dev, const char *sysfs, struct load_counters *ret);
/* What `after` is more than `before`, per second and core. */
void load_rates(const struct load_counters *before, const struct load_counters *after, double seconds, int64_t cores,
                struct node_load *ret);

#endif
