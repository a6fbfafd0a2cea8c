/* Draws a training step as an SVG picture. Each rank and stream has a row, each action a box, and time runs from left
 * to right. The measured rows of a rank follow its forecast rows, on the same time axis. */
#ifndef DTD_CLIENT_TIMELINE_H
#define DTD_CLIENT_TIMELINE_H

#include "common/base/err.h"
#include "common/plan/estimate/forecast.h"

#include <stdio.h>

struct timeline_step {
    const struct forecast *did;
    const char *title; /* a line above the picture */
};

/* Prints the SVG; the caller checks the file. */
void timeline_print(FILE *out, const struct timeline_step *forecast, const struct timeline_step *measured);
/* Writes an SVG file. measured->did: NULL, or a measured step with as many ranks as the forecast. */
NODISCARD err_t timeline_write(const struct timeline_step *forecast, const struct timeline_step *measured,
                               const char *path, struct why *why);

#endif
