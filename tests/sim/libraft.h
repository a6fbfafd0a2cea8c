/* The simulation's raft_uv; libraft's headers declare its functions. */
#ifndef DTD_TESTS_SIM_LIBRAFT_H
#define DTD_TESTS_SIM_LIBRAFT_H

#include "tests/sim/world.h"

#include <uv.h>

/* Voters have ids that are not the numbers of their hosts, and connect to each other by the log's own transport, so a
 * message passes only over a stream that both ends have admitted. False: a voter's id is its host's number, and there
 * are no streams. */
extern bool libraft_uses_streams;
/* Called when the log on the host has been given a configuration with its voter alone, before it is read. May be NULL.
 */
extern void (*libraft_recovered)(struct host *host);

/* The process on the host is dead: it gets no more deliveries. */
void libraft_forget(struct host *host);
/* Number of processes that ended because the core crashed by the defect of 0.22.1 that libraft.c describes. */
extern uint64_t libraft_deaths;

/* Calls `cb` with the timer by which libraft retries a failed write, if it runs. */
void libraft_walk(struct host *host, uv_walk_cb cb, void *arg);

#endif
