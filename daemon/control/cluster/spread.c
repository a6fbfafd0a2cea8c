/* How the view reaches the nodes, when many need much of it at a time.
 *
 * While n nodes join, each of them needs n entries. If the leader sent all of it, that would be n^2 bytes in a few
 * seconds from one loop, and heartbeats would have to wait. So the leader sends at most `spread_limit` bytes of large
 * answers in a tick. Another node that needs much learns that it is behind, and gets the name of a node that has the
 * view and serves it (fetch.c). Each node that has got the view serves it to SERVES others after each of its
 * heartbeats, so their number grows exponentially, and what the leader sends does not depend on the number of nodes.
 *
 * A fetched view counts only when the leader has confirmed its digest, so a node cannot give other nodes a false one.
 * One that can reach no source gets the view from the leader when the others have it, and so does one of a version
 * that fetches nothing; that one never waits. The voters do not wait either: joining nodes come by them. */
#include "daemon/control/cluster/internal.h"

#include "common/base/clock.h"

#include <stdlib.h>
#include <string.h>

/* An answer of at most this size is small: it costs little more than the name of a source, and a heartbeat with a few
 * joined nodes and all tokens and keys of a cluster fits. */
#define SMALL_BYTES (8u << 10)
#define SMALL_TICKS 4 /* small answers of one tick may have so many times the bytes of large ones */
/* A view of the largest cluster has 2 MB, so a source sends at most 20 MB a second. */
#define SERVES 2
/* Until a node is sent to the next source: the last one may be unreachable, which takes CALL_MS, or slow. */
#define NEXT_SOURCE_MS 2000
/* Of a cluster with more nodes, a new node first gets this number and the voters, so it finds the leader also if the
 * voters are others by then. */
#define WELCOME_NODES 64

/* ---- sources ---- */

void cluster_spread_forget(struct cluster *c, struct cluster_peer *m)
{
    if (m->is_source)
        TAILQ_REMOVE(&c->sources, m, source_link);
    m->is_source = false;
}

static bool has_view(const struct cluster *c, const struct cluster_peer *m)
{
    return m->in && cluster_view_lag(c, m->view) <= SMALL_BYTES;
}

/* At a heartbeat of the node. */
static void offer_source(struct cluster *c, struct cluster_peer *m)
{
    if (!m->shares || m->is_source || !has_view(c, m))
        return;
    m->is_source = true;
    m->serves = SERVES;
    TAILQ_INSERT_TAIL(&c->sources, m, source_link);
}

/* NULL: none has room. */
static const struct state_node *take_source(struct cluster *c)
{
    struct cluster_peer *s;
    while ((s = TAILQ_FIRST(&c->sources))) {
        const struct state_node *x = has_view(c, s) ? cluster_node(c, s->name) : NULL;
        if (!x || --s->serves == 0)
            cluster_spread_forget(c, s);
        if (x)
            return x;
    }
    return NULL;
}

/* ---- answers to heartbeats ---- */

static size_t bytes_of(const struct cluster_news *news)
{
    size_t bytes = news->view ? news->view->len : 0;
    for (int i = 0; i < news->n_changes; i++)
        bytes += news->changes[i]->len;
    return bytes;
}

/* One large answer is always possible in a tick, whatever its size. */
static bool take_room(struct cluster *c, size_t bytes)
{
    bool is_small = bytes <= SMALL_BYTES;
    size_t *sent = is_small ? &c->small_bytes : &c->large_bytes;
    if (*sent && *sent + bytes > (is_small ? SMALL_TICKS * c->spread_limit : c->spread_limit))
        return false;
    *sent += bytes;
    return true;
}

void cluster_spread_tick(struct cluster *c)
{
    c->small_bytes = c->large_bytes = 0;
}

void cluster_spread(struct cluster *c, struct cluster_peer *m, const struct cluster_beat *beat,
                    struct cluster_news *ret)
{
    int64_t now = clock_mono_ms();
    uint64_t has = beat->view;
    m->shares = beat->shares;
    ret->known = beat->fetched && cluster_view_is_known(c, beat->fetched, &has);
    cluster_view_news(c, has, beat->changes, ret);
    offer_source(c, m);
    size_t bytes = bytes_of(ret);
    if (!bytes || !beat->shares || cluster_votes(c, m->id) || take_room(c, bytes))
        return;
    ret->view = NULL;
    ret->n_changes = 0;
    ret->behind = true;
    if (bytes <= SMALL_BYTES || (m->sent_ms && now - m->sent_ms < NEXT_SOURCE_MS))
        return;
    ret->source = take_source(c);
    if (ret->source)
        m->sent_ms = now;
}

/* ---- the first view of a new node ---- */

static int compare_places(const void *a, const void *b)
{
    const struct state_node *const *x = a, *const *y = b;
    return (*x > *y) - (*x < *y);
}

err_t cluster_welcome(struct cluster *c, const char *name, struct buf *ret)
{
    const struct state_cluster *k = cluster_known(c);
    const struct cluster_introductions *voters = cluster_introductions(c);
    const struct state_node *nodes[CLUSTER_INTRODUCED + 2 + WELCOME_NODES];
    int n = 0, m = 0;
    for (int i = 0; i < voters->n; i++)
        nodes[n++] = cluster_node(c, voters->nodes[i].name);
    nodes[n++] = cluster_node(c, c->self.name);
    nodes[n++] = cluster_node(c, name);
    for (int i = 0; i < k->n_nodes; i += (k->n_nodes - 1) / WELCOME_NODES + 1)
        nodes[n++] = &k->nodes[i];
    /* The nodes of the state are in the order of their names; NULL is before all. */
    qsort(nodes, (size_t)n, sizeof(nodes[0]), compare_places);
    for (int i = 0; i < n; i++)
        if (nodes[i] && (!m || nodes[m - 1] != nodes[i]))
            nodes[m++] = nodes[i];
    return state_cluster_excerpt(c->replica->state, nodes, m, ret);
}
