/* Which cluster this node belongs to, and which generation of it.
 *
 * The leader makes the id when the cluster version allows it. `dtctl cluster recover` makes a new generation: this node
 * alone has its log, and the nodes that had other copies are no part of it.
 *
 *   recovers   the file `recovery` exists. The node opens its log as the only voter, and leads only when the record of
 *              the recovery is in it, so nothing is decided before
 *   follows    a node without a copy of the log is still listed, and the recovered leader admits it by its old key. Its
 *              view then has the new generation, so it renames the log that it may have from before, and starts again
 *   superseded a node that had a copy learns of the recovery when it calls a recovered node, or is called by one while
 *              it leads. It starts again without a listener and without voters' streams, and never leads
 *
 * Every tunnel compares generations (judge), so nothing passes between two of them, except that a listed node may call
 * the leader (TUNNEL_RPC) and any node may join. */
#include "daemon/control/cluster/internal.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define RECOVERY_RETRY_MS 1000 /* a full disk must not cost a try at each tick */

static void path_of(const struct cluster *c, const char *name, char ret[PATH_MAX])
{
    snprintf(ret, PATH_MAX, "%s/cluster/%s", c->dir, name);
}

/* ---- this node's lineage ---- */

/* Generation of the log in our folder. */
static uint64_t log_generation(const struct cluster *c)
{
    return c->self.generation ? c->self.generation : 1;
}

bool cluster_log_is_old(const struct cluster *c)
{
    return !c->leads && !c->recovers && cluster_known(c)->lineage.generation > log_generation(c);
}

static void take_own(void *owner, struct tunnel_lineage *ret)
{
    const struct cluster *c = owner;
    const struct state_lineage *l = &cluster_known(c)->lineage;
    *ret = (struct tunnel_lineage){.id = l->id, .generation = l->generation, .at_ms = l->at_ms};
    snprintf(ret->by, sizeof(ret->by), "%.*s", TUNNEL_BY_MAX, l->by);
    if (!c->recovers || !ret->id)
        return;
    ret->generation = c->recovery.generation;
    ret->at_ms = c->recovery.at_ms;
    snprintf(ret->by, sizeof(ret->by), "%.*s", TUNNEL_BY_MAX, c->recovery.by);
}

/* ---- superseded ---- */

static void supersede(struct cluster *c, const struct tunnel_lineage *by)
{
    char path[PATH_MAX];
    struct why why = {""};
    struct lineage_file f = {.generation = by->generation, .at_ms = by->at_ms};
    if (c->superseded.generation || c->closing)
        return;
    snprintf(f.by, sizeof(f.by), "%s", by->by);
    path_of(c, "superseded", path);
    log_error("the cluster was recovered without this node, which neither leads nor votes any more by=%s at_ms=%" PRId64
              " generation=%" PRIu64 " remedy=\"dtctl cluster leave, then dtctl cluster join\"",
              f.by, f.at_ms, f.generation);
    err_t err = lineage_file_write(path, &f, &why);
    if (err)
        log_error("%s", why.text); /* learned again at the next call */
    c->superseded = f;
    cluster_restart(c);
}

const struct lineage_file *cluster_superseded(const struct cluster *c)
{
    return c->superseded.generation ? &c->superseded : NULL;
}

/* ---- an old copy ---- */

static void learn_old_copy(struct cluster *c, const char *by)
{
    char path[PATH_MAX];
    struct why why = {""};
    struct lineage_file f = {.generation = 1, .at_ms = clock_wall_ms()};
    if (c->old_copy.generation || c->closing)
        return;
    snprintf(f.by, sizeof(f.by), "%s", by);
    path_of(c, "old_copy", path);
    log_error("the log of this node is an old copy, which lacks records that this node has acknowledged: it does not "
              "vote any more reported_by=%s remedy=\"dtctl cluster leave, then dtctl cluster join\"",
              by);
    err_t err = lineage_file_write(path, &f, &why);
    if (err)
        log_error("%s", why.text);
    c->old_copy = f;
    cluster_restart(c);
}

const struct lineage_file *cluster_old_copy(const struct cluster *c)
{
    return c->old_copy.generation ? &c->old_copy : NULL;
}

/* A voter opens a stream to us: has it forgotten what it has acknowledged? */
static enum tunnel_kinship judge_voter(struct cluster *c, const struct tunnel_peer *peer)
{
    struct log_mark shown;
    uint64_t to;
    bool read = sscanf(peer->argument, "%" SCNu64 " %" SCNu64 " %*u %*u %" SCNu64 " %" SCNu64 " %" SCNu64, &shown.id,
                       &to, &shown.process, &shown.term, &shown.stored) == 5;
    const struct state_node *x = read ? cluster_node_by_id(c, shown.id) : NULL;
    if (!x || strcmp(x->name, peer->name) != 0 || to != c->self.id || log_judge(c->replica->log, &shown))
        return TUNNEL_OF_KIN; /* of an older version, or refused later */
    log_error(
        "the log of a voter is an old copy, which lacks records that it has acknowledged: it gets no stream node=%s "
        "term=%" PRIu64 " index=%" PRIu64 " remedy=\"on it: dtctl cluster leave, then dtctl cluster join\"",
        peer->name, shown.term, shown.stored);
    return TUNNEL_FORGETFUL;
}

/* ---- peers ---- */

static bool is_retired(const struct cluster *c, struct tunnel_key_id key)
{
    const struct state_cluster *k = cluster_known(c);
    for (int i = 0; i < k->n_retired; i++)
        if (key.kind == TUNNEL_KEY_CLUSTER && k->retired[i].version == key.number)
            return true;
    return false;
}

/* A peer of an earlier generation, or with a key of one. */
static enum tunnel_kinship judge_old(const struct cluster *c, const struct tunnel_peer *peer, bool answers)
{
    bool is_listed = cluster_node(c, peer->name) && !is_retired(c, peer->key);
    if (!is_listed && peer->purpose != TUNNEL_JOIN)
        return TUNNEL_SUPERSEDED;
    bool may_call = peer->purpose == TUNNEL_RPC || peer->purpose == TUNNEL_JOIN;
    return may_call && !answers && !is_retired(c, peer->key) ? TUNNEL_OF_KIN : TUNNEL_FOREIGN;
}

/* The leader of an earlier generation learns that there is a later one. Other nodes learn it when they look for their
 * leader. */
static enum tunnel_kinship judge_new(struct cluster *c, const struct tunnel_peer *peer, bool answers)
{
    bool may_call = peer->purpose == TUNNEL_RPC || peer->purpose == TUNNEL_JOIN;
    if (answers && may_call)
        return TUNNEL_OF_KIN;                    /* our view follows */
    if (c->leads && cluster_node(c, peer->name)) /* a stranger could claim any generation */
        supersede(c, &peer->lineage);
    return TUNNEL_FOREIGN;
}

static enum tunnel_kinship judge_lineage(struct cluster *c, const struct tunnel_peer *peer, bool answers)
{
    struct tunnel_lineage own;
    const struct tunnel_lineage *its = &peer->lineage;
    take_own(c, &own);
    if (!own.id || peer->key.kind == TUNNEL_KEY_JOIN)
        return TUNNEL_OF_KIN;
    if (its->id && its->id != own.id)
        return TUNNEL_FOREIGN;
    if (its->generation > own.generation)
        return judge_new(c, peer, answers);
    bool is_old = its->id ? its->generation < own.generation : own.generation > 1;
    return is_old || is_retired(c, peer->key) ? judge_old(c, peer, answers) : TUNNEL_OF_KIN;
}

static enum tunnel_kinship judge(void *owner, const struct tunnel_peer *peer, bool answers)
{
    struct cluster *c = owner;
    enum tunnel_kinship v = judge_lineage(c, peer, answers);
    return v == TUNNEL_OF_KIN && peer->purpose == TUNNEL_RAFT && !answers ? judge_voter(c, peer) : v;
}

static void refused(void *owner, const char *name, enum tunnel_kinship verdict, const struct tunnel_lineage *its)
{
    struct cluster *c = owner;
    struct tunnel_lineage own;
    take_own(c, &own);
    bool is_later = its->id && (!own.id || its->id == own.id) && its->generation > own.generation;
    if (verdict == TUNNEL_FORGETFUL)
        learn_old_copy(c, name);
    log_debug("refused by node=%s generation=%" PRIu64, name, its->generation);
    if (is_later && (verdict == TUNNEL_SUPERSEDED || c->leads))
        supersede(c, its);
}

const struct tunnel_kin cluster_kin = {.own = take_own, .judge = judge, .refused = refused};

/* ---- start ---- */

/* A recovery of a backup does not know the generation of the copy. */
static err_t number_recovery(struct cluster *c, const char *path, struct why *why)
{
    if (c->recovery.generation)
        return OK;
    uint64_t last = state_cluster(c->view)->lineage.generation;
    c->recovery.generation = (last ? last : 1) + 1;
    return lineage_file_write(path, &c->recovery, why);
}

err_t cluster_lineage_load(struct cluster *c, struct why *why)
{
    char path[PATH_MAX];
    path_of(c, "superseded", path);
    err_t err = lineage_file_read(path, &c->superseded, why);
    if (err && err != ERR_NOTFOUND)
        return err;
    path_of(c, "old_copy", path);
    err = lineage_file_read(path, &c->old_copy, why);
    if (err && err != ERR_NOTFOUND)
        return err;
    path_of(c, "recovery", path);
    err = lineage_file_read(path, &c->recovery, why);
    c->recovers = err == OK;
    if (!err)
        err = number_recovery(c, path, why);
    return err == ERR_NOTFOUND ? OK : err;
}

err_t cluster_lineage_request(const struct cluster *c, uint32_t uid, struct why *why)
{
    char path[PATH_MAX];
    struct log_member in_log[LOG_MAX_MEMBERS];
    uint64_t last = cluster_known(c)->lineage.generation;
    struct lineage_file f = {.generation = (last ? last : 1) + 1, .at_ms = clock_wall_ms(), .uid = uid};
    int n = log_members(c->replica->log, in_log);
    snprintf(f.by, sizeof(f.by), "%s", cluster_self(c));
    for (int i = 0; i < n; i++)
        if (in_log[i].id != c->self.id)
            f.gone[f.n_gone++] = in_log[i].id;
    path_of(c, "recovery", path);
    return lineage_file_write(path, &f, why);
}

void cluster_lineage_forget(const struct cluster *c)
{
    char path[PATH_MAX];
    path_of(c, "superseded", path);
    unlink(path);
    path_of(c, "old_copy", path);
    unlink(path);
    path_of(c, "recovery", path);
    unlink(path);
}

/* ---- the leader's records ---- */

static void on_recorded(void *arg, err_t err, uint64_t index, const void *result)
{
    struct cluster *c = arg;
    const struct state_result *r = result;
    (void)index;
    c->lineage_proposed = false;
    if (err || r->err)
        log_warn("the lineage of the cluster is not recorded error=%s", err_text(err ? err : r->err));
}

static bool is_recorded(const struct cluster *c)
{
    const struct state_lineage *l = &state_cluster(c->replica->state)->lineage;
    return l->generation >= c->recovery.generation && l->at_ms == c->recovery.at_ms;
}

/* The log belongs to the new generation, and the next start must not take it for an older one, nor recover it again,
 * which would drop the voters that join from now on. The generation is written first: a start that finds both files
 * only ends the recovery. */
static err_t write_recovered(struct cluster *c, struct why *why)
{
    char path[PATH_MAX], dir[PATH_MAX];
    struct cluster_self self = c->self;
    self.generation = state_cluster(c->replica->state)->lineage.generation;
    self.recover = false;
    err_t err = cluster_file_write(c->self_path, &self, why);
    if (err)
        return err;
    c->self = self;
    path_of(c, "recovery", path);
    if (unlink(path) && errno != ENOENT)
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    path_of(c, "", dir);
    err = access(dir, F_OK) ? OK : file_sync_dir(dir);
    return err ? why_set(why, err, "%s: %s", dir, err_text(err)) : OK;
}

/* False: the files cannot be written, and it is tried again; this node does not lead until then. */
static bool recovery_done(struct cluster *c)
{
    struct why why = {""};
    const struct state_lineage *l = &state_cluster(c->replica->state)->lineage;
    int64_t now = clock_mono_ms();
    if (now < c->recovery_ms)
        return false;
    if (write_recovered(c, &why)) {
        log_error("the recovery of the cluster waits until its files can be written, and is tried again why=\"%s\"",
                  why.text);
        c->recovery_ms = now + RECOVERY_RETRY_MS;
        return false;
    }
    log_warn("this node continues the cluster alone generation=%" PRIu64 " id=%016" PRIx64
             " next_job_gap=%d remedy=\"let the nodes that had copies of the log join again\"",
             l->generation, l->id, STATE_RECOVERY_GAP);
    c->recovers = false;
    return true;
}

/* Numbers of the other nodes that had copies of the log. The caller frees them. */
static uint64_t *gone_of(const struct cluster *c, int *ret_n)
{
    const struct state_cluster *k = state_cluster(c->replica->state);
    uint64_t *ret = calloc((size_t)k->n_nodes + LOG_MAX_MEMBERS + 1, sizeof(*ret));
    *ret_n = 0;
    for (int i = 0; ret && c->recovery.all_gone && i < k->n_nodes; i++)
        if (!c->is_member || k->nodes[i].id != c->self.id)
            ret[(*ret_n)++] = k->nodes[i].id;
    for (int i = 0; ret && i < c->recovery.n_gone; i++)
        ret[(*ret_n)++] = c->recovery.gone[i];
    return ret;
}

static bool draw(void *ret, size_t len)
{
    return getrandom(ret, len, 0) == (ssize_t)len;
}

static void propose(struct cluster *c, struct record *r)
{
    c->lineage_proposed = replica_propose(c->replica, r, on_recorded, c) == OK;
    if (r->kind == RECORD_LINEAGE)
        explicit_bzero(r->lineage.secret, sizeof(r->lineage.secret));
}

/* The record of a recovery needs this version, and there is no other voter that could lack it. Other nodes that do have
 * to be upgraded before they can follow. */
#define LINEAGE_VERSION 2

static void propose_recovery(struct cluster *c)
{
    const struct state_cluster *k = state_cluster(c->replica->state);
    int n_gone;
    uint64_t *gone = gone_of(c, &n_gone);
    if (k->lineage.generation >= c->recovery.generation) /* the view that numbered it was behind */
        c->recovery.generation = k->lineage.generation + 1;
    if (state_version(c->replica->state) < LINEAGE_VERSION) {
        struct record first = {.kind = RECORD_CLUSTER_VERSION,
                               .wall_ms = clock_wall_ms(),
                               .cluster_version = {.version = LINEAGE_VERSION, .next_node = k->next_node}};
        propose(c, &first);
        free(gone);
        return;
    }
    struct record r = {.kind = RECORD_LINEAGE,
                       .wall_ms = c->recovery.at_ms,
                       .lineage = {.id = k->lineage.id,
                                   .generation = c->recovery.generation,
                                   .by = c->recovery.by,
                                   .uid = c->recovery.uid,
                                   .gone = gone,
                                   .n_gone = n_gone,
                                   .key = k->n_keys ? k->keys[k->n_keys - 1].version + 1 : 0}};
    if (gone && (r.lineage.id || draw(&r.lineage.id, sizeof(r.lineage.id))) &&
        draw(r.lineage.secret, sizeof(r.lineage.secret)))
        propose(c, &r);
    free(gone);
}

bool cluster_may_lead(struct cluster *c)
{
    if (c->superseded.generation || c->old_copy.generation)
        return false;
    if (!c->recovers)
        return true;
    if (!is_recorded(c)) {
        if (!c->lineage_proposed)
            propose_recovery(c);
        return false;
    }
    return recovery_done(c);
}

bool cluster_lineage_propose(struct cluster *c)
{
    const struct state_lineage *l = &state_cluster(c->replica->state)->lineage;
    if (l->id || c->lineage_proposed || cluster_version(c) < LINEAGE_VERSION)
        return false;
    struct record r = {.kind = RECORD_LINEAGE, .wall_ms = clock_wall_ms(), .lineage = {.generation = 1, .by = ""}};
    if (!draw(&r.lineage.id, sizeof(r.lineage.id)) || !r.lineage.id)
        return false;
    propose(c, &r);
    return true;
}
