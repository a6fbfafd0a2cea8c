/* The arena holds the last snapshot until the next one is taken, so a save can be repeated without stopping the
 * training. A load also reads into the arena, in several rounds if necessary.
 *
 *     state_save: arena free -> copies queued -> (steps go on) -> copies done -> handed over -> written -> committed
 *
 * The step and scalars of a save are recorded when its copies are queued, because the engine may be several steps ahead
 * when the save is handed over. */
#include "worker/state.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE ((size_t)2 << 20)
/* About 5 ms of work: no longer does a rank wait for a chunk that the other thread has begun. */
#define FILL_CHUNK ((size_t)8 << 20)
/* The thread takes time that nothing else needs: the first steps do not get slower. */
#define FILL_NICE 19

/* ---- the arena ---- */

static err_t arena_pin(struct arena *a, struct dev *dev, struct why *why)
{
    if (dev->ops->host_memory || a->pinned == dev)
        return OK;
    err_t err = arena_wait(a, why);
    err = err ? err : dev_host_pin(dev, a->map, a->bytes, why);
    if (!err)
        a->pinned = dev;
    return err ? why_prefix(why, err, "cannot pin the checkpoint arena") : OK;
}

/* Pages that are missing when dtd-io or this process touches them would be a SIGBUS; here they are an error. */
static int chunk_fill(const struct arena *a, size_t at)
{
    const size_t bytes = a->bytes - at < FILL_CHUNK ? a->bytes - at : FILL_CHUNK;
    if (fallocate(a->fd, 0, (off_t)at, (off_t)bytes) < 0 && errno != EOPNOTSUPP)
        return errno;
    madvise((uint8_t *)a->map + at, bytes, MADV_POPULATE_WRITE); /* before Linux 5.14 pages are mapped when touched */
    return 0;
}

static void arena_fill(struct arena *a)
{
    for (size_t at; (at = atomic_fetch_add(&a->filled, FILL_CHUNK)) < a->bytes && !atomic_load(&a->fill_errno);) {
        int error = chunk_fill(a, at);
        if (error)
            atomic_store(&a->fill_errno, error);
    }
}

static void *filler_run(void *arg)
{
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), FILL_NICE); /* on Linux of this thread alone */
    arena_fill(arg);
    return NULL;
}

/* Without a thread the caller allocates all pages. */
static void filler_start(struct arena *a)
{
    atomic_store(&a->filled, 0);
    atomic_store(&a->fill_errno, 0);
    a->filling = pthread_create(&a->filler, NULL, filler_run, a) == 0;
    if (!a->filling)
        arena_fill(a);
}

static err_t arena_check(const struct arena *a, struct why *why)
{
    const int error = atomic_load(&a->fill_errno);
    if (!error)
        return OK;
    return why_set(why, ERR_NOMEM,
                   "no memory for %zu bytes of checkpoint arena: %s; use fewer workers or a smaller model", a->bytes,
                   strerror(error));
}

err_t arena_wait(struct arena *a, struct why *why)
{
    if (a->filling) {
        arena_fill(a);
        pthread_join(a->filler, NULL);
        a->filling = false;
    }
    return arena_check(a, why);
}

err_t arena_need(struct arena *a, struct dev *dev, size_t bytes, struct why *why)
{
    bytes = (bytes + HUGE - 1) / HUGE * HUGE;
    if (a->map && a->bytes >= bytes && !atomic_load(&a->fill_errno))
        return arena_pin(a, dev, why);
    struct stat st;
    if (fstat(a->fd, &st) < 0)
        return why_set(why, ERR_IO, "the arena (descriptor %d) is gone: %s", a->fd, strerror(errno));
    if ((size_t)st.st_size > bytes)
        bytes = (size_t)st.st_size; /* from an earlier process: dtd-io may still have the larger size mapped */
    else if (ftruncate(a->fd, (off_t)bytes) < 0)
        return why_set(why, ERR_NOMEM, "cannot make the arena %zu bytes large: %s", bytes, strerror(errno));
    void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd, 0);
    if (map == MAP_FAILED)
        return why_set(why, ERR_NOMEM, "cannot map the arena: %s", strerror(errno));
    arena_fini(a);
    a->map = map;
    a->bytes = bytes;
    filler_start(a);
    return arena_pin(a, dev, why);
}

void arena_fini(struct arena *a)
{
    if (a->filling) {
        atomic_store(&a->filled, a->bytes); /* the thread ends after its chunk */
        pthread_join(a->filler, NULL);
        a->filling = false;
    }
    if (a->pinned)
        dev_host_unpin(a->pinned, a->map);
    if (a->map)
        munmap(a->map, a->bytes);
    a->pinned = NULL;
    a->map = NULL;
    a->bytes = 0;
}

/* ---- init and fini ---- */

err_t state_init(struct train_state *s, struct link *link, struct engine *e, struct arena *arena, struct why *why)
{
    *s = (struct train_state){.link = link, .engine = e, .arena = arena};
    err_t err = snapshot_plan_save(e, &s->save);
    if (err)
        return why_set(why, err, "cannot plan the saves: %s", err_text(err));
    size_t planned = (size_t)e->train.arena_bytes;
    err = arena_need(arena, e->config.dev, s->save.bytes > planned ? s->save.bytes : planned, why);
    if (err)
        state_fini(s);
    return err;
}

void state_fini(struct train_state *s)
{
    snapshot_scalars_free(s->scalars, s->last.n_scalars);
    snapshot_fini(&s->save);
    *s = (struct train_state){0};
}

/* ---- loading ---- */

static const char *const names[] = {SNAPSHOT_STEP, SNAPSHOT_POSITION};
enum { NAME_STEP, NAME_POSITION, NAME_COUNT };

static err_t load_round(struct train_state *s, struct link_load *load, struct why *why)
{
    err_t err = link_load(s->link, load, why);
    if (err)
        return err;
    err = snapshot_restore(load->snapshot, s->engine, s->arena->map, load->first, load->end, why);
    if (err)
        return err;
    log_debug("loaded pieces=%d needed=%" PRId64 " read=%" PRId64, load->end - load->first, load->bytes_needed,
              load->bytes_read);
    return OK;
}

/* Loads all parameters, or all optimizer state, in rounds. The first round of the parameters also loads the scalars. */
static err_t load_pieces(struct train_state *s, const char *path, bool optimizer, int64_t values[NAME_COUNT],
                         bool found[NAME_COUNT], float *ret_updates, struct why *why)
{
    struct snapshot plan;
    err_t err = snapshot_plan_load(s->engine, optimizer, &plan);
    if (!err)
        err = snapshot_fit(&plan, s->arena->bytes);
    if (err)
        return why_set(why, err, "cannot plan the load: %s", err_text(err));
    /* A rank without any piece still runs one round, to load the scalars. */
    int first = 0;
    do {
        int end = snapshot_place(&plan, first, s->arena->bytes);
        bool ask = !optimizer && first == 0;
        struct link_load load = {.path = path,
                                 .snapshot = &plan,
                                 .first = first,
                                 .end = end,
                                 .names = names,
                                 .values = values,
                                 .found = found,
                                 .n_names = ask ? NAME_COUNT : 0};
        err = load_round(s, &load, why);
        first = end;
    } while (!err && first < plan.n);
    *ret_updates = plan.updates;
    snapshot_fini(&plan);
    return err;
}

err_t state_load(struct train_state *s, const char *path, int64_t step, bool fresh, struct why *why)
{
    struct engine *e = s->engine;
    int64_t values[NAME_COUNT] = {0};
    bool found[NAME_COUNT] = {false};
    float updates = 0;
    err_t err = load_pieces(s, path, false, values, found, &updates, why);
    if (err)
        return why_prefix(why, err, "cannot resume from %s", path);
    err = fresh ? engine_zero_moments(e, why) : load_pieces(s, path, true, values, found, &updates, why);
    if (err == ERR_NOTFOUND)
        err =
            why_prefix(why, ERR_INVALID,
                       "the optimizer state is incomplete; submit the job with --optimizer=fresh to start it at zero");
    if (fresh)
        updates = 0;
    if (err)
        return why_prefix(why, err, "cannot resume from %s", path);
    e->step = found[NAME_STEP] ? values[NAME_STEP] : step;
    e->position = found[NAME_POSITION] ? values[NAME_POSITION] : e->step * e->config.job->train.global_batch;
    e->updates = (int64_t)updates;
    log_info("resumed path=%s step=%" PRId64 " position=%" PRId64, path, e->step, e->position);
    return OK;
}

/* ---- saving ---- */

/* Hands the arena's contents over to dtd-io. */
static err_t hand_over(struct train_state *s, struct why *why)
{
    err_t err = link_save(s->link, &s->last);
    s->copying = false;
    return err ? why_set(why, err, "cannot save step %" PRId64 ": %s", s->last.step, err_text(err)) : OK;
}

/* Records the step, loss and scalars of the save. */
static err_t describe(struct train_state *s, double loss, struct why *why)
{
    const struct engine *e = s->engine;
    snapshot_scalars_free(s->scalars, s->last.n_scalars);
    s->scalars = NULL;
    s->last = (struct link_save){.step = e->step, .world = e->config.world, .loss = loss, .snapshot = &s->save};
    err_t err = e->config.rank == 0 ? snapshot_scalars(e, &s->scalars, &s->last.n_scalars) : OK;
    s->last.scalars = s->scalars;
    return err ? why_set(why, err, "cannot save step %" PRId64 ": %s", e->step, err_text(err)) : OK;
}

static err_t finish_copying(struct train_state *s, struct why *why)
{
    if (!s->copying)
        return OK;
    err_t err = snapshot_wait(s->engine, why);
    return err ? why_prefix(why, err, "cannot copy the state of step %" PRId64, s->last.step) : hand_over(s, why);
}

err_t state_poll(struct train_state *s, struct why *why)
{
    err_t err = arena_check(s->arena, why);
    if (err)
        return err;
    return s->copying && snapshot_over(s->engine) ? finish_copying(s, why) : OK;
}

err_t state_save(struct train_state *s, double loss, struct why *why)
{
    err_t err = finish_copying(s, why);
    if (err)
        return err;
    err = link_save_wait(s->link, false, why);
    if (err == ERR_CANCELED)
        return err;
    err = arena_wait(s->arena, why);
    if (err)
        return err;
    err = describe(s, loss, why);
    if (err)
        return err;
    err = snapshot_copy(&s->save, s->engine, s->arena->map);
    if (err)
        return why_set(why, err, "cannot copy the state of step %" PRId64 ": %s", s->last.step, err_text(err));
    s->copying = true;
    return state_poll(s, why);
}

static bool pause_unless(const _Atomic int *cancel)
{
    for (int i = 0; i < 50; i++) {
        if (atomic_load(cancel))
            return false;
        usleep(20000);
    }
    return true;
}

err_t state_save_finish(struct train_state *s, int64_t patience_ms, struct why *why)
{
    int64_t deadline = clock_mono_ms() + patience_ms;
    err_t err = finish_copying(s, why);
    if (err)
        return err;
    for (;;) {
        err = link_save_wait(s->link, true, why);
        if (!err || err == ERR_CANCELED || err == ERR_OWNED || clock_mono_ms() >= deadline)
            return err; /* OWNED: another job has taken the folder over, so a repetition fails too */
        if (!pause_unless(link_cancel(s->link)))
            return ERR_CANCELED;
        err = hand_over(s, why);
        if (err)
            return err;
    }
}
