/* Norm and update, which a step performs once. Every gradient is completely summed before it is counted and used, every
 * distinct gradient is counted once, and the update changes this rank's piece with this piece's gradient. */
#include "common/plan/check/check.h"

#include <stdlib.h>
#include <string.h>

static const struct buffer *buffer_at(const struct check_op *c, int operand)
{
    return &c->at->p->buffers[c->op->arg[operand].buffer];
}

static int64_t piece_elements(const struct sharding_param *q)
{
    return (q->hi - q->lo) * q->cols;
}

/* Checks where the gradient of this rank's piece begins: in a buffer of its own, or inside the local tensor's. */
static err_t check_piece(const struct check_op *c, int operand, const struct value_layout *l)
{
    const struct program *p = c->at->p;
    const struct buffer *b = buffer_at(c, operand);
    const struct sharding_param *q = &p->sharding.param[b->tensor];
    bool own = l->on[AXIS_FSDP] == ON_PIECE || l->on[AXIS_FSDP] == ON_EXPERTS_PIECE;
    int64_t want = own ? 0 : q->lo * q->cols, is = c->op->arg[operand].offset.factor;
    if (c->op->m.factor != piece_elements(q))
        return check_fail(c->at, c->why, "uses %lld elements of %s; this rank's piece has %lld",
                          (long long)c->op->m.factor, b->name, (long long)piece_elements(q));
    if (is != want)
        return check_fail(c->at, c->why, "uses %s from element %lld on; this rank's piece begins at element %lld",
                          b->name, (long long)is, (long long)want);
    return OK;
}

/* Axes along which ranks have different samples or tokens; of experts, along which they are on several ranks. A rank
 * without samples contributes zeros, which must be summed with the others' shares. */
static unsigned data_axes(const struct program *p, bool experts)
{
    unsigned due = 0;
    for (int a = AXIS_DP; a <= AXIS_CP; a++)
        due |= (experts ? sharding_rest(&p->sharding, a) : p->mesh.size[a]) > 1 ? 1u << a : 0;
    return due;
}

err_t check_summed(const struct check_op *c, int operand, const struct value_layout *l, unsigned reduced)
{
    int axis = layout_partial(l);
    const struct buffer *b = buffer_at(c, operand);
    const bool experts = b->tensor >= 0 && c->g->tensors[b->tensor].cut.experts;
    const unsigned due = data_axes(c->at->p, experts) & ~reduced;
    for (int a = 0; a < AXIS_COUNT && l->zero && axis < 0; a++)
        axis = due >> a & 1 ? a : -1;
    if (axis >= 0)
        return check_fail(c->at, c->why,
                          "reads %s, which is this rank's share of a sum over %s and has not been reduced", b->name,
                          mesh_axis_name((enum mesh_axis)axis));
    if (b->tensor < 0)
        return check_fail(c->at, c->why, "reads %s, which is no gradient of a parameter", b->name);
    return check_piece(c, operand, l);
}

err_t check_update(const struct check_op *c)
{
    const struct program *p = c->at->p;
    int t = buffer_at(c, 0)->tensor;
    if (t < 0 || c->g->tensors[t].kind != GT_PARAM)
        return check_fail(c->at, c->why, "updates %s, which is no parameter", buffer_at(c, 0)->name);
    const int own[] = {p->param_buffer[t], p->m_buffer[t], p->v_buffer[t]};
    for (int i = 0; i < 3; i++)
        if (c->op->arg[i].buffer != own[i] || c->op->arg[i].offset.factor)
            return check_fail(c->at, c->why, "updates %s with %s, which does not belong to this rank's piece",
                              c->g->tensors[t].name, buffer_at(c, i)->name);
    if (buffer_at(c, 3)->tensor != t)
        return check_fail(c->at, c->why, "updates %s with %s", c->g->tensors[t].name, buffer_at(c, 3)->name);
    if (((c->op->flags & OPF_DECAY) != 0) != c->g->tensors[t].decay)
        return check_fail(c->at, c->why, "%s %s, contrary to the model",
                          c->op->flags & OPF_DECAY ? "decays" : "does not decay", c->g->tensors[t].name);
    return OK;
}

static err_t block_range_add(struct rank_facts *f, struct block_range range)
{
    if (f->n_blocks == f->cap_blocks) {
        int cap = f->cap_blocks ? 2 * f->cap_blocks : 64;
        struct block_range *grown = realloc(f->blocks, (size_t)cap * sizeof(*grown));
        if (!grown)
            return ERR_NOMEM;
        f->blocks = grown;
        f->cap_blocks = cap;
    }
    f->blocks[f->n_blocks++] = range;
    return OK;
}

/* Checks that blocks are at the indices of sharding.h, so that their sum has the same order in every layout. */
err_t check_norm(const struct check_op *c, struct rank_facts *facts)
{
    const struct sharding *sharding = &c->at->p->sharding;
    const struct sharding_param *q = &sharding->param[buffer_at(c, 0)->tensor];
    int64_t block = c->op->n.factor, at = c->op->arg[1].offset.factor;
    int64_t want = q->block0 + q->lo / q->grain;
    if (block != q->grain * q->cols || at != want)
        return check_fail(c->at, c->why,
                          "counts %s in blocks of %lld from block %lld on; expected: blocks of %lld from block %lld on",
                          buffer_at(c, 0)->name, (long long)block, (long long)at, q->grain * (long long)q->cols,
                          (long long)want);
    return block_range_add(facts, (struct block_range){at, at + (c->op->m.factor + block - 1) / block});
}

/* ---- all ranks ---- */

static err_t count_blocks(int *times, int64_t n, const struct program *p, const struct rank_facts *f, struct why *why)
{
    for (int i = 0; i < f->n_blocks; i++) {
        if (f->blocks[i].lo < 0 || f->blocks[i].hi > n)
            return why_set(why, ERR_INVALID, "rank %d counts squares in blocks %lld to %lld of %lld", p->rank,
                           (long long)f->blocks[i].lo, (long long)f->blocks[i].hi - 1, (long long)n);
        for (int64_t b = f->blocks[i].lo; b < f->blocks[i].hi; b++)
            if (times[b]++)
                return why_set(why, ERR_INVALID,
                               "rank %d counts block %lld of squares, which the norm already contains", p->rank,
                               (long long)b);
    }
    return OK;
}

/* Checks the blocks over the group whose first member is rank r. */
static err_t check_blocks(const struct program *programs, const struct rank_facts *facts, int r, struct why *why)
{
    const struct program *p = &programs[r];
    const struct group *group = facts[r].blocks_group >= 0 ? &p->groups[facts[r].blocks_group] : NULL;
    int64_t n = facts[r].total_blocks;
    int *times = calloc((size_t)n + 1, sizeof(*times));
    err_t e = times ? OK : ERR_NOMEM;
    for (int i = 0; i < (group ? group->n : 1) && !e; i++) {
        int member = group ? group->ranks[i] : r;
        e = count_blocks(times, n, &programs[member], &facts[member], why);
    }
    for (int64_t b = 0; b < n && !e; b++)
        if (!times[b])
            e = why_set(why, ERR_INVALID, "rank %d: no rank in its norm's group counts block %lld of squares", r,
                        (long long)b);
    free(times);
    return e;
}

/* Checks that all ranks that hold the same part of t sum its gradient over the same axes, ranks without a microbatch
 * too. */
static err_t check_reduced(const struct graph *g, const struct program *programs, const struct rank_facts *facts, int n,
                           int t, int box, struct why *why)
{
    int first = -1;
    for (int r = 0; r < n; r++) {
        const struct sharding_param *q = &programs[r].sharding.param[t];
        if (!q->held || q->lo >= q->hi || q->box != box)
            continue;
        first = first < 0 ? r : first;
        if (facts[r].reduced[t] != facts[first].reduced[t])
            return why_set(why, ERR_INVALID, "rank %d: the gradient of %s is summed over other axes than on rank %d", r,
                           g->tensors[t].name, first);
    }
    return OK;
}

err_t check_sums(const struct graph *g, const struct program *programs, const struct rank_facts *facts, int n,
                 struct why *why)
{
    err_t e = OK;
    for (int r = 0; r < n && !e; r++) {
        int group = facts[r].blocks_group;
        if (facts[r].clips && (group < 0 || programs[r].groups[group].ranks[0] == r))
            e = check_blocks(programs, facts, r, why);
    }
    for (int t = 0; t < g->n_tensors && !e && programs->mode == MODE_TRAIN; t++)
        for (int box = 0; box < programs->sharding.param[t].boxes && !e; box++)
            e = check_reduced(g, programs, facts, n, t, box, why);
    return e;
}
