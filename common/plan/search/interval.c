#include "common/plan/search/interval.h"

struct plan_interval plan_forecast_interval(const struct machine *m, double seconds)
{
    return (struct plan_interval){seconds * (1 - m->error.less), seconds * (1 + m->error.more)};
}
