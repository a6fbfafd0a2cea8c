/* One file at a time is damaged. The user then restores the file. What control has read
 * at its start is compared with what the undamaged file has; after an old copy only the usual checks apply. */
#include "tests/sim/control/damage.h"

#include "daemon/control/cluster/internal.h"
#include "tests/sim/control/admin.h"
#include "tests/sim/control/machine.h"
#include "tests/sim/control/saved.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REPAIR_US US_PER_S
#define ANEW_US (120 * US_PER_S)
#define HEALED_US (60 * US_PER_S)

enum damage_kind { BIT, CUT, EMPTY, OLD, N_KINDS };

static struct {
    bool is_over;
    struct machine *m; /* NULL: no file is damaged */
    char path[64];
    void *original;
    size_t len;
    enum damage_kind kind;
    bool is_repair_due;
    uint64_t refusals, reads;
} all;

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* ---- damage ---- */

static void change(struct saved_file *f)
{
    uint8_t *bytes = f->data;
    switch (all.kind) {
    case BIT:
        bytes[world_between(FROM_FAULTS, 0, (int64_t)f->len - 1)] ^= (uint8_t)(1u << world_between(FROM_FAULTS, 0, 7));
        break;
    case CUT:
        f->len = (size_t)world_between(FROM_FAULTS, 1, (int64_t)f->len - 1);
        break;
    case EMPTY:
        f->len = 0;
        break;
    default:
        saved_put(f, f->before, f->before_len);
    }
}

static struct saved_file *some_file(const struct machine *m)
{
    struct saved_file *files = saved_files(m->host->id), *found = NULL;
    int n = 0;
    for (int i = 0; i < SAVED_FILES; i++)
        if (files[i].path[0] && files[i].len > 1 && world_between(FROM_FAULTS, 0, n++) == 0)
            found = &files[i];
    return found;
}

static void start_again(void *arg)
{
    machine_start(arg);
}

static void damage_one(void)
{
    struct machine *m = &machines[world_between(FROM_FAULTS, 1, world.n_hosts)];
    struct saved_file *f = m->has_dtd && m->host->is_up && machine_is_member(m) ? some_file(m) : NULL;
    enum damage_kind kind = (enum damage_kind)world_between(FROM_FAULTS, 0, N_KINDS - 1);
    if (!f || (kind == OLD && !f->before))
        return;
    machine_kill(m, !ends_with(f->path, "/clock")); /* a clock is of one boot */
    all.m = m;
    all.kind = kind;
    snprintf(all.path, sizeof(all.path), "%s", f->path);
    free(all.original);
    all.original = malloc(f->len);
    memcpy(all.original, f->data, f->len);
    all.len = f->len;
    change(f);
    trace("host %d: %s is damaged (%d)", m->host->id, all.path, (int)kind);
    world_after(&world.hosts[0], world_between(FROM_FAULTS, 200, 3000) * US_PER_MS, start_again, m);
}

static void step(void *arg)
{
    if (all.is_over)
        return;
    if (!all.m)
        damage_one();
    world_after(&world.hosts[0], world_between(FROM_FAULTS, 500, 5000) * US_PER_MS, step, arg);
}

/* ---- the user ---- */

static void repair(void *arg)
{
    struct saved_file *f = all.m ? saved_find(all.m->host->id, all.path) : NULL;
    (void)arg;
    all.is_repair_due = false;
    if (!f)
        return;
    trace("host %d: %s is repaired", all.m->host->id, all.path);
    saved_put(f, all.original, all.len);
    all.kind = OLD; /* there is nothing to compare any more */
}

static void refused(struct machine *m, const char *why)
{
    if (m != all.m)
        broken("control of host %d failed to start: %s", m->host->id, why);
    if (!strstr(why, all.path))
        broken("control of host %d does not start because of %s, which its message does not name: %s", m->host->id,
               all.path, why);
    trace("host %d refuses: %s", m->host->id, why);
    if (!all.is_repair_due)
        world_after(&world.hosts[0], REPAIR_US, repair, NULL);
    all.is_repair_due = true;
    all.refusals++;
}

/* ---- what control has read ---- */

static bool is_self_same(const struct cluster *c)
{
    struct cluster_self written;
    struct why why;
    if (cluster_file_parse(all.path, all.original, all.len, &written, &why))
        return false;
    return strcmp(written.name, c->self.name) == 0 && written.id == c->self.id &&
           written.generation == c->self.generation && strcmp(written.address, c->self.address) == 0 &&
           memcmp(written.instance, c->self.instance, sizeof(written.instance)) == 0;
}

static bool is_identity_same(const struct cluster *c)
{
    struct identity written;
    return identity_parse(all.original, all.len, &written) == OK &&
           memcmp(written.public_key, c->identity.public_key, IDENTITY_BYTES) == 0;
}

/* The file is longer by its checksum. */
static bool is_view_same(const struct cluster *c)
{
    return c->view_bytes.len < all.len && memcmp(c->view_bytes.data, all.original, c->view_bytes.len) == 0 &&
           c->view_bytes.len + 16 == all.len;
}

static bool is_clock_same(const struct control *n)
{
    char boot[40];
    int64_t ahead_ms;
    char text[200];
    snprintf(text, sizeof(text), "%.*s", (int)all.len, (const char *)all.original);
    bool is_read = sscanf(text, "%39s %" SCNd64, boot, &ahead_ms) == 2;
    return !n->clock.is_saved || (is_read && n->clock.saved_ms == ahead_ms);
}

static bool is_lineage_same(const struct lineage_file *read)
{
    struct lineage_file written;
    struct why why;
    return lineage_file_parse(all.path, all.original, all.len, &written, &why) == OK &&
           memcmp(&written, read, sizeof(written)) == 0;
}

static bool is_same(const struct control *n)
{
    const struct cluster *c = n->cluster;
    if (ends_with(all.path, "/self"))
        return is_self_same(c);
    if (ends_with(all.path, "/identity"))
        return is_identity_same(c);
    if (ends_with(all.path, "/view"))
        return is_view_same(c);
    if (ends_with(all.path, "/clock"))
        return is_clock_same(n);
    return is_lineage_same(ends_with(all.path, "/recovery")     ? &c->recovery
                           : ends_with(all.path, "/superseded") ? &c->superseded
                                                                : &c->old_copy);
}

static void started(struct machine *m)
{
    if (m != all.m)
        return;
    if (all.kind != OLD && !is_same(m->node))
        broken("control of host %d has read %s, which is damaged (%d)", m->host->id, all.path, (int)all.kind);
    all.m = NULL;
    all.reads++;
}

/* ---- begin and end ---- */

/* A view from before a node joined does not have that node. If both are voters that a majority needs, they cannot speak
 * to each other any more, and the user has to restore a newer one. */
static void forget_early_views(void)
{
    for (int id = 1; id <= world.n_hosts; id++)
        for (int i = 0; i < SAVED_FILES; i++) {
            struct saved_file *f = &saved_files(id)[i];
            if (ends_with(f->path, "/view")) {
                free(f->before);
                f->before = NULL;
            }
        }
}

void damage_start(void)
{
    all.is_over = false;
    forget_early_views();
    machine_refused = refused;
    machine_started = started;
    world_after(&world.hosts[0], world_between(FROM_FAULTS, 0, 3000) * US_PER_MS, step, NULL);
}

static bool is_whole(void)
{
    return !all.m;
}

static bool is_old_copy(const struct machine *m)
{
    return m->node && m->node->cluster && cluster_named(m->node->cluster) && cluster_old_copy(m->node->cluster);
}

void damage_end(void)
{
    all.is_over = true;
    world_run(world.now_us + HEALED_US, is_whole);
    if (!is_whole())
        broken("control of host %d has not started after %s was repaired", all.m->host->id, all.path);
    world_run(world.now_us + 5 * US_PER_S, NULL);
    for (int id = 1; id <= world.n_hosts; id++)
        if (is_old_copy(&machines[id]) && !admin_take_anew(&machines[id], ANEW_US))
            broken("node %d, whose log is an old copy, has not joined anew: %s", id, admin_answer());
}
