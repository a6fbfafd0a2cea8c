#include "daemon/control/c10d/owners.h"

#include "common/base/log.h"
#include "daemon/control/job/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct c10d_owner *owner_find(struct c10d_owners *names, uint32_t uid, const char *name)
{
    struct c10d_owner *s;
    SLIST_FOREACH(s, &names->names, link)
    if (s->uid == uid && strcmp(s->name, name) == 0)
        return s;
    return NULL;
}

static err_t owner_add(struct c10d_owners *names, const struct node_view *a, uint32_t uid, const char *name)
{
    struct c10d_owner *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    s->uid = uid;
    snprintf(s->name, sizeof(s->name), "%s", name);
    snprintf(s->node, sizeof(s->node), "%s", a->name);
    SLIST_INSERT_HEAD(&names->names, s, link);
    return OK;
}

static void owner_remove(struct c10d_owners *names, struct c10d_owner *s)
{
    SLIST_REMOVE(&names->names, s, c10d_owner, link);
    free(s);
}

static void close_on(struct c10d_owners *names, struct node_view *a, uint32_t uid, const char *name)
{
    err_t err = OK;
    if (a->is_self)
        c10d_close(names->c10d, uid, name);
    else
        err = a->attend ? names->close_there(a->attend, uid, name) : ERR_CLOSED;
    if (err && err != ERR_CLOSED) /* a node that cannot be reached has also lost its connections to the store */
        log_warn("store not closed store=%s node=%s error=%s", name, a->name, err_text(err));
}

static void close_everywhere(struct c10d_owners *names, struct c10d_owner *s)
{
    for (struct node_view *a = names->jobs->nodes; a; a = a->next)
        close_on(names, a, s->uid, s->name);
    owner_remove(names, s);
}

/* ---- claims ---- */

/* Every node has reported its stores since this node leads, or is lost. */

static bool all_nodes_reported(const struct c10d_owners *names)
{
    for (const struct node_view *a = names->jobs->nodes; names->jobs->lists_due_ms && a; a = a->next)
        if (!a->is_self && (a->state == NODE_ABSENT || a->state == NODE_AWAY))
            return false;
    return true;
}

err_t c10d_owners_claim(struct c10d_owners *names, const struct node_view *asks, uint32_t uid, const char *name,
                        const char **ret_node)
{
    if (!all_nodes_reported(names))
        return ERR_AGAIN;
    struct c10d_owner *s = owner_find(names, uid, name);
    const struct node_view *holder = s ? node_view_find(names->jobs, s->node) : NULL;
    if (s && (!holder || holder->state == NODE_LOST)) {
        close_everywhere(names, s);
        s = NULL;
    }
    err_t err = s ? OK : owner_add(names, asks, uid, name);
    if (!err)
        *ret_node = s ? s->node : asks->name;
    return err;
}

err_t c10d_owners_close(struct c10d_owners *names, uint32_t uid, const char *name)
{
    struct c10d_owner *s = owner_find(names, uid, name);
    if (!s)
        return ERR_NOTFOUND;
    log_info("store closed store=%s uid=%u node=%s", name, (unsigned)uid, s->node);
    close_everywhere(names, s);
    return OK;
}

/* ---- nodes that report or are lost ---- */

static void owner_remove_of_node(struct c10d_owners *names, const char *node)
{
    struct c10d_owner *s, *next;
    for (s = SLIST_FIRST(&names->names); s; s = next) {
        next = SLIST_NEXT(s, link);
        if (strcmp(s->node, node) == 0)
            owner_remove(names, s);
    }
}

void c10d_owners_reported(struct c10d_owners *names, struct node_view *a, const struct c10d_owner_report *said,
                          int count)
{
    owner_remove_of_node(names, a->name);
    for (int i = 0; i < count; i++) {
        const struct c10d_owner *other = owner_find(names, said[i].uid, said[i].name);
        if (other || owner_add(names, a, said[i].uid, said[i].name)) {
            log_warn("store closed, another node has a store of this name store=%s node=%s", said[i].name, a->name);
            close_on(names, a, said[i].uid, said[i].name);
        }
    }
}

void c10d_owners_lost(struct c10d_owners *names, const struct node_view *a)
{
    struct c10d_owner *s, *next;
    for (s = SLIST_FIRST(&names->names); s; s = next) {
        next = SLIST_NEXT(s, link);
        if (strcmp(s->node, a->name) == 0)
            close_everywhere(names, s);
    }
}

void c10d_owners_begin(struct c10d_owners *names)
{
    const struct c10d_endpoint *e;
    LIST_FOREACH(e, &names->c10d->open, link)
    if (e->server && c10d_name_is_legal(e->name) && owner_add(names, &names->jobs->self, e->uid, e->name))
        log_error("out of memory: a store is not registered with the leader store=%s", e->name);
}

void c10d_owners_end(struct c10d_owners *names)
{
    while (!SLIST_EMPTY(&names->names))
        owner_remove(names, SLIST_FIRST(&names->names));
}
