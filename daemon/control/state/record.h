/* A record of the replicated log as a plain struct, and its encoding. The leader fills and encodes a record to propose
 * it; state_apply receives the decoded one. Strings are borrowed: from the proposer, or from the memory of the decoded
 * record (record_fini). Pure functions. proto/log.proto and docs/formats/replicated-log.md specify the format. */
#ifndef DTD_DAEMON_CONTROL_STATE_RECORD_H
#define DTD_DAEMON_CONTROL_STATE_RECORD_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rpc/incident.h"

#include <stdbool.h>
#include <stdint.h>

#define RECORD_MAX_BYTES (2u << 20)
#define RECORD_MAX_MEMBERS 4096
#define REQUEST_ID_BYTES 16

/* The log contains these values: never renumber them, only append. */
enum state_desired { DESIRED_RUN = 1, DESIRED_CANCELED = 2, DESIRED_SAVED = 3 /* and then canceled */ };
enum state_end { END_NONE = 0, END_DONE = 1, END_FAILED = 2, END_CANCELED = 3 };

enum record_kind {
    RECORD_SUBMITTED = 1,      /* a new job; the result is its id, which state_apply assigns */
    RECORD_DESIRED,            /* a user canceled the job */
    RECORD_ENDED,              /* the job has reached its last state */
    RECORD_EPOCH,              /* a new epoch with its members; workers of older epochs are fenced */
    RECORD_CHECKPOINT,         /* a checkpoint was committed */
    RECORD_CHECKPOINT_REMOVED, /* retention removed a checkpoint */
    RECORD_INCIDENT,           /* replaces an earlier incident of the same job, epoch and wall_ms */
    RECORD_NODE,               /* a node joined or changed its address; the result is its number */
    RECORD_NODE_LEFT,          /* a node left or was removed */
    RECORD_NODE_ADMIN,         /* a drain of a node begins or ends */
    RECORD_TOKEN,              /* a join token was created or withdrawn */
    RECORD_KEY,                /* a cluster key was added, put to use or dropped */
    RECORD_JOB_REMOVED,        /* a user removed a job that had ended. An older version reads it as a second end */
    RECORD_LINEAGE,            /* the cluster gets its id, or was recovered */
    RECORD_CLUSTER_VERSION,    /* all nodes have this version of records and messages (features.h) */
};

#define NODE_INSTANCE_BYTES 16
#define NODE_NAME_MAX 253
#define NODE_TEXT_MAX 263 /* of an address or a domain, in bytes */
#define NODE_REASON_MAX 512
#define TOKEN_SECRET_LENGTH 16
#define KEY_SECRET_LENGTH 32
#define NODE_KEY_BYTES 32 /* the public key of a node (common/tunnel/identity.h); zeros: it has none yet */

/* Life of a cluster key. Nodes use a new key for connections only after every node has received it. */
enum state_key_step { KEY_ADDED = 1, KEY_USED = 2, KEY_DROPPED = 3 };

struct state_member {
    const char *node;
    int32_t slot;
};

struct state_checkpoint {
    int64_t step;
    uint64_t epoch;
    const char *path; /* the folder of the step */
    int64_t bytes, committed_ms;
    double loss; /* NAN: unknown */
};

struct record {
    enum record_kind kind;
    int64_t wall_ms;  /* clock of the proposer: a date */
    int64_t clock_ms; /* the cluster's clock (clock.h); 0: an older version wrote the record */
    bool has_request; /* a repetition of request_id within a day changes nothing and has the first result */
    uint8_t request_id[REQUEST_ID_BYTES];
    uint64_t job; /* in the kinds RECORD_DESIRED to RECORD_INCIDENT */
    union {
        struct {
            const char *spec;
            uint64_t parent; /* 0: none */
            uint32_t uid;
        } submitted;
        struct {
            enum state_desired desired;
        } desired;
        struct {
            enum state_end end;
            const char *reason; /* may be NULL */
        } ended;
        struct {
            uint64_t epoch;
            const struct state_member *members; /* by rank */
            int n_members;
            int64_t resume_step;
            int32_t restarts;                /* restarts of the job so far */
            const char *layout, *layout_why; /* of a job with parallel.auto (common/plan/choose); else NULL */
        } epoch;
        struct state_checkpoint checkpoint;
        struct {
            int64_t step;
        } removed;
        struct incident incident;
        struct {
            const char *name, *address, *domain; /* domain: "" for none */
            uint8_t instance[NODE_INSTANCE_BYTES];
            uint64_t token;  /* 0: none */
            uint32_t newest; /* the newest cluster version of its dtd, at least 1 */
            uint8_t public_key[NODE_KEY_BYTES];
        } node;
        struct {
            const char *name, *how; /* how: the text of its event; NULL: an older version */
        } node_left;
        struct {
            const char *name, *drained; /* drained: reason of the drain; NULL: the drain ends */
        } node_admin;
        struct {
            uint64_t id;
            int64_t expires_ms, until_ms; /* the date, and the reading of the cluster's clock, which decides */
            uint32_t uses;                /* 0: the token is withdrawn */
            uint8_t secret[TOKEN_SECRET_LENGTH];
        } token;
        struct {
            uint32_t version;
            enum state_key_step step;
            uint8_t secret[KEY_SECRET_LENGTH]; /* only for KEY_ADDED */
        } key;
        struct {
            uint64_t id, generation;
            const char *by; /* node on which the recovery was requested; "": none */
            uint32_t uid;
            const uint64_t *gone; /* numbers of the nodes that must join again */
            int n_gone;
            uint32_t key; /* version of the new key; 0: none */
            uint8_t secret[KEY_SECRET_LENGTH];
        } lineage;
        struct {
            uint32_t version;
            uint64_t next_node; /* refused if the next node has another number by now */
        } cluster_version;
    };
    void *memory; /* owned by a decoded record; NULL: none */
};

/* Appends the encoded record to `ret`, which is unchanged on an error. ERR_LIMIT: larger than RECORD_MAX_BYTES.
 * ERR_INVALID: an unknown kind, or values that record_decode refuses. */
NODISCARD err_t record_encode(const struct record *record, struct buf *ret);
/* ERR_CORRUPT: not a valid record. ERR_UNSUPPORTED: a newer version of dtd wrote it. */
NODISCARD err_t record_decode(const void *data, size_t len, struct record *ret);
void record_fini(struct record *record); /* a zeroed record is legal */

bool record_has_key(const uint8_t public_key[NODE_KEY_BYTES]);

#endif
