#include "common/data/tables.h"

#include "common/data/arrow.h"
#include "common/data/datasets.h"
#include "common/data/hdf5.h"
#include "common/data/image.h"
#include "common/data/parquet.h"
#include "common/data/squashfs.h"

const struct format_row table_rows[] = {
    {"parquet", INPUT_DOCUMENTS, NULL, NULL, &parquet_format, NULL},
    {"arrow", INPUT_DOCUMENTS, NULL, NULL, &arrow_format, NULL},
    {"hdf5", INPUT_DOCUMENTS, NULL, NULL, &hdf5_format, NULL},
    {0},
};

const struct data_containers table_containers = {.is_folder = datasets_is_folder,
                                                 .folder_files = datasets_files,
                                                 .split = squashfs_split,
                                                 .image_files = image_files,
                                                 .image_open = image_open};
