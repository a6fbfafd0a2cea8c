/* The sequence of sources is periodic, because weights are integers: with a sum of N, N positions contain each source
 * as often as its weight. A period is computed once and stored as a table, so a position costs a lookup. Copy k (from
 * 1) of a source with weight w, in positions from 1, must come after (k - 1) N / w, else the source would be a whole
 * sample ahead, and not after the first position at or above k N / w, else it would be a whole sample behind. The
 * earliest deadline first meets all of these limits (Steiner and Yeomans 1993; Tijdeman 1980 has the bound).
 *
 * When a source with a limit of passes is used up, a new segment of the sequence begins, with its own period. */
#include "common/data/order.h"

#include "common/data/data.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PERIOD (1 << 20) /* 6 MiB of tables */
#define MAX_FRACTION 9       /* decimal places of a weight */
#define BLOCK_TOKENS ((int64_t)1 << 22)
#define WINDOW 16 /* blocks; part of the data order, so never change it */

/* ---- weights ---- */

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* A decimal number as digits and the number of those behind the point; false: it is none, or too long. */
static bool decimal_parse(const char *text, int64_t *ret, int *ret_places)
{
    int64_t value = 0;
    int digits = 0, places = -1;
    for (const char *c = text; *c; c++) {
        if (*c == '.' && places < 0) {
            places = 0;
            continue;
        }
        if (*c < '0' || *c > '9' || ++digits > 18 || places >= MAX_FRACTION)
            return false;
        value = value * 10 + (*c - '0');
        places += places >= 0;
    }
    *ret = value;
    *ret_places = places > 0 ? places : 0;
    return value > 0;
}

static int64_t power_of_10(int n)
{
    int64_t x = 1;
    while (n-- > 0)
        x *= 10;
    return x;
}

/* Divides all by their greatest common divisor, and returns the sum; -1: it is above MAX_PERIOD. */
static int64_t reduce(int64_t *weights, int n)
{
    int64_t divisor = 0, sum = 0;
    for (int i = 0; i < n; i++)
        divisor = gcd(weights[i], divisor);
    for (int i = 0; i < n && sum >= 0; i++) {
        weights[i] /= divisor ? divisor : 1;
        sum = weights[i] > MAX_PERIOD - sum ? -1 : sum + weights[i];
    }
    return sum;
}

err_t order_weights(char *const *texts, int n, int64_t *ret, struct why *why)
{
    int most = 0, places[ORDER_MAX_SOURCES];
    if (n < 1 || n > ORDER_MAX_SOURCES)
        return why_set(why, ERR_INVALID, "a mixture has 1 to %d sources, not %d", ORDER_MAX_SOURCES, n);
    for (int i = 0; i < n; i++) {
        if (!decimal_parse(texts[i], &ret[i], &places[i]))
            return why_set(why, ERR_INVALID,
                           "\"%.40s\" is not a weight: write a number above 0 such as 0.7 or 20, with at most %d "
                           "decimal places",
                           texts[i], MAX_FRACTION);
        most = places[i] > most ? places[i] : most;
    }
    for (int i = 0; i < n; i++)
        if (__builtin_mul_overflow(ret[i], power_of_10(most - places[i]), &ret[i]))
            return why_set(why, ERR_INVALID, "the weight %.40s has too many digits", texts[i]);
    if (reduce(ret, n) < 0)
        return why_set(why, ERR_INVALID,
                       "the weights repeat only after more than %d samples: write them with fewer digits, so that they "
                       "are multiples of a larger number",
                       MAX_PERIOD);
    return OK;
}

/* ---- segments ---- */

struct order_segment {
    int64_t first, end; /* positions */
    int64_t period;
    uint16_t *source; /* [period] */
    uint32_t *before; /* [period]: positions of the same source earlier in the period */
    int64_t *weight;  /* by source: copies in a period; 0: the source has left */
    int64_t *base;    /* by source: how many it gave before `first` */
};

struct data_order {
    struct order_source *sources;
    int n;
    uint64_t seed;
    enum data_shuffle shuffle;
    int64_t block_samples;
    struct order_segment *segments;
    int n_segments;
};

static int64_t ceiling(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* The source of position t, from 1, of a period: among those whose next copy may come, the one with the earliest
 * deadline, and of these the first. */
static int earliest(const struct order_segment *s, int n, int64_t t, const int64_t *given)
{
    int best = -1;
    int64_t best_deadline = INT64_MAX;
    for (int i = 0; i < n; i++) {
        if (!s->weight[i] || t * s->weight[i] <= given[i] * s->period)
            continue;
        int64_t deadline = ceiling((given[i] + 1) * s->period, s->weight[i]);
        if (deadline < best_deadline) {
            best = i;
            best_deadline = deadline;
        }
    }
    assert(best >= 0 && best_deadline >= t);
    return best;
}

static err_t period_fill(struct order_segment *s, int n)
{
    int64_t *given = calloc((size_t)n, sizeof(*given));
    s->source = calloc((size_t)s->period, sizeof(*s->source));
    s->before = calloc((size_t)s->period, sizeof(*s->before));
    err_t err = given && s->source && s->before ? OK : ERR_NOMEM;
    for (int64_t t = 0; !err && t < s->period; t++) {
        int i = earliest(s, n, t + 1, given);
        s->source[t] = (uint16_t)i;
        s->before[t] = (uint32_t)given[i]++;
    }
    free(given);
    return err;
}

/* The position behind copy m (from 1) of a source in the segment; INT64_MAX: too far away to count. */
static int64_t behind_copy(const struct order_segment *s, int source, int64_t m)
{
    int64_t cycles = (m - 1) / s->weight[source], k = (m - 1) % s->weight[source], at, t = 0;
    while (s->source[t] != source || s->before[t] != k)
        t++;
    if (__builtin_mul_overflow(cycles, s->period, &at) || __builtin_add_overflow(at, s->first + t + 1, &at))
        return INT64_MAX;
    return at;
}

/* How many more samples the source may give; INT64_MAX: no limit. */
static int64_t left_of(const struct order_source *x, int64_t given)
{
    int64_t all;
    if (!x->passes || __builtin_mul_overflow(x->passes, x->samples, &all))
        return INT64_MAX;
    return all - given;
}

static int64_t count_in(const struct order_segment *s, int source, int64_t position)
{
    int64_t q = position - s->first, n = s->base[source] + q / s->period * s->weight[source];
    for (int64_t t = 0; t < q % s->period; t++)
        n += s->source[t] == source;
    return n;
}

/* Begins the segment after `last` (NULL: the first). Period 0: no source is left. */
static err_t segment_begin(const struct data_order *o, const struct order_segment *last, struct order_segment *s)
{
    *s = (struct order_segment){.first = last ? last->end : 0, .end = INT64_MAX};
    s->weight = calloc((size_t)o->n, sizeof(*s->weight));
    s->base = calloc((size_t)o->n, sizeof(*s->base));
    if (!s->weight || !s->base)
        return ERR_NOMEM;
    for (int i = 0; i < o->n; i++) {
        s->base[i] = last ? count_in(last, i, last->end) : 0;
        s->weight[i] = left_of(&o->sources[i], s->base[i]) > 0 ? o->sources[i].weight : 0;
    }
    s->period = reduce(s->weight, o->n);
    if (s->period <= 0)
        return s->period < 0 ? ERR_LIMIT : OK;
    err_t err = period_fill(s, o->n);
    for (int i = 0; !err && i < o->n; i++) {
        int64_t left = left_of(&o->sources[i], s->base[i]);
        int64_t end = s->weight[i] && left != INT64_MAX ? behind_copy(s, i, left) : INT64_MAX;
        s->end = end < s->end ? end : s->end;
    }
    return err;
}

static void segment_fini(struct order_segment *s)
{
    free(s->source);
    free(s->before);
    free(s->weight);
    free(s->base);
}

/* Every segment but the last ends with a source that leaves, so there are at most n, and one without a source. */
static err_t segments_make(struct data_order *o)
{
    err_t err = OK;
    o->segments = calloc((size_t)o->n + 1, sizeof(*o->segments));
    if (!o->segments)
        return ERR_NOMEM;
    do {
        struct order_segment *s = &o->segments[o->n_segments];
        err = segment_begin(o, o->n_segments ? s - 1 : NULL, s);
        o->n_segments++;
        if (!s->period)
            s->end = s->first;
    } while (!err && o->segments[o->n_segments - 1].end != INT64_MAX && o->segments[o->n_segments - 1].period);
    return err;
}

err_t order_new(const struct order_source *sources, int n, uint64_t seed, enum data_shuffle shuffle,
                int64_t block_samples, struct data_order **ret)
{
    struct data_order *o = calloc(1, sizeof(*o));
    if (!o)
        return ERR_NOMEM;
    assert(n >= 1 && n <= ORDER_MAX_SOURCES && block_samples >= 1);
    *o = (struct data_order){.n = n, .seed = seed, .shuffle = shuffle, .block_samples = block_samples};
    o->sources = malloc((size_t)n * sizeof(*o->sources));
    err_t err = o->sources ? OK : ERR_NOMEM;
    if (!err) {
        memcpy(o->sources, sources, (size_t)n * sizeof(*sources));
        err = segments_make(o);
    }
    if (err) {
        order_free(o);
        return err;
    }
    *ret = o;
    return OK;
}

void order_free(struct data_order *o)
{
    if (!o)
        return;
    for (int i = 0; i < o->n_segments; i++)
        segment_fini(&o->segments[i]);
    free(o->segments);
    free(o->sources);
    free(o);
}

/* ---- reading ---- */

static const struct order_segment *segment_of(const struct data_order *o, int64_t position)
{
    const struct order_segment *s = o->segments;
    while (position >= s->end && s < &o->segments[o->n_segments - 1])
        s++;
    return s;
}

int64_t order_end(const struct data_order *o)
{
    return o->segments[o->n_segments - 1].end;
}

int64_t order_count(const struct data_order *o, int source, int64_t position)
{
    const struct order_segment *s = segment_of(o, position);
    return s->period ? count_in(s, source, position) : s->base[source];
}

void order_at(const struct data_order *o, int64_t position, int *ret_source, int64_t *ret_sample)
{
    assert(position >= 0 && position < order_end(o));
    const struct order_segment *s = segment_of(o, position);
    const int64_t cycle = (position - s->first) / s->period, t = (position - s->first) % s->period;
    const int i = s->source[t];
    const int64_t at = s->base[i] + cycle * s->weight[i] + s->before[t];
    /* The first source's seed is that of a job without a mixture. */
    const uint64_t seed = o->seed + (uint64_t)i * 0x9e3779b97f4a7c15u;
    *ret_source = i;
    *ret_sample = order_shuffled(seed, o->sources[i].samples, o->shuffle, o->block_samples, at);
}

/* ---- shuffling ---- */

int64_t order_block_samples(int64_t stride)
{
    return BLOCK_TOKENS / stride > 0 ? BLOCK_TOKENS / stride : 1;
}

int64_t order_shuffled(uint64_t seed, int64_t n, enum data_shuffle shuffle, int64_t block_samples, int64_t position)
{
    const int64_t blocks = n / block_samples, windows = blocks / WINDOW;
    if (shuffle == SHUFFLE_SAMPLES || windows < 2)
        return data_sampler(seed, n, position);
    const int64_t pass = position / n, x = position % n;
    int64_t w = x / (WINDOW * block_samples);
    w = w < windows ? w : windows - 1;
    const int64_t first = w * WINDOW * block_samples;
    const int64_t size = w < windows - 1 ? WINDOW * block_samples : n - first;
    /* A permutation of its own for the window of this pass, and one for the blocks. */
    const int64_t y = data_sampler(seed + (uint64_t)(w + 2) * 0xd1b54a32d192ed03u, size, pass * size + x - first);
    const int64_t block = w * WINDOW + y / block_samples;
    if (block >= blocks)
        return first + y; /* behind the last whole block */
    return data_sampler(seed + 0xd1b54a32d192ed03u, blocks, pass * blocks + block) * block_samples + y % block_samples;
}
