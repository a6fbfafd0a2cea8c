/* A computer of the simulated cluster: its supervisor's side of the channel (daemon/supervisor/channel.h), its files,
 * and its control process, which runs the real code. */
#ifndef DTD_TESTS_SIM_CONTROL_MACHINE_H
#define DTD_TESTS_SIM_CONTROL_MACHINE_H

#include "daemon/control/cluster/cluster.h"
#include "daemon/control/control.h"
#include "tests/sim/world.h"

#define MACHINE_CHILDREN 128

struct process;

struct child_entry { /* job 0: free */
    uint64_t job;
    int slot, pid, exit_status, exit_signal, error;
    enum channel_state state;
    int64_t when_ns;
    uint64_t epoch;
    uint8_t token[CHANNEL_TOKEN_BYTES];
    struct process *process; /* NULL: it has ended */
};

struct machine {
    struct host *host; /* the control process; the other processes are beside it */
    bool has_power, has_dtd;
    uint32_t version, running; /* newest cluster versions of the installed dtd and of the control that runs */
    int slots;
    struct end *channel;
    struct control *node; /* of the running control; NULL: none, or not started yet */
    struct child_entry children[MACHINE_CHILDREN];
    uint64_t jobs[MACHINE_CHILDREN]; /* jobs with open descriptors here; 0: free */
    uint64_t spawns;
    unsigned identities; /* made so far */
    bool is_held;        /* an operator has not switched it on again */
    int branch;          /* branch of the log (check.h) of the leader that it has followed last */
    int64_t branched_us; /* when that changed; 0: it has not */
};
extern struct machine machines[MAX_HOSTS + 1];

/* For sim-scale, which measures: without the checks of the log, and with the default distance between snapshots. */
extern bool machine_is_measured;
/* A node that begins to lead takes 100 ms or so for each job. No time passes in the simulation while a function runs,
 * so it would make them all at once. */
extern bool machines_make_slices;

/* From now on a control that starts has no file with the cluster's key: nodes join by tokens. */
extern bool machines_join_by_token;

/* Whether control on this computer may exit because something is scarce; it is started again. NULL: never. */
extern bool (*machine_may_end)(const struct host *host);
/* Control does not start, and is tried again soon; or it has started, and has read its files. NULL: it has to start. */
extern void (*machine_refused)(struct machine *m, const char *why), (*machine_started)(struct machine *m);

void machine_init(int id, int slots);
/* The computer stays switched off until it is released. */
void machine_hold(struct machine *m);
void machine_release(struct machine *m);
void machine_wipe(struct machine *m); /* dtd is stopped, its state directory removed, and dtd started again */
/* Switches the computer on and starts its dtd. */
void machine_start(struct machine *m);
/* Ends all processes at once. `power`: the computer loses power, so its connections are not closed. */
void machine_kill(struct machine *m, bool power);
/* Kills control alone; the supervisor starts another one. */
void machine_kill_control(struct machine *m);
void machine_died(struct host *host); /* implements world.on_death */
/* Stops dtd like `systemctl stop`: jobs save, then everything ends. */
void machine_stop(struct machine *m);
void machine_child_ended(struct machine *m, struct process *p, int exit_status, int exit_signal);
bool machine_has_power(int id);
/* The computer with this address; NULL: none */
struct host *machine_at(const char *address);
struct machine *machine_of(const char *node_name);
/* It is in a cluster, and its control, if one runs, has not been started before. */
bool machine_is_member(const struct machine *m);
/* Returns true if its control serves and follows a leader or leads. */
bool machine_is_well(const struct machine *m);

/* In tunnel.c: the process has ended. */
void tunnel_forget(struct host *process);

#endif
