/* What it means that two layouts of one job agree. Each function fails the test and names the first difference. */
#ifndef DTD_TESTS_PARITY_COMPARE_H
#define DTD_TESTS_PARITY_COMPARE_H

#include "tests/parity/harness.h"

/* Proof mode: losses and norms within 1e-10 relative; |a - b| <= 1e-10 max(largest |a| of the tensor, 1e-3 RMS over all
 * tensors), the parts whose exact gradient is zero left out (Adam amplifies their rounding). */
void parity_compare_bounds(const struct graph *g, const struct parity_result *a, const struct parity_result *b,
                           int steps);
/* The same as an answer: true, and what differs first in `why`. Not a number is a difference. */
bool parity_differ(const struct graph *g, const struct parity_result *a, const struct parity_result *b, int steps,
                   char *why, size_t size);
/* Gradients within `bound` of the largest of the tensor, or of the RMS over all. */
bool parity_gradients_differ(const struct graph *g, const double *a, const double *b, int64_t total, double bound,
                             char *why, size_t size);
/* Canonical numerics: the same bits. */
void parity_compare_bits(const struct parity_result *a, const struct parity_result *b, int steps);
/* What is exactly zero in theory is nothing but rounding: below 1e-12 of the RMS over all gradients. */
void parity_check_zero(const struct graph *g, const double *grad, int64_t total);

#endif
