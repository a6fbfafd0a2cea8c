/* Saves the engine's state to checkpoints and loads it, through the arena that is shared with dtd-io. Compute thread.
 */
#ifndef DTD_WORKER_STATE_H
#define DTD_WORKER_STATE_H

#include "worker/link/link.h"

#include <pthread.h>
#include <stdatomic.h>

/* The shared memory that dtd-io reads and writes as well. It outlives epochs and only grows. */
struct arena {
    int fd;
    void *map;
    size_t bytes;
    struct dev *pinned; /* device for which it is pinned; NULL: not pinned */
    pthread_t filler;   /* thread that allocates the pages, if `filling` */
    bool filling;
    _Atomic size_t filled; /* offset up to which a thread has taken the pages */
    _Atomic int fill_errno;
};
/* Makes the arena at least `bytes` large, and pins it for a device with memory of its own. For the processor, a thread
 * then allocates the pages while the first steps run. */
NODISCARD err_t arena_need(struct arena *a, struct dev *dev, size_t bytes, struct why *why);
/* Waits until all pages are allocated, and helps. Called before the arena is used. */
NODISCARD err_t arena_wait(struct arena *a, struct why *why);
void arena_fini(struct arena *a); /* call before the device is closed; the descriptor still belongs to the caller */

struct train_state {
    struct link *link;
    struct engine *engine;
    struct arena *arena;
    struct snapshot save;  /* this rank's pieces, planned once an epoch */
    struct link_save last; /* the save whose data is in the arena or being copied there */
    struct ckpt_scalar *scalars;
    bool copying; /* the copy is not finished, or not handed over to dtd-io */
};

/* Plans the saves and makes the arena large enough. */
NODISCARD err_t state_init(struct train_state *s, struct link *link, struct engine *e, struct arena *arena,
                           struct why *why);
void state_fini(struct train_state *s);

/* Loads parameters, optimizer state, step and data position from the step folder at `path`. `fresh`: the optimizer
 * state is not loaded, and the moments start at zero; otherwise a checkpoint that lacks any of it is an error, because
 * each rank would decide for its own part. The caller has called arena_wait. `step` is control's value, used if the
 * checkpoint does not contain its step.
 */
NODISCARD err_t state_load(struct train_state *s, const char *path, int64_t step, bool fresh, struct why *why);

/* Waits until the last save no longer uses the arena, and starts to copy the state into it. When the copy is done, the
 * save is handed over to dtd-io: at once on a CPU, else by state_poll. `loss` is used to compare checkpoints (NAN:
 * unknown). The link reports a failed save and training continues; this function fails only with ERR_CANCELED,
 * ERR_NOMEM or when the device has failed. */
NODISCARD err_t state_save(struct train_state *s, double loss, struct why *why);
/* Hands the save over to dtd-io if its copy is done. Called after every step. */
NODISCARD err_t state_poll(struct train_state *s, struct why *why);
/* Waits until the last save is committed; a save that fails is retried every second, for at most `patience_ms`. */
NODISCARD err_t state_save_finish(struct train_state *s, int64_t patience_ms, struct why *why);

#endif
