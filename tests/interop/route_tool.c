/* route_tool BACKEND TOKENS EXPERTS CHOICES SCORES NORM SCALE GROUPS KEPT BEST BIAS AUX Z <numbers: routes tokens, in
 * float64. SCORES: 0 softmax, 1 softmax over the chosen ones, 2 sigmoid. Standard input has the logits of all tokens,
 * the biases if BIAS is 1, and the gradients of the weights. For each token it prints a line with the ids, the weights
 * and the gradients of the logits, among them those of the losses with the coefficients AUX and Z. */
#include "kernels/device.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>

#define SIZE ((size_t)1 << 20) /* elements of an array */

static double logits[SIZE], bias[KERN_MAX_EXPERTS], d_weights[SIZE], d_logits[SIZE], weights[SIZE];
static double sums[KERN_ROUTE_NUMBERS(KERN_MAX_EXPERTS)];
static int32_t ids[SIZE];

static void read_numbers(double *to, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (scanf("%lf", &to[i]) != 1) {
            fprintf(stderr, "route_tool: too few numbers\n");
            exit(2);
        }
}

int main(int argc, char **argv)
{
    struct dev *dev;
    struct kern_stream *s;
    struct why why = {{0}};
    if (argc != 14)
        return 2;
    const struct kern_ops *k = kern_find(argv[1], DT_F64);
    const int64_t t = atoll(argv[2]);
    struct kern_route r = {.router = {.experts = atoll(argv[3]),
                                      .k = atoll(argv[4]),
                                      .scores = (enum kern_scores)atoi(argv[5]),
                                      .norm = atoi(argv[6]),
                                      .scale = atof(argv[7]),
                                      .groups = atoll(argv[8]),
                                      .groups_kept = atoll(argv[9]),
                                      .group_best = atoll(argv[10])},
                           .t = t,
                           .seq = t,
                           .sets = 1,
                           .logits = logits,
                           .bias = atoi(argv[11]) ? bias : NULL,
                           .ids = ids,
                           .weights = weights,
                           .sums = sums};
    if (!k || t * r.router.experts > (int64_t)SIZE || dev_open("cpu", 0, &dev, &why) ||
        dev_stream_new(dev, 0, false, &s, &why)) {
        fprintf(stderr, "route_tool: %s\n", why.text);
        return 2;
    }
    read_numbers(logits, t * r.router.experts);
    read_numbers(bias, r.bias ? r.router.experts : 0);
    read_numbers(d_weights, t * r.router.k);
    struct kern_route_grad g = {.fwd = r,
                                .aux = atof(argv[12]),
                                .z = atof(argv[13]),
                                .scale = 1 / (double)t,
                                .d_weights = d_weights,
                                .d_logits = d_logits};
    k->route(s, &r);
    k->route_grad(s, &g);
    for (int64_t i = 0; i < t; i++) {
        for (int64_t j = 0; j < r.router.k; j++)
            printf("%d ", ids[i * r.router.k + j]);
        for (int64_t j = 0; j < r.router.k; j++)
            printf("%.17g ", weights[i * r.router.k + j]);
        for (int64_t e = 0; e < r.router.experts; e++)
            printf("%.17g%c", d_logits[i * r.router.experts + e], e + 1 < r.router.experts ? ' ' : '\n');
    }
    dev_stream_free(s);
    return 0;
}
