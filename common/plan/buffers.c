/* Buffers and where those lie that live as long as the job: parameters, optimizer state, gradients, host scalars.
 *
 * Parameters, both moments and gradients are laid out alike: unit by unit, in each the graph's order, every tensor at
 * 64 bytes, so that one operation can take all of a unit and all ranks agree on offsets without talking. The gaps
 * between tensors are zero from the allocation and stay zero: no op writes there anything but sums of zeros. Copies in
 * a narrower type keep the elements' places, so there the alignment is as much wider as the type. */
#include "common/plan/compile.h"

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

/* The alignment of parameters and of all that is laid out like them, for elements of a type: as many elements in each.
 */
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
        int64_t n = program_dim(c->p, b->dim[d], c->p->max_samples);
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

/* What is computed with is in SPACE_WORK; parameters, their gradients and moments, and statistics are wide. */
static struct buffer of_tensor(const struct compiler *c, int t, const char *suffix, enum buffer_space space)
{
    const struct graph_tensor *g = &c->g->tensors[t];
    struct buffer b = {.tensor = t, .ndim = g->ndim, .space = space, .run = -1, .slots = 1};
    b.dtype = space == SPACE_WORK && g->kind != GT_STAT ? c->p->dtype : c->p->wide;
    for (int d = 0; d < g->ndim; d++)
        b.dim[d] = compile_local(c, t, d);
    set_name(&b, g->name, suffix);
    return b;
}

int compile_work(struct compiler *c, int tensor, const char *suffix)
{
    struct buffer b = of_tensor(c, tensor, suffix, SPACE_WORK);
    b.layout.axis[AXIS_DP] = (struct axis_layout){.kind = LAYOUT_SHARD, .segments = 1, .unit = 1};
    return compile_buffer(c, &b);
}

/* A rank has the share of its own microbatches; with the tree even a single rank has leaves that are still to be
 * summed. */
static void partial_over_dp(const struct compiler *c, struct buffer *b)
{
    if (mesh_workers(&c->p->mesh) > 1 || (b->space == SPACE_GRAD && c->p->tree_depth))
        b->layout.axis[AXIS_DP] = (struct axis_layout){.kind = LAYOUT_PARTIAL, .op = REDUCE_SUM};
}

/* A flat buffer over [offset, offset + bytes) of a space. */
static int run_new(struct compiler *c, const char *name, enum buffer_space space, int64_t offset, int64_t bytes)
{
    struct buffer b = {.tensor = -1, .ndim = 1, .space = space, .run = -1, .slots = 1};
    b.dtype = space == SPACE_WORK ? c->p->dtype : c->p->wide;
    int64_t size = (int64_t)dtype_bytes(b.dtype);
    assert(size > 0); /* plan_mesh has seen to it */
    b.dim[0] = dim_one(bytes / size);
    b.offset = offset;
    set_name(&b, name, "");
    if (space == SPACE_GRAD)
        partial_over_dp(c, &b);
    return compile_buffer(c, &b);
}

/* Places a buffer per parameter from `base` on, unit by unit; `index` gets them. Returns the end. */
static int64_t lay_out(struct compiler *c, enum buffer_space space, const char *suffix, int64_t base, int *index)
{
    for (int unit = 0; unit < c->g->n_units; unit++) {
        int64_t start = base;
        for (int t = 0; t < c->g->n_tensors && !c->err; t++) {
            if (c->g->tensors[t].kind != GT_PARAM || c->g->tensors[t].unit != unit)
                continue;
            struct buffer b = of_tensor(c, t, suffix, space);
            b.offset = base;
            if (space == SPACE_GRAD)
                partial_over_dp(c, &b);
            index[t] = compile_buffer(c, &b);
            base = c->err ? 0 : align(base + c->p->buffers[index[t]].bytes, param_align(c, b.dtype));
        }
        if (space == SPACE_GRAD && !c->err) {
            char name[32];
            snprintf(name, sizeof(name), "unit.%d.grad", unit);
            c->unit_run[unit] = run_new(c, name, space, start, base - start);
        }
    }
    return base;
}

static void set_run(struct compiler *c, const int *index, int run)
{
    for (int t = 0; t < c->g->n_tensors && !c->err; t++)
        if (index[t] >= 0)
            c->p->buffers[index[t]].run = run;
}

/* The stack of the canonical tree: tree_depth copies of all gradients behind the first, each unit a buffer of its own.
 */
static void trees_new(struct compiler *c, int64_t size)
{
    for (int unit = 0; unit < c->g->n_units && !c->err; unit++) {
        char name[32];
        const struct buffer run = c->p->buffers[c->unit_run[unit]];
        snprintf(name, sizeof(name), "unit.%d.tree", unit);
        c->unit_tree[unit] = run_new(c, name, SPACE_GRAD, size + run.offset, run.bytes);
        if (c->err)
            return;
        struct buffer *tree = &c->p->buffers[c->unit_tree[unit]];
        tree->slots = c->p->tree_depth;
        tree->slot_bytes = tree->slots > 1 ? size : 0;
        tree->slot_index = SLOT_TREE;
    }
}

static void buffers_train(struct compiler *c)
{
    struct program *p = c->p;
    int64_t size = p->space_bytes[SPACE_PARAM];
    int64_t m_end = lay_out(c, SPACE_OPT, ".exp_avg", 0, p->m_buffer);
    lay_out(c, SPACE_OPT, ".exp_avg_sq", m_end, p->v_buffer);
    c->all_m = run_new(c, "exp_avg", SPACE_OPT, 0, size);
    c->all_v = run_new(c, "exp_avg_sq", SPACE_OPT, m_end, size);
    set_run(c, p->m_buffer, c->all_m);
    set_run(c, p->v_buffer, c->all_v);
    lay_out(c, SPACE_GRAD, ".grad", 0, p->grad_buffer);
    c->all_grads = run_new(c, "grad", SPACE_GRAD, 0, size);
    for (int t = 0; t < c->g->n_tensors && !c->err; t++)
        if (p->grad_buffer[t] >= 0)
            p->buffers[p->grad_buffer[t]].run = c->unit_run[c->g->tensors[t].unit];
    for (int u = 0; u < c->g->n_units && !c->err; u++)
        p->buffers[c->unit_run[u]].run = c->all_grads;
    p->space_bytes[SPACE_OPT] = 2 * size;
    p->space_bytes[SPACE_GRAD] = (1 + p->tree_depth) * size;
    if (p->tree_depth)
        trees_new(c, size);
}

static int host_new(struct compiler *c, const char *name, int tensor, enum dtype dtype, struct graph_dim n)
{
    struct buffer b = {.tensor = tensor, .dtype = dtype, .ndim = 1, .space = SPACE_HOST, .run = -1, .slots = 1};
    b.dim[0] = n;
    b.offset = c->p->space_bytes[SPACE_HOST];
    set_name(&b, name, "");
    int i = compile_buffer(c, &b);
    if (i >= 0)
        c->p->space_bytes[SPACE_HOST] = align(b.offset + c->p->buffers[i].bytes, ALIGN);
    return i;
}

static void loss_new(struct compiler *c)
{
    struct program *p = c->p;
    p->loss_buffer = host_new(c, "loss", -1, DT_F64, dim_one(p->n_micros));
    if (c->err)
        return;
    struct buffer *b = &p->buffers[p->loss_buffer];
    partial_over_dp(c, b);
    b->dim[0] = dim_one(1);
    b->bytes = b->slot_bytes = 8; /* an instance per microbatch; host_new has made room for all */
    b->slots = p->n_micros;
    b->slot_index = SLOT_MICRO;
}

static void blocks_new(struct compiler *c)
{
    int64_t n = 0;
    for (int t = 0; t < c->g->n_tensors; t++) {
        const struct graph_tensor *g = &c->g->tensors[t];
        if (g->kind != GT_PARAM)
            continue;
        int64_t elements = g->dim[0].factor * (g->ndim > 1 ? g->dim[1].factor : 1);
        c->block_offset[t] = n;
        n += (elements + PLAN_NORM_BLOCK - 1) / PLAN_NORM_BLOCK;
    }
    c->blocks = host_new(c, "norm.blocks", -1, DT_F64, dim_one(n));
    c->p->norm_buffer = host_new(c, "norm", -1, DT_F64, dim_one(1));
    c->p->clip_buffer = host_new(c, "clip", -1, DT_F64, dim_one(1));
}

/* At the start of SPACE_WORK, where pack.c leaves them alone. */
static void copies_new(struct compiler *c)
{
    int64_t end = lay_out(c, SPACE_WORK, ".copy", 0, c->copy);
    c->all_copies = run_new(c, "params.copy", SPACE_WORK, 0, end);
    set_run(c, c->copy, c->all_copies);
    c->p->space_bytes[SPACE_WORK] = end;
}

void compile_buffers(struct compiler *c)
{
    struct program *p = c->p;
    p->space_bytes[SPACE_PARAM] = lay_out(c, SPACE_PARAM, "", 0, p->param_buffer);
    c->all_params = run_new(c, "params", SPACE_PARAM, 0, p->space_bytes[SPACE_PARAM]);
    set_run(c, p->param_buffer, c->all_params);
    if (p->dtype != p->wide && p->first_micro < p->end_micro)
        copies_new(c);
    p->ids_buffer = host_new(c, "ids", c->g->ids, DT_I32, dim_tokens(1));
    if (p->mode != MODE_GENERATE) {
        p->targets_buffer = host_new(c, "targets", c->g->targets, DT_I32, dim_tokens(1));
        loss_new(c);
    }
    if (p->mode == MODE_TRAIN) {
        blocks_new(c);
        buffers_train(c);
    }
}
