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

bool mesh_ep_axes(const struct mesh *m, int64_t ep, unsigned *ret, int64_t *ret_near)
{
    static const enum mesh_axis order[] = {AXIS_TP, AXIS_CP, AXIS_FSDP};
    int64_t product = 1;
    unsigned axes = 0;
    *ret_near = 1;
    for (int i = 0; i < 3 && product < ep; i++) {
        axes |= m->size[order[i]] > 1 ? 1u << order[i] : 0;
        product *= m->size[order[i]];
        if (product - ep < ep - *ret_near || product <= ep)
            *ret_near = product;
    }
    *ret = axes;
    return product == ep;
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
