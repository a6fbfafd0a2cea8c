/* Shared by the wrappers (device.c) and the processor's device (cpu_device.c). Private to kernels/. */
#ifndef DTD_KERNELS_DEVICES_H
#define DTD_KERNELS_DEVICES_H

#include "kernels/device.h"

extern const struct dev_ops cpu_device_ops;

#endif
