/* Ring attention: which rank's keys arrive when, and whether attention is computed once for every pair of a segment of
 * queries and a segment of keys that the mask permits.
 *
 * Part j of 2 cp parts of the sequence belongs to rank min(j, 2 cp - 1 - j) (program.h). Values that are passed on keep
 * their owner. A shift from a member delivers what that member had. All members run the same list of ops, so the
 * distance to the owner is the same on every member. */
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

/* Segment i (0 or 1) of the rank that is `away` from this one: its number among the 2 cp parts, its begin and end, and
 * the number of tokens of a sample in the segments before it on that rank. */
struct ring_segment {
    int part;
    int64_t lo, hi, before;
};

static struct ring_segment ring_segment_of(const struct program *p, int away, int i)
{
    int n = ring_size(p), owner = (ring_index(p) + away) % n;
    struct ring_segment ret = {i ? 2 * n - 1 - owner : owner, 0, 0, 0};
    layout_split(p->seq, 2 * n, ret.part, &ret.lo, &ret.hi);
    if (i) {
        int64_t lo, hi;
        layout_split(p->seq, 2 * n, owner, &lo, &hi);
        ret.before = hi - lo;
    }
    return ret;
}

/* The owner's segment with which an operand begins; -1: none. */
static int ring_segment_at(const struct check_op *c, int operand, int away, int64_t stride, int64_t len)
{
    int64_t at = c->op->arg[operand].offset.factor;
    for (int i = 0; i < 2; i++) {
        struct ring_segment segment = ring_segment_of(c->at->p, away, i);
        if (segment.before * stride == at && segment.hi - segment.lo == len)
            return i;
    }
    return -1;
}

static err_t pair_fail(const struct check_op *c, const struct ring_segment *q, const struct ring_segment *k,
                       const char *what)
{
    return check_fail(c->at, c->why, "computes attention from positions %lld..%lld to %lld..%lld %s", (long long)q->lo,
                      (long long)q->hi - 1, (long long)k->lo, (long long)k->hi - 1, what);
}

/* Whether a query of segment q sees a key of segment k. */
static bool ring_sees(const struct graph_node *node, const struct ring_segment *q, const struct ring_segment *k)
{
    bool later = node->causal && k->lo > q->hi - 1, before = node->window && k->hi - 1 <= q->lo - node->window;
    return q->lo < q->hi && k->lo < k->hi && !later && !before;
}

/* A window and the beginnings of documents are positions in the sequence. */
static bool ring_placed(const struct op *op, const struct graph_node *node, const struct ring_segment *q,
                        const struct ring_segment *k)
{
    const struct op_operand *begin = &op->arg[ATTENTION_BEGIN(op->kind)];
    bool placed = op->pos0 == q->lo && op->pos0_kv == k->lo;
    return (!node->window || placed) && (node->in[3] < 0 || (placed && begin->offset.factor == q->before));
}

err_t ring_pair(const struct check_op *c, int away, uint64_t *seen)
{
    const struct op *op = c->op;
    const struct graph_node *node = op->node >= 0 ? &c->g->nodes[op->node] : NULL;
    int i = ring_segment_at(c, 0, 0, op->lda, op->seq),
        j = ring_segment_at(c, 1, away, op->ldb, op->seq_kv ? op->seq_kv : op->seq);
    if (!node || i < 0 || j < 0)
        return check_fail(c->at, c->why, "computes attention over a range that is no segment of the sequence");
    struct ring_segment q = ring_segment_of(c->at->p, 0, i), k = ring_segment_of(c->at->p, away, j);
    uint64_t bit = 1ull << (i * 2 * ring_size(c->at->p) + k.part);
    if (((op->flags & OPF_CAUSAL) != 0) != (node->causal && q.part == k.part))
        return pair_fail(c, &q, &k, "with the wrong mask");
    if (!ring_sees(node, &q, &k))
        return pair_fail(c, &q, &k, "which come later, or are before the window");
    if (ring_size(c->at->p) > 1 && !ring_placed(op, node, &q, &k))
        return pair_fail(c, &q, &k, "with a mask for other positions");
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
                struct ring_segment q = ring_segment_of(p, 0, i), k = ring_segment_of(p, away, j);
                if (ring_sees(&c->g->nodes[c->op->node], &q, &k) && !(seen >> (i * 2 * n + k.part) & 1))
                    return check_fail(c->at, c->why,
                                      "is the last of its list, but no op computes attention from positions "
                                      "%lld..%lld to %lld..%lld",
                                      (long long)q.lo, (long long)q.hi - 1, (long long)k.lo, (long long)k.hi - 1);
            }
    return OK;
}
