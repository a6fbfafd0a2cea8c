/* Sets of CPUs, as bits (CPU c is bit c % 8 of byte c / 8) and in the kernel's notation ("0-15,32-47\n", as in sysfs),
 * and the CPUs that the calling thread may use. Pure but for cpus_usable. */
#ifndef DTD_COMMON_BASE_CPUS_H
#define DTD_COMMON_BASE_CPUS_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool cpus_has(const uint8_t *set, int cpu)
{
    return set[cpu / 8] >> (cpu % 8) & 1;
}

static inline void cpus_add(uint8_t *set, int cpu)
{
    set[cpu / 8] |= (uint8_t)(1 << (cpu % 8));
}

/* The set that the text lists, max / 8 bytes; numbers from `max` on are left out. No text, or a lone newline, is the
 * empty set. ERR_CORRUPT: it is no such list, and `ret` is undefined. */
NODISCARD err_t cpus_parse(const char *text, size_t len, int max, uint8_t *ret);
/* The list of a set of max / 8 bytes, without a newline: "" for the empty set. A rest that does not fit into `size`
 * bytes is replaced by ",..". */
void cpus_print(const uint8_t *set, int max, char *ret, size_t size);

/* Returns the number of CPUs that the calling thread may use; 0: unknown. `ret`, if not NULL, gets the set of those
 * below `max`, as max / 8 bytes. */
int cpus_usable(uint8_t *ret, int max);

#endif
