/* Pictures of the planner as SVG files: rectangles, lines and text, without scripts, in light or dark as the reader
 * prefers. Each writes one file; errors name it. One thread. */
#ifndef DTD_CLIENT_PLANNER_PICTURE_H
#define DTD_CLIENT_PLANNER_PICTURE_H

#include "client/planner/internal.h"

/* A layout, and the bytes that it needs: exact ones where there are. */
struct picture_point {
    const struct plan_found *found;
    double bytes;
};
/* Memory against time, with the memory of a device as a limit. `list` goes from the fastest to the smallest. */
NODISCARD err_t planner_picture_pareto(const char *path, const struct planning *p, const struct job_spec *job,
                                       const struct picture_point *list, int n, struct why *why);

struct picture_strategy {
    const char *name;
    const struct plan_found *found; /* NULL: not possible */
    bool fits;
};
/* The memory of a worker by kind, and a step by its parts, as bars. */
NODISCARD err_t planner_picture_strategies(const char *path, const struct planning *p, const struct job_spec *job,
                                           const struct picture_strategy *list, int n, struct why *why);

struct picture_nodes {
    int64_t nodes;
    double tokens_per_s;
};
/* Speed on more and more nodes beside n times that of one, and the efficiency. */
NODISCARD err_t planner_picture_nodes(const char *path, const struct planning *p, const struct job_spec *job,
                                      const struct picture_nodes *list, int n, struct why *why);

#endif
