/* Memory of an engine: one mapping per space, as large as the plan says, present before the first step. */
#ifndef DTD_WORKER_STEP_MEMORY_H
#define DTD_WORKER_STEP_MEMORY_H

#include "common/base/err.h"

#include <stddef.h>

/* `bytes` of zeroed, touched, private memory on huge pages where the machine gives them; NULL for 0 bytes. ERR_NOMEM.
 */
NODISCARD err_t memory_map(size_t bytes, const char *what, void **ret, struct why *why);
void memory_unmap(void *p, size_t bytes);

#endif
