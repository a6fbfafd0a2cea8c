/* dtd.manifest. The input first gets a correct SHA-256; without one no input would reach the code after the test of the
 * hash. */
#include "common/ckpt/manifest.h"
#include "common/ckpt/sums.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_once(const void *data, size_t len)
{
    struct manifest m;
    struct why why;
    struct buf again = {0};
    if (manifest_read(data, len, &m, &why))
        return;
    /* An accepted manifest is written back byte for byte. */
    if (manifest_write(&m, &again) || again.len != len || memcmp(again.data, data, len) != 0)
        abort();
    buf_fini(&again);
    manifest_fini(&m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t sha[SUMS_SHA256_BYTES];
    struct buf b = {0};
    read_once(data, size);
    if (sums_sha256(data, size, sha) || buf_append(&b, data, size) || buf_append(&b, sha, sizeof(sha)))
        abort();
    read_once(b.data, b.len);
    buf_fini(&b);
    return 0;
}
