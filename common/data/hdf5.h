/* HDF5, by libhdf5: one dataset of variable-length strings, or of integers, row by row.
 *
 * docs/use/data-formats.md lists what is read; the rest is refused by name. Files are read through the byte_source, so
 * they may be inside an image. libhdf5 does not resist files that were made to attack it, so it runs in a process of
 * its own (apart.h), with one thread. */
#ifndef DTD_COMMON_DATA_HDF5_H
#define DTD_COMMON_DATA_HDF5_H

#include "common/data/source.h"

extern const struct doc_format hdf5_format;

#endif
