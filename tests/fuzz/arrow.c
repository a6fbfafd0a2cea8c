/* Arrow files and streams, read by the default column and by one of another name. */
#include "common/data/arrow.h"
#include "tests/fuzz/table.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_read(&arrow_format, data, size, NULL);
    fuzz_read(&arrow_format, data, size, "c");
    return 0;
}
