/* The cluster version (state/features.h): which dtds are admitted, and when it rises.
 *
 * The leader proposes the next version when every node of the state is connected and has reported in its Hello that its
 * dtd has it. A node that is away holds the version back, because an older dtd may run there when it returns. A node
 * that joins meanwhile makes the record invalid, which names the number of the next node. */
#include "daemon/control/cluster/internal.h"

#include "common/base/log.h"

#include <inttypes.h>

uint32_t cluster_version(const struct cluster *c)
{
    return state_version(c->leads ? c->replica->state : c->view);
}

err_t cluster_admits(const struct cluster *c, const char *node, const struct features_range *has, struct why *why)
{
    const uint32_t version = cluster_version(c);
    if (has->newest < version)
        return why_set(why, ERR_DENIED,
                       "dtd on %s is too old: the cluster has version %" PRIu32
                       ", and the newest version of that dtd is %" PRIu32 ". Upgrade it (docs/operate/upgrade.md)",
                       node, version, has->newest);
    if (has->oldest > version)
        return why_set(why, ERR_DENIED,
                       "dtd on %s is too new: the cluster has version %" PRIu32 ", and that dtd supports %" PRIu32
                       " to %" PRIu32 ". Install the release between them first (docs/operate/upgrade.md)",
                       node, version, has->oldest, has->newest);
    return OK;
}

/* ---- the nodes that hold it back ---- */

static bool has_version(const struct cluster_peer *m, uint32_t version)
{
    return m->in && m->has.newest >= version;
}

/* NULL: all other nodes have the version. */
static const struct cluster_peer *lagging_peer(const struct cluster *c, uint32_t version)
{
    for (int i = 0; i < c->n_peers; i++)
        if (!has_version(c->peers[i], version))
            return c->peers[i];
    return NULL;
}

static err_t complain(uint32_t version, uint32_t now, const char *what, const char *node, const char *text,
                      struct why *why)
{
    return why_set(why, ERR_UNSUPPORTED,
                   "%s needs version %" PRIu32 " of the cluster, which has version %" PRIu32
                   ": %s %s (dtctl cluster status)",
                   what, version, now, node, text);
}

err_t cluster_may_use(const struct cluster *c, uint32_t version, const char *what, struct why *why)
{
    const uint32_t now = cluster_version(c);
    const struct cluster_peer *m;
    char text[160];
    if (version <= now)
        return OK;
    snprintf(text, sizeof(text), "has dtd %s, whose newest version is %" PRIu32 "; upgrade it", DTD_VERSION,
             features_newest());
    if (features_newest() < version)
        return complain(version, now, what, c->self.name, text, why);
    m = lagging_peer(c, version);
    if (!m)
        return why_set(why, ERR_AGAIN,
                       "%s needs version %" PRIu32 " of the cluster, which it is about to get: try again", what,
                       version);
    if (m->has.newest && m->has.newest < version)
        snprintf(text, sizeof(text), "has dtd %s, whose newest version is %" PRIu32 "; upgrade it", m->version,
                 m->has.newest);
    else
        snprintf(text, sizeof(text), "is not connected; start it, or remove it from the cluster");
    return complain(version, now, what, m->name, text, why);
}

/* ---- rising ---- */

static uint32_t newest_of_all(const struct cluster *c)
{
    uint32_t ret = features_newest();
    for (int i = 0; i < c->n_peers; i++)
        if (!c->peers[i]->in || c->peers[i]->has.newest < ret)
            ret = c->peers[i]->in ? c->peers[i]->has.newest : 1;
    return ret;
}

bool cluster_version_raise(struct cluster *c)
{
    const struct state_cluster *k = cluster_known(c);
    struct record r = {.kind = RECORD_CLUSTER_VERSION,
                       .cluster_version = {.version = newest_of_all(c), .next_node = k->next_node}};
    const uint32_t now = k->version ? k->version : 1;
    if (r.cluster_version.version <= now)
        return false;
    cluster_propose(c, &r);
    if (c->proposing)
        log_info("the cluster version rises from=%" PRIu32 " to=%" PRIu32, now, r.cluster_version.version);
    return true;
}

uint32_t cluster_newest(const struct cluster *c)
{
    uint32_t ret = features_newest();
    for (int i = 0; i < c->n_peers; i++)
        ret = c->peers[i]->has.newest > ret ? c->peers[i]->has.newest : ret;
    return ret;
}

const struct cluster_peer *cluster_newer_voter(const struct cluster *c)
{
    for (int i = 0; i < c->n_peers; i++) {
        const struct cluster_peer *m = c->peers[i];
        if (m->in && m->has.newest > features_newest() && cluster_votes(c, m->id))
            return m;
    }
    return NULL;
}

const char *cluster_refused(const struct cluster *c)
{
    return c->refused;
}
