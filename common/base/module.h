/* Parts of dtd in files of their own, for libraries that few users need. Any thread may load. */
#ifndef DTD_COMMON_BASE_MODULE_H
#define DTD_COMMON_BASE_MODULE_H

#include "common/base/err.h"

/* Loads the module `file` ("dtd-cuda.so") once and returns the address of `symbol`. Searches, in this order, the folder
 * named by DTD_MODULE_DIR, the program's own folder, and ../lib/dtd relative to it. The sentence of ERR_UNSUPPORTED
 * lists all places and the loader's own messages. Modules are never unloaded. */
NODISCARD err_t module_load(const char *file, const char *symbol, void **ret, struct why *why);

#endif
