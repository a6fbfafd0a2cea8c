/* Plots: their data and how they are drawn on a canvas. A plot has one of four forms. Pure, apart from the canvas. */
#ifndef DTD_CLIENT_REPORT_PLOT_H
#define DTD_CLIENT_REPORT_PLOT_H

#include "client/report/canvas.h"
#include "common/base/err.h"

#include <stdio.h>

#define PLOT_CURVES_MAX 4
#define PLOT_TEXT 8.0 /* size of all texts */

enum plot_form {
    PLOT_CURVES, /* lines with bands over x */
    PLOT_GRID,   /* a value of each rank over time: mean with band, colour map, mean of each rank, numbers */
    PLOT_STACK,  /* one bar of parts */
    PLOT_SPANS,  /* bars over time, in rows */
};

/* A line, and the band between lo and hi where they are not NULL. A NAN interrupts it. */
struct plot_curve {
    char *label;
    enum ink ink;
    int n;
    double *x, *mean, *lo, *hi;
};

struct plot_mark {
    double x;
    enum ink ink;
    const char *meaning; /* static: "new epoch", "incident"; one entry of the legend each */
};

struct plot_part {
    char *label, *value_text;
    enum ink ink;
    double value;
};

struct plot_span {
    int row;
    double from, until;
    enum ink ink;
    const char *meaning; /* static; one entry of the legend each */
};

struct plot {
    enum plot_form form;
    char *title, *unit;
    bool time; /* x is seconds, with a label of duration; else steps */
    double x0, x1;
    struct plot_curve curve[PLOT_CURVES_MAX];
    int n_curves;
    struct plot_mark *mark;
    int n_marks;
    /* PLOT_GRID */
    int ranks, bins;
    double *cell; /* ranks x bins; NAN: no value */
    char **rank_label;
    bool warm;
    /* PLOT_STACK */
    struct plot_part *part;
    int n_parts;
    /* PLOT_SPANS */
    struct plot_span *span;
    int n_spans;
    char **row_label;
    int n_rows;
};

struct plot *plot_new(enum plot_form form, const char *title, const char *unit); /* NULL: out of memory */
void plot_free(struct plot *p);                                                  /* NULL is legal */

double plot_height(const struct plot *p, double width);
void plot_draw(const struct plot *p, struct canvas *c, struct frame f);

/* The smallest, mean and largest value of a grid, or of one rank (rank >= 0). False: it has no value. */
bool plot_grid_range(const struct plot *p, int rank, double *ret_low, double *ret_mean, double *ret_high);
/* A tick distance of 1, 2 or 5 times a power of ten, for about `n` ticks. */
double plot_tick(double range, int n);
/* A colour of the map for 0 <= share <= 1, perceptually even. */
uint32_t plot_map(double share, bool warm);
/* "1.2", "3.4k", "2e-05" */
#define PLOT_NUMBER 32
const char *plot_number(double value, char ret[PLOT_NUMBER]);
/* "90 s", "3 min", "2.5 h" for seconds, in one unit for the whole axis of `range` seconds */
const char *plot_time(double seconds, double range, char ret[PLOT_NUMBER]);

#endif
