/* dtd's own configuration (`dtd --config FILE`), as a plain struct made from the table in node.c. docs/node.md is its
 * manual. */
#ifndef DTD_COMMON_CONF_NODE_H
#define DTD_COMMON_CONF_NODE_H

#include "common/base/err.h"
#include "common/base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct schema;

struct node_conf {
    char *name;           /* "" : the host's */
    char *state_dir;      /* "" : $DTD_DIR, else $XDG_STATE_HOME/dtd, else ~/.local/state/dtd */
    char *run_dir, *user; /* of a system-wide dtd; "" : /run/dtd and dtd */
    int64_t slots;        /* 0: one a core */
    char *gpus;           /* "auto", or a number */
    struct {
        enum log_level level;
    } log;
    struct { /* of the replicated log */
        int64_t entries, trailing;
    } snapshot;
    struct {
        int64_t reserve_mib; /* kept free for the log */
    } disk;
    struct { /* with other nodes */
        char *listen, *advertise, *domain;
        char *key_file; /* "": keys come by joining */
        bool first;
        char **peers; /* host:port */
        int n_peers;
    } cluster;
};

/* Errors as job_parse's. */
NODISCARD err_t node_conf_parse(const char *file, const char *text, size_t len, struct node_conf *ret, struct why *why);
/* The same of a file; NULL: the defaults. */
NODISCARD err_t node_conf_read(const char *path, struct node_conf *ret, struct why *why);
/* What an absent file means. */
NODISCARD err_t node_conf_default(struct node_conf *ret, struct why *why);
void node_conf_fini(struct node_conf *conf);
extern const struct schema node_schema;

#endif
