/* A stand-in for a device's module, compiled with different values of MODULE_SYMBOL and MODULE_ABI. */
#include "kernels/device.h"

static err_t count(int *ret, struct why *why)
{
    *ret = 3;
    return OK;
}

static err_t open_none(int index, struct dev **ret, struct why *why)
{
    return why_set(why, ERR_INVALID, "device %d of the stand-in does not exist", index);
}

static const struct dev_ops ops = {.name = "cuda", .count = count, .open = open_none};

extern const struct dev_module MODULE_SYMBOL;
__attribute__((visibility("default"))) const struct dev_module MODULE_SYMBOL = {MODULE_ABI, &ops};
