/* Where prepared sets lie, and what happens to their folders as a whole. Inside common/data only. */
#ifndef DTD_COMMON_DATA_CACHE_H
#define DTD_COMMON_DATA_CACHE_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>

#define CACHE_HASH 64 /* hex digits */

/* `given` when it is not NULL or empty, else $XDG_CACHE_HOME/dtd/data, else ~/.cache/dtd/data. */
NODISCARD err_t cache_dir(const char *given, char *ret, size_t size, struct why *why);
bool cache_hash_valid(const char *hash);
/* dir/name into ret; ERR_LIMIT when it does not fit. */
NODISCARD err_t cache_join(const char *dir, const char *name, char *ret, size_t size, struct why *why);
/* A fresh folder in the cache for a set under way; nobody takes it for a finished one. */
NODISCARD err_t cache_temp_new(const char *cache, char *ret, size_t size, struct why *why);
/* Removes a folder of plain files. What cannot be removed stays: a cache is nobody's last copy. */
void cache_remove(const char *dir);
/* Removes the folders of preparers that were killed: those that nobody wrote to for a day. */
void cache_clean(const char *cache);

#endif
