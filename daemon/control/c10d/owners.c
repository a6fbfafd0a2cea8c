/* See store_names.h. */
#include "daemon/control/c10d/owners.h"

#include "common/base/log.h"
#include "daemon/control/job/node_view.h"
#include "daemon/control/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct store_name *find(struct node *n, uint32_t uid, const char *name)
{
    struct store_name *s;
    SLIST_FOREACH(s, &n->store_names, link)
    if (s->uid == uid && strcmp(s->name, name) == 0)
        return s;
    return NULL;
}

static err_t add(struct node *n, const struct agent *a, uint32_t uid, const char *name)
{
    struct store_name *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    s->uid = uid;
    snprintf(s->name, sizeof(s->name), "%s", name);
    snprintf(s->node, sizeof(s->node), "%s", a->name);
    SLIST_INSERT_HEAD(&n->store_names, s, link);
    return OK;
}

static void forget(struct node *n, struct store_name *s)
{
    SLIST_REMOVE(&n->store_names, s, store_name, link);
    free(s);
}

static void close_on(struct node *n, struct agent *a, uint32_t uid, const char *name)
{
    err_t err = agent_store_close(a, n, uid, name);
    if (err && err != ERR_CLOSED) /* who cannot be reached has lost its streams too */
        log_warn("store not closed store=%s node=%s error=%s", name, a->name, err_text(err));
}

static void close_everywhere(struct node *n, struct store_name *s)
{
    for (struct agent *a = n->agents; a; a = a->next)
        close_on(n, a, s->uid, s->name);
    forget(n, s);
}

/* ---- who has it ---- */

static bool all_heard(const struct node *n)
{
    for (const struct agent *a = n->agents; n->lists_due_ms && a; a = a->next)
        if (!a->is_self && (a->state == AGENT_ABSENT || a->state == AGENT_AWAY))
            return false;
    return true;
}

err_t store_names_claim(struct node *n, const struct agent *asks, uint32_t uid, const char *name, const char **ret_node)
{
    if (!all_heard(n))
        return ERR_AGAIN;
    struct store_name *s = find(n, uid, name);
    const struct agent *holder = s ? agent_find(n, s->node) : NULL;
    if (s && (!holder || holder->state == AGENT_LOST)) {
        close_everywhere(n, s);
        s = NULL;
    }
    err_t err = s ? OK : add(n, asks, uid, name);
    if (!err)
        *ret_node = s ? s->node : asks->name;
    return err;
}

err_t store_names_close(struct node *n, uint32_t uid, const char *name)
{
    struct store_name *s = find(n, uid, name);
    if (!s)
        return ERR_NOTFOUND;
    log_info("store closed store=%s uid=%u node=%s", name, (unsigned)uid, s->node);
    close_everywhere(n, s);
    return OK;
}

/* ---- nodes that come and go ---- */

static void forget_those_of(struct node *n, const char *node)
{
    struct store_name *s, *next;
    for (s = SLIST_FIRST(&n->store_names); s; s = next) {
        next = SLIST_NEXT(s, link);
        if (strcmp(s->node, node) == 0)
            forget(n, s);
    }
}

void store_names_said(struct node *n, struct agent *a, const struct store_said *said, int count)
{
    forget_those_of(n, a->name);
    for (int i = 0; i < count; i++) {
        const struct store_name *other = find(n, said[i].uid, said[i].name);
        if (other || add(n, a, said[i].uid, said[i].name)) {
            log_warn("store closed, its name is another node's store=%s node=%s", said[i].name, a->name);
            close_on(n, a, said[i].uid, said[i].name);
        }
    }
}

void store_names_lost(struct node *n, const struct agent *a)
{
    struct store_name *s, *next;
    for (s = SLIST_FIRST(&n->store_names); s; s = next) {
        next = SLIST_NEXT(s, link);
        if (strcmp(s->node, a->name) == 0)
            close_everywhere(n, s);
    }
}

void store_names_begin(struct node *n)
{
    const struct stores_entry *e;
    LIST_FOREACH(e, &n->stores.open, link)
    if (e->server && stores_name_is_legal(e->name) && add(n, &n->self, e->uid, e->name))
        log_error("store without a name, no memory store=%s", e->name);
}

void store_names_end(struct node *n)
{
    while (!SLIST_EMPTY(&n->store_names))
        forget(n, SLIST_FIRST(&n->store_names));
}
