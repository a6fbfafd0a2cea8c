/* The state of this node: its processes, GPUs, cores and health. It is the same whether the node leads or follows.
 * Owned by the daemon (control.h); loop thread. This room does not depend on jobs, leadership or connections; it calls
 * the rooms above through the table below. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_LOCAL_H
#define DTD_DAEMON_CONTROL_LOCAL_LOCAL_H

#include "common/conf/node.h"
#include "daemon/control/local/gpus.h"
#include "daemon/control/local/health.h"
#include "daemon/control/local/load.h"
#include "daemon/control/local/log_watch.h"
#include "daemon/control/local/probe.h"
#include "daemon/control/local/processes.h"
#include "daemon/control/local/supervisor_link.h"

struct local_events {
    /* Handle the exit of a process that probe_delay_exit had delayed. */
    void (*process)(void *owner, const struct channel_msg *m);
    /* The probe has ended; local.gpus is valid. */
    void (*gpus_known)(void *owner);
    /* A GPU has become sick, or the disk full or not full: report this node's facts to the leader again. */
    void (*facts_changed)(void *owner);
    /* Returns this node's port of the c10d store of a command's epoch, and opens the port if necessary. Called only if
     * the epoch has a store (x->store_node). */
    err_t (*command_port)(void *owner, const struct process_spawn *x, uint16_t *ret_port);
    /* The last process of a job has ended and the job is released. */
    void (*released)(void *owner, uint64_t job);
    /* Close a connection: its process has ended, or has opened a newer one. */
    void (*disconnect)(struct peer *peer);
};

struct local {
    const struct local_events *events;
    void *owner;      /* of the events */
    const char *name; /* of this node */
    const char *dir;  /* the state directory */
    const struct node_conf *conf;
    bool system; /* dtd serves all users of the machine */
    struct supervisor_link supervisor;
    struct children children;
    struct gpus gpus;
    struct probe probe;
    struct health health;
    struct load load;
    struct log_watch log_watch;
};

/* Initializes `children`, `health`, `load` and `probe`; the caller has set the fields up to `system`. Blocks on files
 * of /sys and /proc. */
void local_init(struct local *l);

#endif
