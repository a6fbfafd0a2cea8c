/* A file driver of libhdf5 that reads a byte_source. Reads beyond the end of the file fail: the library's own drivers
 * return zeros there. */
#include "common/data/hdf5_priv.h"

#include <stdlib.h>
#include <string.h>
#if __has_include(<H5FDdevelop.h>)
#include <H5FDdevelop.h> /* libhdf5 1.14 has the driver's structures there, and 1.10 in hdf5.h */
#endif

struct hdf5_driver_info {
    struct byte_source *in;
    struct why *why;
};
struct hdf5_driver_file {
    H5FD_t base;
    struct hdf5_driver_info info;
    haddr_t eoa; /* the end of what the library has allocated */
};

static H5FD_t *driver_open(const char *name, unsigned flags, hid_t fapl, haddr_t maxaddr)
{
    const struct hdf5_driver_info *info = H5Pget_driver_info(fapl);
    struct hdf5_driver_file *f = info && !(flags & H5F_ACC_RDWR) ? calloc(1, sizeof(*f)) : NULL;
    if (!f)
        return NULL;
    f->info = *info;
    return &f->base;
}

static herr_t driver_close(H5FD_t *base)
{
    free(base);
    return 0;
}

static int driver_cmp(const H5FD_t *a, const H5FD_t *b)
{
    uintptr_t x = (uintptr_t)((const struct hdf5_driver_file *)a)->info.in;
    uintptr_t y = (uintptr_t)((const struct hdf5_driver_file *)b)->info.in;
    return x < y ? -1 : x > y;
}

static herr_t driver_query(const H5FD_t *base, unsigned long *flags)
{
    *flags = H5FD_FEAT_DATA_SIEVE | H5FD_FEAT_ACCUMULATE_METADATA;
    return 0;
}

static haddr_t driver_get_eoa(const H5FD_t *base, H5FD_mem_t type)
{
    return ((const struct hdf5_driver_file *)base)->eoa;
}

static herr_t driver_set_eoa(H5FD_t *base, H5FD_mem_t type, haddr_t addr)
{
    ((struct hdf5_driver_file *)base)->eoa = addr;
    return 0;
}

static haddr_t driver_get_eof(const H5FD_t *base, H5FD_mem_t type)
{
    return (haddr_t)((const struct hdf5_driver_file *)base)->info.in->size;
}

static herr_t driver_read(H5FD_t *base, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t size, void *ret)
{
    struct hdf5_driver_info *info = &((struct hdf5_driver_file *)base)->info;
    if (addr > (haddr_t)info->in->size || size > (haddr_t)info->in->size - addr)
        return -1;
    return info->in->ops->read(info->in, (int64_t)addr, ret, size, info->why) ? -1 : 0;
}

static herr_t driver_write(H5FD_t *base, H5FD_mem_t type, hid_t dxpl, haddr_t addr, size_t size, const void *data)
{
    return -1;
}

static hid_t driver(void)
{
    static const H5FD_class_t class = {
#ifdef H5FD_CLASS_VERSION
        .version = H5FD_CLASS_VERSION,
        .value = 400, /* 256 to 511 are free for use inside a program */
#endif
        .name = "dtd",
        .maxaddr = INT64_MAX,
        .fc_degree = H5F_CLOSE_STRONG,
        .fapl_size = sizeof(struct hdf5_driver_info),
        .open = driver_open,
        .close = driver_close,
        .cmp = driver_cmp,
        .query = driver_query,
        .get_eoa = driver_get_eoa,
        .set_eoa = driver_set_eoa,
        .get_eof = driver_get_eof,
        .read = driver_read,
        .write = driver_write,
        .fl_map = H5FD_FLMAP_DICHOTOMY,
    };
    static hid_t id = -1;
    if (id < 0)
        id = H5FDregister(&class);
    return id;
}

err_t hdf5_driver_open(struct byte_source *in, struct why *io, hid_t *ret, struct why *why)
{
    const struct hdf5_driver_info info = {in, io};
    hid_t fapl, file = -1;
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL); /* nothing on stderr */
    H5PLset_loading_state(0);              /* a file must not choose which plugin is loaded */
    fapl = H5Pcreate(H5P_FILE_ACCESS);
    /* Closing the file closes everything in it. */
    if (fapl >= 0 && H5Pset_driver(fapl, driver(), &info) >= 0 && H5Pset_fclose_degree(fapl, H5F_CLOSE_STRONG) >= 0)
        file = H5Fopen(in->name, H5F_ACC_RDONLY, fapl);
    err_t err = file < 0 ? hdf5_fail(in->name, "the HDF5 file cannot be opened", io, why) : OK;
    if (fapl >= 0)
        H5Pclose(fapl);
    if (!err)
        *ret = file;
    return err;
}
