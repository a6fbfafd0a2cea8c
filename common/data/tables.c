#include "common/data/tables.h"

#include "common/data/arrow.h"
#include "common/data/hdf5.h"
#include "common/data/parquet.h"

const struct format_row table_rows[] = {
    {"parquet", INPUT_DOCUMENTS, NULL, NULL, &parquet_format, NULL},
    {"arrow", INPUT_DOCUMENTS, NULL, NULL, &arrow_format, NULL},
    {"hdf5", INPUT_DOCUMENTS, NULL, NULL, &hdf5_format, NULL},
    {0},
};
