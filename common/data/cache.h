/* The cache folder of prepared data sets, and operations on whole sets. For common/data only. */
#ifndef DTD_COMMON_DATA_CACHE_H
#define DTD_COMMON_DATA_CACHE_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CACHE_HASH 64                   /* hex digits */
#define CACHE_UNFINISHED ".unfinished-" /* and a hash: a set that a later run may continue (unfinished.h) */
#define CACHE_REMEDY "Name a folder with more room by data.cache (dtctl data prepare: --cache)"

/* `given` unless it is NULL or empty, else $XDG_CACHE_HOME/dtd/data, else ~/.cache/dtd/data. */
NODISCARD err_t cache_dir(const char *given, char *ret, size_t size, struct why *why);
bool cache_hash_valid(const char *hash);
/* Writes dir/name to ret. ERR_LIMIT if it does not fit. */
NODISCARD err_t cache_join(const char *dir, const char *name, char *ret, size_t size, struct why *why);
/* Creates a folder in the cache for an unfinished set. Its name is not a hash, so readers do not open it. */
NODISCARD err_t cache_temp_new(const char *cache, char *ret, size_t size, struct why *why);
/* Removes a folder of regular files, as far as possible. Errors are ignored, because leftovers in a cache do no harm.
 */
void cache_remove(const char *dir);
/* Removes folders of killed processes that have not changed for a day, or for two weeks if they can be continued. */
void cache_clean(const char *cache);
/* True: the file system of the cache has hardly room for a set of about this size, and `ret` gives both. A quota may be
 * smaller still. */
bool cache_is_tight(const char *cache, int64_t bytes, int64_t files, struct why *ret);

#endif
