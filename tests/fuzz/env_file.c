/* Files of variables, which users write. */
#include "common/base/env_file.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct env_file f = {0};
    struct why why = {""};
    err_t err = env_file_parse("f", (const char *)data, size, &f, &why);
    if (err && !why.text[0])
        abort();
    for (int i = 0; i < f.n; i++) {
        if (!strchr(f.words[i], '=') || strchr(f.words[i], '\n'))
            abort();
        (void)env_is_secret(f.words[i]);
    }
    env_file_fini(&f);
    return 0;
}
