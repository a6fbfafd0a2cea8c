/* A pause for loops that poll memory which another thread writes. It leaves the core's resources to its other hardware
 * thread and saves power. */
#ifndef DTD_COMMON_BASE_CPU_RELAX_H
#define DTD_COMMON_BASE_CPU_RELAX_H

#include <stdatomic.h>

static inline void cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

#endif
