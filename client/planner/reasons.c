/* Why a layout is better or worse than another, in one line: the parts of a step and of the memory that differ most. */
#include "client/planner/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define EQUAL 5e-4 /* differences of a smaller part of the whole are not printed: they would read as 0.0 % */
#define ALSO 0.1   /* a part of a smaller share of the largest difference explains nothing */
#define NAMED 3    /* parts in a line, so that it stays one */
#define MAX_PARTS 11

/* How much more the other layout needs for a part. */
struct part_gain {
    const char *name;
    double gain;
};

const char *planner_seconds_text(double seconds, char ret[OUT_NUMBER])
{
    const double size = fabs(seconds);
    if (size >= 1)
        snprintf(ret, OUT_NUMBER, size < 9.95 ? "%.1f s" : "%.0f s", size);
    else if (size >= 1e-3)
        snprintf(ret, OUT_NUMBER, size < 9.95e-3 ? "%.1f ms" : "%.0f ms", size * 1e3);
    else
        snprintf(ret, OUT_NUMBER, "%.0f us", size * 1e6);
    return ret;
}

static const char *bytes_text(double bytes, char ret[OUT_NUMBER])
{
    return out_bytes((int64_t)fabs(bytes), ret);
}

typedef const char *text_fn(double value, char ret[OUT_NUMBER]);

static int by_size(const void *a, const void *b)
{
    const double x = fabs(((const struct part_gain *)a)->gain), y = fabs(((const struct part_gain *)b)->gain);
    return (x < y) - (x > y);
}

/* "1.7 s less for computation, 0.8 s more for gradient sums" */
static void print_parts(FILE *f, struct part_gain *parts, int n, text_fn *text)
{
    char a[OUT_NUMBER];
    qsort(parts, (size_t)n, sizeof(*parts), by_size);
    for (int i = 0; i < n && i < NAMED && fabs(parts[i].gain) > ALSO * fabs(parts[0].gain); i++)
        fprintf(f, "%s%s %s for %s", i ? ", " : "", text(parts[i].gain, a), parts[i].gain > 0 ? "less" : "more",
                parts[i].name);
}

static void print_time(FILE *f, const struct plan_time *a, const struct plan_time *b, int other)
{
    char text[OUT_NUMBER];
    struct part_gain parts[MAX_PARTS] = {{"computation", (b->compute - b->recompute) - (a->compute - a->recompute)},
                                         {"recomputation", b->recompute - a->recompute},
                                         {"tp collectives", b->tp - a->tp},
                                         {"the cp ring", b->cp - a->cp},
                                         {"the exchange of tokens", b->ep - a->ep},
                                         {"messages between stages", b->pp - a->pp},
                                         {"the bubble", b->bubble - a->bubble},
                                         {"the slowest device", b->wait - a->wait},
                                         {"parameter gathers", b->params - a->params},
                                         {"gradient sums", b->grads - a->grads},
                                         {"the optimizer", b->update - a->update}};
    const double gain = b->seconds - a->seconds, part = gain / b->seconds;
    if (fabs(part) < EQUAL) {
        fprintf(f, "as fast as %d", other);
        return;
    }
    fprintf(f, "%s (%.1f %%) %s than %d: ", planner_seconds_text(gain, text), 100 * fabs(part),
            gain > 0 ? "faster" : "slower", other);
    print_parts(f, parts, MAX_PARTS, planner_seconds_text);
}

static void print_memory(FILE *f, const struct plan_bytes *a, const struct plan_bytes *b)
{
    char text[OUT_NUMBER];
    struct part_gain parts[] = {{"parameters", b->params - a->params},
                                {"gradients", b->grads - a->grads},
                                {"the optimizer", b->optimizer - a->optimizer},
                                {"activations", b->activations - a->activations},
                                {"buffers", b->buffers - a->buffers}};
    const double gain = b->total - a->total;
    if (fabs(gain) < EQUAL * b->total)
        return;
    fprintf(f, "; needs %s %s memory: ", bytes_text(gain, text), gain > 0 ? "less" : "more");
    print_parts(f, parts, (int)(sizeof(parts) / sizeof(parts[0])), bytes_text);
}

void planner_reason_print(FILE *f, const struct plan_found *a, int other, const struct plan_found *b, bool memory)
{
    print_time(f, &a->time, &b->time, other);
    if (memory)
        print_memory(f, &a->bytes, &b->bytes);
}
