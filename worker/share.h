/* The worker's share of the node's cores while other jobs compute there too (daemon/control/local/sharing.h). One
 * thread: the one that computes steps. */
#ifndef DTD_WORKER_SHARE_H
#define DTD_WORKER_SHARE_H

#include <stdatomic.h>
#include <stdint.h>

struct core_share {
    const _Atomic uint32_t *workers; /* on this node, of all jobs; NULL: unknown */
    int cores;                       /* of this node */
    int threads;                     /* the present limit; 0: none */
};

/* Maps the file that the environment names. A missing file is logged, and nothing is limited. */
void core_share_init(struct core_share *s);
/* Limits the threads of CPU kernels to the share, or to `threads` if that is less. Called before each step; a change is
 * logged. */
void core_share_follow(struct core_share *s, int threads);

#endif
