/* The normal distribution in float32 for GELU's exact form, shared by kernels/cpu and kernels/cuda. With a = |x| and
 * t = 1 / (1 + NORMAL_TAIL_STEP a)
 *
 *   P(X < -a) = exp(-a^2 / 2) t (c_0 + c_1 t + .. + c_9 t^9)
 *
 * The polynomial was fitted for 0 <= a <= 14 with the smallest relative error, 3.4e-9; beyond 14 the result is below
 * the smallest float32. The square is computed in two parts, or its rounding error, times half of a^2, would show. */
#ifndef DTD_KERNELS_NORMAL_TAIL_H
#define DTD_KERNELS_NORMAL_TAIL_H

#define NORMAL_TAIL_STEP 0.3f
#define NORMAL_TAIL_TERMS                                                                                        \
    {                                                                                                            \
        -0.0206129458f, 0.112376414f, -0.228069022f, 0.191583708f, -0.0792490169f, 0.0960587263f, 0.0784252658f, \
            0.110227391f, 0.119572833f, 0.119686633f                                                             \
    }                                       /* c_9 first */
#define NORMAL_PEAK 0.39894228040143267794f /* 1 / sqrt(2 pi) */

#endif
