/* Measures the accuracy of a device's GELU after a product at values close to zero. The case table does not cover
 * these, because it bounds errors on the scale of a matrix. A library of tests. */
#ifndef DTD_TESTS_KERNELS_GELU_H
#define DTD_TESTS_KERNELS_GELU_H

#include "kernels/kernels.h"

/* The worst error of c = f(x), or of x f'(aux), in bfloat16 over x from -4 to 4, of products [64,8] [8,16] whose x is
 * exact. The unit is the error that rounding of x (which may be stored before f is applied) and of the result allows: 1
 * is as good as bfloat16. The caller must be the device's only user. */
double gelu_worst(struct dev *d, enum kern_act act);

#endif
