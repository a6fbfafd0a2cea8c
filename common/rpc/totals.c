#include "common/rpc/totals.h"

#define ROW(...) FIELD_ROW(struct totals, __VA_ARGS__)

static const struct field rows[] = {TOTALS_FIELDS(ROW)};

const struct field_table totals_fields = {rows, sizeof(rows) / sizeof(rows[0]), sizeof(struct totals), 0};

const struct totals_bounds totals_bounds[TOTALS_DURATIONS] = {
    [TOTALS_STEP] = {"step",
                     18,
                     {.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500}},
    [TOTALS_SAVE] = {"save", 14, {.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}},
    [TOTALS_RECOVERY] = {"recovery", 14, {.1, .25, .5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600}},
};

void totals_count(struct totals *t, enum totals_duration d, double seconds)
{
    int i = 0;
    while (i < totals_bounds[d].n && seconds > totals_bounds[d].s[i])
        i++;
    t->duration[d].n[i]++;
    t->duration[d].sum += seconds;
}
