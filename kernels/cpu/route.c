/* Routers, in float64 from the logits on: so all backends choose the same experts from the same logits, except where
 * two scores differ by less than float64 can represent.
 *
 * Rows of experts are padded to whole vectors by logits of -infinity, whose scores are 0. Sums over tokens are computed
 * for segments of at most SEGMENT tokens of one set, which threads share; the segments are added in order. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vmath.h"

#include <assert.h>

#define SEGMENT 16 /* tokens: enough work for a thread even with 8 experts, and enough segments for all threads */
#define WAVE 64    /* most segments that are computed before they are added */
#define WAVE_NUMBERS 16384 /* their numbers, 128 KiB on the stack; 7 segments of KERN_MAX_EXPERTS experts */
#define NORM_FLOOR 1e-20   /* DeepSeek-V3 adds it to the sum of the chosen scores */

/* What a router computes of one token. */
struct token_scores {
    double logit[KERN_MAX_EXPERTS], soft[KERN_MAX_EXPERTS] /* softmax */, open[KERN_MAX_EXPERTS] /* sigmoid */;
    const double *score; /* one of the three: the router's scores */
    double lse;          /* not finite: no choice can be made */
    double open_sum;     /* SIGMOID: the sum of `open` */
};

static int64_t padded(int64_t experts)
{
    return (experts + VF - 1) / VF * VF;
}

/* to[0..padded(n)) = x, beyond n -infinity. Returns the largest; NaNs count as the smallest. */
static double load_logits(int64_t n, const float *x, double *to)
{
    vd max = v_set_d(-INFINITY);
    for (int64_t j = 0; j < n; j += VF) {
        float lane[VF];
        vd low, high;
        for (int64_t i = 0; i < VF; i++)
            lane[i] = j + i < n ? x[j + i] : -INFINITY;
        v_widen(v_load(lane), &low, &high);
        v_store_d(to + j, low);
        v_store_d(to + j + VD, high);
        max = v_select_d(low > max, low, max);
        max = v_select_d(high > max, high, max);
    }
    double largest = max[0];
    for (int i = 1; i < VD; i++)
        largest = max[i] > largest ? max[i] : largest;
    return largest;
}

static void score_token(const struct kern_router *r, const float *x, struct token_scores *t)
{
    const int64_t n = padded(r->experts);
    double max = load_logits(r->experts, x, t->logit);
    vd sum = {0}, open_sum = {0};
    for (int64_t j = 0; j < n; j += VD) {
        vd e = v_exp_d(v_load_d(t->logit + j) - max);
        v_store_d(t->soft + j, e);
        sum += e;
    }
    double total = v_sum_d(sum), over = 1 / total;
    for (int64_t j = 0; j < n; j += VD)
        v_store_d(t->soft + j, v_load_d(t->soft + j) * over);
    for (int64_t j = 0; j < n && r->scores == KERN_SCORES_SIGMOID; j += VD) {
        vd s = 1.0 / (1.0 + v_exp_d(-v_load_d(t->logit + j)));
        v_store_d(t->open + j, s);
        open_sum += s;
    }
    t->lse = max + log(total);
    t->open_sum = v_sum_d(open_sum);
    t->score = r->scores == KERN_SCORES_SIGMOID ? t->open : r->scores == KERN_SCORES_SOFTMAX_TOPK ? t->logit : t->soft;
}

/* ---- the choice ---- */

/* The `most` largest values so far, in descending order; of equal ones the first. */
struct top {
    int64_t most, n;
    double value[KERN_MAX_EXPERTS + 1];
    int32_t id[KERN_MAX_EXPERTS + 1];
};

static void top_start(struct top *t, int64_t most)
{
    t->most = most;
    t->n = 0;
}

static ALWAYS_INLINE void top_offer(struct top *t, double value, int64_t id)
{
    if (t->n == t->most && !(value > t->value[t->n - 1]))
        return;
    int64_t at = t->n < t->most ? t->n++ : t->n - 1;
    for (; at > 0 && value > t->value[at - 1]; at--) {
        t->value[at] = t->value[at - 1];
        t->id[at] = t->id[at - 1];
    }
    t->value[at] = value;
    t->id[at] = (int32_t)id;
}

/* kept[g]: whether the experts of group g can be chosen. */
static void keep_groups(const struct kern_router *r, const double *value, bool *kept)
{
    const int64_t each = r->experts / r->groups;
    struct top best, groups;
    memset(kept, r->groups == 1, (size_t)r->groups);
    if (r->groups == 1)
        return;
    top_start(&groups, r->groups_kept);
    for (int64_t g = 0; g < r->groups; g++) {
        double rank = 0;
        top_start(&best, r->group_best);
        for (int64_t e = 0; e < each; e++)
            top_offer(&best, value[g * each + e], e);
        for (int64_t i = 0; i < best.n; i++)
            rank += best.value[i];
        top_offer(&groups, rank, g);
    }
    for (int64_t i = 0; i < groups.n; i++)
        kept[groups.id[i]] = true;
}

static void sort_ids(int64_t n, int32_t *ids)
{
    for (int64_t i = 1; i < n; i++) {
        int32_t id = ids[i];
        int64_t at = i;
        for (; at > 0 && ids[at - 1] > id; at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
    }
}

/* Returns the difference between the k-th and the next value; infinity where there is no next one. */
static double choose(const struct kern_router *r, const struct token_scores *t, const float *bias, int32_t *ids)
{
    const int64_t each = r->experts / r->groups;
    double value[KERN_MAX_EXPERTS];
    bool kept[KERN_MAX_EXPERTS];
    struct top top;
    if (!isfinite(t->lse)) {
        for (int64_t j = 0; j < r->k; j++)
            ids[j] = (int32_t)j;
        return INFINITY;
    }
    for (int64_t e = 0; e < r->experts; e++)
        value[e] = t->score[e] + (bias ? (double)bias[e] : 0);
    keep_groups(r, value, kept);
    top_start(&top, r->k + 1);
    for (int64_t g = 0; g < r->groups; g++)
        for (int64_t e = g * each; e < (g + 1) * each && kept[g]; e++)
            top_offer(&top, value[e], e);
    memcpy(ids, top.id, (size_t)r->k * sizeof(*ids));
    sort_ids(r->k, ids);
    return top.n > r->k ? top.value[r->k - 1] - top.value[r->k] : INFINITY;
}

static void weigh(const struct kern_router *r, const struct token_scores *t, const int32_t *ids, float *weights)
{
    const bool softmax = r->scores == KERN_SCORES_SOFTMAX_TOPK;
    double max = -INFINITY, sum = 0, w[KERN_MAX_CHOICES] = {0};
    for (int64_t j = 0; j < r->k; j++) {
        w[j] = t->score[ids[j]];
        max = w[j] > max ? w[j] : max;
    }
    for (int64_t j = 0; j < r->k && softmax; j += VD)
        v_store_d(w + j, v_exp_d(v_load_d(w + j) - max));
    for (int64_t j = 0; j < r->k; j++)
        sum += w[j];
    double floor = r->scores == KERN_SCORES_SIGMOID ? NORM_FLOOR : 0;
    double factor = (softmax || r->norm ? 1 / (sum + floor) : 1) * r->scale;
    for (int64_t j = 0; j < r->k; j++)
        weights[j] = isfinite(t->lse) ? (float)(w[j] * factor) : NAN;
}

/* ---- sums over tokens ---- */

/* Adds a token to the numbers of KERN_ROUTE_NUMBERS. A share is s / sum of s, and the softmax sums to 1. */
static void add_numbers(const struct kern_router *r, const struct token_scores *t, const int32_t *ids, double *numbers)
{
    const bool sigmoid = r->scores == KERN_SCORES_SIGMOID;
    const double *s = sigmoid ? t->open : t->soft, over = sigmoid ? 1 / t->open_sum : 1;
    double *shares = numbers + r->experts, entropy = 0;
    for (int64_t j = 0; j < r->k; j++)
        numbers[ids[j]] += 1;
    for (int64_t e = 0; e < r->experts; e++)
        shares[e] += s[e] * over;
    for (int64_t e = 0; e < r->experts; e++) {
        double p = s[e] * over;
        entropy += p > 0 ? p * (sigmoid ? -log(p) : t->lse - t->logit[e]) : -p;
    }
    numbers[2 * r->experts] += entropy;
    numbers[2 * r->experts + 1] += t->lse * t->lse;
}

struct segment {
    int64_t lo, hi, set; /* tokens of one set */
    double gap;
};

struct route_args {
    const struct kern_route *r;
    struct segment segments[WAVE];
    double *numbers; /* of each segment; NULL: not wanted */
};

static int64_t set_of(const struct kern_route *r, int64_t i)
{
    return r->rows ? r->rows[i] / r->seq - r->set0 : 0;
}

static void route_segments(void *arg, int part, int64_t lo, int64_t hi)
{
    struct route_args *a = arg;
    const struct kern_route *r = a->r;
    const int64_t experts = r->router.experts, k = r->router.k, count = KERN_ROUTE_NUMBERS(experts);
    for (int64_t g = lo; g < hi; g++) {
        struct segment *segment = &a->segments[g];
        double *numbers = a->numbers ? a->numbers + g * count : NULL;
        segment->gap = INFINITY;
        if (numbers)
            memset(numbers, 0, (size_t)count * sizeof(double));
        for (int64_t i = segment->lo; i < segment->hi; i++) {
            struct token_scores t;
            score_token(&r->router, (const float *)r->logits + i * experts, &t);
            double gap = INFINITY;
            if (r->given)
                memcpy(r->ids + i * k, r->given + i * k, (size_t)k * sizeof(*r->ids));
            else
                gap = choose(&r->router, &t, r->bias, r->ids + i * k);
            segment->gap = gap < segment->gap ? gap : segment->gap;
            weigh(&r->router, &t, r->ids + i * k, (float *)r->weights + i * k);
            if (numbers)
                add_numbers(&r->router, &t, r->ids + i * k, numbers);
        }
    }
}

/* The segment that begins at token i. */
static struct segment segment_at(const struct kern_route *r, int64_t i)
{
    int64_t set = r->sums ? set_of(r, i) : 0, hi = i + 1;
    while (hi < r->t && hi < i + SEGMENT && (!r->sums || set_of(r, hi) == set))
        hi++;
    return (struct segment){.lo = i, .hi = hi, .set = set};
}

static void add_all(int64_t n, const double *from, double *to)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

void KERN_FN(route)(struct kern_stream *s, const struct kern_route *r)
{
    const int64_t count = KERN_ROUTE_NUMBERS(r->router.experts), fit = WAVE_NUMBERS / count;
    double numbers[WAVE_NUMBERS];
    struct route_args a = {.r = r, .numbers = r->sums || r->totals ? numbers : NULL};
    assert(r->router.k >= 1 && r->router.k <= KERN_MAX_CHOICES && r->router.experts <= KERN_MAX_EXPERTS);
    if (r->sums)
        memset(r->sums, 0, (size_t)(r->sets * count) * sizeof(double));
    for (int64_t i = 0; i < r->t;) {
        int64_t n = 0;
        for (; i < r->t && n < WAVE && n < fit; n++) {
            a.segments[n] = segment_at(r, i);
            i = a.segments[n].hi;
        }
        kern_stream_run(s, n, 1, route_segments, &a);
        for (int64_t g = 0; g < n; g++) {
            if (r->sums)
                add_all(count, numbers + g * count, r->sums + a.segments[g].set * count);
            if (r->totals)
                add_all(count, numbers + g * count, r->totals);
            if (r->closeness && 1 / a.segments[g].gap > *r->closeness)
                *r->closeness = 1 / a.segments[g].gap;
        }
    }
}

/* ---- the gradient ---- */

/* dz += the gradient through the weights w, with dw given; formulas as in ref/experts.c. */
static void through_weights(const struct kern_router *r, const struct token_scores *t, const int32_t *ids,
                            const float *w, const float *dw, double *dz)
{
    double mean = 0, sum = 0;
    for (int64_t j = 0; j < r->k; j++) {
        mean += (double)w[j] * (double)dw[j];
        sum += t->score[ids[j]];
    }
    if (r->scores == KERN_SCORES_SIGMOID) {
        for (int64_t j = 0; j < r->k; j++) {
            double s = t->open[ids[j]], ds = r->scale * (double)dw[j];
            dz[ids[j]] += s * (1 - s) * (r->norm ? (ds - mean) / (sum + NORM_FLOOR) : ds);
        }
        return;
    }
    bool over_chosen = r->norm || r->scores == KERN_SCORES_SOFTMAX_TOPK;
    for (int64_t j = 0; j < r->k; j++)
        dz[ids[j]] += (double)w[j] * (double)dw[j] - (over_chosen ? (double)w[j] * mean / r->scale : 0);
    for (int64_t e = 0; e < r->experts && !over_chosen; e++)
        dz[e] -= t->soft[e] * mean;
}

/* dz += the gradient of the auxiliary loss; n: the counts of the token's set. */
static void through_aux(const struct kern_route_grad *a, const struct token_scores *t, const double *n, double *dz)
{
    const struct kern_router *r = &a->fwd.router;
    const bool sigmoid = r->scores == KERN_SCORES_SIGMOID;
    const double *s = sigmoid ? t->open : t->soft, over = sigmoid ? 1 / t->open_sum : 1;
    double choices = 0, mean = 0;
    for (int64_t e = 0; e < r->experts; e++) {
        choices += n[e];
        mean += s[e] * over * n[e];
    }
    double each = choices > 0 ? a->aux * (double)r->experts * a->scale / choices : 0;
    for (int64_t e = 0; e < r->experts; e++)
        dz[e] += s[e] * over * (sigmoid ? 1 - s[e] : 1) * each * (n[e] - mean);
}

static void grad_tokens(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct kern_route_grad *a = arg;
    const struct kern_route *f = &a->fwd;
    const int64_t experts = f->router.experts, k = f->router.k;
    for (int64_t i = lo; i < hi; i++) {
        struct token_scores t;
        double dz[KERN_MAX_EXPERTS];
        score_token(&f->router, (const float *)f->logits + i * experts, &t);
        double z = a->z != 0 ? 2 * a->z * a->scale * t.lse : 0;
        for (int64_t e = 0; e < experts; e++)
            dz[e] = z * t.soft[e];
        through_weights(&f->router, &t, f->ids + i * k, (const float *)f->weights + i * k,
                        (const float *)a->d_weights + i * k, dz);
        if (a->aux != 0)
            through_aux(a, &t, f->sums + set_of(f, i) * KERN_ROUTE_NUMBERS(experts), dz);
        for (int64_t e = 0; e < experts; e++)
            ((elem *)a->d_logits)[i * experts + e] = e_of((float)dz[e]);
    }
}

void KERN_FN(route_grad)(struct kern_stream *s, const struct kern_route_grad *a)
{
    kern_stream_run(s, a->fwd.t, SEGMENT, grad_tokens, (void *)a);
}

/* ---- balance ---- */

static int64_t sign(int64_t x)
{
    return (x > 0) - (x < 0);
}

void KERN_FN(balance)(struct kern_stream *s, const struct kern_balance *b)
{
    int64_t sum = 0, signs = 0;
    float *bias = b->bias;
    for (int64_t e = 0; e < b->experts; e++)
        sum += (int64_t)b->counts[e];
    for (int64_t e = 0; e < b->experts; e++)
        signs += sign(sum - b->experts * (int64_t)b->counts[e]);
    for (int64_t e = 0; e < b->experts && isfinite(*b->factor); e++) {
        int64_t above = b->experts * sign(sum - b->experts * (int64_t)b->counts[e]) - signs;
        bias[e] = (float)((double)bias[e] + b->rate * (double)above / (double)b->experts);
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
