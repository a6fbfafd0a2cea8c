/* torch's storage classes and the element types that they stand for. */
#ifndef DTD_COMMON_CKPT_STORAGE_H
#define DTD_COMMON_CKPT_STORAGE_H

#include "common/base/dtype.h"

const char *storage_class(enum dtype t);    /* "FloatStorage"; never NULL for a real dtype */
enum dtype storage_dtype(const char *name); /* DT_NONE for one that we do not hold */

#endif
