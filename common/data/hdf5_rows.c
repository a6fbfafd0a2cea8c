/* Rows are read in batches of whole chunks, so that each chunk is decompressed once. libhdf5 gets memory for values of
 * variable length from here, which gives their exact lengths, also of strings that contain a NUL, and a limit. */
#include "common/data/hdf5_priv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_BYTES ((int64_t)4 << 20)      /* of a grid, if its chunks are smaller */
#define BATCH_BYTES_MAX ((int64_t)64 << 20) /* of a grid, if its chunks are larger */
#define BATCH_LISTS 64                      /* rows of variable length */
#define MAX_CHUNK ((int64_t)1 << 30)
#define MAX_CACHE ((int64_t)512 << 20)

/* ---- memory of values ---- */

static void *block_alloc(size_t size, void *arg)
{
    struct hdf5_rows *r = arg;
    if (size > (size_t)TABLE_MAX_TEXT + 1 || r->block_bytes + size > (size_t)TABLE_MAX_TEXT + 1)
        return NULL;
    struct hdf5_block *b = malloc(sizeof(*b) + size);
    if (!b)
        return NULL;
    b->next = r->blocks;
    b->bytes = size;
    r->blocks = b;
    r->block_bytes += size;
    return b->data;
}

static void block_free(void *p, void *arg)
{
    /* All blocks of a batch are freed together. */
}

static void free_blocks(struct hdf5_rows *r)
{
    for (struct hdf5_block *b = r->blocks, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    r->blocks = NULL;
    r->block_bytes = 0;
}

static size_t block_bytes(const void *data)
{
    return ((const struct hdf5_block *)(const void *)((const uint8_t *)data - offsetof(struct hdf5_block, data)))
        ->bytes;
}

/* ---- opening ---- */

static err_t fail_rows(const struct hdf5_rows *r, const char *what, struct why *why)
{
    char text[512];
    snprintf(text, sizeof(text), "dataset %s, near row %" PRId64 ": %s", r->column, r->first, what);
    return hdf5_fail(r->name, text, r->io, why);
}

static err_t refuse(const struct hdf5_rows *r, err_t err, const char *what, struct why *why)
{
    return why_set(why, err, "%s: dataset %s: %s", r->name, r->column, what);
}

/* Filters of libhdf5 itself. A plugin would be code that the file chooses. */
static err_t check_filters(const struct hdf5_rows *r, hid_t plist, struct why *why)
{
    int n = H5Pget_nfilters(plist);
    for (int i = 0; i < n; i++) {
        char name[128] = "", text[256];
        unsigned flags, config;
        size_t none = 0;
        H5Z_filter_t id = H5Pget_filter2(plist, (unsigned)i, &flags, &none, NULL, sizeof(name), name, &config);
        if (id > 0 && id <= H5Z_FILTER_SCALEOFFSET && H5Zfilter_avail(id) > 0)
            continue;
        name[sizeof(name) - 1] = '\0';
        table_clean_name(name);
        snprintf(text, sizeof(text),
                 "its filter %d (%s) is not one of libhdf5's own; write the dataset with gzip or without compression",
                 (int)id, name);
        return refuse(r, ERR_UNSUPPORTED, text, why);
    }
    return n < 0 ? fail_rows(r, "its filters", why) : OK;
}

/* Chunks that were never written read as zeros. */
static bool is_written(const struct hdf5_rows *r, hid_t plist)
{
    H5D_space_status_t status;
    hsize_t chunk[2], n = 0, want;
    int dimensions = r->kind == HDF5_GRID ? 2 : 1;
    if (r->rows == 0 || r->width == 0)
        return true;
    if (H5Pget_layout(plist) != H5D_CHUNKED)
        return H5Dget_space_status(r->set, &status) >= 0 && status == H5D_SPACE_STATUS_ALLOCATED;
    hid_t space = H5Dget_space(r->set);
    if (space < 0 || H5Pget_chunk(plist, dimensions, chunk) < 0 || H5Dget_num_chunks(r->set, space, &n) < 0)
        n = 0;
    if (space >= 0)
        H5Sclose(space);
    if (n == 0)
        return false;
    want = ((hsize_t)r->rows + chunk[0] - 1) / chunk[0];
    return n == (dimensions == 1 ? want : want * (((hsize_t)r->width + chunk[1] - 1) / chunk[1]));
}

static err_t check_storage(const struct hdf5_rows *r, hid_t plist, struct why *why)
{
    if (H5Pget_external_count(plist) > 0 || H5Pget_layout(plist) == H5D_VIRTUAL)
        return refuse(r, ERR_UNSUPPORTED, "its values are in other files; copy them into one dataset (h5repack)", why);
    if (!is_written(r, plist))
        return refuse(r, ERR_INVALID, "some of its rows were never written", why);
    return check_filters(r, plist, why);
}

static err_t read_extent(struct hdf5_rows *r, struct why *why)
{
    hsize_t size[2] = {0, 1};
    hid_t space = H5Dget_space(r->set);
    int n = space >= 0 ? H5Sget_simple_extent_ndims(space) : -1;
    if (n < 1 || n > 2 || H5Sget_simple_extent_dims(space, size, NULL) < 0 || size[0] > INT64_MAX ||
        size[1] > INT64_MAX)
        return fail_rows(r, "its size", why);
    H5Sclose(space);
    r->rows = (int64_t)size[0];
    r->width = (int64_t)size[1];
    if (r->width > TABLE_MAX_TOKENS)
        return refuse(r, ERR_LIMIT, "its rows are longer than 67108864 values", why);
    return OK;
}

/* Integers of one size, in one or two dimensions; numbers are rows of width 1. */
static bool is_plain(const struct hdf5_rows *r)
{
    return r->kind == HDF5_GRID || r->kind == HDF5_NUMBERS;
}

/* The rows of a batch, and the memory that libhdf5 needs to keep the chunks of one row. */
static err_t plan_batches(struct hdf5_rows *r, hid_t plist, int64_t *ret_cache, struct why *why)
{
    hsize_t chunk[2] = {1, 1};
    const bool grid = is_plain(r);
    int64_t row_bytes = grid ? (r->width ? r->width : 1) * 8 : 16;
    bool chunked = H5Pget_layout(plist) == H5D_CHUNKED;
    if (chunked && H5Pget_chunk(plist, r->kind == HDF5_GRID ? 2 : 1, chunk) < 0)
        return fail_rows(r, "its chunks", why);
    if (chunk[0] == 0 || chunk[1] == 0 || chunk[0] > (hsize_t)MAX_CHUNK / 8 ||
        chunk[1] > (hsize_t)MAX_CHUNK / 8 / chunk[0])
        return refuse(r, ERR_LIMIT, "its chunks are larger than 1 GiB; write smaller ones (h5repack)", why);
    int64_t chunk_rows = (int64_t)chunk[0], across = (r->width + (int64_t)chunk[1] - 1) / (int64_t)chunk[1];
    int64_t cache = chunk_rows * (int64_t)chunk[1] * (grid ? 8 : 16);
    *ret_cache = across > 0 && cache > MAX_CACHE / across ? MAX_CACHE : cache * across;
    r->batch = BATCH_BYTES / row_bytes / chunk_rows * chunk_rows;
    if (r->batch == 0)
        r->batch = chunk_rows <= BATCH_BYTES_MAX / row_bytes ? chunk_rows : BATCH_BYTES_MAX / row_bytes;
    if (!grid)
        r->batch = BATCH_LISTS;
    r->batch = r->batch > 0 ? r->batch : 1;
    return OK;
}

static err_t open_set(struct hdf5_rows *r, const struct hdf5_group *g, int64_t cache, struct why *why)
{
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    r->set = -1;
    if (access >= 0 && H5Pset_chunk_cache(access, 1009, (size_t)cache, 1.0) >= 0)
        r->set = H5Dopen2(g->id, r->column, access);
    err_t err = r->set < 0 ? fail_rows(r, "it cannot be opened", why) : OK;
    if (access >= 0)
        H5Pclose(access);
    return err;
}

/* Inspects the dataset, and opens it again with a cache that suits its chunks. */
static err_t inspect(struct hdf5_rows *r, const struct hdf5_group *g, struct why *why)
{
    int64_t cache = 0;
    hid_t plist = H5Dget_create_plist(r->set);
    if (plist < 0)
        return fail_rows(r, "its properties", why);
    err_t err = read_extent(r, why);
    err = err ? err : check_storage(r, plist, why);
    err = err ? err : plan_batches(r, plist, &cache, why);
    H5Pclose(plist);
    if (err)
        return err;
    H5Dclose(r->set);
    return open_set(r, g, cache, why);
}

/* The type of a value in memory. */
static hid_t memory_type(const struct hdf5_rows *r)
{
    if (r->kind == HDF5_BYTE_LISTS || r->kind == HDF5_INT_LISTS)
        return H5Tvlen_create(r->kind == HDF5_BYTE_LISTS ? H5T_NATIVE_UINT8 : H5T_NATIVE_INT64);
    if (is_plain(r))
        return H5Tcopy(H5T_NATIVE_INT64);
    return H5Dget_type(r->set); /* strings as they are: no conversion between ASCII and UTF-8 */
}

err_t hdf5_rows_open(struct hdf5_rows *r, const struct hdf5_group *g, int column, struct why *why)
{
    r->column = g->columns[column].name;
    r->kind = g->kinds[column];
    err_t err = open_set(r, g, 1 << 20, why);
    err = err ? err : inspect(r, g, why);
    if (err)
        return err;
    r->type = memory_type(r);
    r->transfer = H5Pcreate(H5P_DATASET_XFER);
    if (r->type < 0 || r->transfer < 0 || H5Pset_vlen_mem_manager(r->transfer, block_alloc, r, block_free, r) < 0)
        return fail_rows(r, "it cannot be opened", why);
    return OK;
}

/* ---- reading ---- */

static size_t cell_bytes(const struct hdf5_rows *r)
{
    if (is_plain(r))
        return (size_t)r->width * sizeof(int64_t);
    return r->kind == HDF5_STRINGS ? sizeof(char *) : sizeof(hvl_t);
}

static err_t read_batch(struct hdf5_rows *r, int64_t first, int64_t n, struct why *why)
{
    hsize_t from[2] = {(hsize_t)first, 0}, size[2] = {(hsize_t)n, (hsize_t)r->width};
    int dimensions = r->kind == HDF5_GRID ? 2 : 1;
    free_blocks(r);
    r->cells.len = 0;
    r->first = first;
    r->loaded = n;
    if (buf_reserve(&r->cells, (size_t)n * cell_bytes(r) + 1))
        return refuse(r, ERR_NOMEM, err_text(ERR_NOMEM), why);
    memset(r->cells.data, 0, (size_t)n * cell_bytes(r));
    if (r->width == 0)
        return OK;
    hid_t space = H5Dget_space(r->set), memory = H5Screate_simple(dimensions, size, NULL);
    herr_t rc = space < 0 || memory < 0 ? -1 : H5Sselect_hyperslab(space, H5S_SELECT_SET, from, NULL, size, NULL);
    rc = rc < 0 ? rc : H5Dread(r->set, r->type, memory, space, r->transfer, r->cells.data);
    err_t err = rc < 0 ? fail_rows(r, "its values cannot be read", why) : OK;
    if (space >= 0)
        H5Sclose(space);
    if (memory >= 0)
        H5Sclose(memory);
    return err;
}

static err_t load_row(struct hdf5_rows *r, int64_t row, struct why *why)
{
    int64_t n = r->rows - row < r->batch ? r->rows - row : r->batch;
    if (row >= r->first && row < r->first + r->loaded)
        return OK;
    err_t err = read_batch(r, row, n, why);
    if (err == ERR_CORRUPT && n > 1 && !is_plain(r)) /* many long values: one at a time */
        err = read_batch(r, row, 1, why);
    if (err)
        r->loaded = 0;
    return err;
}

static void string_value(const char *s, struct table_value *ret)
{
    ret->bytes = (const uint8_t *)(s ? s : "");
    ret->len = s ? block_bytes(s) - 1 : 0; /* with a NUL behind it */
}

err_t hdf5_rows_at(struct hdf5_rows *r, int64_t row, struct table_value *ret, struct why *why)
{
    err_t err = load_row(r, row, why);
    *ret = (struct table_value){0};
    if (err)
        return err;
    const uint8_t *cell = r->cells.data + (size_t)(row - r->first) * cell_bytes(r);
    const hvl_t *list = (const void *)cell;
    switch (r->kind) {
    case HDF5_STRINGS:
        string_value(*(char *const *)(const void *)cell, ret);
        break;
    case HDF5_BYTE_LISTS:
        ret->bytes = list->p ? list->p : (const uint8_t *)"";
        ret->len = list->len;
        break;
    case HDF5_INT_LISTS:
        ret->ints = list->p ? list->p : (const void *)r->cells.data;
        ret->n = (int64_t)list->len;
        break;
    default:
        ret->ints = (const void *)cell;
        ret->n = r->width;
    }
    return OK;
}

void hdf5_rows_fini(struct hdf5_rows *r)
{
    free_blocks(r);
    buf_fini(&r->cells);
    if (r->type > 0)
        H5Tclose(r->type);
    if (r->transfer > 0)
        H5Pclose(r->transfer);
}
