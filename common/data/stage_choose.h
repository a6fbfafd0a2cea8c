/* Where the data of a job is staged (data.stage). Pure: sizes in, decision out. */
#ifndef DTD_COMMON_DATA_STAGE_CHOOSE_H
#define DTD_COMMON_DATA_STAGE_CHOOSE_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define STAGE_NONE "none"
#define STAGE_SHM "shm"
#define STAGE_AUTO "auto"

enum stage_folder_kind {
    STAGE_NODE,  /* $SLURM_TMPDIR: the job's own folder on the node */
    STAGE_TMPFS, /* /dev/shm */
    STAGE_GIVEN, /* the folder that data.stage names */
    STAGE_FOLDERS,
};

struct stage_folder {
    const char *path;   /* NULL: there is none */
    const char *unfit;  /* why nothing can be staged there; NULL: it can be */
    bool memory;        /* what it holds is memory */
    int64_t free_bytes; /* of its file system, for this user */
};

struct stage_facts {
    const char *mode;     /* data.stage */
    int64_t bytes;        /* of all sets of the job */
    int64_t memory_bytes; /* that processes of this node may still take (common/base/meminfo.h) */
    int64_t need_bytes;   /* of memory that the job's workers on this node will take */
    struct stage_folder folder[STAGE_FOLDERS];
};

/* The first folder that the mode allows and that has room, or NULL: the data is read in place, and `ret` gives the
 * reason for each folder. A folder in memory has room for what is free in its file system and in memory, less the
 * job's own need; `auto` takes it only if the sets are at most a fifth of this memory. Not for STAGE_NONE. */
const struct stage_folder *stage_choose(const struct stage_facts *f, struct why *ret);

#endif
