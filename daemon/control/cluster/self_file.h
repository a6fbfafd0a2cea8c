/* The identity of this node in its cluster: STATE/cluster/self, lines of key=value, mode 0600. Without the file the
 * node is in no cluster. The file `view` beside it holds the last view of the cluster's nodes, tokens and keys
 * (state.h), with which a restarted node finds the others. Both end with a checksum (text_sum.h, log/sum.h), which
 * `self` of an older version lacks. The functions block for a few kilobytes. */
#ifndef DTD_DAEMON_CONTROL_CLUSTER_SELF_FILE_H
#define DTD_DAEMON_CONTROL_CLUSTER_SELF_FILE_H

#include "daemon/control/state/record.h"

#define CLUSTER_FILE_MAX 2048

struct cluster_self {
    char name[NODE_NAME_MAX + 1];
    uint64_t id; /* its number in the cluster, which is also its voter id */
    uint8_t instance[NODE_INSTANCE_BYTES];
    char listen[NODE_TEXT_MAX + 1], address[NODE_TEXT_MAX + 1]; /* address to listen on; address for other nodes */
    char domain[NODE_TEXT_MAX + 1];                             /* "": none */
    bool joins;          /* a new log waits to be added, instead of starting with one voter */
    bool fresh;          /* the next start renames an older log */
    bool recover;        /* the next start makes this node the log's only voter */
    uint64_t generation; /* of the cluster, to which the log belongs; 0: the first. Not in the file then */
};

/* ERR_NOTFOUND: in no cluster. */
NODISCARD err_t cluster_file_read(const char *path, struct cluster_self *ret, struct why *why);
NODISCARD err_t cluster_file_write(const char *path, const struct cluster_self *self, struct why *why);
/* Parses the text of a file; `path` is for the message. */
NODISCARD err_t cluster_file_parse(const char *path, const char *text, size_t len, struct cluster_self *ret,
                                   struct why *why);
/* Returns the length. */
size_t cluster_file_print(const struct cluster_self *self, char ret[CLUSTER_FILE_MAX]);

#define CLUSTER_VIEW_MAX_BYTES (16u << 20)
NODISCARD err_t cluster_view_write(const char *path, const void *view, size_t len);
/* Stores the view without its checksum; the caller frees it. ERR_NOTFOUND: there is no file. */
NODISCARD err_t cluster_view_read(const char *path, struct buf *ret);

#endif
