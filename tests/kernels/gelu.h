/* How exact a device's GELU behind a product is, where the case table, which bounds errors on the scale of a matrix,
 * does not look: at values close to zero. A library of tests. */
#ifndef DTD_TESTS_KERNELS_GELU_H
#define DTD_TESTS_KERNELS_GELU_H

#include "kernels/kernels.h"

/* The worst error of c = f(x), or of x f'(aux), in bfloat16 over x from -4 to 4, of products [64,8] [8,16] whose x is
 * exact, in units of what rounding x (which may be stored before f sees it) and the result allows: 1 is as good as
 * bfloat16. The device has to be the caller's alone. */
double gelu_worst(struct dev *d, enum kern_act act);

#endif
