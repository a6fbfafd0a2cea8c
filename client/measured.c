/* Rank 0's file says how many there are and of which step; the others must be of the same. */
#include "client/measured.h"

#include "common/base/file.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

static err_t read_rank(const char *folder, int rank, struct measured *ret, struct why *why)
{
    char path[PATH_MAX];
    struct buf text = {0};
    if (!measured_path(folder, rank, path, sizeof(path)))
        return why_set(why, ERR_LIMIT, "%s: the path is too long", folder);
    err_t err = file_read_plain(path, MEASURED_MAX_BYTES, &text);
    if (err == ERR_NOTFOUND)
        why_set(why, err, "%s is not there: run the job with run.timeline_step=STEP, of a step that it comes to", path);
    else if (err)
        why_set(why, err, "%s: %s", path, err_text(err));
    err = err ? err : measured_read((const char *)text.data, text.len, path, ret, why);
    buf_fini(&text);
    return err;
}

static err_t take_rank(const char *folder, int rank, const struct measured *first, struct forecast_rank *ret,
                       struct why *why)
{
    struct measured m = {0};
    err_t err = read_rank(folder, rank, &m, why);
    if (err)
        return err;
    if (m.rank != rank || m.world != first->world || m.step != first->step || m.epoch != first->epoch) {
        why_set(why, ERR_INVALID,
                "%s/timeline: rank 0's file is of step %" PRId64 ", epoch %" PRIu64 ", rank %d's of step %" PRId64
                ", epoch %" PRIu64 "; the step is running, or its epoch has ended in it",
                folder, first->step, first->epoch, rank, m.step, m.epoch);
        measured_fini(&m);
        return ERR_INVALID;
    }
    *ret = m.did;
    return OK;
}

err_t measured_load(const char *folder, struct measured_step *ret, struct why *why)
{
    struct measured first = {0};
    err_t err = read_rank(folder, 0, &first, why);
    if (err)
        return err;
    struct measured_step m = {.step = first.step, .epoch = first.epoch, .did = {.n = first.world}};
    m.did.ranks = calloc((size_t)first.world, sizeof(*m.did.ranks));
    if (!m.did.ranks) {
        measured_fini(&first);
        return why_set(why, ERR_NOMEM, "no memory for the timelines of %d ranks", m.did.n);
    }
    for (int r = 0; !err && r < first.world; r++)
        err = take_rank(folder, r, &first, &m.did.ranks[r], why);
    measured_fini(&first);
    if (err) {
        measured_step_fini(&m);
        return err;
    }
    forecast_sum(&m.did);
    *ret = m;
    return OK;
}

void measured_step_fini(struct measured_step *m)
{
    forecast_fini(&m->did);
}
