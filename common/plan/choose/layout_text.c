#include "common/plan/choose/choose.h"

#include <inttypes.h>
#include <stdio.h>

const char *planner_recompute_word(enum recompute r)
{
    static const char *const words[] = {[RECOMPUTE_NONE] = "none",
                                        [RECOMPUTE_FULL] = "full",
                                        [RECOMPUTE_POINTWISE] = "pointwise",
                                        [RECOMPUTE_ATTENTION] = "attention",
                                        [RECOMPUTE_EXPERTS] = "experts"};
    return words[r];
}

static const char *schedule_word(enum pipe_schedule s)
{
    const struct job_schedule_row *row = job_schedule_row(s);
    return row ? row->name : "file";
}

const char *planner_layout_text(const struct plan_layout *l, char *ret, size_t size)
{
    const struct {
        const char *name;
        int64_t value;
    } axes[] = {{"tp", l->tp}, {"cp", l->cp}, {"pp", l->pp}, {"ep", l->ep}, {"fsdp", l->fsdp}, {"dp", l->dp}};
    size_t n = 0;
    ret[0] = 0;
#define ADD(...) n += (size_t)snprintf(ret + n, n < size ? size - n : 0, __VA_ARGS__)
    for (size_t i = 0; i < sizeof(axes) / sizeof(axes[0]); i++) {
        if (axes[i].value < 2)
            continue;
        ADD("%s%s %" PRId64, n ? ", " : "", axes[i].name, axes[i].value);
        if (axes[i].name[0] == 'p' && l->chunks > 1)
            ADD(" (%s, %" PRId64 " chunks)", schedule_word(l->schedule), l->chunks);
        else if (axes[i].name[0] == 'p')
            ADD(" (%s)", schedule_word(l->schedule));
        else if (axes[i].name[0] == 'f')
            ADD(" (zero %" PRId64 ")", l->zero);
    }
    ADD("%s%s%" PRId64, n ? ", " : "one worker, ", "microbatch ", l->micro_batch);
    if (l->recompute != RECOMPUTE_NONE)
        ADD(", recompute %s", planner_recompute_word(l->recompute));
#undef ADD
    return ret;
}
