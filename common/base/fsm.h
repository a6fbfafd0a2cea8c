/* State machines as data: a table of states with their legal next states, and one function that changes the state.
 * A machine is embedded in its owner and belongs to the owner's thread. */
#ifndef DTD_COMMON_BASE_FSM_H
#define DTD_COMMON_BASE_FSM_H

#include <stdint.h>

struct fsm_state {
    const char *name;
    uint32_t next; /* bit s set: a move to state s is legal */
};
#define FSM_TO(s) (1u << (s))

struct fsm {
    const char *kind; /* "job" */
    uint64_t id;
    const struct fsm_state *states;
    int state;
};

/* Changes the state and logs "<kind> id= from= to= why=". Aborts, also in release builds, if the table does not allow
 * it. */
void fsm_move(struct fsm *m, int to, const char *why);
static inline const char *fsm_name(const struct fsm *m)
{
    return m->states[m->state].name;
}

#endif
