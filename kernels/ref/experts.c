/* Mixtures of experts: routers, the order of rows, and products by expert. */
#include "kernels/ref/ref.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#define NORM_FLOOR 1e-20 /* DeepSeek-V3 adds it to the sum of the chosen scores */

/* What a router computes of one token. */
struct token_route {
    double score[KERN_MAX_EXPERTS]; /* s; the logits for SOFTMAX_TOPK */
    double share[KERN_MAX_EXPERTS]; /* p of KERN_ROUTE_NUMBERS */
    double lse;
    bool nan; /* lse is not finite */
};

static double log_sum_exp(int64_t n, const real *z)
{
    double max = (double)z[0], sum = 0;
    for (int64_t e = 1; e < n; e++)
        max = (double)z[e] > max ? (double)z[e] : max;
    for (int64_t e = 0; e < n; e++)
        sum += exp((double)z[e] - max);
    return max + log(sum);
}

static void score_token(const struct kern_router *r, const real *z, struct token_route *x)
{
    double sum = 0;
    x->lse = log_sum_exp(r->experts, z);
    x->nan = !isfinite(x->lse);
    for (int64_t e = 0; e < r->experts; e++) {
        double s = r->scores == KERN_SCORES_SIGMOID ? 1 / (1 + exp(-(double)z[e])) : exp((double)z[e] - x->lse);
        x->share[e] = s;
        x->score[e] = r->scores == KERN_SCORES_SOFTMAX_TOPK ? (double)z[e] : s;
        sum += s;
    }
    for (int64_t e = 0; e < r->experts && r->scores == KERN_SCORES_SIGMOID; e++)
        x->share[e] /= sum;
}

/* The n best: the lowest of their values, their sum in descending order, and the largest value of the other candidates,
 * -infinity where there is none. */
struct best {
    double lowest, sum, next;
};

/* Marks the n best of the candidates; of equal ones the first. */
static struct best mark_best(int64_t count, const double *value, const bool *candidate, int64_t n, bool *marked)
{
    struct best b = {.lowest = INFINITY, .next = -INFINITY};
    memset(marked, 0, (size_t)count * sizeof(*marked));
    for (int64_t i = 0; i <= n; i++) {
        int64_t best = -1;
        for (int64_t e = 0; e < count; e++)
            if (candidate[e] && !marked[e] && (best < 0 || value[e] > value[best]))
                best = e;
        if (best < 0)
            break;
        if (i == n) {
            b.next = value[best];
            break;
        }
        marked[best] = true;
        b.lowest = value[best];
        b.sum += value[best];
    }
    return b;
}

/* Removes the experts of all but the best groups from the candidates. */
static void keep_groups(const struct kern_router *r, const double *value, bool *candidate)
{
    int64_t each = r->experts / r->groups;
    double rank[KERN_MAX_EXPERTS];
    bool all[KERN_MAX_EXPERTS], best[KERN_MAX_EXPERTS], kept[KERN_MAX_EXPERTS];
    memset(all, true, sizeof(all));
    for (int64_t g = 0; g < r->groups; g++)
        rank[g] = mark_best(each, value + g * each, all, r->group_best, best).sum;
    mark_best(r->groups, rank, all, r->groups_kept, kept);
    for (int64_t e = 0; e < r->experts; e++)
        candidate[e] = kept[e / each];
}

/* Returns the difference between the k-th and the next value; infinity where there is no next one, or no choice. */
static double choose(const struct kern_router *r, const struct token_route *x, const real *bias, int32_t *ids)
{
    double value[KERN_MAX_EXPERTS];
    bool candidate[KERN_MAX_EXPERTS], chosen[KERN_MAX_EXPERTS];
    int64_t n = 0;
    for (int64_t e = 0; e < r->experts; e++) {
        value[e] = x->nan ? 0 : x->score[e] + (bias ? (double)bias[e] : 0);
        candidate[e] = true;
    }
    if (r->groups > 1 && !x->nan)
        keep_groups(r, value, candidate);
    struct best best = mark_best(r->experts, value, candidate, r->k, chosen);
    for (int64_t e = 0; e < r->experts; e++)
        if (chosen[e])
            ids[n++] = (int32_t)e;
    assert(n == r->k);
    return x->nan ? INFINITY : best.lowest - best.next;
}

static void weigh(const struct kern_router *r, const struct token_route *x, const int32_t *ids, real *weights)
{
    double max = -INFINITY, sum = 0, w[KERN_MAX_CHOICES];
    for (int64_t j = 0; j < r->k; j++)
        max = x->score[ids[j]] > max ? x->score[ids[j]] : max;
    for (int64_t j = 0; j < r->k; j++) {
        w[j] = r->scores == KERN_SCORES_SOFTMAX_TOPK ? exp(x->score[ids[j]] - max) : x->score[ids[j]];
        sum += w[j];
    }
    bool divide = r->norm || r->scores == KERN_SCORES_SOFTMAX_TOPK;
    double over = divide ? sum + (r->scores == KERN_SCORES_SIGMOID ? NORM_FLOOR : 0) : 1;
    for (int64_t j = 0; j < r->k; j++)
        weights[j] = x->nan ? (real)NAN : (real)(w[j] / over * r->scale);
}

static void add_numbers(const struct kern_router *r, const struct token_route *x, const int32_t *ids, double *numbers)
{
    double entropy = 0;
    for (int64_t j = 0; j < r->k; j++)
        numbers[ids[j]] += 1;
    for (int64_t e = 0; e < r->experts; e++) {
        numbers[r->experts + e] += x->share[e];
        entropy -= x->share[e] > 0 ? x->share[e] * log(x->share[e]) : x->share[e];
    }
    numbers[2 * r->experts] += entropy;
    numbers[2 * r->experts + 1] += x->lse * x->lse;
}

static int64_t set_of(const struct kern_route *r, int64_t i)
{
    return r->rows ? r->rows[i] / r->seq - r->set0 : 0;
}

void KERN_FN(route)(struct kern_stream *s, const struct kern_route *r)
{
    const int64_t experts = r->router.experts, k = r->router.k, numbers = KERN_ROUTE_NUMBERS(experts);
    assert(k >= 1 && k <= KERN_MAX_CHOICES && experts <= KERN_MAX_EXPERTS);
    if (r->sums)
        memset(r->sums, 0, (size_t)(r->sets * numbers) * sizeof(double));
    for (int64_t i = 0; i < r->t; i++) {
        struct token_route x;
        score_token(&r->router, (const real *)r->logits + i * experts, &x);
        double gap = INFINITY;
        if (r->given)
            memcpy(r->ids + i * k, r->given + i * k, (size_t)k * sizeof(*r->ids));
        else
            gap = choose(&r->router, &x, r->bias, r->ids + i * k);
        weigh(&r->router, &x, r->ids + i * k, (real *)r->weights + i * k);
        if (r->sums)
            add_numbers(&r->router, &x, r->ids + i * k, r->sums + set_of(r, i) * numbers);
        if (r->totals)
            add_numbers(&r->router, &x, r->ids + i * k, r->totals);
        if (r->closeness && 1 / gap > *r->closeness)
            *r->closeness = 1 / gap;
    }
}

/* ---- the gradient ---- */

/* dz += the gradient through the weights w, with dw given. */
static void through_weights(const struct kern_router *r, const struct token_route *x, const int32_t *ids, const real *w,
                            const real *dw, double *dz)
{
    double mean = 0, sum = 0;
    for (int64_t j = 0; j < r->k; j++) {
        mean += (double)w[j] * (double)dw[j];
        sum += x->score[ids[j]];
    }
    if (r->scores == KERN_SCORES_SIGMOID) {
        for (int64_t j = 0; j < r->k; j++) {
            double s = x->score[ids[j]], ds = r->scale * (double)dw[j];
            dz[ids[j]] += s * (1 - s) * (r->norm ? (ds - mean) / (sum + NORM_FLOOR) : ds);
        }
        return;
    }
    bool over_chosen = r->norm || r->scores == KERN_SCORES_SOFTMAX_TOPK;
    for (int64_t j = 0; j < r->k; j++)
        dz[ids[j]] += (double)w[j] * (double)dw[j] - (over_chosen ? (double)w[j] * mean / r->scale : 0);
    for (int64_t e = 0; e < r->experts && !over_chosen; e++)
        dz[e] -= x->share[e] * mean;
}

/* dz += the gradient of the auxiliary loss; n: the counts of the token's set. */
static void through_aux(const struct kern_route_grad *a, const struct token_route *x, const double *n, double *dz)
{
    const struct kern_router *r = &a->fwd.router;
    double tokens = 0, mean = 0;
    for (int64_t e = 0; e < r->experts; e++)
        tokens += n[e];
    double each = tokens > 0 ? a->aux * (double)r->experts * a->scale / tokens : 0;
    for (int64_t e = 0; e < r->experts; e++)
        mean += x->share[e] * each * n[e];
    for (int64_t e = 0; e < r->experts; e++) {
        double slope = r->scores == KERN_SCORES_SIGMOID ? 1 - x->score[e] : 1;
        dz[e] += x->share[e] * slope * (each * n[e] - mean);
    }
}

void KERN_FN(route_grad)(struct kern_stream *s, const struct kern_route_grad *a)
{
    const struct kern_route *f = &a->fwd;
    const int64_t experts = f->router.experts, k = f->router.k;
    for (int64_t i = 0; i < f->t; i++) {
        struct token_route x;
        double dz[KERN_MAX_EXPERTS] = {0};
        const real *z = (const real *)f->logits + i * experts;
        score_token(&f->router, z, &x);
        through_weights(&f->router, &x, f->ids + i * k, (const real *)f->weights + i * k,
                        (const real *)a->d_weights + i * k, dz);
        if (a->aux != 0)
            through_aux(a, &x, f->sums + set_of(f, i) * KERN_ROUTE_NUMBERS(experts), dz);
        for (int64_t e = 0; e < experts; e++) {
            double softmax = a->z != 0 ? exp((double)z[e] - x.lse) : 0;
            ((real *)a->d_logits)[i * experts + e] = (real)(dz[e] + 2 * a->z * a->scale * x.lse * softmax);
        }
    }
}

void KERN_FN(keep)(struct kern_stream *s, int64_t n, const double *from, const double *factor, double *to)
{
    if (isfinite(*factor))
        memcpy(to, from, (size_t)n * sizeof(*to));
}

/* ---- the value of the auxiliary loss ---- */

void KERN_FN(aux_loss)(struct kern_stream *s, int64_t sets, int64_t experts, const double *sums, double scale,
                       double *total)
{
    for (int64_t i = 0; i < sets; i++, sums += KERN_ROUTE_NUMBERS(experts)) {
        double choices = 0, product = 0;
        for (int64_t e = 0; e < experts; e++) {
            choices += sums[e];
            product += sums[e] * sums[experts + e];
        }
        *total += choices > 0 ? scale * (double)experts / choices * product : 0;
    }
}

/* ---- balance ---- */

static int64_t sign(int64_t x)
{
    return (x > 0) - (x < 0);
}

void KERN_FN(balance)(struct kern_stream *s, const struct kern_balance *b)
{
    int64_t sum = 0, signs = 0;
    real *bias = b->bias;
    for (int64_t e = 0; e < b->experts; e++)
        sum += (int64_t)b->counts[e];
    for (int64_t e = 0; e < b->experts; e++)
        signs += sign(sum - b->experts * (int64_t)b->counts[e]);
    for (int64_t e = 0; e < b->experts && isfinite(*b->factor); e++) {
        int64_t above = b->experts * sign(sum - b->experts * (int64_t)b->counts[e]) - signs;
        bias[e] = (real)((double)bias[e] + b->rate * (double)above / (double)b->experts);
    }
}

/* ---- capacity ---- */

static double *sample_of(const struct kern_drop *d, int64_t i, int64_t *ret_token)
{
    const int64_t at = d->rows[i] - d->set0 * d->seq;
    *ret_token = at % d->seq;
    return d->table + at / d->seq * (d->by_weight ? 2 : 1) * d->seq * d->k;
}

void KERN_FN(choices)(struct kern_stream *s, const struct kern_drop *d)
{
    memset(d->table, 0, (size_t)(d->sets * (d->by_weight ? 2 : 1) * d->seq * d->k) * sizeof(double));
    for (int64_t i = 0; i < d->t; i++)
        for (int64_t j = 0; j < d->k; j++) {
            int64_t token;
            double *to = sample_of(d, i, &token) + token * d->k + j;
            to[0] = d->ids[i * d->k + j] + 1;
            if (d->by_weight)
                to[d->seq * d->k] = (double)((const real *)d->weights)[i * d->k + j];
        }
}

/* Whether a choice with weight a and an earlier token comes before one with weight b, or with `later` one with a later
 * token. */
static bool comes_first(double a, double b, bool later)
{
    if (isnan(a) || isnan(b) || a == b)
        return isnan(a) == isnan(b) ? !later : isnan(a);
    return a > b;
}

err_t KERN_FN(drop)(struct kern_stream *s, const struct kern_drop *d)
{
    const int64_t n = d->seq * d->k;
    for (int64_t i = 0; i < d->t * d->k; i++) {
        int64_t token, before = 0;
        const double *sample = sample_of(d, i / d->k, &token), *weights = d->by_weight ? sample + n : NULL;
        const int64_t me = token * d->k + i % d->k;
        for (int64_t c = 0; c < n; c++)
            if (c / d->k != token && sample[c] == d->ids[i] + 1)
                before += weights ? comes_first(weights[c], weights[me], c > me) : c < me;
        d->kept[i] = before < d->capacity ? d->ids[i] : -1;
        if (d->dropped && before >= d->capacity)
            *d->dropped += 1;
    }
    return OK;
}

/* ---- rows by expert ---- */

void KERN_FN(route_sort)(struct kern_stream *s, int64_t t, int64_t k, int64_t experts, const int32_t *ids,
                         int32_t *place, int32_t *source, int32_t *offsets)
{
    int32_t row = 0;
    for (int64_t i = 0; i < t * k; i++)
        place[i] = source[i] = -1;
    for (int64_t e = 0; e < experts; e++) {
        offsets[e] = row;
        for (int64_t i = 0; i < t * k; i++)
            if (ids[i] == e) {
                place[i] = row;
                source[row++] = (int32_t)i;
            }
    }
    offsets[experts] = row;
}

/* Row by row: which member's home row it is, and how many rows of this rank that member and those before have sent. */
void KERN_FN(arrive)(struct kern_stream *s, const struct kern_arrive *a)
{
    int32_t row = 0;
    for (int64_t e = a->lo; e < a->hi; e++) {
        int32_t sent = 0, home = 0; /* of the members before */
        if (a->offsets)
            a->offsets[e - a->lo] = row;
        for (int64_t i = 0; i < a->members; i++) {
            const int32_t *first = a->all + i * (a->experts + 1);
            for (int32_t h = first[e]; h < first[e + 1]; h++, row++) {
                if (a->index)
                    a->index[row] = sent + h - first[a->lo];
                if (a->inverse)
                    a->inverse[sent + h - first[a->lo]] = row;
                if (a->choices)
                    a->choices[row] = home + a->sources[home + h];
            }
            sent += first[a->hi] - first[a->lo];
            home += first[a->experts];
        }
    }
    if (a->offsets)
        a->offsets[a->hi - a->lo] = row;
}

void KERN_FN(rows_gather)(struct kern_stream *s, int64_t rows, int64_t k, int64_t d, const int32_t *source,
                          const void *weights, const void *x, void *y)
{
    for (int64_t r = 0; r < rows && source[r] >= 0; r++)
        for (int64_t c = 0; c < d; c++) {
            double w = weights ? (double)((const real *)weights)[source[r]] : 1;
            ((real *)y)[r * d + c] = (real)(w * (double)((const real *)x)[source[r] / k * d + c]);
        }
}

void KERN_FN(rows_sum)(struct kern_stream *s, int64_t t, int64_t k, int64_t d, const int32_t *place,
                       const void *weights, const void *x, void *y)
{
    for (int64_t i = 0; i < t; i++)
        for (int64_t c = 0; c < d; c++) {
            double sum = 0;
            for (int64_t j = 0; j < k; j++)
                if (place[i * k + j] >= 0)
                    sum += (weights ? (double)((const real *)weights)[i * k + j] : 1) *
                           (double)((const real *)x)[place[i * k + j] * d + c];
            ((real *)y)[i * d + c] = (real)sum;
        }
}

void KERN_FN(rows_sum_grad)(struct kern_stream *s, int64_t t, int64_t k, int64_t d, const int32_t *place,
                            const void *weights, const void *x, const void *dy, void *dx, void *d_weights)
{
    for (int64_t i = 0; i < t * k; i++) {
        if (place[i] < 0) {
            ((real *)d_weights)[i] = 0;
            continue;
        }
        const real *from = (const real *)x + place[i] * d, *dyi = (const real *)dy + i / k * d;
        double sum = 0;
        for (int64_t c = 0; c < d; c++)
            sum += (double)from[c] * (double)dyi[c];
        for (int64_t c = 0; c < d && dx; c++)
            ((real *)dx)[place[i] * d + c] = (real)((double)((const real *)weights)[i] * (double)dyi[c]);
        ((real *)d_weights)[i] = (real)sum;
    }
}

err_t KERN_FN(grouped_gemm)(struct kern_stream *s, const struct kern_grouped *g)
{
    assert(g->offsets[0] == 0 && g->offsets[g->experts] <= g->rows);
    err_t err = OK;
    for (int64_t e = 0; e < g->experts && !err; e++) {
        int64_t lo = g->offsets[e], rows = g->offsets[e + 1] - lo;
        const int64_t own = g->experts - g->borrowed, size = g->n * (g->trans_a ? g->m : g->k);
        real *base = e < own ? (real *)(g->trans_a ? g->c : (void *)g->b) : (real *)g->more;
        real *matrix = base + (e < own ? e : e - own) * size;
        const real *a = (const real *)g->a + lo * (g->trans_a ? g->m : g->k);
        const real *b = g->trans_a ? (const real *)g->b + lo * g->n : matrix;
        real *c = g->trans_a ? matrix : (real *)g->c + lo * g->n;
        const struct kern_gemm one = {.trans_a = g->trans_a,
                                      .trans_b = g->trans_b,
                                      .accumulate = g->accumulate && (e < own || !g->trans_a),
                                      .wide_c = g->wide_c,
                                      .m = g->trans_a ? g->m : rows,
                                      .n = g->n,
                                      .k = g->trans_a ? rows : g->k,
                                      .lda = g->trans_a ? g->m : g->k,
                                      .ldb = g->trans_b ? g->k : g->n,
                                      .ldc = g->n,
                                      .a = a,
                                      .b = b,
                                      .c = c};
        err = KERN_FN(gemm)(s, &one);
    }
    return err;
}

/* ---- gates ---- */

void KERN_FN(gate)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *z, void *y)
{
    for (int64_t i = 0; i < t; i++) {
        double open = 1 / (1 + exp(-(double)((const real *)z)[i]));
        for (int64_t c = 0; c < d; c++)
            ((real *)y)[i * d + c] = (real)(open * (double)((const real *)x)[i * d + c]);
    }
}

void KERN_FN(gate_grad)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *z, const void *dy,
                        void *dx, void *dz)
{
    for (int64_t i = 0; i < t; i++) {
        double open = 1 / (1 + exp(-(double)((const real *)z)[i])), sum = 0;
        for (int64_t c = 0; c < d; c++) {
            double dyc = (double)((const real *)dy)[i * d + c];
            sum += dyc * (double)((const real *)x)[i * d + c];
            ((real *)dx)[i * d + c] = (real)(open * dyc);
        }
        ((real *)dz)[i] = (real)(open * (1 - open) * sum);
    }
}
