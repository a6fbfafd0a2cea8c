/* Places for buffers that are used over and over: two may share bytes when no op needs both.
 *
 * What compile_buffers has planned at the start of a space stays there by itself. Any other lives from the first to the
 * last op that names it, forward and backward in one line of time. Largest first, each goes to the lowest place that is
 * free throughout its life. This comes within a few per cent of the bound (the
 * most bytes alive at one op) on transformers, whose large buffers nest. Quadratic in the number of buffers, some
 * thousands. */
#include "common/plan/compile.h"

#include <stdlib.h>

#define ALIGN 64

struct life {
    int buffer, birth, death;
    int64_t bytes, offset;
};

static void live_at(struct life *lives, const struct op *op, int time)
{
    for (int i = 0; i < OP_MAX_OPERANDS; i++) {
        int b = op->arg[i].buffer;
        if (b < 0)
            continue;
        if (lives[b].birth < 0)
            lives[b].birth = time;
        lives[b].death = time;
    }
}

static int by_size(const void *x, const void *y)
{
    const struct life *a = x, *b = y;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    if (a->birth != b->birth)
        return a->birth < b->birth ? -1 : 1;
    return a->buffer < b->buffer ? -1 : 1;
}

/* The lowest offset at which `l` meets none of the `n` placed before it, which stand in `order` by offset. */
static int64_t lowest(const struct life *l, const struct life *placed, const int *order, int n)
{
    int64_t at = 0;
    for (int i = 0; i < n; i++) {
        const struct life *o = &placed[order[i]];
        if (o->birth > l->death || o->death < l->birth)
            continue;
        if (o->offset >= at + l->bytes)
            break;
        if (o->offset + o->bytes > at)
            at = o->offset + o->bytes;
    }
    return at;
}

/* Places lives[0 .. n-1], sorted by size; `order` is room for n. Returns the end of the highest. */
static int64_t place(struct life *lives, int n, int *order)
{
    int64_t end = 0;
    for (int i = 0; i < n; i++) {
        int k = i;
        lives[i].offset = lowest(&lives[i], lives, order, i);
        for (; k > 0 && lives[order[k - 1]].offset > lives[i].offset; k--)
            order[k] = order[k - 1];
        order[k] = i;
        if (lives[i].offset + lives[i].bytes > end)
            end = lives[i].offset + lives[i].bytes;
    }
    return end;
}

static void live_too(struct life *run, const struct life *part)
{
    if (run->birth < 0 || part->birth < run->birth)
        run->birth = part->birth;
    if (part->death > run->death)
        run->death = part->death;
}

/* Those of one space that have no place of their own; what is in such a run goes with it. */
static void pack_space(struct compiler *c, enum buffer_space space, const struct life *lives, struct life *sorted,
                       int *order)
{
    struct program *p = c->p;
    int n = 0;
    for (int b = 0; b < p->n_buffers; b++)
        if (p->buffers[b].space == space && !p->buffers[b].planned && p->buffers[b].run < 0 && lives[b].birth >= 0)
            sorted[n++] = lives[b];
    qsort(sorted, (size_t)n, sizeof(*sorted), by_size);
    int64_t fixed = p->space_bytes[space];
    p->space_bytes[space] = fixed + place(sorted, n, order);
    for (int i = 0; i < n; i++)
        p->buffers[sorted[i].buffer].offset = fixed + sorted[i].offset;
    for (int b = 0; b < p->n_buffers; b++)
        if (p->buffers[b].space == space && !p->buffers[b].planned && p->buffers[b].run >= 0)
            p->buffers[b].offset += p->buffers[p->buffers[b].run].offset;
}

void compile_pack(struct compiler *c, struct op_range forward, struct op_range backward)
{
    struct program *p = c->p;
    size_t room = (size_t)p->n_buffers + 1;
    struct life *lives = calloc(room, sizeof(*lives)), *sorted = calloc(room, sizeof(*sorted));
    int *order = calloc(room, sizeof(*order));
    if (!lives || !sorted || !order) {
        c->err = c->err ? c->err : ERR_NOMEM;
        goto out_free;
    }
    for (int b = 0; b < p->n_buffers; b++)
        lives[b] = (struct life){.buffer = b, .birth = -1, .bytes = (p->buffers[b].bytes + ALIGN - 1) / ALIGN * ALIGN};
    for (int i = 0; i < forward.n; i++)
        live_at(lives, &p->ops[forward.first + i], i);
    for (int i = 0; i < backward.n; i++)
        live_at(lives, &p->ops[backward.first + i], forward.n + i);
    for (int b = 0; b < p->n_buffers; b++) /* a part lives in its run */
        if (p->buffers[b].run >= 0 && !p->buffers[b].planned && lives[b].birth >= 0)
            live_too(&lives[p->buffers[b].run], &lives[b]);
    pack_space(c, SPACE_WORK, lives, sorted, order);
    pack_space(c, SPACE_GRAD, lives, sorted, order);
out_free:
    free(lives);
    free(sorted);
    free(order);
}
