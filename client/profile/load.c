/* Rank 0's file holds the number of ranks; all files must be of one profile. */
#include "client/profile/profile.h"

#include "common/base/file.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

static err_t load_rank(const char *folder, int rank, struct recorded *ret, struct why *why)
{
    char path[PATH_MAX];
    struct buf text = {0};
    if (!recorded_path(folder, rank, path, sizeof(path)))
        return why_set(why, ERR_LIMIT, "%s: the path is too long", folder);
    err_t err = file_read_plain(path, RECORDED_MAX_BYTES, &text);
    if (err == ERR_NOTFOUND)
        why_set(why, err,
                "%s does not exist on this machine: run dtctl profile where the job's checkpoint.dir can be read",
                path);
    else if (err)
        why_set(why, err, "%s: %s", path, err_text(err));
    err = err ? err : recorded_read((const char *)text.data, text.len, path, ret, why);
    buf_fini(&text);
    return err;
}

static err_t load_others(const char *folder, struct profile *p, struct why *why)
{
    const struct recorded *first = &p->rank[0];
    for (int k = 1; k < p->n; k++) {
        struct recorded *r = &p->rank[k];
        err_t err = load_rank(folder, k, r, why);
        if (err)
            return err;
        if (r->rank != k || r->world != p->n || r->profile != first->profile)
            return why_set(
                why, ERR_INVALID,
                "%s/profile: the files of rank 0 and rank %d are of different profiles; profile the job again", folder,
                k);
    }
    return OK;
}

err_t profile_load(const char *folder, uint64_t id, struct profile *ret, struct why *why)
{
    struct recorded first = {0};
    err_t err = load_rank(folder, 0, &first, why);
    if (err)
        return err;
    struct profile p = {.n = first.world,
                        .rank = calloc((size_t)first.world, sizeof(*p.rank)),
                        .error_ns = calloc((size_t)first.world, sizeof(*p.error_ns))};
    if (!p.rank || !p.error_ns) {
        recorded_fini(&first);
        profile_fini(&p);
        return why_set(why, ERR_NOMEM, "out of memory for the profiles of %d ranks", first.world);
    }
    p.rank[0] = first;
    if (first.rank != 0 || (id && first.profile != id))
        err = why_set(why, ERR_INVALID, "%s/profile: the file of rank 0 is of another profile; profile the job again",
                      folder);
    err = err ? err : load_others(folder, &p, why);
    if (err) {
        profile_fini(&p);
        return err;
    }
    profile_align(&p);
    *ret = p;
    return OK;
}

void profile_fini(struct profile *p)
{
    for (int k = 0; p->rank && k < p->n; k++)
        recorded_fini(&p->rank[k]);
    free(p->rank);
    free(p->error_ns);
    forecast_fini(&p->forecast);
    *p = (struct profile){0};
}
