/* Where data is staged: each row gives sizes in MiB and the folder that they must lead to. */
#include "common/data/stage_choose.h"
#include "tests/lib/test.h"

#include <string.h>

struct row {
    const char *name, *mode;
    int64_t bytes, memory, need;
    int64_t node, shm, given; /* free; -1: there is no such folder */
    bool node_is_memory;
    const char *unfit; /* of $SLURM_TMPDIR */
    const char *expected, *why;
};

#define NODE "/tmp/slurm"
#define SHM "/dev/shm"
#define GIVEN "/nvme"

static const struct row rows[] = {
    {"shm has room", "shm", 100, 1000, 0, -1, 500, -1, false, NULL, SHM, ""},
    {"shm is exactly as large", "shm", 500, 1000, 0, -1, 500, -1, false, NULL, SHM, ""},
    {"the file system is too small", "shm", 501, 1000, 0, -1, 500, -1, false, NULL, NULL,
     SHM ": the data has 501.0 MiB, and without what the job itself needs 500.0 MiB of memory are free"},
    {"the group's limit is lower than the file system", "shm", 100, 90, 0, -1, 500, -1, false, NULL, NULL,
     "90.0 MiB of memory are free"},
    {"the job needs the memory", "shm", 100, 1000, 901, -1, 500, -1, false, NULL, NULL, "99.0 MiB of memory are free"},
    {"the job needs more than there is", "shm", 1, 100, 500, -1, 500, -1, false, NULL, NULL, " 0.0 MiB of memory"},
    {"shm does not go to the node's folder", "shm", 100, 50, 0, 9999, 500, -1, false, NULL, NULL, SHM ": "},
    {"auto prefers the node's folder", "auto", 100, 1000, 0, 500, 500, -1, false, NULL, NODE, ""},
    {"a disk may be filled, whatever the memory", "auto", 500, 10, 10, 500, 500, -1, false, NULL, NODE, ""},
    {"auto takes a fifth of memory", "auto", 100, 500, 0, -1, 9999, -1, false, NULL, SHM, ""},
    {"auto takes no more than a fifth", "auto", 101, 500, 0, -1, 9999, -1, false, NULL, NULL,
     SHM ": the data has 101.0 MiB, more than a fifth of the 500.0 MiB of free memory"},
    {"the fifth is one of memory, not of the file system", "auto", 100, 500, 0, -1, 100, -1, false, NULL, SHM, ""},
    {"auto takes a fifth of what the job leaves", "auto", 81, 500, 100, -1, 9999, -1, false, NULL, NULL, "400.0 MiB"},
    {"a full disk, then memory", "auto", 100, 1000, 0, 99, 500, -1, false, NULL, SHM, ""},
    {"neither has room", "auto", 300, 1000, 0, 299, 200, -1, false, NULL, NULL,
     NODE ": the data has 300.0 MiB, and 299.0 MiB are free; " SHM ": "},
    {"a node's folder in memory counts as memory", "auto", 300, 1000, 0, 5000, 200, -1, true, NULL, NULL,
     NODE ": the data has 300.0 MiB, more than a fifth of the 1000.0 MiB"},
    {"an unfit folder is passed over", "auto", 100, 1000, 0, 500, 500, -1, false, "it is shared", SHM, ""},
    {"an unfit folder is named", "auto", 300, 1000, 0, 500, 200, -1, false, "it is shared", NULL,
     NODE ": it is shared; " SHM ": "},
    {"no folder at all", "auto", 1, 1000, 0, -1, -1, -1, false, NULL, NULL, ""},
    {"a given folder", GIVEN, 100, 10, 0, 500, 500, 100, false, NULL, GIVEN, ""},
    {"a given folder that is full", GIVEN, 100, 1000, 0, 500, 500, 99, false, NULL, NULL,
     GIVEN ": the data has 100.0 MiB, and 99.0 MiB are free"},
};

static int64_t mib(int64_t n)
{
    return n * (1 << 20);
}

TEST(every_row)
{
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct row *r = &rows[i];
        const struct stage_facts f = {
            .mode = r->mode,
            .bytes = mib(r->bytes),
            .memory_bytes = mib(r->memory),
            .need_bytes = mib(r->need),
            .folder = {[STAGE_NODE] = {r->node < 0 ? NULL : NODE, r->unfit, r->node_is_memory, mib(r->node)},
                       [STAGE_TMPFS] = {r->shm < 0 ? NULL : SHM, NULL, true, mib(r->shm)},
                       [STAGE_GIVEN] = {r->given < 0 ? NULL : GIVEN, NULL, false, mib(r->given)}}};
        struct why why;
        const struct stage_folder *found = stage_choose(&f, &why);
        const char *path = found ? found->path : "in place", *expected = r->expected ? r->expected : "in place";
        if (strcmp(path, expected) != 0 || (!found && !strstr(why.text, r->why)))
            fail_msg("%s: %s instead of %s: \"%s\"", r->name, path, expected, why.text);
    }
}
