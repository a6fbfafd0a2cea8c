/* The engine's state on its way to and from checkpoints: the arena, saves, loads. Compute thread. */
#ifndef DTD_WORKER_STATE_H
#define DTD_WORKER_STATE_H

#include "worker/link/link.h"

/* The memory that dtd-io reads and writes too. It outlives epochs and only grows. */
struct arena {
    int fd;
    void *map;
    size_t bytes;
    struct dev *pinned; /* the device that it is pinned for; NULL: for none */
};
/* Makes it at least `bytes` large, present in memory, and pinned for a device that does not see the host's memory. */
NODISCARD err_t arena_need(struct arena *a, struct dev *dev, size_t bytes, struct why *why);
void arena_fini(struct arena *a); /* before its device is closed; the descriptor stays the caller's */

struct state {
    struct link *link;
    struct engine *engine;
    struct arena *arena;
    struct snapshot save;  /* this rank's pieces, planned once an epoch */
    struct link_save last; /* what lies in the arena, or is on the way there */
    struct ckpt_scalar *scalars;
    bool copying; /* not handed over yet */
};

/* Plans the saves and makes the arena fit them. */
NODISCARD err_t state_init(struct state *s, struct link *link, struct engine *e, struct arena *arena, struct why *why);
void state_fini(struct state *s);

/* Parameters, optimizer, step and data position from the step folder at `path`. A checkpoint without optimizer state
 * gives parameters alone. `step` is what control knows; the checkpoint's own number wins. */
NODISCARD err_t state_load(struct state *s, const char *path, int64_t step, struct why *why);

/* Begins to copy the state into the arena, as soon as the last save has left it. It is handed over to dtd-io once the
 * copy is over: at once on a CPU, else by state_poll. By `loss` checkpoints are compared (NAN: unknown). Failing to
 * save is reported by the link and no reason to stop: only ERR_CANCELED, ERR_NOMEM and a failed device come back. */
NODISCARD err_t state_save(struct state *s, double loss, struct why *why);
/* Hands over what has arrived. Called after every step. */
NODISCARD err_t state_poll(struct state *s, struct why *why);
/* Waits until the last save is a checkpoint; one that fails is tried again every second, for at most `patience_ms`. */
NODISCARD err_t state_save_finish(struct state *s, int64_t patience_ms, struct why *why);

#endif
