/* Attention over a cut sequence: whose keys are where, and that every pair of a piece of queries and a piece of keys
 * that the mask leaves is computed once.
 *
 * Piece j of 2 cp belongs to rank min(j, 2 cp - 1 - j) (program.h). What travels keeps its owner: a shift from a member
 * brings what that member had, and as all members run one list, that is as far from its owner there as it is here. */
#include "common/plan/check/check.h"

#include <stdlib.h>
#include <string.h>

static int ring_size(const struct program *p)
{
    return p->mesh.size[AXIS_CP];
}

static int ring_index(const struct program *p)
{
    return p->sharding.coord[AXIS_CP];
}

int ring_shifted(const struct program *p, int away, int from)
{
    int n = ring_size(p);
    return ((from + away - ring_index(p)) % n + n) % n;
}

/* Piece i (0 or 1) of the rank that is `away` from this one: which of 2 cp it is, where it begins and ends, and how
 * many tokens of a sample are in front of it there. */
struct piece {
    int part;
    int64_t lo, hi, before;
};

static struct piece piece_of(const struct program *p, int away, int i)
{
    int n = ring_size(p), owner = (ring_index(p) + away) % n;
    struct piece ret = {i ? 2 * n - 1 - owner : owner, 0, 0, 0};
    layout_split(p->seq, 2 * n, ret.part, &ret.lo, &ret.hi);
    if (i) {
        int64_t lo, hi;
        layout_split(p->seq, 2 * n, owner, &lo, &hi);
        ret.before = hi - lo;
    }
    return ret;
}

/* Which of the owner's pieces an operand begins with; -1. */
static int piece_at(const struct check_op *c, int operand, int away, int64_t stride, int64_t len)
{
    int64_t at = c->op->arg[operand].offset.factor;
    for (int i = 0; i < 2; i++) {
        struct piece piece = piece_of(c->at->p, away, i);
        if (piece.before * stride == at && piece.hi - piece.lo == len)
            return i;
    }
    return -1;
}

static err_t pair_fail(const struct check_op *c, const struct piece *q, const struct piece *k, const char *what)
{
    return check_fail(c->at, c->why, "attends from positions %lld to %lld to %lld to %lld %s", (long long)q->lo,
                      (long long)q->hi - 1, (long long)k->lo, (long long)k->hi - 1, what);
}

err_t ring_pair(const struct check_op *c, int away, uint64_t *seen)
{
    const struct op *op = c->op;
    const struct graph_node *node = op->node >= 0 ? &c->g->nodes[op->node] : NULL;
    int i = piece_at(c, 0, 0, op->lda, op->seq), j = piece_at(c, 1, away, op->ldb, op->seq_kv ? op->seq_kv : op->seq);
    if (!node || i < 0 || j < 0)
        return check_fail(c->at, c->why, "attends over what is no piece of the sequence");
    struct piece q = piece_of(c->at->p, 0, i), k = piece_of(c->at->p, away, j);
    uint64_t bit = 1ull << (i * 2 * ring_size(c->at->p) + k.part);
    if (((op->flags & OPF_CAUSAL) != 0) != (node->causal && q.part == k.part))
        return pair_fail(c, &q, &k, "with the wrong mask");
    if (node->causal && k.part > q.part)
        return pair_fail(c, &q, &k, "which come later");
    if (*seen & bit)
        return pair_fail(c, &q, &k, "a second time");
    *seen |= bit;
    return OK;
}

err_t ring_complete(const struct check_op *c, uint64_t seen)
{
    const struct program *p = c->at->p;
    int n = ring_size(p);
    for (int i = 0; i < 2; i++)
        for (int away = 0; away < n; away++)
            for (int j = 0; j < 2; j++) {
                struct piece q = piece_of(p, 0, i), k = piece_of(p, away, j);
                bool empty = q.lo == q.hi || k.lo == k.hi;
                bool due = !empty && (!c->g->nodes[c->op->node].causal || k.part <= q.part);
                if (due && !(seen >> (i * 2 * n + k.part) & 1))
                    return check_fail(c->at, c->why,
                                      "is the last of its list, and nothing attends from positions %lld to %lld to "
                                      "%lld to %lld",
                                      (long long)q.lo, (long long)q.hi - 1, (long long)k.lo, (long long)k.hi - 1);
            }
    return OK;
}
