/* Apache Parquet: one column of strings, or of lists of integers, row by row.
 *
 * docs/use/data-formats.md lists what is read; the rest is refused by name. Memory: the footer while it is opened, then
 * one page and one dictionary of each column. Pages have a CRC-32 if the writer made one; it is checked. */
#ifndef DTD_COMMON_DATA_PARQUET_H
#define DTD_COMMON_DATA_PARQUET_H

#include "common/data/source.h"

extern const struct doc_format parquet_format;

#endif
