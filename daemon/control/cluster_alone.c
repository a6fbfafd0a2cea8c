/* A node that belongs to no cluster: it leads, as soon as its log is open, and for ever. */
#include "daemon/control/cluster.h"

#include "daemon/control/node.h"

#include <stdlib.h>

struct cluster {
    struct node *node;
    const struct cluster_events *events;
    uv_timer_t timer;
    void (*closed)(struct node *n);
};

static void lead(uv_timer_t *timer)
{
    struct cluster *c = timer->data;
    c->events->lead(c->node);
}

err_t cluster_start(struct node *n, const struct cluster_events *events, struct cluster **ret, struct why *why)
{
    struct cluster *c = calloc(1, sizeof(*c));
    if (!c)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    *c = (struct cluster){.node = n, .events = events};
    c->timer.data = c;
    if (uv_timer_init(&n->loop, &c->timer) || uv_timer_start(&c->timer, lead, 0, 0)) {
        free(c);
        return why_set(why, ERR_IO, "a timer of the loop");
    }
    *ret = c;
    return OK;
}

static void closed(uv_handle_t *timer)
{
    struct cluster *c = timer->data;
    struct node *n = c->node;
    void (*cb)(struct node * n) = c->closed;
    free(c);
    cb(n);
}

void cluster_close(struct cluster *c, void (*cb)(struct node *n))
{
    c->closed = cb;
    uv_close((uv_handle_t *)&c->timer, closed);
}

const char *cluster_self(const struct cluster *c)
{
    return c->node->self.name;
}

const char *cluster_leader(const struct cluster *c)
{
    return c->node->self.name;
}

bool cluster_leads(const struct cluster *c)
{
    return c->node->leads;
}

struct rpc_conn *cluster_leader_conn(struct cluster *c)
{
    (void)c;
    return NULL;
}
