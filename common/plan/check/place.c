/* Offsets of buffers. Buffers in spaces that live as long as the job must not overlap. Memory in SPACE_WORK and
 * SPACE_SHARED is reused, and so is memory in SPACE_GRAD where gradients of local tensors are released after every
 * microbatch (ZeRO 2 and 3). For these spaces the pairs of intervals that share bytes are listed, and rank.c checks
 * that no value is lost. */
#include "common/plan/check/check.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN 64

static const char *const space_names[SPACE_COUNT] = {"SPACE_PARAM", "SPACE_OPT",    "SPACE_GRAD", "SPACE_WORK",
                                                     "SPACE_SENT",  "SPACE_SHARED", "SPACE_HOST", "SPACE_CACHE"};

void intervals_fini(struct interval_table *p)
{
    free(p->at);
    free(p->first);
    free(p->under_first);
    free(p->under);
    free(p->overlap_first);
    free(p->overlaps);
    memset(p, 0, sizeof(*p));
}

static int64_t buffer_end(const struct buffer *b)
{
    return b->offset + (b->slots - 1) * b->slot_bytes + b->bytes;
}

/* Padded rows begin at multiples of PLAN_ROW_BYTES, and the buffer has room for all of them. */
static bool pitch_legal(const struct program *p, const struct buffer *b)
{
    const int64_t size = (int64_t)dtype_bytes(b->dtype), rows = program_dim(p, b->dim[0], p->max_samples);
    return !b->pitch || (b->space == SPACE_WORK && b->ndim == 2 && b->pitch > b->dim[1].factor &&
                         b->pitch * size % PLAN_ROW_BYTES == 0 && b->offset % PLAN_ROW_BYTES == 0 &&
                         b->slot_bytes % PLAN_ROW_BYTES == 0 && b->bytes >= rows * b->pitch * size);
}

static err_t check_buffer(const struct program *p, int i, struct why *why)
{
    const struct buffer *b = &p->buffers[i];
    if ((unsigned)b->space >= SPACE_COUNT || b->slots < 1 || b->bytes < 0 || b->offset < 0 ||
        (b->slots > 1 && b->slot_bytes < b->bytes))
        return why_set(why, ERR_INVALID, "rank %d: buffer %s has an illegal space, size or number of instances",
                       p->rank, b->name);
    if (b->offset % ALIGN)
        return why_set(why, ERR_INVALID, "rank %d: buffer %s is at byte %lld of %s, not at a multiple of %d", p->rank,
                       b->name, (long long)b->offset, space_names[b->space], ALIGN);
    if (!pitch_legal(p, b))
        return why_set(
            why, ERR_INVALID,
            "rank %d: buffer %s has rows %lld elements apart; padded rows need a matrix in SPACE_WORK with more "
            "elements per row than its %lld columns, every row at a multiple of %d bytes, and room for all rows",
            p->rank, b->name, (long long)b->pitch, (long long)b->dim[1].factor, PLAN_ROW_BYTES);
    if (buffer_end(b) > p->space_bytes[b->space])
        return why_set(why, ERR_INVALID, "rank %d: buffer %s ends at byte %lld of %s, which has %lld", p->rank, b->name,
                       (long long)buffer_end(b), space_names[b->space], (long long)p->space_bytes[b->space]);
    if (b->run < 0)
        return OK;
    if (b->run >= p->n_buffers || b->run == i)
        return why_set(why, ERR_INVALID, "rank %d: buffer %s is in a run that does not exist", p->rank, b->name);
    const struct buffer *run = &p->buffers[b->run];
    if (run->space != b->space || b->offset < run->offset || buffer_end(b) > buffer_end(run))
        return why_set(why, ERR_INVALID, "rank %d: buffer %s is not inside %s, its run", p->rank, b->name, run->name);
    return OK;
}

static err_t check_sizes(const struct program *p, struct why *why)
{
    int64_t end[SPACE_COUNT] = {0};
    for (int i = 0; i < p->n_buffers; i++) {
        const struct buffer *b = &p->buffers[i];
        int64_t e = (buffer_end(b) + ALIGN - 1) / ALIGN * ALIGN;
        end[b->space] = e > end[b->space] ? e : end[b->space];
    }
    for (int s = 0; s < SPACE_COUNT; s++)
        if (end[s] != p->space_bytes[s])
            return why_set(why, ERR_INVALID, "rank %d: the plan has %lld bytes of %s, its buffers need %lld", p->rank,
                           (long long)p->space_bytes[s], space_names[s], (long long)end[s]);
    return OK;
}

static err_t intervals_make(const struct program *p, struct interval_table *ret)
{
    int n = 0;
    ret->first = malloc(((size_t)p->n_buffers + 1) * sizeof(*ret->first));
    if (!ret->first)
        return ERR_NOMEM;
    for (int i = 0; i < p->n_buffers; i++)
        ret->first[i] = 0;
    for (int i = 0; i < p->n_buffers; i++)
        if (p->buffers[i].run >= 0)
            ret->first[p->buffers[i].run] = -1;
    for (int i = 0; i < p->n_buffers; i++)
        if (ret->first[i] == 0) {
            ret->first[i] = n;
            n += p->buffers[i].slots;
        }
    ret->at = calloc((size_t)n + 1, sizeof(*ret->at));
    if (!ret->at)
        return ERR_NOMEM;
    for (int i = 0; i < p->n_buffers; i++) {
        const struct buffer *b = &p->buffers[i];
        for (int s = 0; s < b->slots && ret->first[i] >= 0; s++) {
            int64_t lo = b->offset + s * b->slot_bytes;
            ret->at[ret->n++] = (struct interval){i, s, lo, lo + b->bytes};
        }
    }
    return OK;
}

/* Visits each interval with every buffer that contains it, its own included. The first pass counts, the second (`fill`)
 * writes the lists. */
static void each_under(const struct program *p, struct interval_table *ret, bool fill)
{
    for (int i = ret->n - 1; i >= 0; i--) {
        int b = ret->at[i].buffer;
        for (int depth = 0; b >= 0 && depth < 8; depth++, b = p->buffers[b].run) {
            if (fill)
                ret->under[--ret->under_first[b + 1]] = i;
            else
                ret->under_first[b + 1]++;
        }
    }
}

static err_t intervals_under(const struct program *p, struct interval_table *ret)
{
    int n = p->n_buffers;
    ret->under_first = calloc((size_t)n + 2, sizeof(*ret->under_first));
    if (!ret->under_first)
        return ERR_NOMEM;
    each_under(p, ret, false);
    for (int b = 0; b < n; b++)
        ret->under_first[b + 1] += ret->under_first[b];
    int total = ret->under_first[n];
    ret->under = calloc((size_t)total + 1, sizeof(*ret->under));
    if (!ret->under)
        return ERR_NOMEM;
    each_under(p, ret, true);
    memmove(ret->under_first, ret->under_first + 1, (size_t)n * sizeof(*ret->under_first));
    ret->under_first[n] = total;
    return OK;
}

struct sorted_interval {
    int interval;
    int space;
    int64_t lo, hi;
};

static int by_offset(const void *x, const void *y)
{
    const struct sorted_interval *a = x, *b = y;
    if (a->space != b->space)
        return a->space < b->space ? -1 : 1;
    if (a->lo != b->lo)
        return a->lo < b->lo ? -1 : 1;
    return a->interval < b->interval ? -1 : 1;
}

/* Visits every pair of intervals that share bytes. The first pass counts, the second (`fill`) writes the lists. */
static err_t each_overlap(const struct program *p, struct interval_table *ret, const struct sorted_interval *s,
                          bool fill, struct why *why)
{
    for (int i = 0; i < ret->n; i++) {
        for (int k = i + 1; k < ret->n && s[k].space == s[i].space && s[k].lo < s[i].hi; k++) {
            int a = s[i].interval, b = s[k].interval;
            if (s[i].space != SPACE_WORK && s[i].space != SPACE_SHARED &&
                (s[i].space != SPACE_GRAD || p->sharding.zero < 2))
                return why_set(why, ERR_INVALID, "rank %d: buffers %s and %s share bytes of %s", p->rank,
                               p->buffers[ret->at[a].buffer].name, p->buffers[ret->at[b].buffer].name,
                               space_names[s[i].space]);
            if (fill) {
                ret->overlaps[--ret->overlap_first[a + 1]] = b;
                ret->overlaps[--ret->overlap_first[b + 1]] = a;
            } else {
                ret->overlap_first[a + 1]++;
                ret->overlap_first[b + 1]++;
            }
        }
    }
    return OK;
}

static err_t intervals_overlap(const struct program *p, struct interval_table *ret, struct why *why)
{
    err_t e = ERR_NOMEM;
    struct sorted_interval *s = calloc((size_t)ret->n + 1, sizeof(*s));
    ret->overlap_first = calloc((size_t)ret->n + 2, sizeof(*ret->overlap_first));
    if (!s || !ret->overlap_first)
        goto out_free;
    for (int i = 0; i < ret->n; i++)
        s[i] = (struct sorted_interval){i, (int)p->buffers[ret->at[i].buffer].space, ret->at[i].lo, ret->at[i].hi};
    qsort(s, (size_t)ret->n, sizeof(*s), by_offset);
    e = each_overlap(p, ret, s, false, why);
    if (e)
        goto out_free;
    /* Prefix sums give the ends of the lists. Filling backwards turns entry i + 1 into the start of list i; the memmove
     * below shifts it to entry i. */
    for (int i = 0; i < ret->n; i++)
        ret->overlap_first[i + 1] += ret->overlap_first[i];
    int total = ret->overlap_first[ret->n];
    ret->overlaps = calloc((size_t)total + 1, sizeof(*ret->overlaps));
    if (!ret->overlaps) {
        e = ERR_NOMEM;
        goto out_free;
    }
    e = each_overlap(p, ret, s, true, why);
    memmove(ret->overlap_first, ret->overlap_first + 1, (size_t)ret->n * sizeof(*ret->overlap_first));
    ret->overlap_first[ret->n] = total;
out_free:
    free(s);
    return e;
}

err_t intervals_check(const struct program *p, struct interval_table *ret, struct why *why)
{
    struct interval_table intervals = {0};
    err_t e = OK;
    for (int i = 0; i < p->n_buffers && !e; i++)
        e = check_buffer(p, i, why);
    if (!e)
        e = check_sizes(p, why);
    if (!e)
        e = intervals_make(p, &intervals);
    if (!e)
        e = intervals_under(p, &intervals);
    if (!e)
        e = intervals_overlap(p, &intervals, why);
    if (e) {
        intervals_fini(&intervals);
        return e;
    }
    *ret = intervals;
    return OK;
}
