/* The module's one symbol; everything else of it is hidden. */
#include "kernels/device.h"

extern const struct dev_ops cuda_device_ops;

__attribute__((visibility("default"))) extern const struct dev_module dtd_cuda_module;
const struct dev_module dtd_cuda_module = {.abi = DEV_MODULE_ABI, .device = &cuda_device_ops};
