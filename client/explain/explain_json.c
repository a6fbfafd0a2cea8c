/* The data of the page. Times are whole nanoseconds, so that the file is short and the page computes without rounding.
 * Lists that have many entries are arrays of numbers:
 *
 *   spans    [action, stream, chunk, micro, stage, start, end, ..]   stage: -1 where the action has no microbatch
 *   memory   [kind, at, bytes, ..]                                   the rank holds so much of the kind from then on
 *   parts    [unit, part, at, bytes, ..]                             the same of a part of a unit
 *   own      [unit, elements, low, high, local low, local high, ..]  its piece of the unit, and that of its local
 *                                                                    tensors, as millionths of the whole
 *   moves    [op, kind, group, unit, layer, micro, flags, turn, start, end, [bytes that each member receives]]
 *            flags: 1 gradients of activations, 2 the way back of an exchange
 */
#include "client/explain/explain.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static json_int_t ns_of(double seconds)
{
    return (json_int_t)llround(seconds * 1e9);
}

static void append_all(json_t *to, const json_int_t *all, int n)
{
    for (int i = 0; i < n; i++)
        json_array_append_new(to, json_integer(all[i]));
}
#define APPEND(to, ...)                               \
    append_all(to, (const json_int_t[]){__VA_ARGS__}, \
               (int)(sizeof((const json_int_t[]){__VA_ARGS__}) / sizeof(json_int_t)))

/* ---- ranks ---- */

static int stage_of(const struct program *p, const struct forecast_box *b)
{
    return b->micro < 0 || b->chunk < 0 || b->chunk >= p->sharding.chunks
               ? -1
               : placement_stage(p->sharding.placement, p->mesh.size[AXIS_PP], p->sharding.coord[AXIS_PP], b->chunk);
}

static json_t *spans_json(const struct explain *x, int rank)
{
    const struct forecast_rank *r = &x->did->ranks[rank];
    json_t *ret = json_array();
    for (int i = 0; i < r->n; i++) {
        const struct forecast_box *b = &r->boxes[i];
        APPEND(ret, b->kind, b->stream, b->chunk, b->micro, stage_of(&x->programs[rank], b), ns_of(b->start),
               ns_of(b->end));
    }
    return ret;
}

static json_t *changes_json(const struct explain_changes *c, int parts)
{
    json_t *ret = json_array();
    for (int i = 0; i < c->n; i++) {
        const struct explain_change *h = &c->all[i];
        if (parts > 1)
            APPEND(ret, h->key / parts, h->key % parts, ns_of(h->at), h->bytes);
        else
            APPEND(ret, h->key, ns_of(h->at), h->bytes);
    }
    return ret;
}

/* A unit is drawn as its largest tensor is cut. */
static int largest_of(const struct explain *x, int rank, int unit)
{
    const struct sharding_param *param = x->programs[rank].sharding.param;
    int best = -1;
    for (int t = 0; t < x->graph->n_tensors; t++)
        if (explain_has(x, rank, t, unit) &&
            (best < 0 || param[t].rows * param[t].cols > param[best].rows * param[best].cols))
            best = t;
    return best;
}

static json_int_t millionths(int box, int boxes, int64_t row, int64_t rows)
{
    return (json_int_t)llround(1e6 * (box + (rows ? (double)row / (double)rows : 0)) / boxes);
}

static json_t *own_json(const struct explain *x, int rank)
{
    json_t *ret = json_array();
    for (int unit = 0; unit < x->graph->n_units; unit++) {
        const int t = largest_of(x, rank, unit);
        if (t < 0)
            continue;
        const struct sharding_param *s = &x->programs[rank].sharding.param[t];
        int64_t elements = 0;
        for (int i = 0; i < x->graph->n_tensors; i++)
            if (explain_has(x, rank, i, unit)) {
                const struct sharding_param *o = &x->programs[rank].sharding.param[i];
                elements += (o->hi - o->lo) * o->cols;
            }
        APPEND(ret, unit, elements, millionths(s->box, s->boxes, s->lo, s->rows),
               millionths(s->box, s->boxes, s->hi, s->rows), millionths(s->box, s->boxes, 0, 1),
               millionths(s->box, s->boxes, 1, 1));
    }
    return ret;
}

static json_t *coords_json(const struct explain *x, int rank)
{
    json_t *ret = json_array();
    for (int a = 0; a < AXIS_COUNT; a++)
        APPEND(ret, x->programs[rank].sharding.coord[a]);
    return ret;
}

static json_t *rank_json(const struct explain *x, int rank)
{
    const struct program *p = &x->programs[rank];
    const struct explain_rank *r = &x->ranks[rank];
    json_t *reserved = json_array(), *stages = json_array();
    for (int s = 0; s < SPACE_COUNT; s++)
        APPEND(reserved, r->reserved[s]);
    for (int c = 0; c < p->sharding.chunks; c++)
        APPEND(stages, placement_stage(p->sharding.placement, p->mesh.size[AXIS_PP], p->sharding.coord[AXIS_PP], c));
    return json_pack("{s:o, s:o, s:o, s:I, s:I, s:o, s:o, s:o, s:o}", "coords", coords_json(x, rank), "stages", stages,
                     "reserved", reserved, "arena", (json_int_t)p->arena_bytes, "peak", (json_int_t)r->peak, "spans",
                     spans_json(x, rank), "memory", changes_json(&r->memory, 1), "parts",
                     changes_json(&r->units, EXPLAIN_PARTS), "own", own_json(x, rank));
}

/* ---- moves ---- */

/* The index of the move's ranks in `groups`; a new group is appended. */
static int group_of(json_t *groups, const struct explain_move *m)
{
    json_t *own = json_array();
    size_t i;
    json_t *group;
    for (int k = 0; k < m->n; k++)
        APPEND(own, m->ranks[k]);
    json_array_foreach(groups, i, group) if (json_equal(json_object_get(group, "ranks"), own))
    {
        json_decref(own);
        return (int)i;
    }
    char axes[MESH_AXES_NAME];
    json_array_append_new(groups, json_pack("{s:o, s:s}", "ranks", own, "axes", mesh_axes_name(m->axes, axes)));
    return (int)json_array_size(groups) - 1;
}

static json_t *moves_json(const struct explain *x, json_t *groups)
{
    json_t *ret = json_array();
    for (int i = 0; i < x->n_moves; i++) {
        const struct explain_move *m = &x->moves[i];
        json_t *row = json_array(), *in = json_array();
        int64_t sum = 0;
        for (int k = 0; k < m->n; k++) {
            APPEND(in, m->in[k]);
            sum += m->in[k];
        }
        APPEND(row, m->kind, m->what, sum ? group_of(groups, m) : -1, m->unit, m->layer, m->micro,
               m->gradient + 2 * m->back, m->turn, ns_of(m->start), ns_of(m->end));
        json_array_append_new(row, in);
        if (sum)
            json_array_append_new(ret, row);
        else
            json_decref(row);
    }
    return ret;
}

/* ---- names ---- */

static json_t *names_json(const char *const *names, int n)
{
    json_t *ret = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(ret, json_string(names[i]));
    return ret;
}

static json_t *op_names_json(void)
{
    json_t *ret = json_array();
    for (int i = 0; i < OP_KIND_COUNT; i++)
        json_array_append_new(ret, json_string(op_name((enum op_kind)i)));
    return ret;
}

static json_t *action_names_json(void)
{
    json_t *ret = json_array();
    for (int i = 0; i < ACT_COUNT; i++)
        json_array_append_new(ret, json_string(action_name((enum action_kind)i)));
    return ret;
}

static json_t *units_json(const struct graph *g)
{
    json_t *ret = json_array();
    for (int u = 0; u < g->n_units; u++) {
        char name[32];
        int64_t elements = 0;
        for (int t = 0; t < g->n_tensors; t++)
            if (g->tensors[t].kind == GT_PARAM && g->tensors[t].unit == u)
                elements += (g->tensors[t].ndim > 1 ? g->tensors[t].dim[1].factor : 1) * g->tensors[t].dim[0].factor;
        json_array_append_new(ret, json_pack("{s:s, s:I}", "name", explain_unit_name(g, u, name, sizeof(name)),
                                             "elements", (json_int_t)elements));
    }
    return ret;
}

static json_t *axes_json(const struct mesh *m)
{
    json_t *ret = json_array();
    for (int a = 0; a < AXIS_COUNT; a++)
        json_array_append_new(ret, json_pack("[s, i]", mesh_axis_name((enum mesh_axis)a), m->size[a]));
    return ret;
}

json_t *explain_json(const struct explain *x, const char *name, const char *about)
{
    static const char *const kinds[EXPLAIN_KINDS] = {"optimizer state", "parameters", "gradients", "activations",
                                                     "buffers"};
    static const char *const streams[STREAM_COUNT] = {"compute", "comm", "copy"};
    json_t *ranks = json_array(), *groups = json_array(), *moves = moves_json(x, groups);
    for (int r = 0; r < x->n; r++)
        json_array_append_new(ranks, rank_json(x, r));
    return json_pack("{s:s, s:s, s:b, s:I, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name", name,
                     "about", about, "measured", x->did != &x->forecast, "end", ns_of(x->seconds), "bubble",
                     x->did->bubble, "exposed", x->did->exposed, "axes", axes_json(&x->programs[0].mesh), "kinds",
                     names_json(kinds, EXPLAIN_KINDS), "streams", names_json(streams, STREAM_COUNT), "actions",
                     action_names_json(), "ops", op_names_json(), "units", units_json(x->graph), "ranks", ranks,
                     "groups", groups, "moves", moves);
}
