/* The lease of a checkpoint directory: which job may write into it. Jobs of different clusters share nothing but the
 * directory, so the lease is a file there, `.dtd.lease.G`, and G is its generation. The lease with the highest
 * generation counts. Its owner, the dtd-io that commits, overwrites the file every renew_ms with a higher counter. Any
 * other job reads it repeatedly: a file that changes has a living owner, and the job is refused. A file that does not
 * change for CKPT_LEASE_MISSED renewals is stale. No clocks are compared.
 *
 * Blocking file I/O; any thread. A struct ckpt_lease belongs to one thread at a time. */
#ifndef DTD_COMMON_CKPT_LEASE_H
#define DTD_COMMON_CKPT_LEASE_H

#include "common/ckpt/shared.h"

#include <stddef.h>

#define CKPT_LEASE_PREFIX ".dtd.lease."
/* A user whose job is refused waits for about one renewal. Each renewal is one small write and one listing of the
 * directory, which no file server notices at this rate. */
#define CKPT_LEASE_RENEW_MS 2000
/* Renewals that an owner may miss before its lease is stale: 30 s. A file server that is busy with a checkpoint delays
 * small writes for seconds; more than that would make the successor of a machine that failed wait without need. */
#define CKPT_LEASE_MISSED 15
#define CKPT_LEASE_HOST_BYTES 65
#define CKPT_LEASE_DIR_BYTES 129
#define CKPT_LEASE_MAX_BYTES 512 /* of the file: the head of a marker and all fields of the body need less */

/* Contents of a lease. */
struct ckpt_lease_info {
    uint64_t generation;
    bool known;               /* false: the file is incomplete or damaged; no other field but `generation` is set */
    bool released;            /* the owner has ended */
    struct ckpt_writer_id by; /* epoch 0: the owner has not begun an epoch yet */
    uint64_t renewals;
    int64_t held_ms; /* since it was taken, by the owner's clock */
    uint32_t renew_ms;
    uint32_t pid;
    char host[CKPT_LEASE_HOST_BYTES], dtd_dir[CKPT_LEASE_DIR_BYTES]; /* "": unknown; longer ones are cut */
};

/* The body of the marker that stores a lease; `generation`, `known` and `by` are not part of it. */
NODISCARD err_t ckpt_lease_encode(const struct ckpt_lease_info *l, struct buf *ret);
/* ERR_CORRUPT. Bounded, fuzzed. */
NODISCARD err_t ckpt_lease_decode(const void *data, size_t len, struct ckpt_lease_info *ret);
/* "job 3 on host n7 (pid 4711, DTD_DIR /x/dtd), which has held it for 12 min" */
void ckpt_lease_describe(const struct ckpt_lease_info *l, char *ret, size_t size);

/* ---- observing ---- */

enum ckpt_lease_state {
    CKPT_LEASE_FREE,    /* none, released, stale, or of the job that is to be replaced: it may be taken */
    CKPT_LEASE_OWN_JOB, /* of the same job: a later epoch of it may take the lease at once */
    CKPT_LEASE_WAIT,    /* of another job; it has not changed so far: look again, every renew_ms / 2 or more often */
    CKPT_LEASE_LIVING,  /* of another job that has changed it while it was observed, or of the recovered cluster */
};

/* What earlier looks have found. Zero at the beginning. */
struct ckpt_lease_watch {
    uint64_t generation;
    uint8_t bytes[CKPT_LEASE_MAX_BYTES];
    size_t n_bytes;
    int64_t looked_ms, quiet_ms; /* time of the last look; how long the file has not changed */
};

/* Looks once. `me`: NULL: no job. `take_over`: the incarnation of a job whose lease may be taken although it lives; 0:
 * none. After FREE and OWN_JOB, watch->generation is the one to succeed. ret_info: the newest lease; generation 0:
 * there is none. An error of the file system is no evidence about the owner, and counts no time. */
NODISCARD err_t ckpt_lease_look(const char *root, const struct ckpt_writer_id *me, uint64_t take_over,
                                struct ckpt_lease_watch *watch, enum ckpt_lease_state *ret,
                                struct ckpt_lease_info *ret_info, struct why *why);
/* Writes the refusal for a LIVING lease; returns ERR_OWNED. `of_job`: a job is refused, for which there is --take-over.
 */
err_t ckpt_lease_refuse(const char *root, const struct ckpt_lease_info *l, bool of_job, struct why *why);

/* ---- owning ---- */

struct ckpt_lease {
    int fd; /* valid while generation is not 0 */
    struct ckpt_lease_info info;
    int64_t since_ms;
};

/* Takes the lease after generation `after` of a watch. `mine` has `by`, renew_ms, pid, host and dtd_dir. ERR_AGAIN:
 * another process was faster; look again. */
NODISCARD err_t ckpt_lease_take(const char *root, const struct ckpt_lease_info *mine, uint64_t after,
                                struct ckpt_lease *ret, struct why *why);
/* Renews it. ERR_OWNED: another job has taken it over; the sentence names that job. ERR_STALE: another process of this
 * job has. Any other error is temporary, and the lease is still held. */
NODISCARD err_t ckpt_lease_renew(const char *root, struct ckpt_lease *l, struct why *why);
/* Marks it as released and closes it. A lease that another process has taken meanwhile is not touched. */
NODISCARD err_t ckpt_lease_release(struct ckpt_lease *l, struct why *why);
/* Closes it without a release. */
void ckpt_lease_drop(struct ckpt_lease *l);

/* For every process of the job, before it writes: ERR_OWNED if the newest lease belongs to another job. OK if there is
 * no lease: a user may remove it, and earlier versions of dtd wrote none. */
NODISCARD err_t ckpt_lease_check(const char *root, const struct ckpt_writer_id *me, struct why *why);

#endif
