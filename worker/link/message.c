/* Builds the two large messages. All pieces of a message, with their boxes and numbers, lie in one allocation, so a
 * message needs a few allocations and not several per piece. */
#include "worker/link/internal.h"

#include <stdlib.h>
#include <string.h>

struct piece_mem {
    Dtd__Piece piece;
    Dtd__BoxMsg box;
    int64_t shape[BOX_MAX_DIMS], offset[BOX_MAX_DIMS], size[BOX_MAX_DIMS];
    char fqn[SNAPSHOT_NAME_MAX];
};

static void fill_piece(struct piece_mem *m, const struct snapshot_piece *s)
{
    dtd__piece__init(&m->piece);
    dtd__box_msg__init(&m->box);
    memcpy(m->fqn, s->fqn, sizeof(m->fqn));
    for (int d = 0; d < s->ndim; d++) {
        m->shape[d] = s->shape[d];
        m->offset[d] = s->box.offset[d];
        m->size[d] = s->box.size[d];
    }
    m->box.offset = m->offset;
    m->box.size = m->size;
    m->piece.shape = m->shape;
    m->box.n_offset = m->box.n_size = m->piece.n_shape = (size_t)s->ndim;
    m->piece.fqn = m->fqn;
    m->piece.dtype = (int32_t)s->dtype;
    m->piece.box = &m->box;
    m->piece.arena_offset = (int64_t)s->arena_offset;
}

/* One allocation holds the array of pointers and after it the pieces. */
static Dtd__Piece **pieces_new(const struct snapshot_piece *s, int n)
{
    size_t pointers = ((size_t)n * sizeof(Dtd__Piece *) + 63) / 64 * 64;
    uint8_t *mem = calloc(1, pointers + (size_t)n * sizeof(struct piece_mem) + 1);
    if (!mem)
        return NULL;
    Dtd__Piece **ret = (Dtd__Piece **)(void *)mem;
    struct piece_mem *m = (struct piece_mem *)(void *)(mem + pointers);
    for (int i = 0; i < n; i++) {
        fill_piece(&m[i], &s[i]);
        ret[i] = &m[i].piece;
    }
    return ret;
}

struct scalar_mem {
    Dtd__Scalar scalar;
    double pair[2];
};

static void fill_scalar(struct scalar_mem *m, const struct ckpt_scalar *s, char *fqn)
{
    dtd__scalar__init(&m->scalar);
    m->scalar.fqn = fqn;
    m->scalar.has_i = s->kind == CKPT_INT;
    m->scalar.i = s->i;
    m->scalar.has_f = s->kind == CKPT_FLOAT;
    m->scalar.f = s->f[0];
    m->scalar.has_b = s->kind == CKPT_BOOL;
    m->scalar.b = s->i != 0;
    m->pair[0] = s->f[0];
    m->pair[1] = s->f[1];
    m->scalar.pair = m->pair;
    m->scalar.n_pair = s->kind == CKPT_FLOAT_PAIR ? 2 : 0;
}

/* One allocation holds the pointers, the scalars and their names. */
static Dtd__Scalar **scalars_new(const struct ckpt_scalar *s, int n)
{
    size_t pointers = ((size_t)n * sizeof(Dtd__Scalar *) + 63) / 64 * 64, names = 0;
    for (int i = 0; i < n; i++)
        names += strlen(s[i].fqn) + 1;
    uint8_t *mem = calloc(1, pointers + (size_t)n * sizeof(struct scalar_mem) + names + 1);
    if (!mem)
        return NULL;
    Dtd__Scalar **ret = (Dtd__Scalar **)(void *)mem;
    struct scalar_mem *m = (struct scalar_mem *)(void *)(mem + pointers);
    char *name = (char *)(m + n);
    for (int i = 0; i < n; i++) {
        strcpy(name, s[i].fqn);
        fill_scalar(&m[i], &s[i], name);
        ret[i] = &m[i].scalar;
        name += strlen(name) + 1;
    }
    return ret;
}

Dtd__SaveRequest *message_save_new(const struct link *l, const struct link_save *s)
{
    Dtd__SaveRequest *m = calloc(1, sizeof(*m));
    if (!m)
        return NULL;
    dtd__save_request__init(m);
    m->epoch = l->epoch;
    m->step = s->step;
    m->rank = l->rank;
    m->world = s->world;
    m->has_loss = true;
    m->loss = s->loss;
    m->piece = pieces_new(s->snapshot->pieces, s->snapshot->n);
    m->scalar = scalars_new(s->scalars, s->n_scalars);
    if (!m->piece || !m->scalar) {
        message_save_free(m);
        return NULL;
    }
    m->n_piece = (size_t)s->snapshot->n;
    m->n_scalar = (size_t)s->n_scalars;
    return m;
}

void message_save_free(Dtd__SaveRequest *m)
{
    if (!m)
        return;
    free(m->piece);
    free(m->scalar);
    free(m);
}

Dtd__LoadRequest *message_load_new(const struct link_load *load)
{
    Dtd__LoadRequest *m = calloc(1, sizeof(*m));
    if (!m)
        return NULL;
    dtd__load_request__init(m);
    m->path = strdup(load->path);
    m->piece = pieces_new(load->snapshot->pieces + load->first, load->end - load->first);
    m->scalar = (char **)(uintptr_t)load->names; /* only read */
    if (!m->path || !m->piece) {
        message_load_free(m);
        return NULL;
    }
    m->n_piece = (size_t)(load->end - load->first);
    m->n_scalar = (size_t)load->n_names;
    return m;
}

void message_load_free(Dtd__LoadRequest *m)
{
    if (!m)
        return;
    free(m->path);
    free(m->piece);
    free(m);
}
