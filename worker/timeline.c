/* Ranks of one node have the same clock. The offset of another node's clock is measured with barriers: every rank reads
 * its clock when it leaves a barrier, and rank 0 sends its reading to all. The median of the differences over ROUNDS
 * barriers is as precise as the ranks leave a barrier at the same time. */
#include "worker/timeline.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/plan/estimate/measured.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

#define ROUNDS 9

static int by_size(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Sends rank 0's reading `mine` to all ranks. */
static err_t clock_of_first(struct comm_group *all, int rank, int64_t mine, int64_t *ret)
{
    *ret = rank == 0 ? mine : INT64_MIN;
    return comm_agree(all, ret, REDUCE_MAX);
}

/* Returns one moment that all ranks agree on, expressed in this rank's clock. */
static err_t agree_on_origin(struct comm_group *all, int rank, const int *node_of, int64_t *ret)
{
    int64_t ahead[ROUNDS] = {0}, first = 0;
    err_t err = OK;
    for (int i = 0; !err && node_of && i < ROUNDS; i++) {
        err = comm_barrier(all);
        int64_t mine = clock_mono_ns();
        err = err ? err : clock_of_first(all, rank, mine, &first);
        ahead[i] = node_of[rank] == node_of[0] ? 0 : mine - first;
    }
    qsort(ahead, ROUNDS, sizeof(ahead[0]), by_size);
    err = err ? err : clock_of_first(all, rank, clock_mono_ns(), &first);
    *ret = first + ahead[ROUNDS / 2];
    return err;
}

err_t timeline_begin(struct timeline *t, struct engine *e, struct comm_group *all, int rank, const int *node_of,
                     struct why *why)
{
    *t = (struct timeline){.trace.cap = engine_trace_room(e)};
    t->trace.boxes = calloc((size_t)t->trace.cap + 1, sizeof(*t->trace.boxes));
    t->profile.trace = &t->trace;
    t->on = t->trace.boxes && engine_profile_start(e, &t->profile, why) == OK;
    if (!t->on)
        log_warn("timeline none step=%" PRId64 " why=\"no memory for %d boxes and their events\"", e->step + 1,
                 t->trace.cap);
    err_t err = agree_on_origin(all, rank, node_of, &t->trace.origin_ns);
    return err ? why_set(why, err, "the ranks cannot agree on a start time for the timeline: %s", err_text(err)) : OK;
}

static err_t print(const struct measured *m, struct buf *ret)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    if (!out)
        return ERR_NOMEM;
    measured_print(m, out);
    err_t err = ferror(out) ? ERR_NOMEM : OK;
    if (fclose(out))
        err = ERR_NOMEM;
    err = err ? err : buf_append(ret, text, len);
    free(text);
    return err;
}

static err_t write_file(const struct measured *m, const char *folder)
{
    char path[PATH_MAX];
    struct buf text = {0};
    if (!measured_path(folder, -1, path, sizeof(path)))
        return ERR_LIMIT;
    err_t err = file_make_dirs(path, 0755);
    err = err ? err : print(m, &text);
    if (!err && !measured_path(folder, m->rank, path, sizeof(path)))
        err = ERR_LIMIT;
    err = err ? err : file_replace(path, text.data, text.len, 0644);
    buf_fini(&text);
    return err;
}

void timeline_end(struct timeline *t, struct engine *e, const char *folder, uint64_t epoch, int rank, int world,
                  bool done)
{
    const struct measured m = {.step = e->step,
                               .epoch = epoch,
                               .rank = rank,
                               .world = world,
                               .did = {.boxes = t->trace.boxes, .n = t->trace.n}};
    err_t err = t->on && done ? write_file(&m, folder) : OK;
    if (err)
        log_warn("timeline not written step=%" PRId64 " folder=%s error=%s", e->step, folder, err_text(err));
    else if (t->on && done)
        log_info("timeline written step=%" PRId64 " folder=%s boxes=%d", e->step, folder, t->trace.n);
    engine_profile_stop(e);
    free(t->trace.boxes);
    *t = (struct timeline){.on = false};
}
