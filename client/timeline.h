/* A step as a picture: a row for each rank and stream, a box for each action, time from left to right; a forecast, and
 * beside it, rank by rank and on the same axis, what was measured. */
#ifndef DTD_CLIENT_TIMELINE_H
#define DTD_CLIENT_TIMELINE_H

#include "common/base/err.h"
#include "common/plan/forecast.h"

struct timeline_step {
    const struct forecast *did;
    const char *title; /* stands above, a line each */
};

/* Writes an SVG file; measured->did NULL: there is none, else it has as many ranks as the forecast. */
NODISCARD err_t timeline_write(const struct timeline_step *forecast, const struct timeline_step *measured,
                               const char *path, struct why *why);

#endif
