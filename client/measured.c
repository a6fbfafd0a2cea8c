/* The file of rank 0 holds the number of ranks, the step and the epoch; the files of all other ranks must agree. */
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
        why_set(why, err, "%s does not exist: run the job with run.timeline_step=STEP, a step that the job reaches",
                path);
    else if (err)
        why_set(why, err, "%s: %s", path, err_text(err));
    err = err ? err : measured_read((const char *)text.data, text.len, path, ret, why);
    buf_fini(&text);
    return err;
}

static err_t load_rank(const char *folder, int rank, const struct measured *first, struct forecast_rank *ret,
                       struct why *why)
{
    struct measured m = {0};
    err_t err = read_rank(folder, rank, &m, why);
    if (err)
        return err;
    if (m.rank != rank || m.world != first->world || m.step != first->step || m.epoch != first->epoch) {
        why_set(why, ERR_INVALID,
                "%s/timeline: the file of rank 0 is of step %" PRId64 ", epoch %" PRIu64
                "; that of rank %d is of step %" PRId64 ", epoch %" PRIu64
                ". The step is still running, or its epoch ended during it",
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
        return why_set(why, ERR_NOMEM, "out of memory for the timelines of %d ranks", m.did.n);
    }
    for (int r = 0; !err && r < first.world; r++)
        err = load_rank(folder, r, &first, &m.did.ranks[r], why);
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
