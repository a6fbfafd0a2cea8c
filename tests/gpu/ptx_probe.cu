/* One warp per case; ptx_cases.h specifies input and output. */
#include <cuda_runtime.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/ptx.h"
#include "tests/gpu/ptx_cases.h"

static __device__ void load_matrices(const uint32_t *x, uint32_t *r, bool trans)
{
    CUDA_SHARED(uint4[32], shared);
    uint32_t(*rows)[4] = (uint32_t(*)[4])shared;
    uint32_t got[4];
    for (int i = 0; i < 4; i++)
        rows[threadIdx.x][i] = x[i];
    __syncwarp();
    if (trans)
        ptx_ldmatrix_x4_trans(got, rows[threadIdx.x]);
    else
        ptx_ldmatrix_x4(got, rows[threadIdx.x]);
    for (int i = 0; i < 4; i++)
        r[i] = got[i];
}

static __device__ void multiply(const uint32_t *x, uint32_t *r, bool tf32)
{
    const uint32_t a[4] = {x[0], x[1], x[2], x[3]}, b[2] = {x[4], x[5]};
    float d[4];
    for (int i = 0; i < 4; i++)
        d[i] = __uint_as_float(x[6 + i]);
    if (tf32)
        ptx_mma_tf32(d, a, b);
    else
        ptx_mma_bf16(d, a, b);
    for (int i = 0; i < 4; i++)
        r[i] = __float_as_uint(d[i]);
}

static __device__ void copy(const uint32_t *x, uint32_t *r)
{
    CUDA_SHARED(uint4[32], shared);
    uint32_t(*tile)[4] = (uint32_t(*)[4])shared;
    for (int i = 0; i < 4; i++)
        tile[threadIdx.x][i] = 0xdeadbeefu;
    ptx_async_copy16(tile[threadIdx.x], x, threadIdx.x % 2 ? 0 : 16);
    ptx_async_wait();
    __syncthreads();
    for (int i = 0; i < 4; i++)
        r[i] = tile[31 - threadIdx.x][i];
}

static __global__ void probe(enum ptx_probe what, const uint32_t *all, uint32_t *result)
{
    const uint32_t *x = all + threadIdx.x * (PTX_WORDS + 2);
    uint32_t *r = result + threadIdx.x * (PTX_WORDS + 2);
    if (what == PTX_LDMATRIX || what == PTX_LDMATRIX_TRANS)
        load_matrices(x, r, what == PTX_LDMATRIX_TRANS);
    if (what == PTX_MMA_BF16 || what == PTX_MMA_TF32)
        multiply(x, r, what == PTX_MMA_TF32);
    if (what == PTX_TF32)
        r[0] = ptx_tf32(__uint_as_float(x[0]));
    if (what == PTX_PACK_BF16)
        r[0] = ptx_pack_bf16(__uint_as_float(x[0]), __uint_as_float(x[1]));
    if (what == PTX_EXP2)
        r[0] = __float_as_uint(ptx_exp2(__uint_as_float(x[0])));
    if (what == PTX_ASYNC)
        copy(x, r);
}

/* On the device, lanes are PTX_WORDS + 2 words apart, a multiple of 16 bytes. */
#define PITCH ((PTX_WORDS + 2) * sizeof(uint32_t))

static cudaError_t launch(cudaStream_t s, enum ptx_probe what, const uint32_t *x, uint32_t *r)
{
#ifdef CUDA_HOST
    return cuda_host_launch_kernel(s, "ptx", probe, 1, 32, 0, what, x, r);
#else
    probe<<<1, 32, 0, s>>>(what, x, r);
    return cudaGetLastError();
#endif
}

static cudaError_t run(cudaStream_t s, enum ptx_probe what, const uint32_t *x, uint32_t *r, char *device)
{
    cudaError_t e = cudaSuccess;
    for (int i = 0; i < 32 && e == cudaSuccess; i++)
        e = cudaMemcpyAsync(device + (size_t)i * PITCH, x + i * PTX_WORDS, PTX_WORDS * sizeof(uint32_t),
                            cudaMemcpyHostToDevice, s);
    if (e == cudaSuccess)
        e = launch(s, what, (const uint32_t *)device, (uint32_t *)(device + 32 * PITCH));
    for (int i = 0; i < 32 && e == cudaSuccess; i++)
        e = cudaMemcpyAsync(r + i * PTX_WORDS, device + (size_t)(32 + i) * PITCH, PTX_WORDS * sizeof(uint32_t),
                            cudaMemcpyDeviceToHost, s);
    return e == cudaSuccess ? cudaStreamSynchronize(s) : e;
}

int ptx_probe_run(enum ptx_probe what, const uint32_t *x, uint32_t *r)
{
    char *device;
    cudaStream_t s;
    cudaError_t e = cudaMalloc((void **)&device, 64 * PITCH);
    if (e != cudaSuccess)
        return e;
    e = cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
    if (e == cudaSuccess) {
        e = run(s, what, x, r, device);
        cudaStreamDestroy(s);
    }
    cudaFree(device);
    return e;
}

int ptx_probe_devices(void)
{
    int n = 0;
    return cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}
