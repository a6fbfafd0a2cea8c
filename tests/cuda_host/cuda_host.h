/* The host compilation of kernels/cuda: included before a .cu file when it is compiled as C++ with CUDA_HOST defined
 * (tests/cuda_host/CMakeLists.txt). Defines the keywords of CUDA C on a processor: threads are fibres, shared memory is
 * ordinary memory, a launch is queued on the stand-in's stream. The vendor's own headers provide types and the
 * arithmetic of bfloat16; functions that exist only on a device are defined here as the vendor documents them. */
#ifndef DTD_TESTS_CUDA_HOST_CUDA_HOST_H
#define DTD_TESTS_CUDA_HOST_CUDA_HOST_H

/* Included before the vendor's headers, which define __noinline__ as a macro although the standard library uses this
 * name. */
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cuda_runtime.h>

#include <cuda_bf16.h>

#include "tests/cuda_host/block.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __launch_bounds__
#undef __forceinline__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __launch_bounds__(...)
#define __forceinline__ inline /* with forced inlining, attention takes minutes to compile under a sanitizer */
#define __grid_constant__

#define threadIdx (cuda_host_self->thread)
#define blockIdx (cuda_host_self->block)
#define blockDim (cuda_host_self->block_dim)
#define gridDim (cuda_host_self->grid_dim)
#define warpSize CUDA_HOST_WARP

/* ---- launches ---- */

template <class... P> struct cuda_host_call {
    void (*kernel)(P...);
    std::tuple<P...> args;

    static void run(const void *self)
    {
        const auto *c = static_cast<const cuda_host_call *>(self);
        std::apply(c->kernel, c->args);
    }
    static void drop(void *self)
    {
        delete static_cast<cuda_host_call *>(self);
    }
};

/* The real launch silently truncates a size that does not fit. */
template <class N> static inline dim3 cuda_host_dim(const char *kernel, const N &n)
{
    if constexpr (std::is_same_v<N, dim3>) {
        return n;
    } else {
        if (n < 0 || static_cast<uint64_t>(n) > 0x7fffffffu)
            cuda_host_fail("%s: a grid or block of %lld", kernel, static_cast<long long>(n));
        return dim3(static_cast<unsigned>(n));
    }
}

template <class T> static inline void cuda_host_check_argument(const char *kernel, int argument, const T &x)
{
    if constexpr (std::is_pointer_v<T>)
        cuda_host_check_pointer(kernel, argument, (const void *)x);
}

template <class G, class B, class... P, class... A>
static inline cudaError_t cuda_host_launch_kernel(cudaStream_t s, const char *name, void (*kernel)(P...), const G &grid,
                                                  const B &block, size_t shared, const A &...args)
{
    struct cuda_host_launch l = {};
    l.name = name;
    l.function = reinterpret_cast<const void *>(kernel);
    l.grid = cuda_host_dim(name, grid);
    l.block = cuda_host_dim(name, block);
    l.shared = shared;
    auto *call = new cuda_host_call<P...>{kernel, std::tuple<P...>(static_cast<P>(args)...)};
    int n = 0;
    std::apply([&](const auto &...x) { (cuda_host_check_argument(name, n++, x), ...); }, call->args);
    l.args = call;
    l.body = cuda_host_call<P...>::run;
    l.drop = cuda_host_call<P...>::drop;
    return cuda_host_submit(s, &l);
}

#define CUDA_LAUNCH(s, kernel, grid, block, shared, ...)                                                              \
    do {                                                                                                              \
        if (cuda_enter(s))                                                                                            \
            cuda_check((s),                                                                                           \
                       cuda_host_launch_kernel(cuda_stream_of(s)->handle, #kernel, kernel, (grid), (block), (shared), \
                                               ##__VA_ARGS__),                                                        \
                       #kernel, __FILE__, __LINE__);                                                                  \
    } while (0)

/* One block runs at a time. `__shared__` itself is not defined, because its bytes would not be counted. */
template <class T> using cuda_shared_type = T;
#define CUDA_SHARED(type, name)         \
    static cuda_shared_type<type> name; \
    cuda_host_static_shared(&name, sizeof(name))

static inline unsigned char *cuda_shared(void)
{
    return static_cast<unsigned char *>(cuda_host_self->shared);
}

template <class... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute attribute, int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attribute, value);
}

template <class... P>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *ret, void (*kernel)(P...), int block,
                                                                        size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(ret, reinterpret_cast<const void *>(kernel), block, shared);
}

/* ---- barriers, votes, shuffles ---- */

static inline void __syncthreads(void)
{
    cuda_host_barrier();
}

static inline void __syncwarp(unsigned mask = 0xffffffffu)
{
    cuda_host_warp_exchange(HOST_SYNCWARP, mask, nullptr, 0);
}

static inline void __threadfence(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline void __threadfence_block(void)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static inline int cuda_host_lane(void)
{
    return cuda_host_self->index % CUDA_HOST_WARP;
}

template <class T> static inline const T *cuda_host_gather(enum cuda_host_op op, unsigned mask, const T &value)
{
    static_assert(std::is_trivially_copyable_v<T> || sizeof(T) <= 8);
    static_assert(sizeof(T) % 4 == 0, "a warp exchanges words");
    return static_cast<const T *>(cuda_host_warp_exchange(op, mask, &value, sizeof(T)));
}

/* Lanes form segments of `width`, a power of two; a source lane outside of the segment gives the lane's own value. */
static inline int cuda_host_width(int width)
{
    if (width < 1 || width > CUDA_HOST_WARP || (width & (width - 1)))
        cuda_host_fail("a shuffle of width %d", width);
    return width;
}

template <class T> static inline T __shfl_sync(unsigned mask, T x, int from, int width = CUDA_HOST_WARP)
{
    const T *all = cuda_host_gather(HOST_SHUFFLE, mask, x);
    int lane = cuda_host_lane(), w = cuda_host_width(width);
    return all[(lane & ~(w - 1)) + (from & (w - 1))];
}

template <class T> static inline T __shfl_xor_sync(unsigned mask, T x, int bits, int width = CUDA_HOST_WARP)
{
    const T *all = cuda_host_gather(HOST_SHUFFLE, mask, x);
    int lane = cuda_host_lane(), w = cuda_host_width(width), from = lane ^ bits;
    return from < (lane & ~(w - 1)) + w ? all[from] : x; /* reading from an earlier segment is legal */
}

template <class T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned by, int width = CUDA_HOST_WARP)
{
    const T *all = cuda_host_gather(HOST_SHUFFLE, mask, x);
    int lane = cuda_host_lane(), w = cuda_host_width(width), from = lane - static_cast<int>(by);
    return from >= (lane & ~(w - 1)) ? all[from] : x;
}

template <class T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned by, int width = CUDA_HOST_WARP)
{
    const T *all = cuda_host_gather(HOST_SHUFFLE, mask, x);
    int lane = cuda_host_lane(), w = cuda_host_width(width), from = lane + static_cast<int>(by);
    return from < (lane & ~(w - 1)) + w ? all[from] : x;
}

static inline unsigned __ballot_sync(unsigned mask, int yes)
{
    const int *all = cuda_host_gather(HOST_VOTE, mask, yes);
    unsigned ret = 0;
    for (int i = 0; i < CUDA_HOST_WARP; i++)
        ret |= (all[i] != 0 ? 1u : 0u) << i;
    return ret;
}

static inline int __any_sync(unsigned mask, int yes)
{
    return __ballot_sync(mask, yes) != 0;
}

static inline int __all_sync(unsigned mask, int yes)
{
    return __ballot_sync(mask, yes) == 0xffffffffu;
}

/* ---- integers ---- */

static inline int __popc(unsigned x)
{
    return std::popcount(x);
}

static inline int __popcll(unsigned long long x)
{
    return std::popcount(x);
}

static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}

static inline int __ffsll(long long x)
{
    return __builtin_ffsll(x);
}

static inline int __clz(int x)
{
    return std::countl_zero(static_cast<unsigned>(x));
}

static inline int __clzll(long long x)
{
    return std::countl_zero(static_cast<unsigned long long>(x));
}

static inline unsigned __brev(unsigned x)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++)
        r |= (x >> i & 1u) << (31 - i);
    return r;
}

static inline unsigned __umulhi(unsigned a, unsigned b)
{
    return static_cast<unsigned>(static_cast<uint64_t>(a) * b >> 32);
}

template <class A, class B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
static inline std::common_type_t<A, B> min(A a, B b)
{
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>)
        return std::fmin(static_cast<T>(a), static_cast<T>(b));
    else
        return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}

template <class A, class B>
requires std::is_arithmetic_v<A> && std::is_arithmetic_v<B>
static inline std::common_type_t<A, B> max(A a, B b)
{
    using T = std::common_type_t<A, B>;
    if constexpr (std::is_floating_point_v<T>)
        return std::fmax(static_cast<T>(a), static_cast<T>(b));
    else
        return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

/* ---- bits ---- */

static inline int __float_as_int(float x)
{
    return std::bit_cast<int>(x);
}

static inline unsigned __float_as_uint(float x)
{
    return std::bit_cast<unsigned>(x);
}

static inline float __int_as_float(int x)
{
    return std::bit_cast<float>(x);
}

static inline float __uint_as_float(unsigned x)
{
    return std::bit_cast<float>(x);
}

static inline long long __double_as_longlong(double x)
{
    return std::bit_cast<long long>(x);
}

static inline double __longlong_as_double(long long x)
{
    return std::bit_cast<double>(x);
}

/* ---- float ---- */

static inline float rsqrtf(float x)
{
    return 1.0f / std::sqrt(x);
}

static inline double rsqrt(double x)
{
    return 1.0 / std::sqrt(x);
}

static inline float cuda_host_expf(float x)
{
    return std::exp(x);
}

static inline float cuda_host_logf(float x)
{
    return std::log(x);
}

static inline float cuda_host_log2f(float x)
{
    return std::log2(x);
}

static inline float __fdividef(float a, float b)
{
    return a / b;
}

static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

static inline float __frcp_rn(float x)
{
    return 1.0f / x;
}

static inline float __fsqrt_rn(float x)
{
    return std::sqrt(x);
}

static inline float __fmaf_rn(float a, float b, float c)
{
    return std::fma(a, b, c);
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

static inline float __fsub_rn(float a, float b)
{
    return a - b;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline double __dadd_rn(double a, double b)
{
    return a + b;
}

static inline double __dsub_rn(double a, double b)
{
    return a - b;
}

static inline double __dmul_rn(double a, double b)
{
    return a * b;
}

static inline double __ddiv_rn(double a, double b)
{
    return a / b;
}

static inline double __dsqrt_rn(double x)
{
    return std::sqrt(x);
}

static inline double __fma_rn(double a, double b, double c)
{
    return std::fma(a, b, c);
}

static inline float __saturatef(float x)
{
    return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}

static inline void cuda_host_sincosf(float x, float *s, float *c)
{
    *s = std::sin(x);
    *c = std::cos(x);
}

static inline float __int2float_rn(int x)
{
    return static_cast<float>(x);
}

static inline int __float2int_rn(float x)
{
    return static_cast<int>(std::nearbyint(x));
}

static inline float __double2float_rn(double x)
{
    return static_cast<float>(x);
}

/* glibc reserves these names. */
#define __expf cuda_host_expf
#define __logf cuda_host_logf
#define __log2f cuda_host_log2f
#define __sincosf cuda_host_sincosf
#define __exp10f exp10f
#define __powf powf
#define __sinf sinf
#define __cosf cosf

#endif
