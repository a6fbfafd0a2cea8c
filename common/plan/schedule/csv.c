/* Schedules as text, one line per rank. The length of the text, and the number of commas in a line, bound what the
 * reader allocates. It checks only the shape of cells and the limits; schedule_check checks what the slots mean
 * together. The column of a cell has no meaning when read. When printed it is the step, so that a reader sees which
 * rank waits. */
#include "common/plan/schedule/schedule.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* State of one pass over the text; columns count bytes from 1. */
struct reader {
    const char *name;
    const char *line, *at, *end; /* end: end of the line, without its line break */
    int number;
    struct schedule s;
    int cap; /* rows allocated */
    struct why *why;
};

static err_t reader_fail(const struct reader *r, err_t err, const char *at, const char *text)
{
    return why_set(r->why, err, "%s:%d:%d: %s", r->name, r->number, (int)(at - r->line) + 1, text);
}

static err_t refuse_cell(const struct reader *r, const char *at, const char *end)
{
    char cell[17] = "", text[200];
    for (size_t i = 0; at + i < end && i < sizeof(cell) - 1; i++)
        cell[i] = (char)(isprint((unsigned char)at[i]) ? at[i] : '?');
    snprintf(text, sizeof(text),
             "'%s%s' is not a slot; write F, B, I or W, the chunk, a dot and the microbatch (F0.3), or - for a step of "
             "waiting",
             cell, end - at > (ptrdiff_t)sizeof(cell) - 1 ? "..." : "");
    return reader_fail(r, ERR_INVALID, at, text);
}

static void skip_blanks(struct reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t'))
        r->at++;
}

/* Reads digits; stops adding them before the value can overflow. -1: there is no digit. */
static int read_number(const char **at, const char *end)
{
    int value = 0;
    if (*at == end || !isdigit((unsigned char)**at))
        return -1;
    for (; *at < end && isdigit((unsigned char)**at); (*at)++)
        value = value > SCHEDULE_MAX_MICROS ? value : value * 10 + (**at - '0');
    return value;
}

static int kind_of(char letter)
{
    for (int k = 0; k < SLOT_KIND_COUNT; k++)
        if (slot_letter((enum slot_kind)k) == letter)
            return k;
    return -1;
}

static err_t check_limits(const struct reader *r, const char *at, const struct slot *slot)
{
    char text[120];
    bool chunk = slot->chunk >= SCHEDULE_MAX_CHUNKS;
    if (!chunk && slot->micro < SCHEDULE_MAX_MICROS)
        return OK;
    snprintf(text, sizeof(text), "%s number is too large; the largest legal number is %d",
             chunk ? "the chunk" : "the microbatch", (chunk ? SCHEDULE_MAX_CHUNKS : SCHEDULE_MAX_MICROS) - 1);
    return reader_fail(r, ERR_LIMIT, at, text);
}

static void add_slot(struct schedule *s, const struct slot *slot)
{
    struct schedule_row *row = &s->rows[s->ranks - 1];
    row->slots[row->n++] = *slot;
    s->chunks = slot->chunk >= s->chunks ? slot->chunk + 1 : s->chunks;
    s->micros = slot->micro >= s->micros ? slot->micro + 1 : s->micros;
}

/* Reads a cell from `at` to `end`, without blanks around it; empty cells and "-" are steps of waiting. */
static err_t read_cell(struct reader *r, const char *at, const char *end)
{
    const char *p = at + 1;
    if (at == end || (end - at == 1 && *at == '-'))
        return OK;
    int kind = kind_of(*at), chunk = read_number(&p, end);
    int micro = p < end && *p == '.' ? (p++, read_number(&p, end)) : -1;
    if (kind < 0 || chunk < 0 || micro < 0 || p != end)
        return refuse_cell(r, at, end);
    struct slot slot = {(enum slot_kind)kind, chunk, micro};
    err_t err = check_limits(r, at, &slot);
    if (!err)
        add_slot(&r->s, &slot);
    return err;
}

static err_t read_cells(struct reader *r)
{
    err_t err = OK;
    for (bool last = false; !err && !last;) {
        skip_blanks(r);
        const char *at = r->at, *end = at;
        while (end < r->end && *end != ',')
            end++;
        last = end == r->end;
        r->at = last ? end : end + 1;
        while (end > at && (end[-1] == ' ' || end[-1] == '\t'))
            end--;
        err = read_cell(r, at, end);
    }
    return err;
}

static err_t add_row(struct reader *r)
{
    size_t cells = 1;
    if (r->s.ranks == SCHEDULE_MAX_RANKS)
        return why_set(r->why, ERR_LIMIT, "%s:%d:1: too many lines; a pipeline has at most %d ranks", r->name,
                       r->number, SCHEDULE_MAX_RANKS);
    if (r->s.ranks == r->cap) {
        int cap = r->cap ? 2 * r->cap : 8;
        struct schedule_row *rows = realloc(r->s.rows, (size_t)cap * sizeof(*rows));
        if (!rows)
            return reader_fail(r, ERR_NOMEM, r->line, "out of memory for another line");
        r->s.rows = rows;
        r->cap = cap;
    }
    for (const char *p = r->line; p < r->end; p++)
        cells += *p == ',';
    struct slot *slots = calloc(cells, sizeof(*slots));
    if (!slots)
        return reader_fail(r, ERR_NOMEM, r->line, "out of memory for the slots of this line");
    r->s.rows[r->s.ranks++] = (struct schedule_row){slots, 0};
    return OK;
}

/* Reads a line; skips empty lines and those that begin with #. */
static err_t read_line(struct reader *r)
{
    skip_blanks(r);
    if (r->at == r->end || *r->at == '#')
        return OK;
    err_t err = add_row(r);
    return err ? err : read_cells(r);
}

static err_t read_lines(struct reader *r, const char *text, size_t len)
{
    err_t err = OK;
    const char *stop = text + len;
    for (const char *next = text; !err && next < stop;) {
        const char *newline = memchr(next, '\n', (size_t)(stop - next));
        r->line = r->at = next;
        r->end = newline ? newline : stop;
        next = newline ? newline + 1 : stop;
        if (r->end > r->line && r->end[-1] == '\r')
            r->end--;
        r->number++;
        err = read_line(r);
    }
    return err;
}

static err_t check_read(const struct reader *r)
{
    if (!r->s.micros)
        return why_set(r->why, ERR_INVALID, "%s: no slots; write one line per rank, such as F0.0,B0.0", r->name);
    err_t err = schedule_check_size(r->s.ranks, r->s.chunks, r->s.micros, r->why);
    return err ? why_prefix(r->why, err, "%s", r->name) : OK;
}

err_t schedule_read_csv(const char *text, size_t len, const char *name, struct schedule *ret, struct why *why)
{
    struct reader r = {.name = name, .why = why};
    if (len > SCHEDULE_MAX_BYTES)
        return why_set(why, ERR_LIMIT, "%s: the text has %zu bytes; a schedule has at most %zu", name, len,
                       SCHEDULE_MAX_BYTES);
    err_t err = read_lines(&r, text, len);
    if (!err)
        err = check_read(&r);
    if (err)
        schedule_fini(&r.s);
    else
        *ret = r.s;
    return err;
}

/* ---- printing ---- */

static void print_row(const struct schedule_row *row, const struct schedule_rank_times *times, int steps, FILE *out)
{
    int step = 0;
    for (int i = 0; i < row->n; i++, step++) {
        const struct slot *x = &row->slots[i];
        for (; times && step < (int)(times->spans[i].start + 0.5); step++)
            fputs(step ? ",-" : "-", out);
        fprintf(out, "%s%c%d.%d", step ? "," : "", slot_letter(x->kind), x->chunk, x->micro);
    }
    for (; step < steps; step++)
        fputs(step ? ",-" : "-", out);
    fputc('\n', out);
}

err_t schedule_print_csv(const struct schedule *s, FILE *out)
{
    const struct schedule_cost step = {.seconds = {1, 1, 1, 1}, .last_scale = 1};
    struct schedule_times times = {0};
    err_t err = schedule_simulate(s, &step, &times, NULL);
    if (err && err != ERR_INVALID)
        return err;
    for (int r = 0; r < s->ranks; r++)
        print_row(&s->rows[r], err ? NULL : &times.ranks[r], err ? 1 : (int)(times.makespan + 0.5), out);
    schedule_times_fini(&times);
    return ferror(out) ? ERR_IO : OK;
}
