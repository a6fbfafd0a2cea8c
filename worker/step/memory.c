/* Touching before step 1 puts pages on the NUMA node of the thread that will use them, and makes a machine that is
 * short of memory say so now. */
#include "worker/step/memory.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

err_t memory_map(size_t bytes, const char *what, void **ret, struct why *why)
{
    if (bytes == 0) {
        *ret = NULL;
        return OK;
    }
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return why_set(why, ERR_NOMEM, "no memory for %zu bytes of %s: %s; use a smaller micro_batch or model", bytes,
                       what, strerror(errno));
    madvise(p, bytes, MADV_HUGEPAGE); /* a wish: a kernel without huge pages gives small ones */
    memset(p, 0, bytes);
    *ret = p;
    return OK;
}

void memory_unmap(void *p, size_t bytes)
{
    if (p)
        munmap(p, bytes);
}
