/* This node itself: its processes, GPUs, cores and health, whether it leads or follows. Owned by the daemon
 * (control.h); loop thread. Nothing here knows what a job, a leader or a connection is; those who do are called by the
 * table below. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_LOCAL_H
#define DTD_DAEMON_CONTROL_LOCAL_LOCAL_H

#include "common/conf/node.h"
#include "daemon/control/local/gpus.h"
#include "daemon/control/local/health.h"
#include "daemon/control/local/probe.h"
#include "daemon/control/local/processes.h"
#include "daemon/control/local/supervisor_link.h"

struct local_events {
    /* The end of a process that probe_delay_exit kept back may be passed on now. */
    void (*process)(void *owner, const struct channel_msg *m);
    /* The probe is over: it is known which GPUs there are. */
    void (*gpus_known)(void *owner);
    /* A GPU has become sick. */
    void (*facts_changed)(void *owner);
    /* The port on this node of the c10d store of a command's epoch, which is opened if it is not open yet. */
    err_t (*command_port)(void *owner, const struct process_spawn *x, uint16_t *ret_port);
    /* The last process of a job has ended and the job is released. */
    void (*released)(void *owner, uint64_t job);
    /* A process's connection is of no use any more: it has ended, or has a newer one. */
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
    struct gpus gpus; /* of this node, and which job has which */
    struct probe probe;
    struct health health;
};

/* The other fields, up to `sup`, have been set. Blocks on files of /sys and /proc. */
void local_init(struct local *l);

#endif
