/* Defines when two layouts of a job agree. Each parity_compare function fails the test and names the first difference.
 */
#ifndef DTD_TESTS_PARITY_COMPARE_H
#define DTD_TESTS_PARITY_COMPARE_H

#include "tests/parity/harness.h"

/* Proof mode: losses and norms within 1e-10 relative; |a - b| <= 1e-10 max(largest |a| of the tensor, 1e-3 RMS over all
 * tensors). Elements whose exact gradient is zero are left out, because Adam amplifies their rounding. */
void parity_compare_bounds(const struct graph *g, const struct parity_result *a, const struct parity_result *b,
                           int steps);
/* Performs the same comparison, but returns true and the first difference in `why`. A NaN is a difference. */
bool parity_differ(const struct graph *g, const struct parity_result *a, const struct parity_result *b, int steps,
                   char *why, size_t size);
/* Compares gradients: `bound` is relative to the largest of the tensor or to the RMS over all. */
bool parity_gradients_differ(const struct graph *g, const double *a, const double *b, int64_t total, double bound,
                             char *why, size_t size);
/* Canonical numerics: equal bits. */
void parity_compare_bits(const struct parity_result *a, const struct parity_result *b, int steps);
/* Elements whose exact gradient is zero must be below 1e-12 of the RMS over all gradients: only rounding. */
void parity_check_zero(const struct graph *g, const double *grad, int64_t total);

#endif
