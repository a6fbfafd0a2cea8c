/* Plots from rows of metrics and usage samples, in at most SERIES_BINS points: each is the mean of the rows in it, with
 * the least and the most. Pure. */
#ifndef DTD_CLIENT_REPORT_SERIES_H
#define DTD_CLIENT_REPORT_SERIES_H

#include "client/report/plot.h"
#include "client/report/report.h"

#define SERIES_BINS 240      /* a picture is about 500 points wide */
#define SERIES_RANK_ROWS 256 /* of a colour map; of more ranks, neighbours share a row */

/* Adds a field of the metrics to a plot over steps. `band`: with the least and the most. Nothing if no row has a value.
 * Returns false when out of memory. */
bool series_metric(const struct report *r, const char *field, const char *label, enum ink ink, bool band,
                   struct plot *ret);
/* Marks of epochs and incidents over steps. */
bool series_marks(const struct report *r, struct plot *ret);
/* Sets bins, ranks and labels of a grid from a column of the samples. *ret_any: it has a value that is not 0. */
bool series_grid(const struct report *r, enum usage_field field, struct plot *ret, bool *ret_any);

#endif
