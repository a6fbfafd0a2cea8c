/* The rooms for ops and other work are filled with zeros before the first step, so that no recorded step waits for the
 * kernel to give it pages. A rank that has no memory takes part in the collectives and reports the reason. */
#include "worker/recorder.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* 24 bytes each: a recording takes at most 384 MiB of memory. Later ops are counted as lost. */
#define MAX_EVENTS (16 << 20)

/* Spans of a step that are not reads for an action: that for the scale of the loss, and those of worker/train.c. */
#define OTHER_HOSTS (2 + 2 * HOST_COUNT)

static err_t allocate(struct recorder *r, const struct engine *e, int steps)
{
    const int64_t wanted = (int64_t)engine_record_room(e) * (steps + 1);
    const int cap = wanted < MAX_EVENTS ? (int)wanted : MAX_EVENTS;
    r->record.cap = cap;
    r->record.cap_hosts = (e->train.n_actions + OTHER_HOSTS) * (steps + 1); /* at most one read for each action */
    r->record.events = malloc(((size_t)cap + 1) * sizeof(*r->record.events));
    r->record.hosts = malloc(((size_t)r->record.cap_hosts + 1) * sizeof(*r->record.hosts));
    r->to.step = calloc((size_t)steps + 1, sizeof(*r->to.step));
    if (!r->record.events || !r->record.hosts || !r->to.step)
        return ERR_NOMEM;
    memset(r->record.events, 0, ((size_t)cap + 1) * sizeof(*r->record.events));
    memset(r->record.hosts, 0, ((size_t)r->record.cap_hosts + 1) * sizeof(*r->record.hosts));
    return recorded_program(&e->train, &r->to, &r->first_call);
}

static void describe(struct recorder *r, const struct engine *e, uint64_t id, const struct recorder_place *place)
{
    r->to.job = strtoull(place->job, NULL, 10);
    r->to.profile = id;
    r->to.epoch = place->epoch;
    r->to.rank = place->rank;
    r->to.world = place->world;
    r->to.node = place->node_of ? place->node_of[place->rank] : 0;
    r->to.pid = getpid();
    r->to.first = e->step + 1;
    r->to.device = !e->config.dev->ops->host_memory;
    r->record.first = r->to.first;
    r->record.first_call = r->first_call;
}

/* r->why has the reason why this rank records nothing. */
static void prepare(struct recorder *r, struct engine *e, int steps)
{
    err_t err = allocate(r, e, steps);
    r->profile.record = &r->record;
    if (err)
        why_set(&r->why, err, "no memory for %d recorded steps", steps);
    else if (engine_profile_start(e, &r->profile, &r->why))
        log_warn("profile none step=%" PRId64 " why=\"%s\"", e->step + 1, r->why.text);
}

err_t recorder_begin(struct recorder *r, struct engine *e, struct comm_group *all, uint64_t id, int steps,
                     const struct recorder_place *place, struct why *why)
{
    *r = (struct recorder){.on = true, .served = id, .last = e->step + steps};
    prepare(r, e, steps);
    err_t err = clocks_measure(all, place->rank, &clocks_of_system, &r->to.clock[0]);
    if (err)
        return why_set(why, err, "the ranks cannot compare their clocks for a profile: %s", err_text(err));
    r->record.origin_ns = r->to.clock[0].at;
    describe(r, e, id, place);
    log_info("profile begins id=%" PRIu64 " first=%" PRId64 " steps=%d room=%d", id, r->to.first, steps, r->record.cap);
    return OK;
}

void recorder_step_begin(struct recorder *r)
{
    r->step_begin_ns = clock_mono_ns();
}

/* Resident bytes of this process; 0: unknown. */
static int64_t resident_bytes(void)
{
    long long size, resident = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%lld %lld", &size, &resident) != 2)
        resident = 0;
    if (f)
        fclose(f);
    return resident * sysconf(_SC_PAGESIZE);
}

void recorder_step_end(struct recorder *r, const struct engine *e)
{
    if (!r->on || r->why.text[0])
        return;
    r->to.step[r->to.n_step++] =
        (struct recorded_step){.step = e->step,
                               .from = r->step_begin_ns - r->record.origin_ns,
                               .to = clock_mono_ns() - r->record.origin_ns,
                               .rss_bytes = resident_bytes(),
                               .device_bytes = r->to.device ? (int64_t)engine_device_bytes(e) : 0};
}

int64_t recorder_now(const struct recorder *r)
{
    return r->on ? clock_mono_ns() : 0;
}

void recorder_host(struct recorder *r, enum recorded_host_kind kind, int64_t step, int64_t from_ns)
{
    if (r->on && !r->why.text[0])
        engine_record_host(&r->record, kind, step, from_ns);
}

static err_t write_file(const struct recorded *to, const char *folder, struct why *why)
{
    char path[PATH_MAX];
    struct buf text = {0};
    if (!recorded_path(folder, -1, path, sizeof(path)))
        return why_set(why, ERR_LIMIT, "%s: the path is too long", folder);
    err_t err = file_make_dirs(path, 0755);
    err = err ? err : recorded_print(to, &text);
    if (!err && !recorded_path(folder, to->rank, path, sizeof(path)))
        err = ERR_LIMIT;
    err = err ? err : file_replace(path, text.data, text.len, 0644);
    buf_fini(&text);
    return err ? why_set(why, err, "%s could not be written: %s", path, err_text(err)) : OK;
}

static void complete(struct recorder *r)
{
    struct recorded *to = &r->to;
    to->steps = to->n_step;
    to->lost = r->record.lost;
    to->events = r->record.events;
    to->n_events = r->record.n;
    to->hosts = r->record.hosts;
    to->n_hosts = r->record.n_hosts;
    r->record.events = NULL;
    r->record.hosts = NULL;
    memcpy(to->total_ns, r->profile.ns, sizeof(to->total_ns));
    memcpy(to->total_calls, r->profile.calls, sizeof(to->total_calls));
}

err_t recorder_end(struct recorder *r, struct engine *e, struct comm_group *all, const struct recorder_place *place,
                   struct why *why)
{
    engine_profile_stop(e);
    r->on = false;
    err_t err = clocks_measure(all, place->rank, &clocks_of_system, &r->to.clock[1]);
    if (err)
        return why_set(why, err, "the ranks cannot compare their clocks after a profile: %s", err_text(err));
    if (!r->why.text[0]) {
        complete(r);
        if (write_file(&r->to, place->folder, &r->why))
            log_warn("profile not written step=%" PRId64 " why=\"%s\"", e->step, r->why.text);
    }
    log_info("profile ends id=%" PRIu64 " steps=%d ops=%d lost=%" PRId64 " error=\"%s\"", r->served, r->to.steps,
             r->to.n_events, r->to.lost, r->why.text);
    return OK;
}

void recorder_drop(struct recorder *r, struct engine *e)
{
    if (r->on)
        engine_profile_stop(e);
    free(r->record.events);
    free(r->record.hosts);
    free(r->first_call);
    recorded_fini(&r->to);
    *r = (struct recorder){.served = r->served};
}
