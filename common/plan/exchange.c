#include "common/plan/exchange.h"

#include "common/mesh/mesh.h"

void exchange_experts(const struct exchange *x, int member, int64_t *ret_lo, int64_t *ret_hi)
{
    layout_split(x->experts, x->members, member, ret_lo, ret_hi);
}

/* Rows of member `from` for the experts [lo, hi). */
static int64_t rows_between(const struct exchange *x, int from, int64_t lo, int64_t hi)
{
    const int32_t *offsets = x->offsets + from * (x->experts + 1);
    return offsets[hi] - offsets[lo];
}

int64_t exchange_rows(const struct exchange *x, int from, int to)
{
    int64_t lo, hi;
    exchange_experts(x, to, &lo, &hi);
    return rows_between(x, from, lo, hi);
}

int64_t exchange_arrived(const struct exchange *x)
{
    int64_t n = 0;
    for (int i = 0; i < x->members; i++)
        n += exchange_rows(x, i, x->me);
    return n;
}

void exchange_order(const struct exchange *x, int32_t *index, int32_t *inverse, int32_t *offsets)
{
    int64_t lo, hi, row = 0;
    exchange_experts(x, x->me, &lo, &hi);
    for (int64_t e = lo; e < hi; e++) {
        int64_t before = 0; /* arrived rows of earlier senders */
        offsets[e - lo] = (int32_t)row;
        for (int i = 0; i < x->members; i++) {
            int64_t first = before + rows_between(x, i, lo, e), n = rows_between(x, i, e, e + 1);
            for (int64_t k = 0; k < n; k++, row++) {
                index[row] = (int32_t)(first + k);
                inverse[first + k] = (int32_t)row;
            }
            before += rows_between(x, i, lo, hi);
        }
    }
    offsets[hi - lo] = (int32_t)row;
}
