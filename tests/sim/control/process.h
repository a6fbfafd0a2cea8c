/* A worker or a dtd-io as control knows it by docs/formats/wire.md and proto/: it connects to its computer's
 * control.sock by the real common/rpc, says Hello with its token, attends, does what it is told after a while and
 * reports it; where ranks meet in the epoch's store, it is ready after that. What it would compute is a number of
 * steps, at which the ranks of an epoch wait for each other; what it would save is the number of a step in a folder
 * that all computers share. A command knows its environment alone: its ranks wait for each other once, go on for a
 * while, and end well or, now and then, badly. */
#ifndef DTD_TESTS_SIM_CONTROL_PROCESS_H
#define DTD_TESTS_SIM_CONTROL_PROCESS_H

#include "tests/sim/world.h"

struct channel_msg;
struct machine;
struct process;

void process_init(bool meet);
/* `spawn`: CHANNEL_SPAWN, the supervisor's order. */
struct process *process_start(struct machine *m, const struct channel_msg *spawn, int pid);
void process_signal(struct process *p, int sig);
/* It goes with its computer; the supervisor, which does too, is not told. */
void process_forget(struct process *p, bool power);
/* Faults, each of one worker or dtd-io that is drawn on the computer. */
void process_kill_one(const struct machine *m);
void process_hang_one(const struct machine *m);
void process_fail_one(const struct machine *m);
/* Processes of jobs that live, on all computers: of this job; 0: of all. */
int process_count(uint64_t job);

#endif
