/* HDF5 files, through libhdf5. */
#include "common/data/hdf5.h"
#include "tests/fuzz/table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_read(&hdf5_format, data, size, NULL);
    fuzz_read(&hdf5_format, data, size, "train/images");
    return 0;
}
