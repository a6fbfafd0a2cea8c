/* Groups of ranks.
 *
 * A set of axes partitions all ranks into groups. The first call for a set adds all of them to the program's list, not
 * only the caller's own. The list is therefore equal on all ranks as long as all ranks call for the same sets in the
 * same order. Rules call by axes and by tensors, which are the same on all ranks, and they call even where this rank
 * has no use for the group. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <stdlib.h>
#include <string.h>

static bool same_group(const struct group *a, const int *ranks, int n)
{
    return a->n == n && !memcmp(a->ranks, ranks, (size_t)n * sizeof(*ranks));
}

static int find_group(const struct program *p, const int *ranks, int n)
{
    for (int i = 0; i < p->n_groups; i++)
        if (same_group(&p->groups[i], ranks, n))
            return i;
    return -1;
}

static void add_group(struct compiler *c, unsigned axes, const int *ranks, int n)
{
    struct program *p = c->p;
    struct group *grown = realloc(p->groups, ((size_t)p->n_groups + 1) * sizeof(*grown));
    int *copy = malloc(((size_t)n + 1) * sizeof(*copy));
    if (grown)
        p->groups = grown;
    if (!grown || !copy) {
        free(copy);
        c->err = ERR_NOMEM;
        return;
    }
    memcpy(copy, ranks, (size_t)n * sizeof(*ranks));
    p->groups[p->n_groups++] = (struct group){.n = n, .ranks = copy, .axes = axes};
}

/* Whether a peer over the axes belongs to the rank's group. */
typedef bool (*alike_fn)(const struct compiler *c, const struct sharding *of, const int peer[AXIS_COUNT], int t);

static int group_members(const struct compiler *c, const struct sharding *of, unsigned axes, alike_fn alike, int t,
                         int *ret)
{
    int all = sharding_group(of, axes, ret), n = 0;
    for (int i = 0; i < all; i++) {
        int coord[AXIS_COUNT];
        mesh_coords(&of->mesh, ret[i], coord);
        if (!alike || alike(c, of, coord, t))
            ret[n++] = ret[i];
    }
    return n;
}

/* Adds each group once, at its first member. Different sets of axes of size > 1 give different groups, so only groups
 * by tensor can already be in the list. */
static void add_all(struct compiler *c, unsigned axes, alike_fn alike, int t, int *ranks)
{
    struct sharding of = c->p->sharding;
    for (int r = 0; r < mesh_workers(&of.mesh) && !c->err; r++) {
        of.rank = r;
        mesh_coords(&of.mesh, r, of.coord);
        bool first = !alike || alike(c, &of, of.coord, t); /* else the rank is in no such group */
        for (int a = 0; a < AXIS_COUNT && !alike; a++)
            first &= of.coord[a] == 0 || !(axes & (1u << a));
        int n = first ? group_members(c, &of, axes, alike, t, ranks) : 0;
        if (n > 1 && ranks[0] == r && (!alike || find_group(c->p, ranks, n) < 0))
            add_group(c, axes, ranks, n);
    }
}

static int find_or_add(struct compiler *c, unsigned axes, alike_fn alike, int t)
{
    int *ranks = malloc(((size_t)mesh_workers(&c->p->mesh) + 1) * sizeof(*ranks)), found = -1;
    if (!ranks)
        c->err = ERR_NOMEM;
    else if (!c->sizes_only)
        add_all(c, axes, alike, t, ranks);
    if (!c->err) {
        int n = group_members(c, &c->p->sharding, axes, alike, t, ranks);
        found = n > 1 ? find_group(c->p, ranks, n) : -1;
        if (n > 1 && found < 0) { /* sizes_only: other ranks' groups were not added */
            add_group(c, axes, ranks, n);
            found = c->p->n_groups - 1;
        }
    }
    free(ranks);
    return found;
}

/* Axes of size 1 are ignored; the group of all ranks is group 0 from the start. */
int compile_group(struct compiler *c, unsigned axes)
{
    unsigned all = 0;
    for (int a = 0; a < AXIS_COUNT; a++)
        all |= c->p->mesh.size[a] > 1 ? 1u << a : 0;
    axes &= all;
    if (axes == all)
        return all ? 0 : -1;
    int *known = &c->group_of[axes];
    if (!*known) {
        int found = axes ? find_or_add(c, axes, NULL, -1) : -1;
        *known = found < 0 ? -1 : found + 1;
    }
    return *known < 0 ? -1 : *known - 1;
}

/* Whether a peer belongs to the rank's group of expert parallelism, or has the rank's place in another one. */
static bool in_fold(const struct compiler *c, const struct sharding *of, const int peer[AXIS_COUNT], int place)
{
    (void)c;
    for (int a = 0; a < AXIS_COUNT; a++) {
        const int share = of->ep.share[a];
        if (place ? peer[a] % share != of->coord[a] % share : peer[a] / share != of->coord[a] / share)
            return false;
    }
    return true;
}

/* The axes of `axes` that the fold does not take a part of. */
static unsigned whole_axes(const struct compiler *c, unsigned axes, unsigned *ret_parts)
{
    const struct sharding *s = &c->p->sharding;
    *ret_parts = 0;
    for (int a = 0; a < AXIS_COUNT; a++)
        *ret_parts |= axes >> a & s->ep.axes >> a & 1 && sharding_rest(s, a) > 1 ? 1u << a : 0;
    return axes & ~*ret_parts;
}

static int group_of_fold(struct compiler *c, unsigned axes, bool place)
{
    int *known = &c->group_of_fold[place][axes];
    if (!*known) {
        int found = find_or_add(c, axes, in_fold, place);
        *known = found < 0 ? -1 : found + 1;
    }
    return *known < 0 ? -1 : *known - 1;
}

int compile_group_experts(struct compiler *c)
{
    unsigned parts;
    whole_axes(c, c->p->sharding.ep.axes, &parts);
    return parts ? group_of_fold(c, c->p->sharding.ep.axes, false) : compile_group(c, c->p->sharding.ep.axes);
}

int compile_group_rest(struct compiler *c, unsigned axes)
{
    unsigned parts, whole = whole_axes(c, axes, &parts) & ~c->p->sharding.ep.axes;
    if (MUTANT(EXPERTS_SUMMED_OVER_THE_AXIS))
        return compile_group(c, whole | parts);
    if (MUTANT(EXPERTS_NOT_SUMMED))
        return compile_group(c, whole);
    return parts ? group_of_fold(c, whole | parts, true) : compile_group(c, whole);
}

static bool same_box(const struct compiler *c, const struct sharding *of, const int peer[AXIS_COUNT], int t)
{
    return sharding_same_box(of, c->g, t, peer, of->coord);
}

int compile_group_tp_box(struct compiler *c, int t)
{
    return find_or_add(c, 1u << AXIS_TP, same_box, t);
}

static bool both_use(const struct compiler *c, const struct sharding *of, const int peer[AXIS_COUNT], int t)
{
    return sharding_uses(of, peer[AXIS_PP], t) && sharding_uses(of, of->coord[AXIS_PP], t);
}

int compile_group_stages(struct compiler *c, int t)
{
    return find_or_add(c, 1u << AXIS_PP, both_use, t);
}

static struct op *collective(struct compiler *c, enum op_kind kind, int node, int group)
{
    struct op *op = compile_op(c, kind, node);
    op->stream = STREAM_COMM;
    op->group = group;
    return op;
}

struct op *compile_collective(struct compiler *c, enum op_kind kind, int node, unsigned axes)
{
    return collective(c, kind, node, compile_group(c, axes));
}

struct op *compile_collective_experts(struct compiler *c, enum op_kind kind, int node)
{
    return collective(c, kind, node, compile_group_experts(c));
}
