/* A forecast as a picture: a row for each rank and stream, a box for each action, time from left to right. */
#ifndef DTD_CLIENT_TIMELINE_H
#define DTD_CLIENT_TIMELINE_H

#include "common/base/err.h"
#include "common/plan/forecast.h"

/* Writes an SVG file; `title` is what stands above. */
NODISCARD err_t timeline_write(const struct forecast *f, const char *title, const char *path, struct why *why);

#endif
