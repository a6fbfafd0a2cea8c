/* Reads and writes timelines. One sscanf reads a line; the line's end bounds its fields. A line is accepted only if its
 * names are known and its times do not go back on its stream, so that drawing code needs no further checks. */
#include "common/plan/estimate/measured.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_LINE 160              /* the longest legal line has about 100 bytes */
#define MAX_NS ((int64_t)1 << 50) /* 13 days; a double represents it to the nanosecond */

const char *stream_name(enum op_stream stream)
{
    static const char *const names[STREAM_COUNT] = {"compute", "comm", "copy"};
    return names[stream];
}

bool measured_path(const char *folder, int rank, char *ret, size_t size)
{
    int n = rank < 0 ? snprintf(ret, size, "%s/timeline", folder)
                     : snprintf(ret, size, "%s/timeline/rank-%d", folder, rank);
    return n >= 0 && (size_t)n < size;
}

static int64_t ns_of(double seconds)
{
    return (int64_t)(seconds * 1e9 + 0.5);
}

void measured_print(const struct measured *m, FILE *out)
{
    fprintf(out, "dtd timeline 1 step %" PRId64 " epoch %" PRIu64 " rank %d world %d\n", m->step, m->epoch, m->rank,
            m->world);
    for (int i = 0; i < m->did.n; i++) {
        const struct forecast_box *b = &m->did.boxes[i];
        fprintf(out, "%d %s %d %d %s %" PRId64 " %" PRId64 "\n", b->action, action_name(b->kind), b->micro, b->chunk,
                stream_name(b->stream), ns_of(b->start), ns_of(b->end));
    }
}

void measured_fini(struct measured *m)
{
    free(m->did.boxes);
    *m = (struct measured){0};
}

/* ---- reading ---- */

static int index_of_name(const char *name, int n, const char *(*name_of)(int))
{
    for (int i = 0; i < n; i++)
        if (strcmp(name_of(i), name) == 0)
            return i;
    return -1;
}

static const char *action_at(int i)
{
    return action_name((enum action_kind)i);
}

static const char *stream_at(int i)
{
    return stream_name((enum op_stream)i);
}

static bool read_head(const char *line, struct measured *m)
{
    int64_t epoch = -1; /* signed, because scanf converts "-1" to the largest unsigned number */
    int end = 0, n = sscanf(line, "dtd timeline 1 step %18" SCNd64 " epoch %18" SCNd64 " rank %9d world %9d%n",
                            &m->step, &epoch, &m->rank, &m->world, &end);
    m->epoch = (uint64_t)epoch;
    return n == 4 && !line[end] && m->step >= 0 && epoch >= 0 && m->rank >= 0 && m->rank < m->world &&
           m->world <= MEASURED_MAX_WORLD;
}

/* `last`: by stream, the end of its previous box. */
static bool read_box(const char *line, int64_t last[STREAM_COUNT], struct forecast_box *ret)
{
    char kind[16], stream[16];
    int64_t from, to;
    int end = 0;
    if (sscanf(line, "%9d %15s %9d %9d %15s %19" SCNd64 " %19" SCNd64 "%n", &ret->action, kind, &ret->micro,
               &ret->chunk, stream, &from, &to, &end) != 7 ||
        line[end])
        return false;
    int k = index_of_name(kind, ACT_COUNT, action_at), s = index_of_name(stream, STREAM_COUNT, stream_at);
    if (k < 0 || s < 0 || ret->action < 0 || ret->micro < -1 || ret->chunk < 0 || from < last[s] || to < from ||
        to > MAX_NS)
        return false;
    last[s] = to;
    ret->kind = (enum action_kind)k;
    ret->stream = (enum op_stream)s;
    ret->start = (double)from * 1e-9;
    ret->end = (double)to * 1e-9;
    return true;
}

static int count_lines(const char *text, size_t len)
{
    int n = 0;
    for (const char *p = text, *nl; p < text + len; p = nl + 1, n++) {
        nl = memchr(p, '\n', (size_t)(text + len - p));
        if (!nl)
            return -1; /* the last line is incomplete */
    }
    return n;
}

/* Copies the line at *at without its end and moves *at to the next one. False: the line is too long. */
static bool next_line(const char **at, char line[MAX_LINE])
{
    size_t n = (size_t)((const char *)strchr(*at, '\n') - *at);
    bool fits = n < MAX_LINE;
    memcpy(line, *at, fits ? n : 0);
    line[fits ? n : 0] = 0;
    *at += n + 1;
    return fits;
}

err_t measured_read(const char *text, size_t len, const char *name, struct measured *ret, struct why *why)
{
    struct measured m = {0};
    int64_t last[STREAM_COUNT] = {0};
    char line[MAX_LINE];
    const char *at = text;
    if (len > MEASURED_MAX_BYTES)
        return why_set(why, ERR_LIMIT, "%s: the file has %zu bytes; a timeline has at most %zu", name, len,
                       MEASURED_MAX_BYTES);
    int n = !len || memchr(text, 0, len) ? 0 : count_lines(text, len);
    if (n < 1 || !next_line(&at, line) || !read_head(line, &m))
        return why_set(why, ERR_INVALID, "%s: not a complete timeline; let run.timeline_step write it again", name);
    m.did.boxes = calloc((size_t)n, sizeof(*m.did.boxes));
    if (!m.did.boxes)
        return why_set(why, ERR_NOMEM, "%s: out of memory for %d lines", name, n);
    while (m.did.n < n - 1) {
        if (!next_line(&at, line) || !read_box(line, last, &m.did.boxes[m.did.n])) {
            int number = m.did.n + 2;
            measured_fini(&m);
            return why_set(why, ERR_INVALID,
                           "%s:%d: not a box of a timeline, or earlier than the box before it on its stream", name,
                           number);
        }
        m.did.n++;
    }
    *ret = m;
    return OK;
}
