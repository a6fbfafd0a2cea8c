/* Buffers, and the offsets of those that live as long as the job: parameters, optimizer state, gradients, host scalars.
 *
 * Everything that belongs to parameters has the same layout, a line:
 *
 *   | unit 0: | tensor a    .| tensor b  ...| unit 1: | tensor c .| ...        . gap
 *
 * unit by unit, in the graph's order, each tensor in a slot as large as the largest rank of the stage needs
 * (sharding.h), aligned to 64 bytes. One op can therefore process a whole unit, and all ranks compute the same offsets
 * without communication. There are two such lines: one of pieces (parameters, moments, summed gradients) and one of
 * local tensors (values in the compute type, and their gradients); without ZeRO they are the same. The gaps are zero
 * from the allocation and stay zero, because ops write only sums of zeros there. Copies in a narrower type keep the
 * index of every element, so the alignment of the wide type is larger by the ratio of the types' sizes. A rank has no
 * buffer for a parameter that its stages do not use. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 64

static int64_t align(int64_t bytes, int64_t to)
{
    assert(to > 0);
    return (bytes + to - 1) / to * to;
}

/* Alignment in bytes of parameters, and of everything with their layout, for elements of a type: the same number of
 * elements in every type. */
static int64_t param_align(const struct compiler *c, enum dtype dtype)
{
    const int64_t size = (int64_t)dtype_bytes(c->p->dtype);
    assert(size > 0);
    return ALIGN / size * (int64_t)dtype_bytes(dtype);
}

static int64_t buffer_bytes(struct compiler *c, const struct buffer *b)
{
    int64_t bytes = (int64_t)dtype_bytes(b->dtype);
    for (int d = 0; d < b->ndim; d++) {
        bool apart = d == 1 && b->pitch && !MUTANT(ROOM_OF_DENSE_ROWS);
        int64_t n = apart ? b->pitch : program_dim(c->p, b->dim[d], c->p->max_samples);
        if (n < 0 || __builtin_mul_overflow(bytes, n, &bytes) || bytes > INT64_MAX / 64) {
            c->err = why_set(c->why, ERR_LIMIT, "%s needs more than 2^57 bytes; lower train.micro_batch or train.seq",
                             b->name);
            return 0;
        }
    }
    return bytes;
}

int compile_buffer(struct compiler *c, const struct buffer *b)
{
    struct program *p = c->p;
    if (c->err)
        return -1;
    if (p->n_buffers == c->cap_buffers) {
        int cap = c->cap_buffers ? 2 * c->cap_buffers : 128;
        struct buffer *grown = realloc(p->buffers, (size_t)cap * sizeof(*grown));
        if (!grown) {
            c->err = ERR_NOMEM;
            return -1;
        }
        p->buffers = grown;
        c->cap_buffers = cap;
    }
    p->buffers[p->n_buffers] = *b;
    if (!b->bytes)
        p->buffers[p->n_buffers].bytes = buffer_bytes(c, b);
    return c->err ? -1 : p->n_buffers++;
}

static void set_name(struct buffer *b, const char *name, const char *suffix)
{
    snprintf(b->name, sizeof(b->name), "%s%s", name, suffix);
}

/* A buffer for tensor t. Values in the compute type are in SPACE_WORK; parameters, their gradients and moments, and
 * statistics have the wide type. */
static struct buffer of_tensor(const struct compiler *c, int t, const char *suffix, enum buffer_space space)
{
    const struct graph_tensor *g = &c->g->tensors[t];
    struct buffer b = {.tensor = t, .ndim = g->ndim, .space = space, .run = -1, .slots = 1};
    bool narrow = space == SPACE_WORK && g->kind != GT_STAT && !(g->wide && !suffix[0]);
    b.dtype = g->kind == GT_INDEX ? DT_I32 : g->kind == GT_NUMBERS ? DT_F64 : narrow ? c->p->dtype : c->p->wide;
    for (int d = 0; d < g->ndim; d++)
        b.dim[d] = tp_local_dim(c, t, d);
    set_name(&b, g->name, suffix);
    return b;
}

static int work_buffer(struct compiler *c, int tensor, struct buffer b)
{
    b.pitch = c->pitched[tensor] ? pitch_of(c, tensor) : 0;
    int i = compile_buffer(c, &b);
    if (i >= 0 && c->p->buffers[i].bytes == 0) /* without own tokens: bytes for the order of ops to follow from */
        c->p->buffers[i].bytes = ALIGN;
    return i;
}

int compile_work_buffer(struct compiler *c, int tensor, const char *suffix)
{
    return work_buffer(c, tensor, of_tensor(c, tensor, suffix, SPACE_WORK));
}

int compile_typed_buffer(struct compiler *c, int tensor, const char *suffix, enum dtype dtype)
{
    struct buffer b = of_tensor(c, tensor, suffix, SPACE_WORK);
    b.dtype = dtype;
    return work_buffer(c, tensor, b);
}

int compile_sent_buffer(struct compiler *c, int b, int index)
{
    struct buffer sent = c->p->buffers[b];
    sent.space = SPACE_SENT;
    sent.run = -1;
    sent.slots = 1;
    sent.slot_bytes = 0;
    sent.slot_index = SLOT_ONE;
    sent.planned = true;
    sent.offset = c->p->space_bytes[SPACE_SENT];
    snprintf(sent.name, sizeof(sent.name), "sent.%d", index);
    int i = compile_buffer(c, &sent);
    if (i >= 0)
        c->p->space_bytes[SPACE_SENT] = align(sent.offset + c->p->buffers[i].bytes, ALIGN);
    return i;
}

/* ---- lines of parameters ---- */

/* Generation with a cache changes no parameter, so it holds them in the compute type and needs no copies. */
static enum dtype param_type(const struct compiler *c)
{
    return c->p->mode == MODE_DECODE ? c->p->dtype : c->p->wide;
}

/* A line to be laid out: a buffer per parameter, a run per unit, and a run over all units. */
struct tensor_line {
    enum buffer_space space;
    enum dtype dtype;
    bool pieces;
    const char *suffix, *unit_name, *name; /* unit_name NULL: no runs of units; name NULL: no run over all */
    int *index, *unit_run;
    bool by_life;                                         /* memory_plan.c assigns offsets, for each unit separately */
    enum { UNITS_ALL, UNITS_DIVIDED, UNITS_WHOLE } units; /* only those that ZeRO divides, or only the others */
};

static int run_new(struct compiler *c, const struct tensor_line *l, const char *name, int64_t offset, int64_t bytes)
{
    struct buffer b = {.tensor = -1, .ndim = 1, .space = l->space, .run = -1, .slots = 1, .dtype = l->dtype};
    int64_t size = (int64_t)dtype_bytes(b.dtype);
    assert(size > 0); /* plan_mesh has checked the dtype */
    b.dim[0] = dim_one(bytes / size);
    b.offset = offset;
    b.planned = !l->by_life;
    set_name(&b, name, "");
    return compile_buffer(c, &b);
}

/* The part of tensor t; -1 where it is empty. */
static int part_new(struct compiler *c, const struct tensor_line *l, int t, int64_t offset)
{
    const struct sharding_param *q = &c->p->sharding.param[t];
    struct buffer b = of_tensor(c, t, l->suffix, l->space);
    b.dtype = l->dtype;
    b.offset = offset;
    b.planned = !l->by_life;
    if (l->pieces)
        b.dim[0].factor = q->hi - q->lo;
    if (b.dim[0].factor == 0)
        return -1;
    return compile_buffer(c, &b);
}

static void set_run(struct compiler *c, int first, int end, int run)
{
    for (int i = first; i < end && !c->err; i++)
        if (c->p->buffers[i].run < 0 && i != run)
            c->p->buffers[i].run = run;
}

/* Adds the buffers of a unit from offset `base` on. Returns the end. */
static int64_t lay_out_unit(struct compiler *c, const struct tensor_line *l, int unit, int64_t base)
{
    int64_t start = base;
    int first = c->p->n_buffers;
    char name[32];
    for (int i = c->held_from[unit]; i < c->held_from[unit + 1] && !c->err; i++) {
        const int t = c->held[i];
        const struct sharding_param *q = &c->p->sharding.param[t];
        l->index[t] = part_new(c, l, t, base);
        base = align(base + (l->pieces ? q->slot : q->full_slot) * (int64_t)dtype_bytes(l->dtype),
                     param_align(c, l->dtype));
    }
    if (!l->unit_name || base == start || c->err)
        return base;
    snprintf(name, sizeof(name), "unit.%d.%s", unit, l->unit_name);
    int end = c->p->n_buffers;
    l->unit_run[unit] = run_new(c, l, name, start, base - start);
    set_run(c, first, end, l->unit_run[unit]);
    return base;
}

/* Adds the buffers of all units. Returns the end; *ret_run is the run over all. */
static int64_t lay_out(struct compiler *c, const struct tensor_line *l, int64_t base, int *ret_run)
{
    int first = c->p->n_buffers;
    int64_t end = base;
    for (int unit = 0; unit < c->g->n_units && !c->err; unit++)
        if (l->units == UNITS_ALL || zero_divides(c, unit) == (l->units == UNITS_DIVIDED))
            end = lay_out_unit(c, l, unit, end);
    if (l->name && !c->err) {
        int n = c->p->n_buffers;
        *ret_run = run_new(c, l, l->name, base, end - base);
        set_run(c, first, n, *ret_run);
    }
    return end;
}

void compile_gathered_params(struct compiler *c, int unit)
{
    const struct tensor_line l = {.space = SPACE_WORK,
                                  .dtype = c->p->dtype,
                                  .suffix = ".full",
                                  .unit_name = "full",
                                  .index = c->value,
                                  .unit_run = c->unit_values,
                                  .by_life = true};
    lay_out_unit(c, &l, unit, 0);
}

/* The states that this rank's stages use, whole, after the parameters. */
static void states_new(struct compiler *c)
{
    struct program *p = c->p;
    struct tensor_line l = {.space = SPACE_PARAM, .suffix = ""};
    const int64_t start = p->space_bytes[SPACE_PARAM];
    const int first = p->n_buffers;
    int64_t end = start;
    for (int t = 0; t < c->g->n_tensors && !c->err; t++)
        if (c->g->tensors[t].kind == GT_STATE && p->sharding.param[t].held) {
            l.dtype = c->g->tensors[t].exact ? DT_F64 : p->wide;
            p->param_buffer[t] = part_new(c, &l, t, end);
            end = align(end + c->g->tensors[t].dim[0].factor * (int64_t)dtype_bytes(l.dtype), ALIGN);
        }
    if (end == start || c->err)
        return;
    const int n = p->n_buffers;
    l.dtype = p->wide;
    c->all_states = run_new(c, &l, "states", start, end - start);
    set_run(c, first, n, c->all_states);
    p->space_bytes[SPACE_PARAM] = end;
}

/* The table of a unit's tensors, for gathers and scatters. */
static void parts_new(struct compiler *c, int unit)
{
    struct program *p = c->p;
    struct fsdp_unit *u = &p->units[unit];
    const int share = compile_unit_of_experts(c, unit) ? p->sharding.ep.share[AXIS_FSDP] : 1;
    int n = p->mesh.size[AXIS_FSDP] / share, first = c->held_from[unit], end = c->held_from[unit + 1];
    int64_t local = 0, piece = 0, each = ALIGN / (int64_t)dtype_bytes(p->dtype);
    u->parts = calloc((size_t)(end - first) + 1, sizeof(*u->parts));
    for (int k = first; k < end && u->parts; k++) {
        const int t = c->held[k];
        const struct sharding_param *q = &p->sharding.param[t];
        struct unit_part *x = &u->parts[u->n];
        *x = (struct unit_part){t, local, piece, calloc((size_t)n, sizeof(*x->counts))};
        if (!x->counts)
            break;
        u->n++;
        for (int i = 0; i < n; i++) {
            int64_t lo, hi;
            sharding_piece(&p->sharding, t, i * share, &lo, &hi);
            x->counts[i] = (hi - lo) * q->cols;
        }
        local = align(local + q->full_slot, each);
        piece = align(piece + q->slot, each);
    }
    c->err = c->err ? c->err : u->parts ? OK : ERR_NOMEM;
}

int compile_cache(struct compiler *c, int node, int in, const char *name)
{
    const struct graph_node *n = &c->g->nodes[node];
    struct program *p = c->p;
    struct buffer b = {.tensor = -1, .dtype = p->dtype, .ndim = 2, .space = SPACE_CACHE, .run = -1, .slots = 1};
    b.dim[0] = dim_one(p->sequences * p->seq);
    b.dim[1] = dim_one(tp_heads(c, n->in[in], n->kv_heads) * n->head_dim);
    b.offset = p->space_bytes[SPACE_CACHE];
    b.planned = true;
    snprintf(b.name, sizeof(b.name), "layer.%d.cache.%s", n->layer, name);
    int i = compile_buffer(c, &b);
    if (i >= 0)
        p->space_bytes[SPACE_CACHE] = align(b.offset + p->buffers[i].bytes, ALIGN);
    return i;
}

/* ---- training ---- */

/* The stack of the canonical tree: tree_depth copies of all gradients, after the gradients themselves; a buffer for
 * each unit. */
static void trees_new(struct compiler *c, const struct tensor_line *grads, int64_t size)
{
    for (int unit = 0; unit < c->g->n_units && !c->err; unit++) {
        char name[32];
        if (c->unit_run[unit] < 0)
            continue;
        const struct buffer run = c->p->buffers[c->unit_run[unit]];
        snprintf(name, sizeof(name), "unit.%d.tree", unit);
        c->unit_tree[unit] = run_new(c, grads, name, size + run.offset, run.bytes);
        if (c->err)
            return;
        struct buffer *tree = &c->p->buffers[c->unit_tree[unit]];
        tree->slots = c->p->tree_depth;
        tree->slot_bytes = tree->slots > 1 ? size : 0;
        tree->slot_index = SLOT_TREE;
    }
}

/* Gradients that live as long as a step: first those of pieces, where they are not the local ones, then local ones. */
static void grads_new(struct compiler *c)
{
    struct program *p = c->p;
    struct tensor_line pieces = {.space = SPACE_GRAD,
                                 .dtype = p->wide,
                                 .pieces = true,
                                 .suffix = ".grad.piece",
                                 .unit_name = "grad.piece",
                                 .name = "grad.piece",
                                 .index = c->piece_grad,
                                 .unit_run = c->unit_grads,
                                 .units = UNITS_DIVIDED};
    struct tensor_line local = {.space = SPACE_GRAD,
                                .dtype = p->wide,
                                .suffix = ".grad",
                                .unit_name = "grad",
                                .name = "grad",
                                .index = p->grad_buffer,
                                .unit_run = c->unit_run};
    int64_t end = zero_stage(c) && !p->tree_depth ? lay_out(c, &pieces, 0, &c->all_grads) : 0;
    if (zero_scatters(c)) {
        local.units = UNITS_WHOLE;
        local.name = NULL;
        p->space_bytes[SPACE_GRAD] = lay_out(c, &local, end, &c->all_grads);
        local.by_life = true;
        for (int unit = 0; unit < c->g->n_units && !c->err; unit++)
            if (zero_divides(c, unit))
                lay_out_unit(c, &local, unit, 0);
        return;
    }
    int64_t size = lay_out(c, &local, end, &c->all_grads) - end;
    p->space_bytes[SPACE_GRAD] = end + (1 + p->tree_depth) * size;
    if (p->tree_depth)
        trees_new(c, &local, size);
}

/* Room for what an update with an assumed clip factor overwrites, after the moments. */
static void kept_new(struct compiler *c, int64_t end)
{
    const struct tensor_line l = {.space = SPACE_OPT, .dtype = c->p->wide};
    const int of[] = {c->all_params, c->all_m, c->all_v};
    static const char *const names[] = {"kept.params", "kept.exp_avg", "kept.exp_avg_sq"};
    for (int i = 0; i < 3 && !c->err; i++) {
        const int64_t bytes = c->p->buffers[of[i]].bytes;
        c->kept[i] = run_new(c, &l, names[i], end, bytes);
        end = align(end + bytes, ALIGN);
    }
    c->p->kept_bytes = end - c->p->space_bytes[SPACE_OPT];
    c->p->space_bytes[SPACE_OPT] = end;
}

static void buffers_train(struct compiler *c)
{
    struct program *p = c->p;
    struct tensor_line m = {
        .space = SPACE_OPT, .dtype = p->wide, .pieces = true, .suffix = ".exp_avg", .index = p->m_buffer};
    struct tensor_line v = m;
    v.suffix = ".exp_avg_sq";
    v.index = p->v_buffer;
    int first = p->n_buffers;
    int64_t m_end = lay_out(c, &m, 0, NULL);
    int second = p->n_buffers;
    int64_t end = lay_out(c, &v, m_end, NULL);
    int third = p->n_buffers;
    c->all_m = run_new(c, &m, "exp_avg", 0, m_end);
    c->all_v = run_new(c, &v, "exp_avg_sq", m_end, end - m_end);
    set_run(c, first, second, c->all_m);
    set_run(c, second, third, c->all_v);
    p->space_bytes[SPACE_OPT] = end;
    if (compile_ahead(c) > 0)
        kept_new(c, end);
    grads_new(c);
}

/* ---- the host ---- */

static int host_new(struct compiler *c, const char *name, int tensor, enum dtype dtype, struct graph_dim n)
{
    struct buffer b = {.tensor = tensor, .dtype = dtype, .ndim = 1, .space = SPACE_HOST, .run = -1, .slots = 1};
    b.dim[0] = n;
    b.offset = c->p->space_bytes[SPACE_HOST];
    b.planned = true;
    set_name(&b, name, "");
    int i = compile_buffer(c, &b);
    if (i >= 0)
        c->p->space_bytes[SPACE_HOST] = align(b.offset + c->p->buffers[i].bytes, ALIGN);
    return i;
}

/* Inputs that the host fills for each microbatch; an instance for each microbatch in flight. */
static int input_new(struct compiler *c, const char *name, int tensor)
{
    int i = host_new(c, name, tensor, DT_I32, dim_tokens(1));
    if (i < 0 || c->input_slots < 2)
        return i;
    struct buffer *b = &c->p->buffers[i];
    b->slots = c->input_slots;
    b->slot_index = c->input_index;
    b->slot_bytes = align(b->bytes, ALIGN);
    c->p->space_bytes[SPACE_HOST] = b->offset + b->slots * b->slot_bytes;
    return i;
}

static void loss_new(struct compiler *c)
{
    struct program *p = c->p;
    p->loss_buffer = host_new(c, "loss", -1, DT_F64, dim_one(p->n_micros));
    if (c->err)
        return;
    struct buffer *b = &p->buffers[p->loss_buffer];
    b->dim[0] = dim_one(1);
    b->bytes = b->slot_bytes = 8; /* an instance per microbatch, within the bytes that host_new reserved */
    b->slots = p->n_micros;
    b->slot_index = SLOT_MICRO;
}

static void totals_new(struct compiler *c)
{
    int64_t numbers = 0;
    bool sets = false, limits = false;
    for (int i = 0; i < c->g->n_nodes; i++) {
        limits |= c->g->nodes[i].op == GO_DROP;
        if (c->g->nodes[i].op == GO_ROUTE) {
            numbers += 2 * c->g->nodes[i].router.experts + 2;
            sets |= c->g->nodes[i].out[2] >= 0;
        }
    }
    c->p->number_buffer[NUMBER_TOTALS] = host_new(c, "router.totals", -1, DT_F64, dim_one(numbers));
    c->p->number_buffer[NUMBER_CLOSENESS] = host_new(c, "router.closeness", -1, DT_F64, dim_one(c->g->n_routers));
    if (sets)
        c->p->number_buffer[NUMBER_AUX] = host_new(c, "router.aux", -1, DT_F64, dim_one(c->g->n_routers));
    if (limits)
        c->p->number_buffer[NUMBER_DROPPED] = host_new(c, "router.dropped", -1, DT_F64, dim_one(c->g->n_routers));
    if (c->p->rounds > 1)
        c->p->number_buffer[NUMBER_ROUNDS] = host_new(c, "router.rounds", -1, DT_F64, dim_one(c->g->n_routers));
}

static void blocks_new(struct compiler *c)
{
    c->blocks = host_new(c, "norm.blocks", -1, DT_F64, dim_one(c->p->sharding.n_blocks));
    c->p->norm_buffer = host_new(c, "norm", -1, DT_F64, dim_one(1));
    c->p->clip_buffer = host_new(c, "clip", -1, DT_F64, dim_one(1));
}

/* ---- parameters in the compute type ---- */

/* Without ZeRO: the parameters, or their copies at the start of SPACE_WORK. A rank without microbatches has no copies,
 * unless its experts compute rows of other ranks' tokens. */
static void values_whole(struct compiler *c)
{
    struct program *p = c->p;
    const struct tensor_line copies = {
        .space = SPACE_WORK, .dtype = p->dtype, .suffix = ".copy", .name = "params.copy", .index = c->value};
    const bool works = p->first_micro < p->end_micro || (experts_cross_micros(c) && zero_rounds(c) > 0);
    if (p->dtype != param_type(c) && works)
        p->space_bytes[SPACE_WORK] = lay_out(c, &copies, 0, &c->all_copies);
    else
        memcpy(c->value, p->param_buffer, (size_t)c->g->n_tensors * sizeof(*c->value));
}

/* With ZeRO: local tensors, gathered from the pieces, or from copies of the pieces, which follow the parameters. Where
 * the piece is the local tensor, it is used itself. */
static void values_sharded(struct compiler *c, int *piece_copies)
{
    struct program *p = c->p;
    const struct tensor_line copies = {.space = SPACE_PARAM,
                                       .dtype = p->dtype,
                                       .pieces = true,
                                       .suffix = ".copy",
                                       .unit_name = "params.copy",
                                       .name = "params.copy",
                                       .index = piece_copies,
                                       .unit_run = c->unit_pieces};
    const struct tensor_line values = {.space = SPACE_WORK,
                                       .dtype = p->dtype,
                                       .suffix = ".full",
                                       .unit_name = "full",
                                       .name = "params.full",
                                       .index = c->value,
                                       .unit_run = c->unit_values,
                                       .units = UNITS_DIVIDED};
    int all = -1;
    if (p->dtype != p->wide)
        p->space_bytes[SPACE_PARAM] = lay_out(c, &copies, p->space_bytes[SPACE_PARAM], &c->all_copies);
    for (int unit = 0; unit < c->g->n_units && !c->err; unit++) {
        parts_new(c, unit);
        if (!zero_divides(c, unit))
            for (int i = c->held_from[unit]; i < c->held_from[unit + 1]; i++)
                c->value[c->held[i]] = p->dtype != p->wide ? piece_copies[c->held[i]] : p->param_buffer[c->held[i]];
        else if (zero_stage(c) == 3 && zero_rounds(c) > 0) /* else no rank of the group has a microbatch */
            compile_gathered_params(c, unit);
    }
    if (zero_stage(c) < 3)
        p->space_bytes[SPACE_WORK] = lay_out(c, &values, 0, &all);
}

static void values_new(struct compiler *c)
{
    int *copies = malloc(((size_t)c->g->n_tensors + 1) * sizeof(*copies));
    if (!copies)
        c->err = ERR_NOMEM;
    else if (zero_stage(c))
        values_sharded(c, copies);
    else
        values_whole(c);
    free(copies);
}

static bool asks_rows(const struct compiler *c)
{
    for (int i = 0; i < c->g->n_nodes; i++) {
        enum graph_op op = c->g->nodes[i].op;
        if (op == GO_DROP && experts_have_limits(c))
            return true;
        bool samples = op == GO_ROUTE && c->g->nodes[i].out[2] >= 0 && c->g->nodes[i].router.scope == AUX_SAMPLE;
        if (op == GO_POSITIONS || (op == GO_DROPOUT && compile_drops(c)) || (samples && experts_count(c)))
            return true;
    }
    return false;
}

void compile_buffers(struct compiler *c)
{
    struct program *p = c->p;
    const bool zero = zero_stage(c) > 0;
    step_end_groups(c);
    const struct tensor_line params = {.space = SPACE_PARAM,
                                       .dtype = param_type(c),
                                       .pieces = true,
                                       .suffix = "",
                                       .unit_name = zero && p->dtype == p->wide ? "params" : NULL,
                                       .name = "params",
                                       .index = p->param_buffer,
                                       .unit_run = c->unit_pieces};
    p->space_bytes[SPACE_PARAM] = lay_out(c, &params, 0, &c->all_params);
    states_new(c);
    p->n_units = zero ? c->g->n_units : 0;
    values_new(c);
    p->ids_buffer = input_new(c, "ids", c->g->ids);
    if (asks_rows(c))
        p->rows_buffer = input_new(c, "rows", -1);
    if (c->g->begin >= 0)
        p->begin_buffer = input_new(c, "begin", c->g->begin);
    if (!mode_generates(p->mode)) {
        p->targets_buffer = input_new(c, "targets", c->g->targets);
        loss_new(c);
    }
    if (experts_count(c))
        totals_new(c);
    if (p->mode == MODE_TRAIN) {
        blocks_new(c);
        buffers_train(c);
    }
}
