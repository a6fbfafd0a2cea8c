/* What the module dtd-hdf5.so exports as `dtd_hdf5_module`. The loader checks `abi` before it calls anything. */
#ifndef DTD_COMMON_DATA_HDF5_MODULE_H
#define DTD_COMMON_DATA_HDF5_MODULE_H

#include "common/data/source.h"

#define HDF5_MODULE_ABI 1
struct hdf5_module {
    int abi;
    struct doc_format inside; /* for a process of its own (apart.h): `open` alone */
};

#endif
