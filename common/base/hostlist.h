/* Host lists in Slurm's notation: "n[1-3,07],gpu[001-002]-ib,login". Pure. */
#ifndef DTD_COMMON_BASE_HOSTLIST_H
#define DTD_COMMON_BASE_HOSTLIST_H

#include "common/base/err.h"

#define HOSTLIST_MAX 65536    /* names in one list; bounds memory */
#define HOSTLIST_NAME_MAX 253 /* bytes of one name: the limit of DNS */

/* Expands the list to its names, in order and including duplicates. The array and its n strings are one block that the
 * caller frees. Numbers keep the leading zeros of their range. ERR_INVALID: the sentence quotes the position.
 * ERR_LIMIT. */
NODISCARD err_t hostlist_expand(const char *text, char ***ret, int *ret_n, struct why *why);

#endif
