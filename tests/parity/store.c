/* One mapping: the scalars, then for each name its elements and a counter of writes per element. */
#include "tests/parity/store.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct entry {
    char fqn[SNAPSHOT_NAME_MAX];
    int64_t n;
    size_t size;
    uint8_t *data, *writes;
};

struct store {
    struct entry *entries;
    int n;
    uint8_t *map;
    size_t bytes;
};

static int64_t elements(const struct graph_tensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++)
        n *= t->dim[d].factor;
    return n;
}

static void add_entry(struct store *s, const char *prefix, const char *name, const char *suffix, int64_t n, size_t size)
{
    struct entry *e = &s->entries[s->n++];
    snprintf(e->fqn, sizeof(e->fqn), "%s%s%s", prefix, name, suffix);
    e->n = n;
    e->size = size;
    s->bytes += (size_t)n * (size + 1) + 16;
}

struct store *store_new(const struct graph *g, enum dtype dtype)
{
    struct store *s = calloc(1, sizeof(*s));
    s->entries = calloc((size_t)g->n_tensors * 4, sizeof(*s->entries));
    s->bytes = 64;
    for (int t = 0; t < g->n_tensors; t++) {
        if (!graph_is_stored(&g->tensors[t]))
            continue;
        int64_t n = elements(&g->tensors[t]);
        add_entry(s, "", g->tensors[t].name, "", n, dtype_bytes(g->tensors[t].exact ? DT_F64 : dtype));
        if (g->tensors[t].kind != GT_PARAM)
            continue;
        add_entry(s, "optimizer.state.", g->tensors[t].name, ".exp_avg", n, dtype_bytes(dtype));
        add_entry(s, "optimizer.state.", g->tensors[t].name, ".exp_avg_sq", n, dtype_bytes(dtype));
        add_entry(s, "optimizer.state.", g->tensors[t].name, ".step", 1, sizeof(float));
    }
    s->map = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert(s->map != MAP_FAILED);
    uint8_t *at = s->map + 64;
    for (int i = 0; i < s->n; i++) {
        s->entries[i].data = at;
        s->entries[i].writes = at + (size_t)s->entries[i].n * s->entries[i].size;
        at += ((size_t)s->entries[i].n * (s->entries[i].size + 1) + 15) / 16 * 16;
    }
    return s;
}

void store_free(struct store *s)
{
    munmap(s->map, s->bytes);
    free(s->entries);
    free(s);
}

static struct entry *find_entry(const struct store *s, const char *fqn)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->entries[i].fqn, fqn) == 0)
            return &s->entries[i];
    fprintf(stderr, "the store has no tensor %s\n", fqn);
    abort();
}

/* Index in the whole tensor of element i of the piece's box. */
static int64_t global_index(const struct snapshot_piece *p, int64_t i)
{
    int64_t index = 0, stride = 1;
    for (int d = p->ndim - 1; d >= 0; d--) {
        index += (p->box.offset[d] + i % p->box.size[d]) * stride;
        i /= p->box.size[d];
        stride *= p->shape[d];
    }
    return index;
}

void store_write(struct store *s, const struct snapshot *snapshot, const void *arena)
{
    for (int k = 0; k < snapshot->n; k++) {
        const struct snapshot_piece *p = &snapshot->pieces[k];
        struct entry *e = find_entry(s, p->fqn);
        for (int64_t i = 0; i < box_elements(&p->box); i++) {
            int64_t to = global_index(p, i);
            memcpy(e->data + (size_t)to * e->size, (const uint8_t *)arena + p->arena_offset + (size_t)i * e->size,
                   e->size);
            e->writes[to]++;
        }
    }
}

void store_read(const struct store *s, const struct snapshot *snapshot, void *arena, int first, int end)
{
    for (int k = first; k < end; k++) {
        const struct snapshot_piece *p = &snapshot->pieces[k];
        const struct entry *e = find_entry(s, p->fqn);
        for (int64_t i = 0; i < box_elements(&p->box); i++)
            memcpy((uint8_t *)arena + p->arena_offset + (size_t)i * e->size,
                   e->data + (size_t)global_index(p, i) * e->size, e->size);
    }
}

int64_t store_bad_elements(const struct store *s)
{
    int64_t bad = 0;
    for (int i = 0; i < s->n; i++)
        for (int64_t k = 0; k < s->entries[i].n; k++)
            bad += s->entries[i].writes[k] != 1;
    return bad;
}

int64_t *store_scalars(struct store *s)
{
    return (int64_t *)(void *)s->map;
}

int64_t store_differences(const struct store *a, const struct store *b, char *name)
{
    int64_t n = 0;
    assert(a->n == b->n);
    for (int k = 0; k < a->n; k++) {
        const struct entry *x = &a->entries[k], *y = &b->entries[k];
        assert(x->n == y->n && x->size == y->size && strcmp(x->fqn, y->fqn) == 0);
        for (int64_t i = 0; i < x->n; i++)
            if (memcmp(x->data + (size_t)i * x->size, y->data + (size_t)i * y->size, x->size) != 0 && n++ == 0)
                snprintf(name, SNAPSHOT_NAME_MAX, "%s", x->fqn);
    }
    return n;
}
