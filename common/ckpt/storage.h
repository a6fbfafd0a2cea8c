/* The storage classes of torch and their element types. */
#ifndef DTD_COMMON_CKPT_STORAGE_H
#define DTD_COMMON_CKPT_STORAGE_H

#include "common/base/dtype.h"

const char *storage_class(enum dtype t);    /* "FloatStorage"; never NULL for a real dtype */
enum dtype storage_dtype(const char *name); /* DT_NONE: a type that dtd does not support */

#endif
