/* Element-wise kernels: a function of a few vectors, mapped over arrays. Private to kernels/cpu. */
#ifndef DTD_KERNELS_CPU_MAP_H
#define DTD_KERNELS_CPU_MAP_H

#include "kernels/cpu/cpu.h"

#define MAP_MAX 4
#define MAP_GRAIN 4096

struct cpu_map {
    const float *in[MAP_MAX];
    float *out[MAP_MAX];
    const void *constants; /* arguments of the lanes function */
};

/* Maps one vector of each input to one of each output. Inputs are read before any output is written, so input and
 * output arrays may be the same, but must not overlap with an offset. */
typedef void map_lanes_fn(const void *constants, const vf in[], vf out[]);

static ALWAYS_INLINE void map_range(int n_in, int n_out, map_lanes_fn *fn, const struct cpu_map *m, int64_t lo,
                                    int64_t hi)
{
    vf in[MAP_MAX], out[MAP_MAX];
    int64_t i = lo;
    for (; i + VF <= hi; i += VF) {
        for (int k = 0; k < n_in; k++)
            in[k] = v_load(m->in[k] + i);
        fn(m->constants, in, out);
        for (int k = 0; k < n_out; k++) {
            v_expect_store(m->out[k] + i);
            v_store(m->out[k] + i, out[k]);
        }
    }
    if (i == hi)
        return;
    for (int k = 0; k < n_in; k++)
        in[k] = v_load_n(m->in[k] + i, hi - i);
    fn(m->constants, in, out);
    for (int k = 0; k < n_out; k++)
        v_store_n(m->out[k] + i, out[k], hi - i);
}

/* Defines the kern_range_fn `name` for a lanes function with n_in inputs and n_out outputs. */
#define MAP_RANGE(name, n_in, n_out, lanes)                       \
    static void name(void *arg, int part, int64_t lo, int64_t hi) \
    {                                                             \
        map_range(n_in, n_out, lanes, arg, lo, hi);               \
    }

#endif
