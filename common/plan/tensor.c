/* What tensor and sequence parallelism leave a rank of a tensor. */
#include "common/plan/compile.h"

#include <assert.h>

static int tp_size(const struct compiler *c)
{
    return c->p->mesh.size[AXIS_TP];
}

static int tp_index(const struct compiler *c)
{
    return c->p->place.coord[AXIS_TP];
}

bool compile_is_own(const struct compiler *c, int t)
{
    const struct graph_tensor *g = &c->g->tensors[t];
    return c->own && !g->cut.segments && (g->kind == GT_ACTIVATION || g->kind == GT_STAT);
}

struct graph_dim compile_local(const struct compiler *c, int t, int d)
{
    const struct graph_tensor *g = &c->g->tensors[t];
    struct graph_dim dim = g->dim[d];
    if (g->cut.segments && g->cut.dim == d)
        dim.factor = place_cut_extent(&g->cut, dim.factor, tp_size(c), tp_index(c));
    if (dim.sym == SYM_TOKENS && compile_is_own(c, t))
        dim.sym = SYM_OWN;
    return dim;
}

int64_t compile_cols(const struct compiler *c, int t)
{
    return c->g->tensors[t].ndim > 1 ? compile_local(c, t, 1).factor : 1;
}

struct graph_dim compile_rows(const struct compiler *c, int t)
{
    return (struct graph_dim){compile_is_own(c, t) ? SYM_OWN : SYM_TOKENS, 1};
}

int64_t compile_heads(const struct compiler *c, int t, int64_t all)
{
    const struct graph_cut *cut = &c->g->tensors[t].cut;
    int64_t lo, hi;
    if (!cut->segments)
        return all;
    place_cut(cut, tp_size(c), tp_index(c), &lo, &hi);
    return hi - lo;
}

int64_t compile_col(const struct compiler *c, int t, int64_t col)
{
    const struct graph_tensor *g = &c->g->tensors[t];
    if (!g->cut.segments || !col)
        return col;
    int64_t width = g->dim[1].factor / g->cut.segments;
    assert(g->cut.dim == 1 && col % width == 0);
    return col / width * (compile_cols(c, t) / g->cut.segments);
}
