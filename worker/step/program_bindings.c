/* What a program needs besides memory: the communication groups of its ranks, its events, and the names of its actions
 * for a profiler. Everything is created before the first step. */
#include "worker/step/run.h"

#include "common/plan/exchange.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The training program's group of the same ranks. It serves both programs, because the number of groups is limited. */
static struct comm_group *borrowed_group(const struct engine *e, const struct program *p, const struct group *g)
{
    const struct program *train = &e->train;
    for (int i = 0; p != train && e->has_train && i < train->n_groups; i++)
        if (train->groups[i].n == g->n && !memcmp(train->groups[i].ranks, g->ranks, (size_t)g->n * sizeof(int)))
            return e->train_bindings.groups[i];
    return NULL;
}

/* Every rank has the same list and also creates groups that it is not a member of, because creating a group is
 * collective over all ranks. */
static err_t make_groups(struct engine *e, const struct program *p, struct program_bindings *r, struct why *why)
{
    int most = 1;
    r->groups = calloc((size_t)p->n_groups + 1, sizeof(struct comm_group *));
    r->borrowed = calloc((size_t)p->n_groups + 1, sizeof(*r->borrowed));
    for (int i = 0; i < p->n_groups; i++)
        most = p->groups[i].n > most ? p->groups[i].n : most;
    r->counts = calloc(2 * (size_t)most, sizeof(*r->counts));
    if (!r->groups || !r->borrowed || !r->counts)
        return why_set(why, ERR_NOMEM, "out of memory");
    for (int i = 0; e->comm && i < p->n_groups; i++) {
        r->groups[i] = borrowed_group(e, p, &p->groups[i]);
        r->borrowed[i] = r->groups[i];
        err_t err = r->groups[i] ? OK : comm_group_new(e->comm, p->groups[i].ranks, p->groups[i].n, &r->groups[i]);
        if (err)
            return why_set(why, err, "cannot create communication group %d of %d: %s", i, p->n_groups, err_text(err));
    }
    return OK;
}

/* The most elements of offsets that ranks exchange rows by. */
static int64_t most_offsets(const struct program *p)
{
    int64_t most = 0;
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_ARRIVE && p->ops[i].m.factor > most)
            most = p->ops[i].m.factor;
    return most;
}

/* One number for each layer and slot, and what ranks exchange there. */
static err_t make_arrived(struct engine *e, const struct program *p, struct program_bindings *r, struct why *why)
{
    int layers = 1;
    r->slots = 1;
    for (int i = 0; i < p->n_ops; i++)
        layers = p->ops[i].layer >= layers ? p->ops[i].layer + 1 : layers;
    for (int i = 0; i < p->n_actions; i++)
        r->slots = p->actions[i].slot >= r->slots ? p->actions[i].slot + 1 : r->slots;
    r->arrived = calloc((size_t)layers * (size_t)r->slots, sizeof(*r->arrived));
    if (!r->arrived)
        return why_set(why, ERR_NOMEM, "out of memory");
    r->offsets_each = most_offsets(p);
    r->offsets_bytes = (size_t)layers * (size_t)r->slots * (size_t)r->offsets_each * sizeof(*r->offsets);
    if (e->config.dev->ops->host_memory || !r->offsets_bytes)
        return OK;
    return dev_host_alloc(e->config.dev, r->offsets_bytes, "numbers of rows of experts", (void **)&r->offsets, why);
}

/* The plan of an exchange is made for each op that needs it. */
static err_t make_exchange(const struct engine *e, const struct program *p, struct program_bindings *r, struct why *why)
{
    const struct graph_cut cut = {.experts = true};
    int64_t experts = 0;
    for (int i = 0; i < e->config.graph->n_nodes; i++)
        experts = e->config.graph->nodes[i].op == GO_ROUTE ? e->config.graph->nodes[i].router.experts : experts;
    if (!p->sharding.ep.axes || !experts)
        return OK;
    r->exchange = calloc(STREAM_COUNT, sizeof(*r->exchange));
    err_t err = r->exchange ? OK : ERR_NOMEM;
    for (int s = 0; s < STREAM_COUNT && !err; s++)
        err = exchange_init(&r->exchange[s], sharding_parts(&p->sharding, &cut), experts);
    return err ? why_set(why, err, "out of memory") : OK;
}

/* Converts the units of ZeRO to the form that the comm takes. */
static err_t make_units(const struct program *p, struct program_bindings *r, struct why *why)
{
    r->units = calloc((size_t)p->n_units + 1, sizeof(*r->units));
    for (int u = 0; r->units && u < p->n_units; u++) {
        r->units[u] = calloc((size_t)p->units[u].n + 1, sizeof(**r->units));
        for (int i = 0; r->units[u] && i < p->units[u].n; i++)
            r->units[u][i] =
                (struct comm_part){p->units[u].parts[i].local, p->units[u].parts[i].piece, p->units[u].parts[i].counts};
        if (!r->units[u])
            return why_set(why, ERR_NOMEM, "out of memory");
    }
    return r->units ? OK : why_set(why, ERR_NOMEM, "out of memory");
}

static unsigned parts_read(const struct program *p, const struct action *a)
{
    unsigned reads = 0;
    for (int k = 0; k < a->n_ops; k++) {
        const struct op *op = &p->ops[a->first_op + k];
        for (int i = 0; i < OP_MAX_OPERANDS; i++)
            for (enum batch_part part = 0; part < BATCH_PARTS; part++)
                if (op->arg[i].buffer >= 0 && op->arg[i].buffer == batch_buffer(p, part))
                    reads |= 1u << part;
    }
    return reads;
}

/* The host fills the inputs of both forward and backward before a chunk's forward. */
static err_t find_reads(const struct program *p, struct program_bindings *r, struct why *why)
{
    int chunks = 1;
    for (int i = 0; i < p->n_actions; i++)
        chunks = p->actions[i].chunk >= chunks ? p->actions[i].chunk + 1 : chunks;
    r->reads = calloc((size_t)chunks, sizeof(*r->reads));
    if (!r->reads)
        return why_set(why, ERR_NOMEM, "out of memory");
    for (int i = 0; i < p->n_actions; i++)
        if (p->actions[i].micro >= 0)
            r->reads[p->actions[i].chunk] |= (uint8_t)parts_read(p, &p->actions[i]);
    return OK;
}

static err_t make_events(struct engine *e, const struct program *p, struct program_bindings *r, struct why *why)
{
    int n = p->n_events;
    r->events = calloc((size_t)n + 1, sizeof(struct dev_event *));
    r->tickets = calloc((size_t)n + 1, sizeof(*r->tickets));
    r->parts = calloc((size_t)n + 1, sizeof(*r->parts));
    if (!r->events || !r->tickets || !r->parts)
        return why_set(why, ERR_NOMEM, "out of memory");
    for (; r->n_events < n; r->n_events++) {
        err_t err = dev_event_new(e->config.dev, false, &r->events[r->n_events]);
        if (err)
            return why_set(why, err, "cannot create event %d of %d: %s", r->n_events, n, err_text(err));
    }
    return OK;
}

static err_t make_names(const struct program *p, struct program_bindings *r, struct why *why)
{
    r->ranges = calloc((size_t)p->n_actions + 1, sizeof(*r->ranges));
    if (!r->ranges)
        return why_set(why, ERR_NOMEM, "out of memory");
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        int number = a->micro >= 0 ? a->micro : a->unit;
        if (number >= 0)
            snprintf(r->ranges[i], sizeof(r->ranges[i]), "%s %d", action_name(a->kind), number);
        else
            snprintf(r->ranges[i], sizeof(r->ranges[i]), "%s", action_name(a->kind));
    }
    return OK;
}

static bool op_writes(const struct op *op, int buffer)
{
    const char *modes = op_operands(op->kind);
    for (int i = 0; buffer >= 0 && modes[i]; i++)
        if (op->arg[i].buffer == buffer && modes[i] != 'r')
            return true;
    return false;
}

static void find_streams(const struct program *p, struct program_bindings *r)
{
    for (int i = 0; i < p->n_actions; i++)
        for (int k = 0; !action_is_rare(p->actions[i].kind) && k < p->actions[i].n_ops; k++) {
            const struct op *op = &p->ops[p->actions[i].first_op + k];
            r->uses[op->stream] = true;
            if (op_writes(op, p->loss_buffer))
                r->loss_stream = op->stream;
            if (op_writes(op, p->clip_buffer))
                r->clip_stream = op->stream;
        }
    r->uses[STREAM_COMPUTE] = true; /* batches are copied on it */
}

err_t program_bindings_init(struct engine *e, const struct program *p, struct program_bindings *ret, struct why *why)
{
    find_streams(p, ret);
    err_t err = make_groups(e, p, ret, why);
    err = err ? err : make_arrived(e, p, ret, why);
    err = err ? err : make_exchange(e, p, ret, why);
    err = err ? err : make_units(p, ret, why);
    err = err ? err : find_reads(p, ret, why);
    err = err ? err : make_events(e, p, ret, why);
    return err ? err : make_names(p, ret, why);
}

void program_bindings_fini(struct engine *e, const struct program *p, struct program_bindings *r)
{
    for (int i = 0; r->groups && r->borrowed && i < p->n_groups; i++)
        if (!r->borrowed[i])
            comm_group_free(r->groups[i]);
    for (int u = 0; r->units && u < p->n_units; u++)
        free(r->units[u]);
    free(r->units);
    free(r->borrowed);
    free(r->counts);
    for (int s = 0; r->exchange && s < STREAM_COUNT; s++)
        exchange_fini(&r->exchange[s]);
    free(r->exchange);
    free(r->arrived);
    dev_host_free(e->config.dev, r->offsets, r->offsets_bytes);
    free(r->reads);
    for (int i = 0; i < r->n_events; i++)
        dev_event_free(e->config.dev, r->events[i]);
    free(r->groups);
    free(r->tickets);
    free(r->parts);
    free(r->events);
    free(r->ranges);
}
