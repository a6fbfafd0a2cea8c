/* How far forecasts for a machine are from its steps: `dt-worker --measure` runs steps of models that neither rates nor
 * table were measured with, and here they are forecast with both, as dtctl plan forecasts a user's job. */
#ifndef DTD_CLIENT_PLANNER_JUDGE_H
#define DTD_CLIENT_PLANNER_JUDGE_H

#include "client/planner/planner.h"

/* The keys of the section `error` of a machine file (common/conf/machine.h). */
struct planner_errors {
    double less, more, program_less, program_more;
    int layouts;
    bool by_clock; /* else by the processor time of the steps' operations (worker/replay.h) */
};

/* `layouts`: the array of that name in the worker's result. `machine`: the rates, and in machine->times the path of the
 * table; "": none. */
NODISCARD err_t planner_judge(const json_t *layouts, bool by_clock, const struct machine *machine,
                              struct planner_errors *ret, struct why *why);

#endif
