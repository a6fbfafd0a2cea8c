/* The configuration of dtd (`dtd --config FILE`) as a plain struct, filled by the table in node.c.
 * docs/operate/configuration.md is its manual. */
#ifndef DTD_COMMON_CONF_NODE_H
#define DTD_COMMON_CONF_NODE_H

#include "common/base/err.h"
#include "common/base/log.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONF_NODE_MAX_SLOTS 512 /* CHANNEL_MAX_WORKERS of the supervisor */

struct schema;

struct node_conf {
    char *name;           /* "": the host name */
    char *state_dir;      /* "": $DTD_DIR, else $XDG_STATE_HOME/dtd, else ~/.local/state/dtd */
    char *run_dir, *user; /* of a system-wide dtd; "": /run/dtd and dtd */
    int64_t slots;        /* 0: one per CPU core, but at least 16 */
    char *gpus;           /* "auto", or a number */
    struct {
        enum log_level level;
    } log;
    struct { /* of the replicated log */
        int64_t entries, trailing;
    } snapshot;
    struct {
        int64_t reserve_mib; /* reserved for the replicated log */
        int64_t log_mib;     /* of a worker's log; 0: any size */
        int64_t metrics_mib; /* of a job's metrics file; 0: any size */
    } disk;
    struct {
        int64_t jobs;        /* of one user that have not ended */
        int64_t job_mib;     /* job files of one user's jobs */
        int64_t connections; /* of one user to control.sock, without those of processes of jobs */
        int64_t calls;       /* of one user that wait for an answer */
        int64_t buffer_mib;  /* answers that one user's connections do not read */
        int64_t stores, store_connections, store_mib; /* c10d stores of one user on this node */
        int64_t metrics_mib;                          /* metrics files of one user's jobs */
    } users;
    struct {                    /* limits of jobs of a system-wide dtd */
        int64_t memory_percent; /* of this node's memory, for all jobs together; 0: no limit */
        int64_t processes;      /* with threads, for each worker; 0: no limit */
    } jobs;
    struct { /* of several nodes */
        char *listen, *domain;
        char **advertise; /* host:port; none: the host name */
        int n_advertise;
        char *ports, *fabric; /* "": any port; the first host of `advertise` */
        char *key_file;       /* "": keys are transferred when nodes join */
        bool first;
        char **peers; /* host:port */
        int n_peers;
    } cluster;
    struct {
        char *listen;            /* numeric address:port; "": no dtd-web runs */
        char *certificate, *key; /* PEM files; "": no TLS */
        char *user;              /* of a system-wide dtd */
        char **operators;        /* users who see all jobs on the page */
        int n_operators;
    } web;
};

/* Errors are those of job_parse. */
NODISCARD err_t node_conf_parse(const char *file, const char *text, size_t len, struct node_conf *ret, struct why *why);
/* Reads and parses a file; path NULL: the defaults. */
NODISCARD err_t node_conf_read(const char *path, struct node_conf *ret, struct why *why);
/* The configuration without a file. */
NODISCARD err_t node_conf_default(struct node_conf *ret, struct why *why);
void node_conf_fini(struct node_conf *conf);
extern const struct schema node_schema;

#endif
