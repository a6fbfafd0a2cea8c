/* Best-fit decreasing: pieces of documents are packed into rows of equal length, with little room left. Pure; the same
 * pieces give the same rows everywhere. For common/data only. */
#ifndef DTD_COMMON_DATA_PACK_H
#define DTD_COMMON_DATA_PACK_H

#include "common/base/err.h"

#include <stdint.h>

struct packing_piece {
    int64_t at; /* first token in the set */
    int32_t n;  /* inputs, which are tokens [at, at + n); their targets are [at + 1, at + n + 1) */
};

struct packing {
    struct packing_piece *pieces; /* after packing_finish row by row */
    int64_t n_pieces, cap;
    int64_t *rows; /* n_rows + 1: the first piece of each row; NULL: not finished */
    int64_t n_rows;
};

/* 1 <= n */
NODISCARD err_t packing_add(struct packing *p, int64_t at, int64_t n);
/* Makes rows of `length` >= every n. ERR_INVALID: there are no pieces. */
NODISCARD err_t packing_finish(struct packing *p, int64_t length);
void packing_fini(struct packing *p); /* legal on a zeroed struct */

#endif
