/* The error file of a command, which the user's script writes. */
#include "daemon/control/local/error_file.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error_file e;
    if (error_file_parse((const char *)data, size, &e))
        return 0;
    if (strlen(e.text) > ERROR_FILE_TEXT || e.when_s < 0 || strchr(e.text, '\033'))
        abort();
    return 0;
}
