/* Who this node is in its cluster: STATE/cluster/self, lines of key=value, mode 0600. Absent: it is in none. Beside it
 * lies `view`, the last word of the cluster's nodes, tokens and keys (state.h), by which a restarted node finds the
 * others. Blocking, a few hundred bytes. */
#ifndef DTD_DAEMON_CONTROL_CLUSTER_SELF_FILE_H
#define DTD_DAEMON_CONTROL_CLUSTER_SELF_FILE_H

#include "daemon/control/state/record.h"

#define CLUSTER_FILE_MAX 2048

struct cluster_self {
    char name[NODE_NAME_MAX + 1];
    uint64_t id; /* its number, as a voter too */
    uint8_t instance[NODE_INSTANCE_BYTES];
    char listen[NODE_TEXT_MAX + 1], address[NODE_TEXT_MAX + 1]; /* where it listens, how others reach it */
    char domain[NODE_TEXT_MAX + 1];                             /* "": none */
    bool joins;                                                 /* its log waits to be added, it does not begin one */
    bool fresh;   /* a log of before is to be set aside at the next start */
    bool recover; /* at the next start its log's only voter is itself */
};

/* ERR_NOTFOUND: in no cluster. */
NODISCARD err_t cluster_file_read(const char *path, struct cluster_self *ret, struct why *why);
NODISCARD err_t cluster_file_write(const char *path, const struct cluster_self *self, struct why *why);
/* The text of a file; `path` is for the sentence. */
NODISCARD err_t cluster_file_parse(const char *path, const char *text, size_t len, struct cluster_self *ret,
                                   struct why *why);
/* Returns the length. */
size_t cluster_file_print(const struct cluster_self *self, char ret[CLUSTER_FILE_MAX]);

#endif
