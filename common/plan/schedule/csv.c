/* Schedules as text, one line per rank. The length of the text, and the number of commas in a line, bound what the
 * reader allocates. It checks only the shape of cells and the limits; schedule_check checks what the slots mean
 * together. The column of a cell has no meaning when read. When printed it is the step, so that a reader sees which
 * rank waits.
 *
 * A cell of PyTorch's form names a stage of the whole pipeline. Its chunk follows when all lines are read, because only
 * then the placement is known; until then the stage stands in slot.chunk. */
#include "common/plan/schedule/schedule.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { FORM_UNKNOWN = -1 };

/* State of one pass over the text; columns count bytes from 1. */
struct reader {
    const char *name;
    const char *line, *at, *end; /* end: end of the line, without its line break */
    int number;
    struct schedule s;
    int cap;    /* rows allocated */
    int *lines; /* by row: its number in the text */
    int form;   /* enum schedule_form, that of the first cell */
    struct why *why;
};

static err_t reader_fail(const struct reader *r, err_t err, const char *at, const char *text)
{
    return why_set(r->why, err, "%s:%d:%d: %s", r->name, r->number, (int)(at - r->line) + 1, text);
}

static err_t refuse_cell(const struct reader *r, const char *at, const char *end, const char *reason)
{
    char cell[17] = "", text[240];
    for (size_t i = 0; at + i < end && i < sizeof(cell) - 1; i++)
        cell[i] = (char)(isprint((unsigned char)at[i]) ? at[i] : '?');
    snprintf(text, sizeof(text), "'%s%s' %s", cell, end - at > (ptrdiff_t)sizeof(cell) - 1 ? "..." : "", reason);
    return reader_fail(r, ERR_INVALID, at, text);
}

static const char *const not_a_slot[] = {
    [SCHEDULE_OWN] =
        "is not a slot; write F, B, I or W, the chunk, a dot and the microbatch (F0.3), or - for a step of "
        "waiting",
    [SCHEDULE_PYTORCH] = "is not an action; write the stage, F, B, I or W, and the microbatch (0F3), or nothing for a "
                         "step of waiting",
};

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
    bool pytorch = r->form == SCHEDULE_PYTORCH;
    int chunks = pytorch ? SCHEDULE_MAX_RANKS * SCHEDULE_MAX_CHUNKS : SCHEDULE_MAX_CHUNKS;
    bool chunk = slot->chunk >= chunks;
    if (!chunk && slot->micro < SCHEDULE_MAX_MICROS)
        return OK;
    snprintf(text, sizeof(text), "%s number is too large; the largest legal number is %d",
             !chunk    ? "the microbatch"
             : pytorch ? "the stage"
                       : "the chunk",
             (chunk ? chunks : SCHEDULE_MAX_MICROS) - 1);
    return reader_fail(r, ERR_LIMIT, at, text);
}

static void add_slot(struct schedule *s, const struct slot *slot)
{
    struct schedule_row *row = &s->rows[s->ranks - 1];
    row->slots[row->n++] = *slot;
    s->chunks = slot->chunk >= s->chunks ? slot->chunk + 1 : s->chunks;
    s->micros = slot->micro >= s->micros ? slot->micro + 1 : s->micros;
}

static err_t read_slot(struct reader *r, const char *at, const struct slot *slot)
{
    err_t err = check_limits(r, at, slot);
    if (!err)
        add_slot(&r->s, slot);
    return err;
}

/* F0.3 */
static err_t read_own(struct reader *r, const char *at, const char *end)
{
    const char *p = at + 1;
    int kind = kind_of(*at), chunk = read_number(&p, end);
    int micro = p < end && *p == '.' ? (p++, read_number(&p, end)) : -1;
    if (kind < 0 || chunk < 0 || micro < 0 || p != end)
        return refuse_cell(r, at, end, not_a_slot[SCHEDULE_OWN]);
    return read_slot(r, at, &(struct slot){(enum slot_kind)kind, chunk, micro});
}

/* Whether the action is one that PyTorch adds for communication; `at`: after the stage. */
static bool is_lowered(const char *at, const char *end)
{
    static const char *const names[] = {"UNSHARD", "RESHARD", "REDUCE_GRAD", "SEND_", "RECV_"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if ((size_t)(end - at) >= strlen(names[i]) && !memcmp(at, names[i], strlen(names[i])))
            return true;
    return false;
}

/* 0F3 */
static err_t read_action(struct reader *r, const char *at, const char *end)
{
    const char *p = at;
    int stage = read_number(&p, end);
    if (stage >= 0 && is_lowered(p, end))
        return refuse_cell(r, at, end,
                           "is communication; write PyTorch's form compute_only, without it (dtd determines the sends "
                           "and receives)");
    int kind = p < end ? kind_of(*p++) : -1, micro = read_number(&p, end);
    if (stage < 0 || kind < 0 || micro < 0 || p != end)
        return refuse_cell(r, at, end, not_a_slot[SCHEDULE_PYTORCH]);
    return read_slot(r, at, &(struct slot){(enum slot_kind)kind, stage, micro});
}

/* (0F3;3B1)OVERLAP_F_B: both, one after the other. */
static err_t read_overlapped(struct reader *r, const char *at, const char *end)
{
    static const char tail[] = ")OVERLAP_F_B";
    const size_t n = sizeof(tail) - 1;
    const char *middle = memchr(at, ';', (size_t)(end - at));
    if (!middle || end - middle < (ptrdiff_t)n || memcmp(end - n, tail, n) != 0)
        return refuse_cell(r, at, end, "is not a pair; write a forward and a backward, as in (0F3;3B1)OVERLAP_F_B");
    err_t err = read_action(r, at + 1, middle);
    return err ? err : read_action(r, middle + 1, end - n);
}

/* Reads a cell from `at` to `end`, without blanks around it; empty cells and "-" are steps of waiting. */
static err_t read_cell(struct reader *r, const char *at, const char *end)
{
    if (at == end || (end - at == 1 && *at == '-'))
        return OK;
    int form = *at == '(' || isdigit((unsigned char)*at) ? SCHEDULE_PYTORCH : SCHEDULE_OWN;
    if (r->form == FORM_UNKNOWN)
        r->form = form;
    if (r->form != form && (form == SCHEDULE_PYTORCH || kind_of(*at) >= 0))
        return refuse_cell(r, at, end, "has another form than the first cell; write all as F0.3, or all as 0F3");
    if (r->form == SCHEDULE_OWN)
        return read_own(r, at, end);
    return *at == '(' ? read_overlapped(r, at, end) : read_action(r, at, end);
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
        int *lines = realloc(r->lines, (size_t)cap * sizeof(*lines));
        if (!lines)
            return reader_fail(r, ERR_NOMEM, r->line, "out of memory for another line");
        r->lines = lines;
        r->cap = cap;
    }
    for (const char *p = r->line; p < r->end; p++)
        cells += *p == ',' || *p == ';';
    struct slot *slots = calloc(cells, sizeof(*slots));
    if (!slots)
        return reader_fail(r, ERR_NOMEM, r->line, "out of memory for the slots of this line");
    r->lines[r->s.ranks] = r->number;
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

/* The first slot whose stage the placement assigns to another rank than that of its row; NULL: none. *rank: its row. */
static const struct slot *first_elsewhere(const struct schedule *s, enum pipe_placement placement, int *rank)
{
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->rows[r].n; i++)
            if (placement_rank(placement, s->ranks, s->rows[r].slots[i].chunk) != r) {
                *rank = r;
                return &s->rows[r].slots[i];
            }
    return NULL;
}

/* Determines the placement from the stages of each row, and turns stages into chunks. s.chunks: number of stages. */
static err_t place_stages(struct reader *r)
{
    struct schedule *s = &r->s;
    const int stages = s->chunks, ranks = s->ranks;
    int rank = 0;
    if (stages % ranks)
        return why_set(r->why, ERR_INVALID, "%s: %d stages on %d lines; write equally many stages on each line",
                       r->name, stages, ranks);
    s->chunks = stages / ranks;
    s->placement = PLACE_LOOP;
    const struct slot *x = first_elsewhere(s, PLACE_LOOP, &rank);
    if (x && s->chunks == 2 && !first_elsewhere(s, PLACE_V, &(int){0})) {
        s->placement = PLACE_V;
        x = NULL;
    }
    if (x)
        return why_set(r->why, ERR_INVALID,
                       "%s:%d: stage %d is on line %d of %d; stages must go round the lines (0 to %d are the first of "
                       "each), or, with two for each line, there and back (the first line has 0 and %d)",
                       r->name, r->lines[rank], x->chunk, rank + 1, ranks, ranks - 1, 2 * ranks - 1);
    for (int i = 0; i < ranks; i++)
        for (int k = 0; k < s->rows[i].n; k++)
            s->rows[i].slots[k].chunk = placement_chunk(ranks, s->rows[i].slots[k].chunk);
    return OK;
}

static err_t check_read(struct reader *r)
{
    if (!r->s.micros)
        return why_set(r->why, ERR_INVALID, "%s: no slots; write one line per rank, such as F0.0,B0.0", r->name);
    err_t placed = r->form == SCHEDULE_PYTORCH ? place_stages(r) : OK;
    if (placed)
        return placed;
    err_t err = schedule_check_size(r->s.ranks, r->s.chunks, r->s.micros, r->why);
    return err ? why_prefix(r->why, err, "%s", r->name) : OK;
}

err_t schedule_read_csv(const char *text, size_t len, const char *name, struct schedule *ret, struct why *why)
{
    struct reader r = {.name = name, .form = FORM_UNKNOWN, .why = why};
    if (len > SCHEDULE_MAX_BYTES)
        return why_set(why, ERR_LIMIT, "%s: the text has %zu bytes; a schedule has at most %zu", name, len,
                       SCHEDULE_MAX_BYTES);
    err_t err = read_lines(&r, text, len);
    if (!err)
        err = check_read(&r);
    free(r.lines);
    if (err)
        schedule_fini(&r.s);
    else
        *ret = r.s;
    return err;
}

/* ---- printing ---- */

static void print_wait(enum schedule_form form, int step, FILE *out)
{
    fprintf(out, "%s%s", step ? "," : "", form == SCHEDULE_OWN ? "-" : "");
}

static void print_slot(const struct schedule *s, enum schedule_form form, int rank, const struct slot *x, FILE *out)
{
    if (form == SCHEDULE_OWN)
        fprintf(out, "%c%d.%d", slot_letter(x->kind), x->chunk, x->micro);
    else
        fprintf(out, "%d%c%d", schedule_stage(s, rank, x->chunk), slot_letter(x->kind), x->micro);
}

static void print_row(const struct schedule *s, enum schedule_form form, int rank,
                      const struct schedule_rank_times *times, int steps, FILE *out)
{
    const struct schedule_row *row = &s->rows[rank];
    int step = 0;
    for (int i = 0; i < row->n; i++, step++) {
        for (; times && step < (int)(times->spans[i].start + 0.5); step++)
            print_wait(form, step, out);
        fputs(step ? "," : "", out);
        print_slot(s, form, rank, &row->slots[i], out);
    }
    for (; step < steps; step++)
        print_wait(form, step, out);
    if (form == SCHEDULE_PYTORCH && !row->n && steps < 2)
        fputc(',', out); /* a line without any byte is skipped when it is read */
    fputc('\n', out);
}

err_t schedule_print_csv(const struct schedule *s, enum schedule_form form, FILE *out)
{
    const struct schedule_cost step = {.seconds = {1, 1, 1, 1}, .last_scale = 1};
    struct schedule_times times = {0};
    err_t err = schedule_simulate(s, &step, &times, NULL);
    if (err && err != ERR_INVALID)
        return err;
    for (int r = 0; r < s->ranks; r++)
        print_row(s, form, r, err ? NULL : &times.ranks[r], err ? 1 : (int)(times.makespan + 0.5), out);
    schedule_times_fini(&times);
    return ferror(out) ? ERR_IO : OK;
}
