/* A worker or a dtd-io as control sees it through docs/formats/wire.md and proto/. It connects to its computer's
 * control.sock with the real common/rpc, sends Hello with its token and attends; it obeys commands after a delay and
 * reports that. Where ranks meet in the epoch's store, it reports READY after the meeting. In place of a computation it
 * counts steps, at which the ranks of an epoch wait for each other. In place of a checkpoint it stores the number of a
 * step in a folder that all computers share. A command sees only its environment: its ranks wait for each other once,
 * run for a while, and exit with status 0 or, sometimes, another. */
#ifndef DTD_TESTS_SIM_CONTROL_PROCESS_H
#define DTD_TESTS_SIM_CONTROL_PROCESS_H

#include "tests/sim/world.h"

struct channel_msg;
struct machine;
struct process;

void process_init(bool meet);
/* The folders of a branch of the log, check.h, are copied for a new one. */
void process_fork(int from, int to);
/* `spawn` is the CHANNEL_SPAWN that control sent to the supervisor. */
struct process *process_start(struct machine *m, const struct channel_msg *spawn, int pid);
void process_signal(struct process *p, int sig);
/* The process ends with its computer, so the supervisor is not notified. */
void process_forget(struct process *p, bool power);
/* Faults, each of one random worker or dtd-io on the computer. */
void process_kill_one(const struct machine *m);
void process_hang_one(const struct machine *m);
void process_fail_one(const struct machine *m);
/* Number of running processes of this job on all computers; 0: of all jobs. */
int process_count(uint64_t job);
int process_count_on(const struct machine *m);

#endif
