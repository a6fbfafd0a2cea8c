/* Reads FlatBuffers (flatbuffers.dev, "Internals") from memory, as Arrow's metadata uses them. The bytes may be
 * hostile: every offset is checked, and a member outside the buffer reads as absent and sets `bad`. */
#ifndef DTD_COMMON_DATA_FLATBUFFER_H
#define DTD_COMMON_DATA_FLATBUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct flat {
    const uint8_t *data;
    size_t size;
    bool bad;
};

/* A table, or a vector; at = 0: absent. */
struct flat_ref {
    size_t at;
    size_t vtable, vtable_bytes; /* of a table */
    size_t n;                    /* elements of a vector */
};

struct flat_ref flat_root(struct flat *f);
/* Members by slot, which counts the members of the schema from 0. */
int64_t flat_int(struct flat *f, struct flat_ref table, int slot, int bytes, int64_t absent);
struct flat_ref flat_table(struct flat *f, struct flat_ref table, int slot);
/* A vector of structures of `bytes` bytes each (or of offsets: 4). */
struct flat_ref flat_vector(struct flat *f, struct flat_ref table, int slot, size_t bytes);
/* An 8-byte integer at byte `at` of element i of a vector of structures of `bytes` bytes. */
int64_t flat_element(struct flat *f, struct flat_ref vector, size_t i, size_t bytes, size_t at);
/* Table i of a vector of tables. */
struct flat_ref flat_table_at(struct flat *f, struct flat_ref vector, size_t i);
/* A string: NULL if it is absent. Not terminated. */
const char *flat_string(struct flat *f, struct flat_ref table, int slot, size_t *ret_len);

#endif
