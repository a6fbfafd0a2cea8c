/* The properties of the stream alone decide about colours and redraws; commands carry no flag for them. Widths count
 * code points, which is right for the output of dtctl: it has no wide or combining characters of its own. */
#include "client/out.h"

#include "common/base/clock.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

/* Five redraws a second look continuous, and cost little on a slow terminal. */
#define REDRAW_MS 200

bool out_format_parse(const char *name, enum out_format *ret)
{
    static const char *const names[] = {[OUT_TEXT] = "text", [OUT_JSON] = "json", [OUT_JSONL] = "jsonl"};
    for (int i = 0; i < (int)(sizeof(names) / sizeof(names[0])); i++)
        if (strcmp(name, names[i]) == 0) {
            *ret = (enum out_format)i;
            return true;
        }
    return false;
}

/* ---- numbers ---- */

const char *out_bytes(int64_t bytes, char ret[OUT_NUMBER])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double v = (double)bytes;
    int u = 0;
    while (v >= 1023.95 && u < 6) {
        v /= 1024;
        u++;
    }
    snprintf(ret, OUT_NUMBER, u ? "%.1f %s" : "%.0f %s", v, units[u]);
    return ret;
}

const char *out_count(double count, char ret[OUT_NUMBER])
{
    static const char *const units[] = {"", "k", "M", "G", "T"};
    int u = 0;
    if (!isfinite(count))
        return strcpy(ret, "-");
    while (fabs(count) >= 999.95 && u < 4) {
        count /= 1000;
        u++;
    }
    snprintf(ret, OUT_NUMBER, u || fabs(count) < 100 ? "%.1f%s" : "%.0f%s", count, units[u]);
    return ret;
}

const char *out_duration(double seconds, char ret[OUT_NUMBER])
{
    if (!isfinite(seconds) || seconds < 0 || seconds > 1e15)
        return strcpy(ret, "-");
    int64_t s = (int64_t)(seconds + 0.5);
    if (s < 60)
        snprintf(ret, OUT_NUMBER, "%ds", (int)s);
    else if (s < 3600)
        snprintf(ret, OUT_NUMBER, "%dm %02ds", (int)(s / 60), (int)(s % 60));
    else if (s < 86400)
        snprintf(ret, OUT_NUMBER, "%dh %02dm", (int)(s / 3600), (int)(s / 60 % 60));
    else
        snprintf(ret, OUT_NUMBER, "%lldd %02dh", (long long)(s / 86400), (int)(s / 3600 % 24));
    return ret;
}

const char *out_real(double value, int digits, char ret[OUT_NUMBER])
{
    if (isnan(value))
        return strcpy(ret, "-");
    snprintf(ret, OUT_NUMBER, "%.*g", digits, value);
    return ret;
}

const char *out_time(int64_t wall_ms, char ret[OUT_NUMBER])
{
    struct tm tm;
    time_t t = (time_t)(wall_ms / 1000);
    if (!wall_ms || !localtime_r(&t, &tm) || !strftime(ret, OUT_NUMBER, "%Y-%m-%d %H:%M:%S", &tm))
        return strcpy(ret, "-");
    return ret;
}

/* ---- terminals and colours ---- */

bool out_is_terminal(FILE *f)
{
    return isatty(fileno(f));
}

bool out_has_color(FILE *f)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return !(no && no[0]) && !(term && strcmp(term, "dumb") == 0) && out_is_terminal(f);
}

int out_columns(FILE *f)
{
    struct winsize w;
    if (ioctl(fileno(f), TIOCGWINSZ, &w) == 0 && w.ws_col > 0)
        return w.ws_col;
    return 80;
}

const char *out_color(FILE *f, enum out_color color)
{
    static const char *const codes[] = {
        [OUT_PLAIN] = "\033[0m",  [OUT_DIM] = "\033[2m",     [OUT_BOLD] = "\033[1m", [OUT_RED] = "\033[31m",
        [OUT_GREEN] = "\033[32m", [OUT_YELLOW] = "\033[33m", [OUT_BLUE] = "\033[34m"};
    return out_has_color(f) ? codes[color] : "";
}

enum out_color out_state_color(const char *job_state)
{
    static const struct {
        const char *state;
        enum out_color color;
    } table[] = {{"running", OUT_GREEN},     {"done", OUT_BLUE},       {"failed", OUT_RED},  {"canceled", OUT_YELLOW},
                 {"recovering", OUT_YELLOW}, {"stopping", OUT_YELLOW}, {"pending", OUT_DIM}, {"starting", OUT_DIM}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(job_state, table[i].state) == 0)
            return table[i].color;
    return OUT_PLAIN;
}

/* ---- text that is broken ---- */

static void *alloc_or_exit(void *p)
{
    if (p)
        return p;
    fputs("dtctl: out of memory\n", stderr);
    exit(1);
}

int out_text_width(const char *s)
{
    int n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xc0) != 0x80;
    return n;
}

/* The number of bytes of `s` that fit into `room` columns. */
static int text_fit(const char *s, int room)
{
    int n = 0;
    for (; s[n]; n++)
        if (((unsigned char)s[n] & 0xc0) != 0x80 && room-- <= 0)
            break;
    return n;
}

/* The number of bytes of the escape sequence at `s`; 0: there is none. */
static size_t sequence_length(const char *s)
{
    return s[0] == '\033' ? strcspn(s, "m") + 1 : 0;
}

/* Splits off spaces and the word behind them: sets their numbers of bytes, and of columns without sequences. */
static void word_measure(const char *s, const char *end, int *ret_spaces, size_t *ret_bytes, int *ret_width)
{
    const char *p = s;
    while (p < end && *p == ' ')
        p++;
    *ret_spaces = (int)(p - s);
    *ret_width = 0;
    while (p < end && *p != ' ') {
        size_t skip = sequence_length(p);
        *ret_width += !skip && ((unsigned char)*p & 0xc0) != 0x80;
        p += skip ? skip : 1;
    }
    p = p < end ? p : end;
    *ret_bytes = (size_t)(p - s) - (size_t)*ret_spaces;
}

#define LEAST_INDENT 4 /* of a word, such as a path, that fits only into a line of its own */

/* Prints the text, which begins in column `at`; lines that follow begin in column `indent`. A word that is longer than
 * a line is not broken, so that it can be copied. */
static void text_wrap(FILE *f, const char *text, size_t len, int at, int indent, int columns)
{
    const char *end = text + len;
    bool first = true;
    while (text < end) {
        int spaces, width;
        size_t bytes;
        word_measure(text, end, &spaces, &bytes, &width);
        if (!first && at + spaces + width > columns) {
            at = indent + width > columns ? LEAST_INDENT : indent;
            fprintf(f, "\n%*s", at, "");
        } else {
            fprintf(f, "%*s", spaces, "");
            at += spaces;
        }
        fwrite(text + spaces, 1, bytes, f);
        at += width;
        first = first && !width; /* the first word stays where it is, behind its indentation */
        text += (size_t)spaces + bytes;
    }
}

void out_page_begin(struct out_page *p)
{
    *p = (struct out_page){0};
    p->f = alloc_or_exit(open_memstream(&p->text, &p->len));
}

void out_page_end(struct out_page *p, FILE *to)
{
    const int columns = out_is_terminal(to) ? out_columns(to) : INT_MAX / 2;
    if (fclose(p->f))
        alloc_or_exit(NULL);
    for (const char *line = p->text; *line; line += *line != '\0') {
        size_t len = strcspn(line, "\n"), spaces = strspn(line, " ");
        text_wrap(to, line, len, 0, spaces == 2 ? OUT_LABEL : (int)spaces + LEAST_INDENT, columns);
        fputc('\n', to);
        line += len;
    }
    free(p->text);
}

/* ---- tables ---- */

void out_table_init(struct out_table *t, const struct out_column *columns, int n_columns)
{
    *t = (struct out_table){.columns = columns, .n_columns = n_columns};
}

void out_table_fini(struct out_table *t)
{
    for (int i = 0; i < t->n_rows * t->n_columns; i++)
        free(t->cells[i]);
    free(t->cells);
    free(t->row_color);
    *t = (struct out_table){0};
}

int out_table_row(struct out_table *t)
{
    if (t->n_rows == t->cap) {
        t->cap = t->cap ? 2 * t->cap : 16;
        t->cells = alloc_or_exit(reallocarray(t->cells, (size_t)t->cap * (size_t)t->n_columns, sizeof(*t->cells)));
        t->row_color = alloc_or_exit(reallocarray(t->row_color, (size_t)t->cap, sizeof(*t->row_color)));
    }
    t->row_color[t->n_rows] = OUT_PLAIN;
    for (int c = 0; c < t->n_columns; c++)
        t->cells[t->n_rows * t->n_columns + c] = alloc_or_exit(strdup("-"));
    return t->n_rows++;
}

void out_table_set(struct out_table *t, int row, int column, const char *fmt, ...)
{
    char **cell = &t->cells[row * t->n_columns + column], *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    free(*cell);
    *cell = alloc_or_exit(text);
}

/* Row -1 is the row of titles. */
static const char *cell_text(const struct out_table *t, int row, int column)
{
    return row < 0 ? t->columns[column].title : t->cells[row * t->n_columns + column];
}

static int column_width(const struct out_table *t, int c)
{
    int w = out_text_width(t->columns[c].title);
    for (int r = 0; r < t->n_rows; r++) {
        int n = out_text_width(t->cells[r * t->n_columns + c]);
        w = n > w ? n : w;
    }
    return w;
}

/* How a table is printed: the widths of its columns, and which of them. */
struct table_form {
    int width[OUT_COLUMNS_MAX], late, columns;
};

static int form_width(const struct out_table *t, const struct table_form *form)
{
    int width = out_text_width(t->columns[t->n_columns - 1].title);
    for (int c = 0; c + 1 < t->n_columns; c++)
        width += t->columns[c].late <= form->late ? form->width[c] + 2 : 0;
    return width;
}

#define LEAST_CUT 8 /* columns of a cell that is cut: enough to distinguish most names */

/* Where a terminal is too narrow, columns are left out, and then cells are cut. The last column may be a sentence. */
static void form_find(const struct out_table *t, FILE *f, struct table_form *ret)
{
    *ret = (struct table_form){.late = OUT_LATE_MAX, .columns = out_is_terminal(f) ? out_columns(f) : INT_MAX / 2};
    for (int c = 0; c < t->n_columns; c++)
        ret->width[c] = column_width(t, c);
    while (ret->late > 0 && form_width(t, ret) > ret->columns)
        ret->late--;
    for (int c = 0; c < t->n_columns; c++) {
        int less = form_width(t, ret) - ret->columns, left = ret->width[c] - less;
        if (t->columns[c].late == OUT_CUT && less > 0 && ret->width[c] > LEAST_CUT)
            ret->width[c] = left > LEAST_CUT ? left : LEAST_CUT;
    }
}

static void cell_print(FILE *f, const char *text, int width, bool right, enum out_color color)
{
    int pad = width - out_text_width(text);
    if (right)
        fprintf(f, "%*s", pad, "");
    fputs(color ? out_color(f, color) : "", f);
    if (pad >= 0)
        fputs(text, f);
    else
        fprintf(f, "%.*s..", text_fit(text, width - 2), text);
    fputs(color ? out_color(f, OUT_PLAIN) : "", f);
    fprintf(f, "%*s  ", right || pad < 0 ? 0 : pad, "");
}

#define LEAST_ROOM 24 /* columns for the lines of a sentence beside the other cells; with fewer it goes below them */

static void last_cell_print(FILE *f, const char *text, int at, const struct table_form *form, enum out_color color)
{
    bool below = form->columns - at < LEAST_ROOM && at + out_text_width(text) > form->columns;
    fputs(color ? out_color(f, color) : "", f);
    if (below)
        fprintf(f, "\n%*s", LEAST_INDENT, "");
    at = below ? LEAST_INDENT : at;
    text_wrap(f, text, strlen(text), at, at, form->columns);
    fputs(color ? out_color(f, OUT_PLAIN) : "", f);
    fputc('\n', f);
}

void out_table_print(const struct out_table *t, FILE *f, int color_column)
{
    struct table_form form;
    form_find(t, f, &form);
    for (int r = -1; r < t->n_rows; r++) {
        int at = 0, last = t->n_columns - 1; /* no trailing spaces */
        while (last > 0 && (!cell_text(t, r, last)[0] || t->columns[last].late > form.late))
            last--;
        for (int c = 0; c <= last; c++) {
            enum out_color color = r < 0 ? OUT_BOLD : c == color_column ? t->row_color[r] : OUT_PLAIN;
            if (c == last) {
                last_cell_print(f, cell_text(t, r, c), at, &form, color);
            } else if (t->columns[c].late <= form.late) {
                cell_print(f, cell_text(t, r, c), form.width[c], t->columns[c].right, color);
                at += form.width[c] + 2;
            }
        }
    }
}

/* ---- JSON ---- */

json_t *out_json_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

err_t out_json(json_t *value, bool lines)
{
    if (!value)
        return ERR_NOMEM;
    int r = json_dumpf(value, stdout, JSON_ENCODE_ANY | (lines ? 0 : JSON_INDENT(2)));
    json_decref(value);
    if (r == 0 && fputc('\n', stdout) != EOF && fflush(stdout) == 0)
        return OK;
    return errno == EPIPE ? ERR_CLOSED : ERR_IO;
}

/* ---- progress ---- */

void out_progress_init(struct out_progress *p, FILE *f)
{
    *p = (struct out_progress){.file = f, .terminal = out_is_terminal(f)};
}

bool out_progress_due(const struct out_progress *p, int64_t now_ms)
{
    return p->terminal && (!p->drawn_ms || now_ms - p->drawn_ms >= REDRAW_MS);
}

void out_progress_draw(struct out_progress *p, int64_t now_ms, const char *text)
{
    p->drawn_ms = now_ms;
    if (!p->terminal) {
        fprintf(p->file, "%s\n", text);
    } else {
        /* One column stays free, because a full line would wrap on some terminals. */
        int n = text_fit(text, out_columns(p->file) - 1);
        fprintf(p->file, "\r%.*s\033[K", n, text);
        p->drawn = true;
    }
    fflush(p->file);
}

void out_progress_clear(struct out_progress *p)
{
    if (p->drawn)
        fputs("\r\033[K", p->file);
    p->drawn = false;
    p->drawn_ms = 0;
    fflush(p->file);
}

void out_progress_end(struct out_progress *p)
{
    if (p->drawn)
        fputc('\n', p->file);
    p->drawn = false;
    fflush(p->file);
}

void out_bar(double share, int width, char *ret, size_t size)
{
    if (width < 3 || size < (size_t)width + 1) {
        if (size)
            ret[0] = '\0';
        return;
    }
    int inner = width - 2, full = (int)(share * inner);
    full = full < 0 || isnan(share) ? 0 : full > inner ? inner : full;
    ret[0] = '[';
    memset(ret + 1, '#', (size_t)full);
    memset(ret + 1 + full, '-', (size_t)(inner - full));
    ret[width - 1] = ']';
    ret[width] = '\0';
}

/* ---- words of a shell ---- */

char *out_quoted(const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=@%+,";
    if (word[0] && strspn(word, plain) == strlen(word))
        return strdup(word);
    char *ret = malloc(4 * strlen(word) + 3), *to = ret;
    if (!ret)
        return NULL;
    *to++ = '\'';
    for (; *word; word++)
        if (*word == '\'')
            to = stpcpy(to, "'\\''");
        else
            *to++ = *word;
    strcpy(to, "'");
    return ret;
}
