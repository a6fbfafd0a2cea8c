/* How much of each node is used: cores, memory, load, what is low. A node measures itself with its health check, every
 * few seconds, and reports it to the leader, which answers clients. It is for people only: no decision depends on it.
 */
#include "daemon/control/rpc/adapters.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void take_warning(struct node_view_use *use, const char *text)
{
    size_t n = strnlen(text, sizeof(use->warning) - 1);
    memcpy(use->warning, text, n);
    use->warning[n] = '\0';
}

static void measure(const struct rpc_server *server, struct node_view_use *ret)
{
    char warning[2500];
    const struct health *h = &server->local->health;
    rpc_client_warning(server, warning, sizeof(warning));
    *ret = (struct node_view_use){.known = true,
                                  .cores = h->cores,
                                  .memory_bytes = h->memory_size,
                                  .memory_free = h->memory_free,
                                  .load = h->load};
    take_warning(ret, warning);
}

void rpc_use_tick(struct rpc_server *server)
{
    struct node_view_use *own = &server->jobs->self.use;
    if (server->use_checks == server->local->health.checks)
        return;
    server->use_checks = server->local->health.checks;
    measure(server, own);
    if (server->jobs->leads)
        return;
    Dtd__AgentUse m = DTD__AGENT_USE__INIT;
    m.has_cores = own->cores > 0;
    m.cores = (uint32_t)own->cores;
    m.has_memory_bytes = own->memory_bytes >= 0;
    m.memory_bytes = own->memory_bytes;
    m.has_memory_free_bytes = own->memory_free >= 0;
    m.memory_free_bytes = own->memory_free;
    m.has_load = isfinite(own->load);
    m.load = own->load;
    m.warning = own->warning[0] ? own->warning : NULL;
    rpc_node_use(server, &m);
}

void rpc_use_take(struct node_view *a, const Dtd__AgentUse *m)
{
    a->use = (struct node_view_use){.known = true,
                                    .cores = m->has_cores && m->cores < 1u << 20 ? (int)m->cores : 0,
                                    .memory_bytes = m->has_memory_bytes ? m->memory_bytes : -1,
                                    .memory_free = m->has_memory_free_bytes ? m->memory_free_bytes : -1,
                                    .load = m->has_load ? m->load : NAN};
    take_warning(&a->use, m->warning ? m->warning : "");
}

void rpc_use_fill(const struct node_view *a, Dtd__NodeUse *ret)
{
    const struct node_view_use *use = &a->use;
    dtd__node_use__init(ret);
    ret->has_slots = ret->has_slots_used = true;
    ret->slots = a->slots;
    ret->slots_used = a->used;
    ret->has_gpus = ret->has_gpus_free = a->gpus->known;
    ret->gpus = gpus_count(a->gpus);
    ret->gpus_free = gpus_free(a->gpus);
    if (!use->known)
        return;
    ret->has_cores = use->cores > 0;
    ret->cores = (uint32_t)use->cores;
    ret->has_memory_bytes = use->memory_bytes >= 0;
    ret->memory_bytes = use->memory_bytes;
    ret->has_memory_free_bytes = use->memory_free >= 0;
    ret->memory_free_bytes = use->memory_free;
    ret->has_load = isfinite(use->load);
    ret->load = use->load;
    ret->warning = use->warning[0] ? (char *)use->warning : NULL;
}
