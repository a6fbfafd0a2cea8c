/* The parts of the HDF5 reader: the file driver, the datasets of a group, and the rows of a dataset. All of it
 * runs in a process with one thread. */
#ifndef DTD_COMMON_DATA_HDF5_PRIV_H
#define DTD_COMMON_DATA_HDF5_PRIV_H

#include "common/base/buf.h"
#include "common/data/hdf5_module.h"
#include "common/data/source.h"
#include "common/data/table.h"

#include <hdf5.h>

/* ---- the driver (hdf5_driver.c) ---- */

/* Opens the file for reading. `io` gets the sentence of a read that failed, and lives as long as the file. */
NODISCARD err_t hdf5_driver_open(struct byte_source *in, struct why *io, hid_t *ret, struct why *why);

/* ---- datasets (hdf5_group.c) ---- */

enum hdf5_kind {
    HDF5_OTHER,
    HDF5_STRINGS,    /* 1-D, variable-length strings */
    HDF5_BYTE_LISTS, /* 1-D, variable-length lists of uint8 */
    HDF5_INT_LISTS,  /* 1-D, variable-length lists of other integers */
    HDF5_GRID,       /* 2-D integers: a row for each document */
    HDF5_NUMBERS,    /* 1-D integers: one for each document */
};

/* The datasets and groups in a group, as columns. */
struct hdf5_group {
    hid_t id;
    struct table_column *columns; /* owns their names */
    enum hdf5_kind *kinds;
    int n;
};

/* Opens the group `path`, "" for the root, and lists it. Follows hard links only: others lead to other files. */
NODISCARD err_t hdf5_group_open(hid_t file, const char *path, const char *name, struct hdf5_group *ret,
                                struct why *why);
void hdf5_group_fini(struct hdf5_group *g);

/* Writes "NAME: what: the library's innermost error". Takes the sentence of `io` instead if it has one. Each call of
 * the library forgets the error of the one before, so this comes first behind a call that failed. */
err_t hdf5_fail(const char *name, const char *what, const struct why *io, struct why *why);

/* ---- rows (hdf5_rows.c) ---- */

/* A block of memory that libhdf5 asked for, with the values of variable length. */
struct hdf5_block {
    struct hdf5_block *next;
    size_t bytes;
    uint8_t data[];
};

struct hdf5_rows {
    const char *name, *column; /* for messages */
    const struct why *io;
    enum hdf5_kind kind;
    hid_t set, type, transfer;
    int64_t rows, width;   /* width: integers in a row of a grid */
    int64_t batch;         /* rows that are read at once */
    int64_t first, loaded; /* the rows that are in `cells` */
    struct buf cells;      /* char *, hvl_t, or int64_t x width */
    struct hdf5_block *blocks;
    size_t block_bytes;
};

NODISCARD err_t hdf5_rows_open(struct hdf5_rows *r, const struct hdf5_group *g, int column, struct why *why);
NODISCARD err_t hdf5_rows_at(struct hdf5_rows *r, int64_t row, struct table_value *ret, struct why *why);
void hdf5_rows_fini(struct hdf5_rows *r);

#endif
