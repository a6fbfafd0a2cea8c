/* The index of a written part, for the committer: the file's size and checksums, and the offset of each box and value.
 */
#ifndef DTD_COMMON_CKPT_PART_H
#define DTD_COMMON_CKPT_PART_H

#include "common/ckpt/ckpt.h"

#define PART_MAX_NAME 4096 /* bytes of a tensor's name; far above real ones, so that a part's index is bounded */

struct part_entry {
    char *fqn;
    enum dtype dtype; /* DT_NONE: a scalar value; shape and box are unused */
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

/* Adds an entry that is zero except for its name. NULL: out of memory. */
struct part_entry *part_entry_add(struct ckpt_part *part, const char *fqn, size_t len);
struct ckpt_part *part_new(int rank);

/* ERR_NOSPACE, with the bytes that the file needs and those that are free on its file system. */
NODISCARD err_t ckpt_no_space(const char *path, int64_t bytes, struct why *why);

#endif
