/* See fsm.h. An illegal move is a programming error: the process aborts before the wrong state has further effects. */
#include "common/base/fsm.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <stdlib.h>

void fsm_move(struct fsm *m, int to, const char *why)
{
    const char *from = fsm_name(m);
    if (!(m->states[m->state].next & FSM_TO(to))) {
        log_error("illegal move %s id=%" PRIu64 " from=%s to=%s why=%s", m->kind, m->id, from, m->states[to].name, why);
        abort();
    }
    m->state = to;
    log_info("%s id=%" PRIu64 " from=%s to=%s why=%s", m->kind, m->id, from, m->states[to].name, why);
}
