/* See layout.h. */
#include "common/mesh/mesh.h"

#include <stdio.h>

int mesh_workers(const struct mesh *m)
{
    int n = 1;
    for (int a = 0; a < AXIS_COUNT; a++)
        n *= m->size[a];
    return n;
}

void mesh_coords(const struct mesh *m, int rank, int ret[AXIS_COUNT])
{
    for (int a = AXIS_COUNT - 1; a >= 0; a--) {
        ret[a] = rank % m->size[a];
        rank /= m->size[a];
    }
}

/* Whether `ep` ranks fold over the axes. */
static bool fold_axes(const struct mesh *m, int64_t ep, struct mesh_fold *ret)
{
    static const enum mesh_axis order[] = {AXIS_TP, AXIS_CP, AXIS_FSDP};
    struct mesh_fold f = {.axes = 0};
    for (int a = 0; a < AXIS_COUNT; a++)
        f.share[a] = 1;
    for (int i = 0; i < 3 && ep > 1; i++) {
        const int64_t size = m->size[order[i]], share = ep < size ? ep : size;
        if (size % share || ep % share)
            return false;
        f.share[order[i]] = (int)share;
        f.axes |= share > 1 ? 1u << order[i] : 0;
        ep /= share;
    }
    *ret = f;
    return ep == 1;
}

bool mesh_fold_init(const struct mesh *m, int64_t ep, struct mesh_fold *ret, int64_t *ret_near)
{
    const int64_t most = (int64_t)m->size[AXIS_TP] * m->size[AXIS_CP] * m->size[AXIS_FSDP];
    struct mesh_fold f;
    int64_t near = ep < 1 ? 1 : ep < most ? ep : most, below = near, above = near;
    while (!fold_axes(m, below, &f)) /* 1 always has a fold, and `most` too */
        below--;
    while (!fold_axes(m, above, &f))
        above++;
    near = above - near < near - below ? above : below;
    if (ret_near)
        *ret_near = near;
    if (near != ep || !fold_axes(m, ep, &f))
        return false;
    if (ret)
        *ret = f;
    return true;
}

const char *mesh_axis_name(enum mesh_axis axis)
{
    static const char *const names[AXIS_COUNT] = {"pp", "dp", "fsdp", "cp", "tp"};
    return (unsigned)axis < AXIS_COUNT ? names[axis] : "?";
}

const char *mesh_axes_name(unsigned axes, char *text)
{
    size_t at = 0;
    text[0] = 0;
    for (int a = 0; a < AXIS_COUNT && at < MESH_AXES_NAME; a++)
        if (axes >> a & 1)
            at += (size_t)snprintf(text + at, MESH_AXES_NAME - at, "%s%s", at ? " x " : "",
                                   mesh_axis_name((enum mesh_axis)a));
    return text;
}

void traffic_add(struct traffic *t, unsigned axes, int64_t bytes)
{
    if (!bytes || t->n == TRAFFIC_SETS)
        return;
    t->axes[t->n] = axes;
    t->bytes[t->n++] = bytes;
}

void layout_split(int64_t n, int parts, int index, int64_t *ret_lo, int64_t *ret_hi)
{
    int64_t each = n / parts, more = n % parts; /* the first `more` parts have one unit more */
    *ret_lo = index * each + (index < more ? index : more);
    *ret_hi = *ret_lo + each + (index < more ? 1 : 0);
}
