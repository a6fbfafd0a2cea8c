/* raft_uv of the simulation; its functions are declared by libraft's own headers. */
#ifndef DTD_TESTS_SIM_LIBRAFT_H
#define DTD_TESTS_SIM_LIBRAFT_H

#include "tests/sim/world.h"

/* The process on the host is dead: nothing is delivered to it any more. */
void libraft_forget(struct host *host);
/* How often the core itself crashed by the defect of 0.22.1 that libraft.c names; a process dies of it. */
extern uint64_t libraft_deaths;

#endif
