/* The order of measured times. */
#ifndef DTD_TESTS_BENCH_MEDIAN_H
#define DTD_TESTS_BENCH_MEDIAN_H

#include <stdlib.h>

static inline int median_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Sorts x. Of two numbers in the middle, returns the larger one. */
static inline double median_of_all(double *x, size_t n)
{
    qsort(x, n, sizeof(*x), median_order);
    return x[n / 2];
}

#endif
