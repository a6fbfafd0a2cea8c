/* Experts with a capacity. Every choice of an expert has a number, the larger the sooner it is kept: the weight's bits
 * in ascending order of the weights, then the tokens that come behind its own. No two choices of an expert in a sample
 * have the same number, so what an expert keeps is all from a least number on, which is found bit by bit: a bit stays
 * if at least `capacity` choices reach the number with it. */
#include "kernels/cpu/cpu.h"

#define TOKENS 64 /* a part's least number of tokens: a microsecond of work */

struct drop_args {
    const struct kern_drop *d;
    uint64_t *least; /* [sets, experts] */
};

static int64_t planes(const struct kern_drop *d)
{
    return d->by_weight ? 2 : 1;
}

/* Ascending with x; NaN is the largest. */
static uint32_t weight_key(float x)
{
    uint32_t bits;
    x = x == 0 ? 0 : x; /* -0 and 0 are equal */
    memcpy(&bits, &x, sizeof(bits));
    return isnan(x) ? UINT32_MAX : bits >> 31 ? ~bits : bits | UINT32_C(1) << 31;
}

/* The number of choice `at` of a sample. */
static uint64_t number_of(const struct kern_drop *d, const double *sample, int64_t at)
{
    const uint64_t behind = (uint64_t)(d->seq - 1 - at / d->k);
    return d->by_weight ? (uint64_t)weight_key((float)sample[d->seq * d->k + at]) << 32 | behind : behind;
}

static void find_least(const struct kern_drop *d, const double *sample, uint64_t *least)
{
    int64_t count[KERN_MAX_EXPERTS];
    const uint64_t most = d->by_weight ? UINT64_MAX : (uint64_t)d->seq;
    memset(least, 0, (size_t)d->experts * sizeof(*least));
    for (int bit = 63; bit >= 0; bit--) {
        const uint64_t one = UINT64_C(1) << bit;
        if (one > most || (bit < 32 && one > (uint64_t)d->seq))
            continue; /* no number has this bit */
        memset(count, 0, (size_t)d->experts * sizeof(*count));
        for (int64_t at = 0; at < d->seq * d->k; at++) {
            const int64_t e = (int64_t)sample[at] - 1;
            if (e >= 0)
                count[e] += number_of(d, sample, at) >= (least[e] | one);
        }
        for (int64_t e = 0; e < d->experts; e++)
            least[e] |= count[e] >= d->capacity ? one : 0;
    }
}

static void find_samples(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct drop_args *a = arg;
    for (int64_t i = lo; i < hi; i++)
        find_least(a->d, a->d->table + i * planes(a->d) * a->d->seq * a->d->k, a->least + i * a->d->experts);
}

static void keep_tokens(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct drop_args *a = arg;
    const struct kern_drop *d = a->d;
    for (int64_t i = lo * d->k; i < hi * d->k; i++) {
        const int64_t at = d->rows[i / d->k] - d->set0 * d->seq, set = at / d->seq;
        const double *sample = d->table + set * planes(d) * d->seq * d->k;
        bool kept = number_of(d, sample, at % d->seq * d->k + i % d->k) >= a->least[set * d->experts + d->ids[i]];
        d->kept[i] = kept ? d->ids[i] : -1;
    }
}

err_t KERN_FN(drop)(struct kern_stream *s, const struct kern_drop *d)
{
    struct drop_args a = {.d = d};
    int64_t dropped = 0;
    err_t err = kern_stream_scratch(s, (size_t)(d->sets * d->experts) * sizeof(*a.least), (void **)&a.least);
    if (err)
        return err;
    kern_stream_run(s, d->sets, 1, find_samples, &a);
    kern_stream_run(s, d->t, TOKENS, keep_tokens, &a);
    for (int64_t i = 0; i < d->t * d->k; i++)
        dropped += d->kept[i] < 0;
    if (d->dropped)
        *d->dropped += (double)dropped;
    return OK;
}

/* ---- the table ---- */

static void write_choices(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct kern_drop *d = arg;
    for (int64_t i = lo * d->k; i < hi * d->k; i++) {
        const int64_t at = d->rows[i / d->k] - d->set0 * d->seq;
        double *to = d->table + (at / d->seq * planes(d) * d->seq + at % d->seq) * d->k + i % d->k;
        to[0] = d->ids[i] + 1;
        if (d->by_weight)
            to[d->seq * d->k] = (double)((const float *)d->weights)[i];
    }
}

void KERN_FN(choices)(struct kern_stream *s, const struct kern_drop *d)
{
    memset(d->table, 0, (size_t)(d->sets * planes(d) * d->seq * d->k) * sizeof(double));
    kern_stream_run(s, d->t, TOKENS, write_choices, (void *)d);
}
