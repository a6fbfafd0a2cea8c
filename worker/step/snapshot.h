/* What a rank saves and what it loads, as lists of pieces: a box of a named tensor, where it lies in the engine's
 * memory and where in the arena. Copying into the arena is all that a save costs the training; the bytes belong to
 * dtd-io then. On a device that runs beside the thread the copies go on behind the next steps, whose update waits for
 * them there. */
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
    int64_t shape[GRAPH_MAX_DIMS]; /* of the whole tensor */
    struct box box;
    void *data;     /* on the engine's device; in the arena the box is dense */
    int64_t stride; /* elements between its rows there */
    bool host;      /* no, in the host's memory: the optimizer's step */
    size_t bytes, arena_offset;
};

struct snapshot {
    struct snapshot_piece *pieces;
    int n;
    size_t bytes;  /* of arena */
    float updates; /* what the pieces `optimizer.state.*.step` point to */
};

/* The pieces that this rank writes: plan_save_items, and on rank 0 the optimizer's step of every parameter. `ret` must
 * not move afterwards. Freed by snapshot_fini. */
NODISCARD err_t snapshot_plan_save(const struct engine *e, struct snapshot *ret);
/* The pieces that this rank needs: parameters, or with `optimizer` its moments and one parameter's step. No arena
 * offsets: snapshot_place gives them in rounds. */
NODISCARD err_t snapshot_plan_load(const struct engine *e, bool optimizer, struct snapshot *ret);
/* Cuts what is larger than `arena_bytes` into rows; ERR_LIMIT when one row is larger. */
NODISCARD err_t snapshot_fit(struct snapshot *s, size_t arena_bytes);
/* Gives arena offsets to as many pieces from `first` on as fit; returns the index after the last. */
int snapshot_place(struct snapshot *s, int first, size_t arena_bytes);
void snapshot_fini(struct snapshot *s);

/* Engine to arena, all pieces, behind the last update; the arena must be mapped, and pinned on a device that does not
 * see the host's memory. Returns once the copies are queued: the arena is whole when snapshot_over says so. */
NODISCARD err_t snapshot_copy(struct snapshot *s, struct engine *e, void *arena);
bool snapshot_over(const struct engine *e);
/* Waits for it, and says what went wrong on the way. */
NODISCARD err_t snapshot_wait(const struct engine *e, struct why *why);
/* Arena to engine, pieces first .. end-1; done when it returns. */
NODISCARD err_t snapshot_restore(const struct snapshot *s, struct engine *e, const void *arena, int first, int end,
                                 struct why *why);

/* The scalars of a checkpoint as torchtitan names them, and the data position: rank 0's. Freed by
 * snapshot_scalars_free. */
NODISCARD err_t snapshot_scalars(const struct engine *e, struct ckpt_scalar **ret, int *ret_n);
void snapshot_scalars_free(struct ckpt_scalar *scalars, int n);

#define SNAPSHOT_STEP "train_state.step"
#define SNAPSHOT_TOKENS "train_state.ntokens_seen"
#define SNAPSHOT_POSITION "dataloader.position"

#endif
