/* Reads structures of Thrift's compact protocol (thrift-compact-protocol.md), which Parquet uses, from memory. The
 * bytes may be hostile. A structure is described by a table of its members; others are skipped. */
#ifndef DTD_COMMON_DATA_THRIFT_H
#define DTD_COMMON_DATA_THRIFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct thrift {
    const uint8_t *p, *end;
    bool bad; /* the bytes are no valid structure, or end too early; set once, and everything read then is 0 */
    int depth;
};

struct thrift_bytes {
    const uint8_t *data; /* inside the bytes that are read */
    size_t len;
};

struct thrift_member {
    int id;
    /* Reads a value of wire type `type` into dst. */
    void (*read)(struct thrift *t, int type, void *dst);
    size_t offset; /* of dst in the structure */
};

void thrift_struct(struct thrift *t, const struct thrift_member *members, size_t n, void *dst);
/* Readers for the table: int64_t (also of a boolean), struct thrift_bytes, and bool: the member is there. */
void thrift_int(struct thrift *t, int type, void *dst);
void thrift_binary(struct thrift *t, int type, void *dst);
void thrift_present(struct thrift *t, int type, void *dst);
/* Begins a list of structures; returns their number, at most the number of bytes that are left. */
size_t thrift_list_of_structs(struct thrift *t, int type);
/* True if `type` is that of a structure; else sets t->bad. */
bool thrift_is_struct(struct thrift *t, int type);

#endif
