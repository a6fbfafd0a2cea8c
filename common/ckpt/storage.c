/* One table serves both directions. */
#include "common/ckpt/storage.h"

static const struct {
    enum dtype dtype;
    const char *name;
} table[] = {
    {DT_F32, "FloatStorage"}, {DT_F64, "DoubleStorage"}, {DT_BF16, "BFloat16Storage"}, {DT_F16, "HalfStorage"},
    {DT_I64, "LongStorage"},  {DT_I32, "IntStorage"},    {DT_I16, "ShortStorage"},     {DT_I8, "CharStorage"},
    {DT_U8, "ByteStorage"},   {DT_BOOL, "BoolStorage"},
};

const char *storage_class(enum dtype t)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (table[i].dtype == t)
            return table[i].name;
    return NULL;
}

enum dtype storage_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].name, name) == 0)
            return table[i].dtype;
    return DT_NONE;
}
