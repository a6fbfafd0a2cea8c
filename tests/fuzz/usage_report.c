/* Any bytes as usage.jsonl: damaged lines are counted, and a picture can be drawn of the others. */
#include "client/report/series.h"
#include "client/report/svg.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void draw(const struct report *r, const struct usage_shown *c)
{
    struct plot *p = plot_new(PLOT_GRID, c->title, c->unit);
    struct buf out = {0};
    struct svg svg;
    bool any;
    if (!p || !series_grid(r, c->field, p, &any))
        abort();
    svg_init(&svg, &out);
    plot_draw(p, &svg.base, (struct frame){0, 0, 640, plot_height(p, 640)});
    if (svg.err)
        abort();
    plot_free(p);
    buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct client_job job = {.submitted_ms = 1};
    struct report r = {.job = &job};
    if (usage_parse((const char *)data, size, &r.usage))
        abort();
    if (r.usage.n && (r.usage.ranks < 1 || usage_wait_at(&r.usage, r.usage.row[0].wall_ms) > 1))
        abort();
    for (int c = 0; r.usage.n && r.usage.ranks <= 4096 && c < n_usage_shown; c++)
        draw(&r, &usage_shown[c]);
    usage_samples_fini(&r.usage);
    return 0;
}
