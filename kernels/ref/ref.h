/* Common definitions of the reference kernels (the oracle of tests). Every file of ref/ is compiled twice, with
 * KERN_REF_BITS 32 and 64. `real` is the table's type; every sum and every function is computed in double and rounded
 * once, when it is stored. */
#ifndef DTD_KERNELS_REF_REF_H
#define DTD_KERNELS_REF_REF_H

#if KERN_REF_BITS == 32
typedef float real;
#define KERN_FN(name) kern_ref_f32_##name
#elif KERN_REF_BITS == 64
typedef double real;
#define KERN_FN(name) kern_ref_f64_##name
#else
#error "KERN_REF_BITS must be 32 or 64"
#endif

#include "kernels/prototypes.h"

/* The tanh form of GELU and its derivative; products apply them too. */
double KERN_FN(gelu_of)(double x);
double KERN_FN(gelu_slope)(double x);

#endif
