/* An arena is memory of the worker, which may extend it at any time. Therefore each operation reads the size again and
 * checks every piece against it. A worker never shrinks its arena; where the descriptor allows it, the arena is sealed
 * against shrinking, so that access to the mapping cannot fault.
 *
 * The mapping is kept, since the kernel needs 60 ms to map or unmap the pages of 1 GiB. Each operation holds a
 * reference to the mapping that it uses, and the slot holds one to the newest; an extended arena gets a new mapping. */
#include "daemon/io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define TOUCH_BYTES ((size_t)8 << 20)

static err_t piece_place(const struct io_arena *a, struct ckpt_piece *p, uint64_t offset, struct why *why)
{
    uint64_t size = dtype_bytes(p->dtype), bytes = size;
    if (!size)
        return why_set(why, ERR_INVALID, "%.200s has an unknown element type", p->fqn);
    for (int d = 0; d < p->ndim; d++)
        if (p->box.size[d] < 0 || __builtin_mul_overflow(bytes, (uint64_t)p->box.size[d], &bytes))
            return why_set(why, ERR_INVALID, "a box of %.200s is too large", p->fqn);
    if (offset > a->bytes || bytes > a->bytes - offset || offset % size)
        return why_set(why, ERR_INVALID, "%.200s needs %llu bytes at offset %llu of an arena of %zu bytes", p->fqn,
                       (unsigned long long)bytes, (unsigned long long)offset, a->bytes);
    p->data = a->map + offset;
    return OK;
}

static struct io_arena *arena_new(struct io_arena_slot *slot, size_t bytes, struct why *why)
{
    static uint8_t nothing[1];
    struct io_arena *a = calloc(1, sizeof(*a));
    if (!a) {
        why_set(why, ERR_NOMEM, "out of memory for an arena");
        return NULL;
    }
    *a = (struct io_arena){.map = nothing, .bytes = bytes, .refs = 1};
    if (bytes)
        a->map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, slot->fd, 0);
    if (a->map == MAP_FAILED) {
        why_set(why, err_from_errno(errno), "an arena of %zu bytes cannot be mapped: %s", bytes, strerror(errno));
        free(a);
        return NULL;
    }
    return a;
}

static void arena_drop(struct io_arena *a)
{
    if (!a || --a->refs)
        return;
    if (a->bytes)
        munmap(a->map, a->bytes);
    free(a);
}

/* With the slot's lock. NULL with a sentence: it cannot be mapped. */
static struct io_arena *newest_hold(struct io_arena_slot *slot, struct why *why)
{
    struct stat st;
    (void)fcntl(slot->fd, F_ADD_SEALS, F_SEAL_SHRINK);
    if (fstat(slot->fd, &st)) {
        why_set(why, ERR_IO, "the arena cannot be examined: %s", strerror(errno));
        return NULL;
    }
    if (!slot->newest || slot->newest->bytes != (size_t)st.st_size) {
        struct io_arena *a = arena_new(slot, (size_t)st.st_size, why);
        if (!a)
            return NULL;
        arena_drop(slot->newest);
        slot->newest = a;
    }
    slot->newest->refs++;
    return slot->newest;
}

static struct io_arena *arena_hold(struct io_arena_slot *slot, struct why *why)
{
    uv_mutex_lock(&slot->lock);
    struct io_arena *a = newest_hold(slot, why);
    uv_mutex_unlock(&slot->lock);
    return a;
}

void io_arena_put(struct io_arena_slot *slot, struct io_arena *a)
{
    uv_mutex_lock(&slot->lock);
    arena_drop(a);
    uv_mutex_unlock(&slot->lock);
}

err_t io_arena_get(struct io_arena_slot *slot, struct io_request *r, struct io_arena **ret, struct why *why)
{
    struct io_arena *a = arena_hold(slot, why);
    err_t err = OK;
    if (!a)
        return why_prefix(why, ERR_NOMEM, "slot %d", r->slot);
    for (int i = 0; i < r->n_pieces && !err; i++)
        err = piece_place(a, &r->pieces[i], r->arena_offsets[i], why);
    if (err)
        io_arena_put(slot, a);
    else
        *ret = a;
    return err;
}

/* ---- mapping the pages ---- */

struct touch_work {
    struct io_work work;
    struct io_arena_slot *slot;
};

static bool claim_touch(struct io_arena_slot *slot, struct io_arena *a)
{
    uv_mutex_lock(&slot->lock);
    bool mine = !a->touched;
    a->touched = true;
    uv_mutex_unlock(&slot->lock);
    return mine;
}

/* Step by step, so that the load, which faults where it is ahead, never waits long for the lock of the address space.
 */
static void touch_run(struct io_work *w)
{
    struct io_arena_slot *slot = ((struct touch_work *)w)->slot;
    struct io_arena *a = arena_hold(slot, &w->why);
    if (!a)
        return; /* the load reports it */
    bool mine = claim_touch(slot, a);
    for (size_t at = 0; mine && at < a->bytes; at += TOUCH_BYTES) {
        size_t n = a->bytes - at < TOUCH_BYTES ? a->bytes - at : TOUCH_BYTES;
        mine = madvise(a->map + at, n, MADV_POPULATE_WRITE) == 0; /* before Linux 5.14, pages are mapped when used */
    }
    io_arena_put(slot, a);
}

static void touch_done(struct io_work *w)
{
    free(w);
}

void io_arena_touch(struct io *io, int slot)
{
    struct touch_work *t = calloc(1, sizeof(*t));
    if (!t)
        return; /* only slower */
    t->slot = &io->arenas[slot];
    t->work.run = touch_run;
    t->work.done = touch_done;
    io_work_start(io, &t->work);
}

void io_arena_slot_fini(struct io_arena_slot *slot)
{
    arena_drop(slot->newest);
    uv_mutex_destroy(&slot->lock);
}
