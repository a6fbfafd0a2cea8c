/* The functions of kernels/cuda/ptx.h on the host: lanes exchange their values, and each computes its result from the
 * PTX ISA's tables (mma.m16n8k16, mma.m16n8k8, ldmatrix). Nothing here depends on how a kernel uses them.
 *
 * Where the documentation leaves freedom, this uses the least favourable behaviour. A product's exact sum is truncated
 * towards zero when it becomes a float, as on tensor cores. The bits of a factor below tf32 are ignored. A copy is made
 * only when its thread waits for it, so a thread that reads without waiting reads the old content. A copy that its
 * thread never waits for is made at the next wait of a thread with the same number. */
#ifndef DTD_TESTS_CUDA_HOST_PTX_HOST_H
#define DTD_TESTS_CUDA_HOST_PTX_HOST_H

#include "tests/cuda_host/cuda_host.h"

#include <vector>

static inline void ptx_host_aligned(const void *p, const char *what)
{
    if (reinterpret_cast<uintptr_t>(p) % 16)
        cuda_host_fail("%s at %p, which is not a multiple of 16", what, p);
}

template <class T> static inline T *ptx_opaque(T *p)
{
    return p;
}

/* ---- ldmatrix ---- */

/* Addresses of the rows of the four matrices, those of matrix j at 8j .. 8j+7. */
struct ptx_host_rows {
    const char *row[CUDA_HOST_WARP];
};

static inline struct ptx_host_rows ptx_host_rows_of(const void *row)
{
    struct ptx_host_rows r;
    ptx_host_aligned(row, "ldmatrix");
    memcpy(r.row, cuda_host_warp_exchange(HOST_OTHER, 0xffffffffu, &row, sizeof(row)), sizeof(r.row));
    return r;
}

static inline uint32_t ptx_host_element(const struct ptx_host_rows &rows, int j, int row, int column)
{
    uint16_t x;
    memcpy(&x, rows.row[8 * j + row] + 2 * column, sizeof(x));
    return x;
}

static inline void ptx_ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
    const struct ptx_host_rows rows = ptx_host_rows_of(row);
    int group = cuda_host_lane() >> 2, in_group = cuda_host_lane() & 3;
    for (int j = 0; j < 4; j++)
        r[j] = ptx_host_element(rows, j, group, 2 * in_group) | ptx_host_element(rows, j, group, 2 * in_group + 1)
                                                                    << 16;
}

static inline void ptx_ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
    const struct ptx_host_rows rows = ptx_host_rows_of(row);
    int group = cuda_host_lane() >> 2, in_group = cuda_host_lane() & 3;
    for (int j = 0; j < 4; j++)
        r[j] = ptx_host_element(rows, j, 2 * in_group, group) | ptx_host_element(rows, j, 2 * in_group + 1, group)
                                                                    << 16;
}

/* ---- mma ---- */

struct ptx_host_factors {
    uint32_t a[4], b[2];
};

static inline const struct ptx_host_factors *ptx_host_factors_of(const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    struct ptx_host_factors own;
    memcpy(own.a, a, sizeof(own.a));
    memcpy(own.b, b, sizeof(own.b));
    return static_cast<const struct ptx_host_factors *>(
        cuda_host_warp_exchange(HOST_MMA, 0xffffffffu, &own, sizeof(own)));
}

/* Half `half` (0: lower) of a pair, as a number. */
static inline double ptx_host_bf16(uint32_t pair, int half)
{
    return std::bit_cast<float>(half ? pair & 0xffff0000u : pair << 16);
}

static inline double ptx_host_tf32(uint32_t x)
{
    return std::bit_cast<float>(x & 0xffffe000u);
}

static inline float ptx_host_toward_zero(double x)
{
    float r = static_cast<float>(x);
    return std::fabs(static_cast<double>(r)) > std::fabs(x) && !std::isinf(r) ? std::nextafter(r, 0.0f) : r;
}

/* ISA, m16n8k16 with .bf16. A: row = groupID for a0, a1, a4, a5 and groupID + 8 for a2, a3, a6, a7; column =
 * threadID_in_group * 2 + (i & 1), + 8 for a4 to a7. B: row = threadID_in_group * 2 + (i & 1), + 8 for b2, b3; column =
 * groupID. C: row = groupID for c0, c1, else + 8; column = threadID_in_group * 2 + (i & 1). */
static inline double ptx_host_a16(const struct ptx_host_factors *all, int row, int column)
{
    int lane = row % 8 * 4 + column % 8 / 2, i = column / 8 * 4 + row / 8 * 2 + column % 2;
    return ptx_host_bf16(all[lane].a[i / 2], i % 2);
}

static inline double ptx_host_b16(const struct ptx_host_factors *all, int row, int column)
{
    int lane = column * 4 + row % 8 / 2, i = row / 8 * 2 + row % 2;
    return ptx_host_bf16(all[lane].b[i / 2], i % 2);
}

/* ISA, m16n8k8 with .tf32. A: row = groupID for a0, a2 and groupID + 8 for a1, a3; column = threadID_in_group for a0,
 * a1 and + 4 for a2, a3. B: row = threadID_in_group for b0 and + 4 for b1; column = groupID. C as above. */
static inline double ptx_host_a8(const struct ptx_host_factors *all, int row, int column)
{
    return ptx_host_tf32(all[row % 8 * 4 + column % 4].a[column / 4 * 2 + row / 8]);
}

static inline double ptx_host_b8(const struct ptx_host_factors *all, int row, int column)
{
    return ptx_host_tf32(all[column * 4 + row % 4].b[row / 4]);
}

template <int K, class A, class B>
static inline void ptx_host_mma(float (&d)[4], const struct ptx_host_factors *all, A a, B b)
{
    for (int i = 0; i < 4; i++) {
        int row = (cuda_host_lane() >> 2) + (i < 2 ? 0 : 8), column = (cuda_host_lane() & 3) * 2 + (i & 1);
        double sum = d[i];
        for (int k = 0; k < K; k++)
            sum += a(all, row, k) * b(all, k, column);
        d[i] = ptx_host_toward_zero(sum);
    }
}

static inline void ptx_mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    ptx_host_mma<16>(d, ptx_host_factors_of(a, b), ptx_host_a16, ptx_host_b16);
}

static inline void ptx_mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    ptx_host_mma<8>(d, ptx_host_factors_of(a, b), ptx_host_a8, ptx_host_b8);
}

/* ---- numbers ---- */

static inline uint32_t ptx_tf32(float x)
{
    uint32_t bits = std::bit_cast<uint32_t>(x);
    if ((bits & 0x7f800000u) == 0x7f800000u)
        return x != x ? 0x7fffffffu : bits;
    return (bits + 0x1000u) & 0xffffe000u; /* the sign is separate, so adding half a unit rounds away from zero */
}

static inline uint32_t ptx_host_to_bf16(float x)
{
    uint32_t bits = std::bit_cast<uint32_t>(x);
    if (x != x)
        return 0x7fff;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

static inline uint32_t ptx_pack_bf16(float low, float high)
{
    return ptx_host_to_bf16(low) | ptx_host_to_bf16(high) << 16;
}

static inline float ptx_exp2(float x)
{
    float flushed = std::fpclassify(x) == FP_SUBNORMAL ? 0.0f : x, r = std::exp2(flushed);
    return std::fpclassify(r) == FP_SUBNORMAL ? 0.0f : r;
}

/* ---- cp.async ---- */

struct ptx_host_copy {
    void *to;
    const void *from;
    int bytes;
};

#define PTX_HOST_THREADS 1024
inline std::vector<ptx_host_copy> ptx_host_copies[PTX_HOST_THREADS]; /* copies in progress, by thread of the block */

static inline void ptx_async_copy16(void *to, const void *from, int bytes)
{
    ptx_host_aligned(to, "cp.async to");
    ptx_host_aligned(from, "cp.async from");
    if (bytes != 0 && bytes != 16)
        cuda_host_fail("cp.async of %d bytes", bytes);
    ptx_host_copies[cuda_host_self->index].push_back({to, from, bytes});
}

static inline void ptx_async_wait(void)
{
    std::vector<ptx_host_copy> &copies = ptx_host_copies[cuda_host_self->index];
    for (const ptx_host_copy &c : copies) {
        memset(c.to, 0, 16);
        memcpy(c.to, c.from, static_cast<size_t>(c.bytes));
    }
    copies.clear();
}

#endif
