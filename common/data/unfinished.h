/* The folder of a set that is being prepared, `<cache>/.unfinished-<hash>`: the files of the set, a journal, a lock,
 * and what the hash covers. A run that is interrupted leaves it, and the next run with the same inputs continues. For
 * common/data only; one thread. */
#ifndef DTD_COMMON_DATA_UNFINISHED_H
#define DTD_COMMON_DATA_UNFINISHED_H

#include "common/data/journal.h"

#include <limits.h>

struct unfinished {
    char dir[PATH_MAX];
    int lock;               /* -1: no other run can find the folder, and nothing is saved */
    bool saved;             /* the folder has a journal */
    struct journal journal; /* of the run that is continued; hash "": this run begins anew */
};

/* What names a set, for comparison with other unfinished sets. */
struct unfinished_inputs {
    const char *hash;
    const struct buf *text;   /* the text whose hash it is */
    const char *const *paths; /* of the sources */
    int n_paths;
    int64_t cap; /* maximum tokens per shard; a journal of another size is not continued */
};

/* Opens the folder, or creates it. If another process has it, *ret is a private folder. ret_note: what the user should
 * know; "": nothing. */
NODISCARD err_t unfinished_open(const char *cache, const struct unfinished_inputs *in, struct unfinished *ret,
                                struct why *ret_note, struct why *why);
/* Makes the journal durable; the files that it describes are. */
NODISCARD err_t unfinished_save(struct unfinished *u, const struct journal *j, struct why *why);
/* Removes what does not belong to the set, before the folder gets the set's name. */
void unfinished_strip(const struct unfinished *u);
/* Closes the folder, and removes it unless `keep` and it has a journal. After it was renamed: nothing is removed. */
void unfinished_close(struct unfinished *u, bool keep);

#endif
