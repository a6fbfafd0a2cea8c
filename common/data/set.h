/* The large files of an open set. For common/data only. */
#ifndef DTD_COMMON_DATA_SET_H
#define DTD_COMMON_DATA_SET_H

#include "common/data/data.h"
#include "common/data/index.h"

#include <limits.h>

struct set_file {
    char path[PATH_MAX];
    const uint8_t *data; /* where the set has mapped it */
    size_t bytes;
    const char *sha256;              /* of its content; of a place: its fingerprint */
    const struct index_place *place; /* NULL: the set's own file */
};

/* Shards, then ends of documents and weights, if the set has them. */
int set_files(const struct data_set *d);
/* Strings are valid as long as d. ERR_LIMIT: a path is too long. */
NODISCARD err_t set_file(const struct data_set *d, int i, struct set_file *ret, struct why *why);

#endif
