/* What a rank saves and loads, as lists of pieces. A piece is a box of a named tensor with its address in the engine's
 * memory and its offset in the arena. A save costs the training only the copy into the arena; dtd-io writes the bytes
 * from there. On a device that runs asynchronously these copies overlap the next steps, and the update of the next step
 * waits for them on the device. */
#ifndef DTD_WORKER_STEP_SNAPSHOT_H
#define DTD_WORKER_STEP_SNAPSHOT_H

#include "common/base/box.h"
#include "common/ckpt/ckpt.h"
#include "worker/step/engine.h"

#define SNAPSHOT_NAME_MAX (GRAPH_NAME_MAX + 40)

struct snapshot_piece {
    char fqn[SNAPSHOT_NAME_MAX];
    enum dtype dtype;
    int ndim;
    int64_t shape[GRAPH_MAX_DIMS]; /* shape of the whole tensor */
    struct box box;
    void *data;     /* on the engine's device; the box is dense in the arena */
    int64_t stride; /* elements between rows on the device */
    bool host;      /* `data` is in host memory instead: the optimizer's step */
    size_t bytes, arena_offset;
};

struct snapshot {
    struct snapshot_piece *pieces;
    int n;
    size_t bytes;  /* bytes of the arena that are in use */
    float updates; /* the value that the pieces `optimizer.state.*.step` point to */
};

/* Lists the pieces that this rank writes: plan_save_items, and on rank 0 the optimizer's step of every parameter. `ret`
 * must not move afterwards. Freed by snapshot_fini. */
NODISCARD err_t snapshot_plan_save(const struct engine *e, struct snapshot *ret);
/* Lists the pieces that this rank needs: parameters, or with `optimizer` its moments and one parameter's step. Arena
 * offsets are not set; snapshot_place sets them, a round at a time. */
NODISCARD err_t snapshot_plan_load(const struct engine *e, bool optimizer, struct snapshot *ret);
/* Splits pieces larger than `arena_bytes` at row boundaries; ERR_LIMIT when a single row is larger. */
NODISCARD err_t snapshot_fit(struct snapshot *s, size_t arena_bytes);
/* Sets the arena offsets of as many pieces from `first` on as fit; returns the index after the last. */
int snapshot_place(struct snapshot *s, int first, size_t arena_bytes);
void snapshot_fini(struct snapshot *s);

/* Copies all pieces from the engine to the arena, after the last update. The arena must be mapped, and pinned if the
 * device cannot access host memory. Returns when the copies are queued; the arena is complete when snapshot_over
 * returns true. */
NODISCARD err_t snapshot_copy(struct snapshot *s, struct engine *e, void *arena);
bool snapshot_over(const struct engine *e);
/* Waits for the copies; returns the error of the device if one failed. */
NODISCARD err_t snapshot_wait(const struct engine *e, struct why *why);
/* Copies pieces first .. end-1 from the arena to the engine; complete when it returns. */
NODISCARD err_t snapshot_restore(const struct snapshot *s, struct engine *e, const void *arena, int first, int end,
                                 struct why *why);

/* The scalars of a checkpoint under torchtitan's names, and the data position. Only rank 0 saves them. Freed by
 * snapshot_scalars_free. */
NODISCARD err_t snapshot_scalars(const struct engine *e, struct ckpt_scalar **ret, int *ret_n);
void snapshot_scalars_free(struct ckpt_scalar *scalars, int n);

#define SNAPSHOT_STEP "train_state.step"
#define SNAPSHOT_TOKENS "train_state.ntokens_seen"
#define SNAPSHOT_POSITION "dataloader.position"

#endif
