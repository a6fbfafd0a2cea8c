/* raft/witness: an accepted file, encoded again, has the same bytes. */
#include "daemon/control/log/witness.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct log_witness w;
    uint8_t again[WITNESS_BYTES];
    if (witness_decode(data, size, &w))
        return 0;
    witness_encode(&w, again);
    if (w.n > LOG_MAX_MEMBERS || memcmp(again, data, size) != 0)
        abort();
    return 0;
}
