/* Which job owns checkpoint.dir, by the lease in it (common/ckpt/lease.h). The jobs of this daemon are known to the
 * daemon; this finds those of other daemons, on this machine and on others that share the folder. dtd-io takes the
 * lease when the job starts and decides there; the check here only gives the answer before anything is submitted. */
#include "client/spec.h"

#include "common/base/clock.h"
#include "common/ckpt/lease.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LOOK_US 200000
/* An owner that lives writes once in CKPT_LEASE_RENEW_MS; the rest is for a slow file server. */
#define PATIENCE_MS (CKPT_LEASE_RENEW_MS * 5 / 2)

static err_t take_over_set(struct job_spec *job, const struct ckpt_lease_info *l, struct why *why)
{
    char owner[400], text[20];
    ckpt_lease_describe(l, owner, sizeof(owner));
    fprintf(stderr, "dtctl: note: this job takes %s over from %s\n", job->checkpoint.dir, owner);
    snprintf(text, sizeof(text), "%016" PRIx64, ckpt_incarnation(&l->by));
    err_t err = spec_text_set(&job->checkpoint.take_over, text);
    return err ? why_set(why, err, "out of memory") : OK;
}

static void report_silent(const char *dir, const struct ckpt_lease_info *l)
{
    char owner[400];
    ckpt_lease_describe(l, owner, sizeof(owner));
    fprintf(
        stderr,
        "dtctl: note: %s belongs to %s and has not been renewed for %d s. If it is not renewed for %d s, the new job "
        "starts; otherwise it fails\n",
        dir, owner, PATIENCE_MS / 1000, CKPT_LEASE_RENEW_MS * CKPT_LEASE_MISSED / 1000);
}

err_t spec_check_owner(struct job_spec *job, enum owner_policy policy, struct why *why)
{
    const char *dir = job->checkpoint.dir;
    uint64_t named = strtoull(job->checkpoint.take_over, NULL, 16);
    struct ckpt_lease_watch watch = {0};
    int64_t deadline = clock_mono_ms() + PATIENCE_MS;
    for (;;) {
        enum ckpt_lease_state state;
        struct ckpt_lease_info l;
        err_t err = ckpt_lease_look(dir, NULL, named, &watch, &state, &l, why);
        if (err)
            return why_prefix(why, err, "checkpoint.dir");
        if (state == CKPT_LEASE_FREE)
            return OK;
        if (policy == OWNER_TAKE_OVER && l.known)
            return take_over_set(job, &l, why);
        if (state == CKPT_LEASE_LIVING)
            return why_prefix(why, ckpt_lease_refuse(dir, &l, policy != OWNER_IMPORT, why), "checkpoint.dir");
        if (clock_mono_ms() >= deadline) {
            report_silent(dir, &l);
            return OK;
        }
        usleep(LOOK_US);
    }
}
