/* Files that libhdf5 writes here. Those of h5py are compared in tests/interop. */
#include "common/data/hdf5.h"
#include "tests/common/data/files.h"
#include "tests/common/data/read_all.h"

#include <hdf5.h>

/* Writes a 1-D dataset (width = 0), or a 2-D one. */
static void add_set(hid_t file, const char *name, hid_t type, hsize_t n, hsize_t width, const void *data)
{
    hsize_t size[2] = {n, width};
    hid_t space = H5Screate_simple(width ? 2 : 1, size, NULL);
    hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    assert_true(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    H5Dclose(set);
    H5Sclose(space);
}

static void read_whole(struct buf *ret)
{
    assert_ok(file_read(file_path("t.h5"), 1 << 24, ret));
}

TEST(strings_and_bytes)
{
    const char *rows[] = {"one", "", "two words"};
    hvl_t bytes[] = {{2, (uint8_t *)"\1\2"}, {0, NULL}};
    struct buf b = {0};
    hid_t file = H5Fcreate(file_path("t.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t type = H5Tcopy(H5T_C_S1), list = H5Tvlen_create(H5T_STD_U8LE);
    H5Tset_size(type, H5T_VARIABLE);
    add_set(file, "text", type, 3, 0, rows);
    H5Gclose(H5Gcreate2(file, "train", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    add_set(file, "train/images", list, 2, 0, bytes);
    H5Tclose(type);
    H5Tclose(list);
    H5Fclose(file);
    read_whole(&b);
    assert_true(hdf5_format.is(b.data, b.len, "t"));
    assert_reads(&hdf5_format, b.data, b.len, NULL, "0 one\n1 \n2 two words\n");
    assert_reads(&hdf5_format, b.data, b.len, "/text", "0 one\n1 \n2 two words\n");
    assert_reads(&hdf5_format, b.data, b.len, "train/images", "0 \1\2\n1 \n");
    assert_refuses(&hdf5_format, b.data, b.len, "train", ERR_UNSUPPORTED, "column train: its type is a group");
    assert_refuses(&hdf5_format, b.data, b.len, "val/text", ERR_INVALID, "t: there is no group val");
    assert_refuses(&hdf5_format, b.data, b.len, "train/x", ERR_INVALID, "t: group train: no column x");
    buf_fini(&b);
}

TEST(grid_with_weights)
{
    const int32_t ids[] = {1, 2, 3, 70000, 5, 6}, labels[] = {-100, 2, 3, -100, -100, 6};
    struct buf b = {0};
    hid_t file = H5Fcreate(file_path("t.h5"), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    add_set(file, "input_ids", H5T_NATIVE_INT32, 2, 3, ids);
    add_set(file, "labels", H5T_NATIVE_INT32, 2, 3, labels);
    H5Fclose(file);
    read_whole(&b);
    assert_reads(&hdf5_format, b.data, b.len, NULL, "0 1*0 2*1 3*1\n1 70000*0 5*0 6*1\n");
    for (size_t n = 0; n < b.len; n += 1 + b.len / 40)
        assert_refuses(&hdf5_format, b.data, n, NULL, ERR_CORRUPT,
                       "t: the HDF5 file cannot be opened: libhdf5 reports: ");
    buf_fini(&b);
}

TEST(signature_behind_a_user_block)
{
    uint8_t head[4096] = {0};
    assert_false(hdf5_format.is(head, sizeof(head), "t"));
    memcpy(head + 2048, "\x89HDF\r\n\x1a\n", 8);
    assert_true(hdf5_format.is(head, sizeof(head), "t"));
    assert_false(hdf5_format.is(head, 2055, "t"));
    memmove(head + 700, head + 2048, 8);
    assert_false(hdf5_format.is(head, 2048, "t"));
}
