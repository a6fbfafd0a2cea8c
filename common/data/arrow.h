/* Apache Arrow IPC: files (ARROW1) and streams, as pyarrow, Polars and Hugging Face datasets write them.
 *
 * docs/use/data-formats.md lists what is read; the rest is refused by name. Memory does not grow with record batches:
 * each buffer of a batch is read, and decompressed, in pieces. The format has no checksums. */
#ifndef DTD_COMMON_DATA_ARROW_H
#define DTD_COMMON_DATA_ARROW_H

#include "common/data/source.h"

extern const struct doc_format arrow_format;

#endif
