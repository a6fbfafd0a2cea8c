/* Element-wise kernels: a function of a few vectors, mapped over arrays. Private to kernels/cpu. */
#ifndef DTD_KERNELS_CPU_MAP_H
#define DTD_KERNELS_CPU_MAP_H

#include "kernels/cpu/cpu.h"

#define MAP_MAX 4
#define MAP_GRAIN 4096

/* The type of a map's arrays. */
enum map_type { ELEM, WIDE };

struct cpu_map {
    const void *in[MAP_MAX];
    void *out[MAP_MAX];
    const void *constants; /* arguments of the lanes function */
};

/* Maps one vector of each input to one of each output. Inputs are read before any output is written, so input and
 * output arrays may be the same, but must not overlap with an offset. */
typedef void map_lanes_fn(const void *constants, const vf in[], vf out[]);

static ALWAYS_INLINE vf map_load(enum map_type type, const void *p, int64_t i, int64_t hi)
{
    return type == WIDE ? v_load_part(p, i, hi) : e_load_part(p, i, hi);
}

static ALWAYS_INLINE void map_store(enum map_type type, void *p, int64_t i, int64_t hi, vf x)
{
    if (type == WIDE)
        v_store_part(p, i, hi, x);
    else
        e_store_part(p, i, hi, x);
}

static ALWAYS_INLINE void map_expect_store(enum map_type type, const void *p, int64_t i)
{
    v_expect_store(type == WIDE ? (const float *)p + i : (const float *)((const elem *)p + i));
}

static ALWAYS_INLINE void map_range(int n_in, int n_out, enum map_type in_type, enum map_type out_type,
                                    map_lanes_fn *fn, const struct cpu_map *m, int64_t lo, int64_t hi)
{
    vf in[MAP_MAX], out[MAP_MAX];
    int64_t i = lo;
    for (; i + VF <= hi; i += VF) {
        for (int k = 0; k < n_in; k++)
            in[k] = map_load(in_type, m->in[k], i, i + VF);
        fn(m->constants, in, out);
        for (int k = 0; k < n_out; k++) {
            map_expect_store(out_type, m->out[k], i);
            map_store(out_type, m->out[k], i, i + VF, out[k]);
        }
    }
    if (i == hi)
        return;
    for (int k = 0; k < n_in; k++)
        in[k] = map_load(in_type, m->in[k], i, hi);
    fn(m->constants, in, out);
    for (int k = 0; k < n_out; k++)
        map_store(out_type, m->out[k], i, hi, out[k]);
}

/* Defines the kern_range_fn `name` for a lanes function with n_in inputs and n_out outputs. */
#define MAP_RANGE(name, n_in, n_out, in_type, out_type, lanes)         \
    static void name(void *arg, int part, int64_t lo, int64_t hi)      \
    {                                                                  \
        map_range(n_in, n_out, in_type, out_type, lanes, arg, lo, hi); \
    }

#endif
