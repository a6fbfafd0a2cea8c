/* Rows with the same room form a list, and a set of bits has one for each room whose list is not empty. A second set
 * has a bit for each 64 of those, so the next room above a length is found in a few steps. Of rows with equal room the
 * one that got its room last is used. All is determined by the order of the pieces: sorting by length is stable. */
#include "common/data/pack.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

err_t packing_add(struct packing *p, int64_t at, int64_t n)
{
    if (p->n_pieces == p->cap) {
        int64_t cap = p->cap ? 2 * p->cap : 1024;
        struct packing_piece *more = realloc(p->pieces, (size_t)cap * sizeof(*more));
        if (!more)
            return ERR_NOMEM;
        p->pieces = more;
        p->cap = cap;
    }
    p->pieces[p->n_pieces++] = (struct packing_piece){at, (int32_t)n};
    return OK;
}

void packing_fini(struct packing *p)
{
    free(p->pieces);
    free(p->rows);
    *p = (struct packing){0};
}

/* ---- rooms ---- */

struct packer {
    int64_t length;
    uint64_t *bits, *groups; /* rooms whose list is not empty; words of `bits` that are not 0 */
    int64_t *head;           /* [length + 1]: a row with this room, -1 */
    int64_t *next;           /* by row: another row with the same room, -1 */
    int64_t *row;            /* by piece, in the order of placing */
    int64_t *order;          /* pieces from the longest to the shortest */
    int64_t *starts;         /* scratch of both sorts */
};

static void room_push(struct packer *k, int64_t room, int64_t row)
{
    k->next[row] = k->head[room];
    k->head[room] = row;
    k->bits[room / 64] |= (uint64_t)1 << room % 64;
    k->groups[room / 4096] |= (uint64_t)1 << room / 64 % 64;
}

static int64_t room_pop(struct packer *k, int64_t room)
{
    int64_t row = k->head[room];
    k->head[room] = k->next[row];
    if (k->head[room] < 0 && !(k->bits[room / 64] &= ~((uint64_t)1 << room % 64)))
        k->groups[room / 4096] &= ~((uint64_t)1 << room / 64 % 64);
    return row;
}

/* The first bit from `at` on in `n` words; -1: none. */
static int64_t next_bit(const uint64_t *words, int64_t n, int64_t at)
{
    uint64_t word = at / 64 < n ? words[at / 64] & ~(uint64_t)0 << at % 64 : 0;
    int64_t w = at / 64;
    while (!word && ++w < n)
        word = words[w];
    return word ? w * 64 + __builtin_ctzll(word) : -1;
}

/* The least room, at least n, that a row has; -1: none. */
static int64_t least_room(const struct packer *k, int64_t n)
{
    uint64_t word = k->bits[n / 64] & ~(uint64_t)0 << n % 64;
    if (word)
        return n / 64 * 64 + __builtin_ctzll(word);
    int64_t w = next_bit(k->groups, k->length / 4096 + 1, n / 64 + 1);
    return w < 0 ? -1 : w * 64 + __builtin_ctzll(k->bits[w]);
}

/* ---- sorting ---- */

/* Writes the pieces' indices from the longest to the shortest, equal ones in their order. */
static void sort_by_length(const struct packing *p, struct packer *k)
{
    memset(k->starts, 0, (size_t)(k->length + 2) * sizeof(*k->starts));
    for (int64_t i = 0; i < p->n_pieces; i++)
        k->starts[k->length - p->pieces[i].n + 1]++;
    for (int64_t n = 0; n <= k->length; n++)
        k->starts[n + 1] += k->starts[n];
    for (int64_t i = 0; i < p->n_pieces; i++)
        k->order[k->starts[k->length - p->pieces[i].n]++] = i;
}

static int64_t place_all(const struct packing *p, struct packer *k)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < p->n_pieces; i++) {
        const int64_t n = p->pieces[k->order[i]].n, room = least_room(k, n);
        const int64_t row = room < 0 ? rows++ : room_pop(k, room);
        k->row[i] = row;
        room_push(k, (room < 0 ? k->length : room) - n, row);
    }
    return rows;
}

/* Moves the pieces to their rows, in the order in which they were placed. */
static err_t gather_rows(struct packing *p, const struct packer *k, int64_t n_rows)
{
    struct packing_piece *pieces = malloc((size_t)p->n_pieces * sizeof(*pieces));
    int64_t *rows = calloc((size_t)n_rows + 2, sizeof(*rows));
    if (!pieces || !rows) {
        free(pieces);
        free(rows);
        return ERR_NOMEM;
    }
    for (int64_t i = 0; i < p->n_pieces; i++)
        rows[k->row[i] + 2]++;
    for (int64_t r = 2; r <= n_rows + 1; r++)
        rows[r] += rows[r - 1];
    for (int64_t i = 0; i < p->n_pieces; i++) /* leaves in rows[r + 1] the end of row r */
        pieces[rows[k->row[i] + 1]++] = p->pieces[k->order[i]];
    free(p->pieces);
    p->pieces = pieces;
    p->cap = p->n_pieces;
    p->rows = rows;
    p->n_rows = n_rows;
    return OK;
}

static err_t packer_init(struct packer *k, int64_t length, int64_t pieces)
{
    *k = (struct packer){.length = length};
    k->bits = calloc((size_t)length / 64 + 1, sizeof(*k->bits));
    k->groups = calloc((size_t)length / 4096 + 1, sizeof(*k->groups));
    k->head = malloc((size_t)(length + 1) * sizeof(*k->head));
    k->starts = malloc((size_t)(length + 2) * sizeof(*k->starts));
    k->next = malloc((size_t)pieces * sizeof(*k->next));
    k->row = malloc((size_t)pieces * sizeof(*k->row));
    k->order = malloc((size_t)pieces * sizeof(*k->order));
    if (!k->bits || !k->groups || !k->head || !k->starts || !k->next || !k->row || !k->order)
        return ERR_NOMEM;
    memset(k->head, 0xff, (size_t)(length + 1) * sizeof(*k->head));
    return OK;
}

static void packer_fini(struct packer *k)
{
    void *all[] = {k->bits, k->groups, k->head, k->starts, k->next, k->row, k->order};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

err_t packing_finish(struct packing *p, int64_t length)
{
    struct packer k;
    if (!p->n_pieces)
        return ERR_INVALID;
    err_t err = packer_init(&k, length, p->n_pieces);
    if (!err) {
        sort_by_length(p, &k);
        err = gather_rows(p, &k, place_all(p, &k));
    }
    packer_fini(&k);
    return err;
}
