/* What one core of this machine can do, measured: the roof that the benchmarks compare with. Blocking, on the calling
 * thread; each measurement takes some tens of milliseconds and is the best of several, because the machine may be
 * shared. */
#ifndef DTD_TESTS_BENCH_PEAK_H
#define DTD_TESTS_BENCH_PEAK_H

/* float32 fused multiply-adds of the widest vectors, two operations each, in GFLOP/s. */
double peak_fma_gflops(void);
/* Memory to core and back, in GB/s: y = a y + b over an array far larger than the caches, read and write both counted.
 * 0 when there is no memory for it. */
double peak_memory_gbs(void);

const char *peak_cpu_name(void); /* as in /proc/cpuinfo */
const char *peak_commit(void);   /* of the sources, "unknown" outside a checkout */

#endif
