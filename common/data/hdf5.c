/* libhdf5 loads libcurl, Kerberos and more, so it is in a module that only a file of this format loads. */
#include "common/data/hdf5.h"

#include "common/base/module.h"
#include "common/data/apart.h"
#include "common/data/hdf5_module.h"

#include <string.h>

static bool hdf5_is(const uint8_t *head, size_t len, const char *path)
{
    /* In front of the signature there may be a block for the user: of 512 bytes, 1024, 2048, .. */
    for (size_t at = 0; at + 8 <= len; at = at ? 2 * at : 512)
        if (memcmp(head + at, "\x89HDF\r\n\x1a\n", 8) == 0)
            return true;
    return false;
}

static err_t hdf5_open(struct byte_source *in, const struct doc_options *o, struct doc_reader **ret, struct why *why)
{
    void *symbol;
    err_t err = module_load("dtd-hdf5.so", "dtd_hdf5_module", &symbol, why);
    if (err)
        return why_prefix(why, err, "%s: HDF5 files need the package dtd-hdf5", in->name);
    const struct hdf5_module *module = symbol;
    if (module->abi != HDF5_MODULE_ABI)
        return why_set(why, ERR_UNSUPPORTED,
                       "dtd-hdf5.so has interface %d, this program needs %d: install both from one build of dtd",
                       module->abi, HDF5_MODULE_ABI);
    return apart_open(&module->inside, in, o, ret, why);
}

const struct doc_format hdf5_format = {.name = "hdf5", .is = hdf5_is, .open = hdf5_open};
