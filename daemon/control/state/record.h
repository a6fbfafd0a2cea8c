/* A record of the replicated log as a plain struct, and its bytes. Who proposes fills one and encodes it; apply gets
 * one that was decoded. Strings are borrowed: from the proposer, or from the decoded record's memory (record_fini).
 * Pure. proto/log.proto and docs/formats/replicated-log.md are the format. */
#ifndef DTD_DAEMON_CONTROL_STATE_RECORD_H
#define DTD_DAEMON_CONTROL_STATE_RECORD_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rpc/incident.h"

#include <stdbool.h>
#include <stdint.h>

#define RECORD_VERSION 1
#define RECORD_MAX_BYTES (2u << 20)
#define RECORD_MAX_MEMBERS 4096
#define REQUEST_ID_BYTES 16

/* Values are in the log: never renumber, only append. */
enum state_desired { DESIRED_RUN = 1, DESIRED_CANCELED = 2, DESIRED_SAVED = 3 /* and then canceled */ };
enum state_end { END_NONE = 0, END_DONE = 1, END_FAILED = 2, END_CANCELED = 3 };

enum record_kind {
    RECORD_SUBMITTED = 1,      /* answer: the job's id, which apply assigns */
    RECORD_DESIRED,            /* somebody wants the job canceled */
    RECORD_ENDED,              /* the job's last state */
    RECORD_EPOCH,              /* a new membership; what is older is fenced */
    RECORD_CHECKPOINT,         /* a step folder was committed */
    RECORD_CHECKPOINT_REMOVED, /* ... or removed by retention */
    RECORD_INCIDENT,           /* what was seen and decided; equal job, epoch and wall_ms: replaces the earlier one */
    RECORD_NODE,               /* a node joined, or has another address; answer: its number, which apply assigns */
    RECORD_NODE_LEFT,          /* ... left, or was removed */
    RECORD_NODE_ADMIN,         /* ... is drained, or not any more */
    RECORD_TOKEN,              /* somebody may join by it */
    RECORD_KEY,                /* a step of a key's life */
};

#define NODE_INSTANCE_BYTES 16
#define NODE_NAME_MAX 253
#define NODE_TEXT_MAX 263 /* of an address or a domain */
#define NODE_REASON_MAX 512
#define TOKEN_SECRET_LENGTH 16
#define KEY_SECRET_LENGTH 32

/* A key is added, then connected with once every node has it, then dropped. */
enum state_key_step { KEY_ADDED = 1, KEY_USED = 2, KEY_DROPPED = 3 };

struct state_member {
    const char *node;
    int32_t slot;
};

struct state_checkpoint {
    int64_t step;
    uint64_t epoch;
    const char *path; /* of the step folder */
    int64_t bytes, committed_ms;
    double loss; /* NAN: unknown */
};

struct record {
    enum record_kind kind;
    int64_t wall_ms;  /* the proposer's clock */
    bool has_request; /* a repeat of request_id within a day changes nothing and gets the first answer */
    uint8_t request_id[REQUEST_ID_BYTES];
    uint64_t job; /* of the kinds up to RECORD_INCIDENT, but RECORD_SUBMITTED */
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
            int32_t restarts; /* of the job so far */
        } epoch;
        struct state_checkpoint checkpoint;
        struct {
            int64_t step;
        } removed;
        struct incident incident;
        struct {
            const char *name, *address, *domain; /* domain: "" for none */
            uint8_t instance[NODE_INSTANCE_BYTES];
            uint64_t token; /* 0: none */
        } node;
        struct {
            const char *name;
        } node_left;
        struct {
            const char *name, *drained; /* drained: why, NULL: not any more */
        } node_admin;
        struct {
            uint64_t id;
            int64_t expires_ms;
            uint32_t uses; /* 0: taken back */
            uint8_t secret[TOKEN_SECRET_LENGTH];
        } token;
        struct {
            uint32_t version;
            enum state_key_step step;
            uint8_t secret[KEY_SECRET_LENGTH]; /* of KEY_ADDED */
        } key;
    };
    void *memory; /* of a decoded record */
};

/* Appends to `ret`, or leaves it. ERR_LIMIT above RECORD_MAX_BYTES; ERR_INVALID for a kind there is not, and for values
 * that record_decode refuses. */
NODISCARD err_t record_encode(const struct record *record, struct buf *ret);
/* ERR_CORRUPT: no record; ERR_UNSUPPORTED: of a newer dtd. */
NODISCARD err_t record_decode(const void *data, size_t len, struct record *ret);
void record_fini(struct record *record); /* also of a zeroed one */

#endif
