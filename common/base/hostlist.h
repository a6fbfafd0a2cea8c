/* Slurm's way to write many host names: "n[1-3,07],gpu[001-002]-ib,login". Pure. */
#ifndef DTD_COMMON_BASE_HOSTLIST_H
#define DTD_COMMON_BASE_HOSTLIST_H

#include "common/base/err.h"

#define HOSTLIST_MAX 65536    /* names of one list */
#define HOSTLIST_NAME_MAX 253 /* bytes of one name */

/* The names in the list's order, repeats included: n strings, and the array, in one block to be freed. A number keeps
 * the zeros that its range was written with. ERR_INVALID with a sentence that quotes the place; ERR_LIMIT. */
NODISCARD err_t hostlist_expand(const char *text, char ***ret, int *ret_n, struct why *why);

#endif
