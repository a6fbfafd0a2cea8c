/* Filters need the tokens in descending order, but only the first of them: a heap gives these without sorting all,
 * which would take longer than the model needs for a token. */
#include "worker/choose.h"

#include "common/base/rng.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

err_t choose_room_init(struct choose_room *r, int64_t n)
{
    *r = (struct choose_room){n, calloc((size_t)n + 1, sizeof(*r->order)), calloc((size_t)n + 1, sizeof(*r->logits))};
    if (r->order && r->logits)
        return OK;
    choose_room_fini(r);
    return ERR_NOMEM;
}

void choose_room_fini(struct choose_room *r)
{
    free(r->order);
    free(r->logits);
    *r = (struct choose_room){0};
}

static int64_t largest(const float *logits, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* The penalty applies once to a token that occurs often: its logit is then no longer the given one. */
static void penalize(struct choose_room *r, const float *given, const int32_t *text, int64_t n_text, double penalty)
{
    for (int64_t i = 0; i < n_text; i++) {
        const int32_t id = text[i];
        if (id >= 0 && id < r->n)
            r->logits[id] = (float)(given[id] > 0 ? (double)given[id] / penalty : (double)given[id] * penalty);
    }
}

/* ---- tokens in descending order ---- */

static bool before(const float *logits, int32_t a, int32_t b)
{
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

static void sift(const float *logits, int32_t *heap, int64_t n, int64_t at)
{
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && before(logits, heap[child + 1], heap[child]))
            child++;
        if (!before(logits, heap[child], heap[at]))
            return;
        const int32_t other = heap[at];
        heap[at] = heap[child];
        heap[child] = other;
    }
}

static void heap_init(const struct choose_room *r)
{
    for (int64_t i = 0; i < r->n; i++)
        r->order[i] = (int32_t)i;
    for (int64_t i = r->n / 2 - 1; i >= 0; i--)
        sift(r->logits, r->order, r->n, i);
}

/* Takes the best of the tokens that are left, when `taken` have been taken. Taken ones stand at the end of the array,
 * so token i in descending order is order[n - 1 - i]. */
static void heap_take(const struct choose_room *r, int64_t taken)
{
    const int64_t last = r->n - 1 - taken;
    const int32_t best = r->order[0];
    r->order[0] = r->order[last];
    r->order[last] = best;
    sift(r->logits, r->order, last, 0);
}

/* ---- the choice ---- */

/* Weights of the probabilities, relative to that of the most likely token. */
struct scale {
    double top, temperature;
};

static double weight(const struct choose_room *r, const struct scale *s, int32_t id)
{
    return exp(((double)r->logits[id] - s->top) / s->temperature);
}

static double sum_of_all(const struct choose_room *r, const struct scale *s)
{
    double sum = 0;
    for (int64_t i = 0; i < r->n; i++)
        sum += weight(r, s, (int32_t)i);
    return sum;
}

/* Takes the tokens that the rule keeps off the heap. Returns their number and the sum of their weights. */
static int64_t keep(const struct choose_rule *rule, const struct choose_room *r, const struct scale *s, double *ret_sum)
{
    const int64_t k = rule->top_k > 0 && rule->top_k < r->n ? rule->top_k : r->n;
    const bool nucleus = rule->top_p > 0 && rule->top_p < 1;
    double total = 0, sum = 0;
    int64_t taken = 0, kept = 0;
    heap_init(r);
    while (k < r->n && taken < k) {
        heap_take(r, taken);
        total += weight(r, s, r->order[r->n - 1 - taken++]);
    }
    if (nucleus && k == r->n)
        total = sum_of_all(r, s);
    while (kept < k && (kept == 0 || !nucleus || sum < rule->top_p * total)) {
        if (kept == taken)
            heap_take(r, taken++);
        const double w = weight(r, s, r->order[r->n - 1 - kept]);
        if (kept > 0 && w < rule->min_p)
            break;
        sum += w;
        kept++;
    }
    *ret_sum = sum;
    return kept;
}

int32_t choose_token(const struct choose_rule *rule, const float *logits, const int32_t *text, int64_t n_text,
                     uint64_t position, struct choose_room *r)
{
    memcpy(r->logits, logits, (size_t)r->n * sizeof(*logits));
    if (rule->penalty > 0 && rule->penalty != 1)
        penalize(r, logits, text, n_text, rule->penalty);
    const int64_t best = largest(r->logits, r->n);
    if (rule->temperature <= 0)
        return (int32_t)best;
    const struct scale s = {(double)r->logits[best], rule->temperature};
    const bool all =
        (rule->top_k <= 0 || rule->top_k >= r->n) && (rule->top_p <= 0 || rule->top_p >= 1) && !rule->min_p;
    double sum;
    const int64_t n = all ? r->n : keep(rule, r, &s, &sum);
    sum = all ? sum_of_all(r, &s) : sum;
    double left = rng_uniform(rule->seed, rng_stream("generate"), position) * sum;
    int32_t id = 0;
    for (int64_t i = 0; i < n && left >= 0; i++) {
        id = all ? (int32_t)i : r->order[r->n - 1 - i];
        left -= weight(r, &s, id);
    }
    return id;
}
