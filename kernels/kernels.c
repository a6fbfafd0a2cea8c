/* The table of backends. A CPU backend is compiled once per instruction set; kern_find returns the best one that this
 * processor supports. */
#include "kernels/kernels.h"
#include "kernels/matmul.h"
#include "kernels/variants.h"

#include <string.h>

extern const struct kern_ops kern_ref_f32_ops, kern_ref_f64_ops;
#ifdef KERN_CPU /* builds with DTD_KERNELS_ONLY and without oneDNN omit the fast kernels */
extern const struct kern_ops kern_cpu_base_ops, kern_cpu_bf16_base_ops;
#endif
#ifdef KERN_CPU_X86
extern const struct kern_ops kern_cpu_avx2_ops, kern_cpu_avx512_ops;
extern const struct kern_ops kern_cpu_bf16_avx2_ops, kern_cpu_bf16_avx512_ops, kern_cpu_bf16_native_ops;
#endif

static bool always_supported(void)
{
    return true;
}

#ifdef KERN_CPU_X86
/* The compiler may use all instructions of x86-64-v3 or v4 in these files, so the processor must support all of them.
 */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}

static bool has_bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16") && matmul_is_native();
}
#endif

/* Best first within a name. */
static const struct {
    const char *isa;
    const struct kern_ops *ops;
    bool (*present)(void);
} backends[] = {
    {"", &kern_ref_f32_ops, always_supported},       {"", &kern_ref_f64_ops, always_supported},
#ifdef KERN_CPU_X86
    {"avx512", &kern_cpu_avx512_ops, has_avx512},    {"avx2", &kern_cpu_avx2_ops, has_avx2},
    {"native", &kern_cpu_bf16_native_ops, has_bf16}, {"avx512", &kern_cpu_bf16_avx512_ops, has_avx512},
    {"avx2", &kern_cpu_bf16_avx2_ops, has_avx2},
#endif
#ifdef KERN_CPU
    {"base", &kern_cpu_base_ops, always_supported},  {"base", &kern_cpu_bf16_base_ops, always_supported},
#endif
};

const struct kern_ops *kern_variant(int index, const char **ret_isa)
{
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        if (!backends[i].present() || index-- > 0)
            continue;
        *ret_isa = backends[i].isa;
        return backends[i].ops;
    }
    return NULL;
}

bool kern_multiplies_bfloat16(void)
{
#ifdef KERN_CPU_X86
    return has_bf16();
#else
    return false;
#endif
}

const struct kern_ops *kern_find(const char *name, enum dtype dtype)
{
    const struct kern_ops *ops;
    const char *isa;
    for (int i = 0; (ops = kern_variant(i, &isa)); i++)
        if (strcmp(ops->name, name) == 0 && ops->dtype == dtype)
            return ops;
    return NULL;
}
