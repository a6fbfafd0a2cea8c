/* Plumbing of the oracle: every file of ref/ is compiled twice, with KERN_REF_BITS 32 and 64. `real` is the table's
 * type; every sum and every function of a value is computed in double and rounded once, where it is stored. */
#ifndef DTD_KERNELS_REF_REF_H
#define DTD_KERNELS_REF_REF_H

#if KERN_REF_BITS == 32
typedef float real;
#define KERN_FN(name) kern_ref_f32_##name
#elif KERN_REF_BITS == 64
typedef double real;
#define KERN_FN(name) kern_ref_f64_##name
#else
#error "KERN_REF_BITS is 32 or 64"
#endif

#include "kernels/prototypes.h"

/* The tanh form of GELU and its derivative, which products apply too. */
double KERN_FN(gelu_of)(double x);
double KERN_FN(gelu_slope)(double x);

#endif
