/* The state is kept per rank, because chunks of the ranks alternate. Control sends a chunk up to a line's end, or up to
 * a \r if the line has no end yet, so a bar is shown while it grows. "\r\n" may be split between two chunks; it ends
 * one line. */
#include "client/worker_lines.h"

#include "client/json.h"

#include <stdlib.h>
#include <string.h>

void worker_lines_init(struct worker_lines *l, FILE *out, enum out_format format, bool prefix)
{
    *l = (struct worker_lines){.out = out, .format = format, .prefix = prefix, .bar_rank = -1};
}

void worker_lines_fini(struct worker_lines *l)
{
    free(l->rank);
    *l = (struct worker_lines){0};
}

void worker_lines_again(struct worker_lines *l)
{
    for (int k = 0; k < l->n; k++)
        l->rank[k].again = true;
}

static struct worker_line *line_of(struct worker_lines *l, int rank)
{
    if (rank < l->n)
        return &l->rank[rank];
    struct worker_line *all = reallocarray(l->rank, (size_t)rank + 1, sizeof(*all));
    if (!all)
        return NULL;
    memset(all + l->n, 0, (size_t)(rank + 1 - l->n) * sizeof(*all));
    l->rank = all;
    l->n = rank + 1;
    return &all[rank];
}

/* ---- one line ---- */

static void prefix_print(const struct worker_lines *l, int rank)
{
    static const enum out_color colors[] = {OUT_BLUE, OUT_GREEN, OUT_YELLOW, OUT_RED};
    if (l->prefix)
        fprintf(l->out, "%s[rank %d]%s ", out_color(l->out, colors[rank % 4]), rank, out_color(l->out, OUT_PLAIN));
}

static void bar_store(struct worker_lines *l, int rank, const char *text, size_t len)
{
    size_t n = 0;
    if (l->prefix)
        n = (size_t)snprintf(l->bar, sizeof(l->bar), "[rank %d] ", rank);
    snprintf(l->bar + n, sizeof(l->bar) - n, "%.*s", (int)len, text);
}

/* `end`: the character that ends the line, '\n' or '\r'. */
static void text_print(struct worker_lines *l, int rank, bool returned, const char *text, size_t len, char end)
{
    bool open = l->bar_rank == rank; /* the rank's last line ended with \r, and no other has been printed since */
    if (end == '\r' && len == 0)
        return;
    if (end == '\r' && l->keep_bar) {
        bar_store(l, rank, text, len);
    } else if (len || !returned) {
        prefix_print(l, rank);
        fwrite(text, 1, len, l->out);
        if ((end == '\r' || l->bar_rank >= 0) && !l->keep_bar && out_is_terminal(l->out))
            fputs("\033[K", l->out); /* the earlier line may be longer */
        fputc(end, l->out);
    } else if (l->keep_bar && open) { /* the bar's line has ended */
        fprintf(l->out, "%s\n", l->bar);
    } else if (open) {
        fputc(end, l->out);
    }
    if (end == '\r' || open)
        l->bar_rank = end == '\r' ? rank : -1;
    if (l->bar_rank < 0)
        l->bar[0] = '\0';
}

static bool line_print(struct worker_lines *l, int rank, struct worker_line *w, const char *text, size_t len, char end)
{
    bool returned = w->returned;
    w->returned = end == '\r' && (len || returned);
    if (l->format == OUT_TEXT) {
        text_print(l, rank, returned, text, len, end);
        return !ferror(l->out);
    }
    if (len == 0 && (end == '\r' || returned))
        return true;
    json_t *object = json_pack("{s:i, s:o}", "rank", rank, "line", json_of_text(text, len));
    return object && out_json(object, true) == OK;
}

/* ---- a chunk ---- */

/* Records the position of the chunk. Returns the number of its bytes that have been printed before. ret_moved: it comes
 * from another log than the chunk before. */
static size_t position_take(struct worker_line *w, const struct client_log *chunk, bool *ret_moved)
{
    *ret_moved = false;
    if (chunk->at < 0) /* a line of control */
        return 0;
    bool same = w->slot == chunk->slot && strcmp(w->node, chunk->node) == 0;
    int64_t end = chunk->at + (int64_t)chunk->len;
    int64_t skip = same && w->again ? w->end - chunk->at : 0;
    if (skip >= (int64_t)chunk->len && skip > 0)
        return chunk->len;
    *ret_moved = !same;
    snprintf(w->node, sizeof(w->node), "%s", chunk->node);
    w->slot = chunk->slot;
    w->end = end;
    w->again = false;
    return skip > 0 ? (size_t)skip : 0;
}

static size_t line_length(const char *text, size_t len)
{
    size_t n = 0;
    while (n < len && text[n] != '\n' && text[n] != '\r')
        n++;
    return n;
}

bool worker_lines_print(struct worker_lines *l, const struct client_log *chunk)
{
    struct worker_line *w = chunk->rank >= 0 ? line_of(l, chunk->rank) : NULL;
    bool moved;
    if (!w)
        return false;
    size_t at = position_take(w, chunk, &moved);
    const char *text = chunk->text;
    if (l->files && chunk->at >= 0 &&
        log_files_write(l->files, chunk->rank, moved, chunk->at == 0, text + at, chunk->len - at))
        return false;
    while (at < chunk->len && !l->silent) {
        size_t n = line_length(text + at, chunk->len - at), rest = chunk->len - at - n;
        char end = rest ? text[at + n] : '\n'; /* the log's last line may lack its end */
        size_t extra = end == '\r' && rest > 1 && text[at + n + 1] == '\n';
        if (!line_print(l, chunk->rank, w, text + at, n, extra ? '\n' : end))
            return false;
        at += n + (rest ? 1 : 0) + extra;
    }
    return fflush(l->out) == 0;
}
