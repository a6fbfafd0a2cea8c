/* See store_names.h. */
#include "daemon/control/c10d/owners.h"

#include "common/base/log.h"
#include "daemon/control/job/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct store_name *find(struct store_names *names, uint32_t uid, const char *name)
{
    struct store_name *s;
    SLIST_FOREACH(s, &names->names, link)
    if (s->uid == uid && strcmp(s->name, name) == 0)
        return s;
    return NULL;
}

static err_t add(struct store_names *names, const struct agent *a, uint32_t uid, const char *name)
{
    struct store_name *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    s->uid = uid;
    snprintf(s->name, sizeof(s->name), "%s", name);
    snprintf(s->node, sizeof(s->node), "%s", a->name);
    SLIST_INSERT_HEAD(&names->names, s, link);
    return OK;
}

static void forget(struct store_names *names, struct store_name *s)
{
    SLIST_REMOVE(&names->names, s, store_name, link);
    free(s);
}

static void close_on(struct store_names *names, struct agent *a, uint32_t uid, const char *name)
{
    err_t err = OK;
    if (a->is_self)
        stores_close(names->stores, uid, name);
    else
        err = a->attend ? names->close_there(a->attend, uid, name) : ERR_CLOSED;
    if (err && err != ERR_CLOSED) /* who cannot be reached has lost its streams too */
        log_warn("store not closed store=%s node=%s error=%s", name, a->name, err_text(err));
}

static void close_everywhere(struct store_names *names, struct store_name *s)
{
    for (struct agent *a = names->jobs->agents; a; a = a->next)
        close_on(names, a, s->uid, s->name);
    forget(names, s);
}

/* ---- who has it ---- */

static bool all_heard(const struct store_names *names)
{
    for (const struct agent *a = names->jobs->agents; names->jobs->lists_due_ms && a; a = a->next)
        if (!a->is_self && (a->state == AGENT_ABSENT || a->state == AGENT_AWAY))
            return false;
    return true;
}

err_t store_names_claim(struct store_names *names, const struct agent *asks, uint32_t uid, const char *name,
                        const char **ret_node)
{
    if (!all_heard(names))
        return ERR_AGAIN;
    struct store_name *s = find(names, uid, name);
    const struct agent *holder = s ? agent_find(names->jobs, s->node) : NULL;
    if (s && (!holder || holder->state == AGENT_LOST)) {
        close_everywhere(names, s);
        s = NULL;
    }
    err_t err = s ? OK : add(names, asks, uid, name);
    if (!err)
        *ret_node = s ? s->node : asks->name;
    return err;
}

err_t store_names_close(struct store_names *names, uint32_t uid, const char *name)
{
    struct store_name *s = find(names, uid, name);
    if (!s)
        return ERR_NOTFOUND;
    log_info("store closed store=%s uid=%u node=%s", name, (unsigned)uid, s->node);
    close_everywhere(names, s);
    return OK;
}

/* ---- nodes that come and go ---- */

static void forget_those_of(struct store_names *names, const char *node)
{
    struct store_name *s, *next;
    for (s = SLIST_FIRST(&names->names); s; s = next) {
        next = SLIST_NEXT(s, link);
        if (strcmp(s->node, node) == 0)
            forget(names, s);
    }
}

void store_names_said(struct store_names *names, struct agent *a, const struct store_said *said, int count)
{
    forget_those_of(names, a->name);
    for (int i = 0; i < count; i++) {
        const struct store_name *other = find(names, said[i].uid, said[i].name);
        if (other || add(names, a, said[i].uid, said[i].name)) {
            log_warn("store closed, its name is another node's store=%s node=%s", said[i].name, a->name);
            close_on(names, a, said[i].uid, said[i].name);
        }
    }
}

void store_names_lost(struct store_names *names, const struct agent *a)
{
    struct store_name *s, *next;
    for (s = SLIST_FIRST(&names->names); s; s = next) {
        next = SLIST_NEXT(s, link);
        if (strcmp(s->node, a->name) == 0)
            close_everywhere(names, s);
    }
}

void store_names_begin(struct store_names *names)
{
    const struct stores_entry *e;
    LIST_FOREACH(e, &names->stores->open, link)
    if (e->server && stores_name_is_legal(e->name) && add(names, &names->jobs->self, e->uid, e->name))
        log_error("store without a name, no memory store=%s", e->name);
}

void store_names_end(struct store_names *names)
{
    while (!SLIST_EMPTY(&names->names))
        forget(names, SLIST_FIRST(&names->names));
}
