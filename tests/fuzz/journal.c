/* journal_parse with a correct last line, so that the fuzzer gets past the hash. What is accepted is printed and parsed
 * to the same. */
#include "common/data/journal.h"
#include "common/data/sha.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static void check_again(const struct journal *j)
{
    struct buf text = {0}, again = {0};
    struct journal k;
    if (journal_print(j, &text) || journal_parse(text.data, text.len, &k) || journal_print(&k, &again) ||
        text.len != again.len || memcmp(text.data, again.data, text.len) != 0)
        abort();
    journal_fini(&k);
    buf_fini(&text);
    buf_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf text = {0};
    struct journal j;
    char sha256[65];
    if (sha_of(data, size, sha256) || buf_append(&text, data, size) || buf_printf(&text, "end %s\n", sha256))
        abort();
    if (!journal_parse(data, size, &j))
        journal_fini(&j);
    if (!journal_parse(text.data, text.len, &j)) {
        check_again(&j);
        journal_fini(&j);
    }
    buf_fini(&text);
    return 0;
}
