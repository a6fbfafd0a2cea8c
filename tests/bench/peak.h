/* The measured peak rates of one core of this machine, with which the benchmarks compare. Blocking, on the calling
 * thread. Each measurement takes some tens of milliseconds and is the best of several, because the machine may be
 * shared. */
#ifndef DTD_TESTS_BENCH_PEAK_H
#define DTD_TESTS_BENCH_PEAK_H

/* float32 fused multiply-adds of the widest vectors, each counted as two operations, in GFLOP/s. */
double peak_fma_gflops(void);
/* The loop of peak_fma_gflops once, about 2 ms; returns its work in GFLOP. */
double peak_fma_loop(void);
/* The same with pairs of bfloat16 (AVX512_BF16), or of float32 if the processor has no instructions for them. AMX is
 * not measured. */
double peak_bf16_gflops(void);
/* Memory bandwidth of a core in GB/s: y = a y + b over an array far larger than the caches, counting both read and
 * written bytes. 0 if there is no memory for it. */
double peak_memory_gbs(void);

const char *peak_cpu_name(void); /* as in /proc/cpuinfo */
const char *peak_commit(void);   /* of the sources; "unknown" outside a checkout */

#endif
