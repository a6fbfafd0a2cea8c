/* What the committer knows of a written part: its file's size and extents, and where each box and value lies in it. */
#ifndef DTD_COMMON_CKPT_PART_H
#define DTD_COMMON_CKPT_PART_H

#include "common/ckpt/ckpt.h"

#define PART_MAX_NAME 4096 /* of a tensor */

struct part_entry {
    char *fqn;
    enum dtype dtype; /* DT_NONE: a value, whose shape and box mean nothing */
    int64_t shape[BOX_MAX_DIMS];
    struct box box;
    int64_t offset, length; /* of the blob */
};

struct ckpt_part {
    int rank;
    char file[32];
    uint64_t size;
    struct part_entry *entries;
    int n_entries, cap_entries;
    uint32_t *crcs;
    uint32_t n_crcs;
};

/* A new entry, zeroed but for its name; NULL: out of memory. */
struct part_entry *part_entry_add(struct ckpt_part *part, const char *fqn, size_t len);
struct ckpt_part *part_new(int rank);

#endif
