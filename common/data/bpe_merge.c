/* Two algorithms with the same result. Words are short: the ranks of their pairs are in an array, and the minimum is
 * searched again after each merge, which is quadratic but fast. Long pieces (a line of letters, the dashes of a table)
 * use a linked list and a heap of (rank, place); with the quadratic algorithm 1 MB of text without a space would take
 * hours. */
#include "common/data/bpe_priv.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#define SHORT 96       /* bytes; longer pieces use the heap */
#define NONE INT32_MAX /* the rank of a pair that does not merge */
#define CHILDREN 4     /* of a place in the heap; with two, the heap of a long piece misses the cache twice as often */

/* ---- the table ---- */

static uint32_t slot_of(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    uint32_t slot = (uint32_t)(h >> 32) & b->mask;
    const struct bpe_merge *m;
    for (; (m = &b->merges[slot])->id >= 0; slot = (slot + 1) & b->mask)
        if (m->left == left && m->right == right)
            break;
    return slot;
}

err_t bpe_merges_init(struct bpe *b, size_t n)
{
    uint32_t slots = 1024;
    if (n > BPE_MAX_TOKENS)
        return ERR_LIMIT;
    while (slots < 2 * n)
        slots *= 2;
    b->merges = malloc(slots * sizeof(*b->merges));
    if (!b->merges)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < slots; i++)
        b->merges[i].id = -1;
    b->mask = slots - 1;
    return OK;
}

void bpe_merges_add(struct bpe *b, int32_t left, int32_t right, int32_t rank, int32_t id)
{
    b->merges[slot_of(b, left, right)] = (struct bpe_merge){left, right, rank, id};
}

const struct bpe_merge *bpe_merges_find(const struct bpe *b, int32_t left, int32_t right)
{
    const struct bpe_merge *m = &b->merges[slot_of(b, left, right)];
    return m->id < 0 ? NULL : m;
}

/* The pair's rank; sets `made` if it has one. */
static inline int32_t rank_of(const struct bpe *b, int32_t left, int32_t right, int32_t *made)
{
    const struct bpe_merge *m = &b->merges[slot_of(b, left, right)];
    if (m->id < 0)
        return NONE;
    *made = m->id;
    return m->rank;
}

/* ---- short pieces ---- */

static size_t least(const int32_t *ranks, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (ranks[i] < ranks[best])
            best = i;
    return best;
}

static size_t merge_short(const struct bpe *b, size_t n, int32_t *ids)
{
    int32_t ranks[SHORT], made[SHORT];
    for (size_t i = 0; i + 1 < n; i++)
        ranks[i] = rank_of(b, ids[i], ids[i + 1], &made[i]);
    while (n > 1) {
        size_t i = least(ranks, n - 1), after = n - i - 2; /* number of ids after the pair */
        if (ranks[i] == NONE)
            break;
        ids[i] = made[i];
        memmove(&ids[i + 1], &ids[i + 2], after * sizeof(*ids));
        memmove(&ranks[i], &ranks[i + 1], after * sizeof(*ranks));
        memmove(&made[i], &made[i + 1], after * sizeof(*made));
        n--;
        if (i + 1 < n)
            ranks[i] = rank_of(b, ids[i], ids[i + 1], &made[i]);
        if (i > 0)
            ranks[i - 1] = rank_of(b, ids[i - 1], ids[i], &made[i - 1]);
    }
    return n;
}

/* ---- long pieces ---- */

void bpe_work_fini(struct bpe_work *w)
{
    free(w->ids);
    free(w->next);
    free(w->prev);
    free(w->ranks);
    free(w->heap);
    *w = (struct bpe_work){.steps = w->steps};
}

/* The heap needs 2 n entries: every place is pushed once at the start, and each merge pops one and pushes at most two.
 */
static err_t work_reserve(struct bpe_work *w, size_t n)
{
    if (n <= w->cap)
        return OK;
    bpe_work_fini(w);
    w->ids = malloc(n * sizeof(*w->ids));
    w->next = malloc(n * sizeof(*w->next));
    w->prev = malloc(n * sizeof(*w->prev));
    w->ranks = malloc(n * sizeof(*w->ranks));
    w->heap = malloc(2 * n * sizeof(*w->heap));
    if (!w->ids || !w->next || !w->prev || !w->ranks || !w->heap) {
        bpe_work_fini(w);
        return ERR_NOMEM;
    }
    w->cap = n;
    return OK;
}

static void heap_push(struct bpe_work *w, uint64_t key)
{
    size_t i = w->n_heap++;
    for (; i && w->heap[(i - 1) / CHILDREN] > key; i = (i - 1) / CHILDREN)
        w->heap[i] = w->heap[(i - 1) / CHILDREN];
    w->heap[i] = key;
    w->steps++;
}

static uint64_t heap_pop(struct bpe_work *w)
{
    uint64_t top = w->heap[0], key = w->heap[--w->n_heap];
    size_t i = 0, first;
    while ((first = CHILDREN * i + 1) < w->n_heap) {
        size_t child = first, end = first + CHILDREN < w->n_heap ? first + CHILDREN : w->n_heap;
        for (size_t other = first + 1; other < end; other++)
            child = w->heap[other] < w->heap[child] ? other : child;
        if (w->heap[child] >= key)
            break;
        w->heap[i] = w->heap[child];
        i = child;
        w->steps++;
    }
    w->heap[i] = key;
    return top;
}

/* Updates the pair at i, whose ids may have changed. */
static void pair_update(const struct bpe *b, struct bpe_work *w, int32_t i)
{
    int32_t made;
    w->ranks[i] = w->next[i] < 0 ? NONE : rank_of(b, w->ids[i], w->ids[w->next[i]], &made);
    if (w->ranks[i] != NONE)
        heap_push(w, (uint64_t)w->ranks[i] << 32 | (uint32_t)i);
}

static void merge_at(const struct bpe *b, struct bpe_work *w, int32_t i)
{
    int32_t gone = w->next[i];
    rank_of(b, w->ids[i], w->ids[gone], &w->ids[i]);
    w->next[i] = w->next[gone];
    w->ranks[gone] = NONE;
    if (w->next[i] >= 0)
        w->prev[w->next[i]] = i;
    pair_update(b, w, i);
    if (w->prev[i] >= 0)
        pair_update(b, w, w->prev[i]);
}

/* Leaves in w->ranks the number of the id with which each of the new ids begins. */
static size_t merge_long(const struct bpe *b, size_t n, struct bpe_work *w, int32_t *ret)
{
    size_t count = 0;
    w->n_heap = 0;
    for (size_t i = 0; i < n; i++) {
        w->ids[i] = ret[i];
        w->prev[i] = (int32_t)i - 1;
        w->next[i] = i + 1 < n ? (int32_t)i + 1 : -1;
    }
    for (size_t i = 0; i < n; i++)
        pair_update(b, w, (int32_t)i);
    while (w->n_heap) {
        uint64_t top = heap_pop(w);
        int32_t i = (int32_t)(uint32_t)top;
        if (w->ranks[i] == (int32_t)(top >> 32)) /* else the heap entry is out of date */
            merge_at(b, w, i);
    }
    for (int32_t i = 0, next; i >= 0; i = next) {
        next = w->next[i];
        w->ranks[count] = i; /* count <= i, and ranks are not needed any more */
        ret[count++] = w->ids[i];
    }
    return count;
}

/* ---- either algorithm ---- */

err_t bpe_merge_ids(const struct bpe *b, int32_t *ids, size_t n, struct bpe_work *work, const uint32_t **ret_starts,
                    size_t *ret_n)
{
    if (n <= SHORT && !ret_starts) {
        *ret_n = merge_short(b, n, ids);
        return OK;
    }
    err_t err = n > INT32_MAX / 4 ? ERR_LIMIT : work_reserve(work, n);
    if (err)
        return err;
    *ret_n = merge_long(b, n, work, ids);
    if (ret_starts)
        *ret_starts = (const uint32_t *)(const void *)work->ranks;
    return OK;
}

err_t bpe_merge_piece(const struct bpe *b, const uint8_t *text, size_t n, struct bpe_work *work, int32_t *ret_ids,
                      size_t *ret_n)
{
    int32_t word = b->whole ? vocab_find(&b->whole_tokens, text, n) : -1;
    if (word >= 0) {
        ret_ids[0] = b->whole_ids[word];
        *ret_n = 1;
        return OK;
    }
    for (size_t i = 0; i < n; i++)
        ret_ids[i] = b->bytes[text[i]];
    return bpe_merge_ids(b, ret_ids, n, work, NULL, ret_n);
}
