/* Files beside STATE/cluster/self, of lines of key=value:
 *
 *   recovery    this node is to continue alone with its copy of the log (`dtctl cluster recover`, `restore`), as a new
 *               generation of the cluster. Removed when the record of the recovery is in the log
 *   superseded  the cluster was recovered without this node: it neither leads nor votes any more, until it joins again
 *
 *   old_copy    the node `by` has found this node's log to be an old copy: it does not vote any more
 *
 * The functions block for a few kilobytes. */
#ifndef DTD_DAEMON_CONTROL_CLUSTER_LINEAGE_FILE_H
#define DTD_DAEMON_CONTROL_CLUSTER_LINEAGE_FILE_H

#include "common/base/key_lines.h"
#include "daemon/control/log/log.h"
#include "daemon/control/state/record.h"

#define LINEAGE_FILE_MAX KEY_LINES_MAX

struct lineage_file {
    uint64_t generation; /* 0 in `recovery`: one more than this node's copy has */
    int64_t at_ms;
    uint32_t uid;
    char by[NODE_NAME_MAX + 1];
    /* Only of `recovery`: the numbers of the nodes that have copies of the log, besides this one; or all others. */
    bool all_gone;
    uint64_t gone[LOG_MAX_MEMBERS];
    int n_gone;
};

/* ERR_NOTFOUND: there is no file. */
NODISCARD err_t lineage_file_read(const char *path, struct lineage_file *ret, struct why *why);
NODISCARD err_t lineage_file_write(const char *path, const struct lineage_file *f, struct why *why);
/* Parses the text of a file; `path` is for the message. */
NODISCARD err_t lineage_file_parse(const char *path, const char *text, size_t len, struct lineage_file *ret,
                                   struct why *why);
/* Returns the length. */
size_t lineage_file_print(const struct lineage_file *f, char ret[LINEAGE_FILE_MAX]);

#endif
