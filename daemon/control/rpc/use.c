/* How much of each node jobs use, and what is wrong there, as the leader sees it. How busy the node itself is, it
 * measures and reports (local/load.c). */
#include "daemon/control/rpc/adapters.h"

#include <stdarg.h>
#include <stdio.h>

static void __attribute__((format(printf, 2, 3))) warn(struct node_use_message *use, const char *fmt, ...)
{
    char text[300];
    size_t len = strlen(use->warning);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    snprintf(use->warning + len, sizeof(use->warning) - len, "%s%s", len ? "; " : "", text);
}

/* Another node's warnings in full are those of `dtctl node` there. */
static void warn_of(const struct node_view *a, struct node_use_message *use)
{
    if (a->leaving)
        warn(use, "shuts down");
    if (a->log_warning[0])
        warn(use, "%s", a->log_warning);
    if (a->disk_full)
        warn(use, "its disk is full");
    for (int i = 0; i < a->gpus->n; i++)
        if (*gpus_sick(a->gpus, i))
            warn(use, "GPU %d %s", i, gpus_sick(a->gpus, i));
}

void rpc_use_fill(const struct rpc_server *server, const struct node_view *a, struct node_use_message *ret)
{
    Dtd__NodeUse *m = &ret->m;
    ret->warning[0] = '\0';
    if (a->is_self)
        rpc_client_warning(server, ret->warning, sizeof(ret->warning));
    else
        warn_of(a, ret);
    dtd__node_use__init(m);
    m->has_slots = m->has_slots_used = true;
    m->slots = a->slots;
    m->slots_used = a->used;
    m->has_gpus = m->has_gpus_free = a->gpus->known;
    m->gpus = gpus_count(a->gpus);
    m->gpus_free = gpus_free(a->gpus);
    m->warning = ret->warning[0] ? ret->warning : NULL;
}
