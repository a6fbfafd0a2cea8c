/* Calls from the interface to a backend. The plan guarantees valid arguments, so they are checked by assertions. A rank
 * must also create groups of which it is not a member, because all ranks number groups in the same order, but it must
 * not use them. */
#include "worker/comm/comm.h"

#include "common/base/module.h"
#include "worker/comm/backend.h"

#include <assert.h>
#include <string.h>

/* Backends that are linked in, and those that a module provides. A module is loaded when a job asks for it. */
static const struct {
    const char *name;
    const struct comm_backend *backend;
    const char *file, *symbol;
} backends[] = {
    {"shm", &comm_backend_shm, NULL, NULL},       {"stream", &comm_backend_stream, NULL, NULL},
    {"ucx", &comm_backend_ucx, NULL, NULL}, /* its wire is a module */
    {"staged", &comm_backend_staged, NULL, NULL}, {"nccl", NULL, "dtd-nccl.so", "dtd_nccl_module"},
};

static err_t load_module(const char *file, const char *symbol, const struct comm_backend **ret, struct why *why)
{
    void *address;
    err_t err = module_load(file, symbol, &address, why);
    if (err)
        return err;
    const struct comm_module *module = address;
    if (module->abi != COMM_MODULE_ABI)
        return why_set(why, ERR_UNSUPPORTED,
                       "%s has interface %d, this program needs %d: install both from one build of dtd", file,
                       module->abi, COMM_MODULE_ABI);
    *ret = module->backend;
    return OK;
}

static err_t find_backend(const char *name, const struct comm_backend **ret, struct why *why)
{
    for (size_t i = 0; i < sizeof(backends) / sizeof(backends[0]); i++) {
        if (strcmp(backends[i].name, name) != 0)
            continue;
        *ret = backends[i].backend;
        return *ret ? OK : load_module(backends[i].file, backends[i].symbol, ret, why);
    }
    return why_set(why, ERR_UNSUPPORTED, "no communication backend \"%s\"; there are shm, stream, ucx, staged and nccl",
                   name);
}

static bool is_one_node(const struct comm_config *config)
{
    for (int r = 1; config->node_of && r < config->world; r++)
        if (config->node_of[r] != config->node_of[0])
            return false;
    return true;
}

err_t comm_open(const struct comm_config *config, struct comm **ret, struct why *why)
{
    const struct comm_backend *backend = NULL;
    if (config->world < 1 || config->rank < 0 || config->rank >= config->world)
        return why_set(why, ERR_INVALID, "rank %d of %d does not exist", config->rank, config->world);
    err_t err = find_backend(config->backend, &backend, why);
    assert(err || backend);
    if (!err && backend == &comm_backend_shm && !is_one_node(config))
        return why_set(why, ERR_UNSUPPORTED,
                       "run.comm shm works within one node, but the workers are on several: use stream or auto");
    return err ? err : backend->open(config, ret, why);
}

void comm_close(struct comm *c)
{
    if (c)
        c->backend->close(c);
}

void comm_abort(struct comm *c)
{
    c->backend->abort(c);
}

void *comm_shared(struct comm *c)
{
    return c->backend->shared(c);
}

const char *comm_why(const struct comm *c)
{
    return c->why.text;
}

const char *comm_note(const struct comm *c)
{
    return c->note;
}

int64_t comm_bytes_moved(const struct comm *c)
{
    return c->bytes_moved;
}

err_t comm_group_new(struct comm *c, const int *ranks, int n, struct comm_group **ret)
{
    int me = -1;
    for (int i = 0; i < n; i++) {
        assert(ranks[i] >= 0 && ranks[i] < c->world && (i == 0 || ranks[i] > ranks[i - 1]));
        if (ranks[i] == c->rank)
            me = i;
    }
    return c->backend->group_new(c, ranks, n, me, ret);
}

void comm_group_free(struct comm_group *g)
{
    if (g)
        g->comm->backend->group_free(g);
}

/* ---- byte counters ---- */

int64_t comm_group_bytes(const struct comm_group *g)
{
    return g->bytes;
}

/* Called after a collective; returns its error `err`. */
static err_t count(struct comm_group *g, err_t err, int64_t elements, enum dtype dtype)
{
    int64_t bytes = err ? 0 : elements * (int64_t)dtype_bytes(dtype);
    g->bytes += bytes;
    g->comm->bytes_moved += bytes;
    return err;
}

static int64_t slice(const struct comm_group *g, int64_t n)
{
    return n * (g->me + 1) / g->n - n * g->me / g->n;
}

static int64_t sum_of_others(const struct comm_group *g, const int64_t *counts)
{
    int64_t sum = 0;
    for (int i = 0; i < g->n; i++)
        sum += i == g->me ? 0 : counts[i];
    return sum;
}

/* ---- collectives ---- */

static struct why *free_why(struct comm *c)
{
    return c->why.text[0] ? NULL : &c->why;
}

static err_t unsupported(struct comm_group *g, const char *what, const char *instead)
{
    return why_set(free_why(g->comm), ERR_UNSUPPORTED, "backend \"%s\" has no %s: %s", g->comm->backend->name, what,
                   instead);
}

static void check_sum(const struct comm_group *g, enum dtype dtype)
{
    assert(g->me >= 0);
    assert(dtype == DT_F32 || dtype == DT_F64 || dtype == DT_I32 || dtype == DT_I64 || dtype == DT_BF16);
}

err_t comm_all_reduce(struct comm_group *g, struct kern_stream *s, void *x, int64_t n, enum dtype dtype,
                      enum reduce_op op)
{
    assert(n >= 0);
    check_sum(g, dtype);
    err_t err = g->comm->backend->all_reduce(g, s, x, n, dtype, op);
    return count(g, err, (g->n - 2) * slice(g, n) + n, dtype);
}

err_t comm_all_gather(struct comm_group *g, struct kern_stream *s, const void *src, void *dst, const int64_t *counts,
                      enum dtype dtype)
{
    assert(g->me >= 0 && dtype_bytes(dtype));
    return count(g, g->comm->backend->all_gather(g, s, src, dst, counts, dtype), sum_of_others(g, counts), dtype);
}

err_t comm_reduce_scatter(struct comm_group *g, struct kern_stream *s, const void *src, void *dst,
                          const int64_t *counts, enum dtype dtype, enum reduce_op op)
{
    check_sum(g, dtype);
    err_t err = g->comm->backend->reduce_scatter(g, s, src, dst, counts, dtype, op);
    return count(g, err, (g->n - 1) * counts[g->me], dtype);
}

err_t comm_broadcast(struct comm_group *g, struct kern_stream *s, void *x, int64_t bytes, int root)
{
    assert(g->me >= 0 && root >= 0 && root < g->n && bytes >= 0);
    return count(g, g->comm->backend->broadcast(g, s, x, bytes, root), g->me == root ? 0 : bytes, DT_U8);
}

/* ---- units ---- */

static bool parts_are_good(const struct comm_group *g, const struct comm_part *parts, int n)
{
    for (int k = 0; k < n; k++) {
        if (parts[k].local < 0 || parts[k].piece < 0)
            return false;
        for (int i = 0; i < g->n; i++)
            if (parts[k].counts[i] < 0)
                return false;
    }
    return n >= 0;
}

err_t comm_unit_gather(struct comm_group *g, struct kern_stream *s, const void *pieces, void *local,
                       const struct comm_part *parts, int n, enum dtype dtype)
{
    int64_t others = 0;
    assert(g->me >= 0 && dtype_bytes(dtype) && parts_are_good(g, parts, n));
    if (!g->comm->backend->unit_gather)
        return unsupported(g, "gathers of units", "use parallel.zero 0");
    for (int k = 0; k < n; k++)
        others += sum_of_others(g, parts[k].counts);
    return count(g, g->comm->backend->unit_gather(g, s, pieces, local, parts, n, dtype), others, dtype);
}

err_t comm_unit_scatter(struct comm_group *g, struct kern_stream *s, const void *local, void *pieces,
                        const struct comm_part *parts, int n, enum dtype dtype, bool add)
{
    int64_t own = 0;
    check_sum(g, dtype);
    assert(parts_are_good(g, parts, n));
    if (!g->comm->backend->unit_scatter)
        return unsupported(g, "scatters of units", "use parallel.zero 0");
    for (int k = 0; k < n; k++)
        own += parts[k].counts[g->me];
    err_t err = g->comm->backend->unit_scatter(g, s, local, pieces, parts, n, dtype, add);
    return count(g, err, (g->n - 1) * own, dtype);
}

err_t comm_barrier(struct comm_group *g)
{
    assert(g->me >= 0);
    return g->comm->backend->barrier(g);
}

err_t comm_agree(struct comm_group *g, int64_t *x, enum reduce_op op)
{
    assert(g->me >= 0 && op != REDUCE_AVG);
    return g->comm->backend->agree(g, x, op);
}

err_t comm_tree_reduce(struct comm_group *g, const struct comm_tree_node *mine, int n_mine, int64_t n_leaves, void *out,
                       int64_t n, enum dtype dtype)
{
    assert(g->me >= 0 && n_leaves >= 1 && (dtype == DT_F32 || dtype == DT_F64));
    if (!g->comm->backend->tree_reduce)
        return ERR_UNSUPPORTED;
    err_t err = g->comm->backend->tree_reduce(g, mine, n_mine, n_leaves, out, n, dtype);
    return count(g, err, (n_mine + 1) * (n - slice(g, n)), dtype);
}

/* ---- all-to-all and messages ---- */

#define NO_MESSAGES "choose a layout without expert, pipeline and ring parallelism"

err_t comm_all_to_all(struct comm_group *g, struct kern_stream *s, const void *src, const int64_t *send_counts,
                      void *dst, const int64_t *recv_counts, enum dtype dtype)
{
    assert(g->me >= 0 && send_counts[g->me] == recv_counts[g->me]);
    if (!g->comm->backend->all_to_all)
        return unsupported(g, "all-to-all", NO_MESSAGES);
    err_t err = g->comm->backend->all_to_all(g, s, src, send_counts, dst, recv_counts, dtype);
    return count(g, err, sum_of_others(g, recv_counts), dtype);
}

static bool is_peer(const struct comm_group *g, int index)
{
    return g->me >= 0 && index >= 0 && index < g->n && index != g->me;
}

/* Reserves a slot; ERR_LIMIT when `most` slots are in use. */
static err_t take_slot(struct comm *c, int most, struct comm_post *ret)
{
    struct comm_slots *t = &c->slots;
    int slot = 0;
    if (t->n >= most)
        return ERR_LIMIT;
    while (t->serial[slot])
        slot++;
    t->last += t->last == UINT32_MAX ? 2 : 1; /* never 0 */
    t->serial[slot] = t->last;
    t->n++;
    *ret = (struct comm_post){slot, t->last};
    return OK;
}

static void leave_slot(struct comm *c, struct comm_post post)
{
    c->slots.serial[post.slot] = 0;
    c->slots.n--;
}

static err_t post_send(struct comm_group *g, struct kern_stream *s, const void *src, int64_t bytes, int to, int most,
                       struct comm_post *ret)
{
    struct comm *c = g->comm;
    struct comm_post post;
    assert(is_peer(g, to) && bytes >= 0);
    if (!c->backend->send_post)
        return unsupported(g, "messages", NO_MESSAGES);
    err_t err = take_slot(c, most, &post);
    if (err)
        return err;
    c->slots.received[post.slot] = 0;
    err = c->backend->send_post(g, s, src, bytes, to, post.slot);
    if (err)
        leave_slot(c, post);
    else
        *ret = post;
    return err;
}

static err_t post_recv(struct comm_group *g, struct kern_stream *s, void *dst, int64_t bytes, int from, int most,
                       struct comm_post *ret)
{
    struct comm *c = g->comm;
    struct comm_post post;
    assert(is_peer(g, from) && bytes >= 0);
    if (!c->backend->recv_post)
        return unsupported(g, "messages", NO_MESSAGES);
    err_t err = take_slot(c, most, &post);
    if (err)
        return err;
    c->slots.received[post.slot] = bytes;
    err = c->backend->recv_post(g, s, dst, bytes, from, post.slot);
    if (err)
        leave_slot(c, post);
    else
        *ret = post;
    return err;
}

err_t comm_send_post(struct comm_group *g, struct kern_stream *s, const void *src, int64_t bytes, int to,
                     struct comm_post *ret)
{
    return post_send(g, s, src, bytes, to, COMM_POSTS, ret);
}

err_t comm_recv_post(struct comm_group *g, struct kern_stream *s, void *dst, int64_t bytes, int from,
                     struct comm_post *ret)
{
    return post_recv(g, s, dst, bytes, from, COMM_POSTS, ret);
}

err_t comm_push(struct comm *c)
{
    return c->backend->push ? c->backend->push(c) : OK;
}

/* The slot is free after the wait even if that fails: the comm is dead then. */
err_t comm_wait(struct comm_group *g, struct comm_post post)
{
    struct comm *c = g->comm;
    assert(post.slot >= 0 && post.slot < COMM_SLOTS && post.serial && c->slots.serial[post.slot] == post.serial);
    err_t err = c->backend->wait(g, post.slot);
    leave_slot(c, post);
    return count(g, err, c->slots.received[post.slot], DT_U8);
}

err_t comm_send(struct comm_group *g, struct kern_stream *s, const void *src, int64_t bytes, int to)
{
    struct comm_post post = {0};
    err_t err = post_send(g, s, src, bytes, to, COMM_SLOTS, &post);
    return err ? err : comm_wait(g, post);
}

err_t comm_recv(struct comm_group *g, struct kern_stream *s, void *dst, int64_t bytes, int from)
{
    struct comm_post post = {0};
    err_t err = post_recv(g, s, dst, bytes, from, COMM_SLOTS, &post);
    return err ? err : comm_wait(g, post);
}

err_t comm_sendrecv(struct comm_group *g, struct kern_stream *s, const void *src, int64_t send_bytes, int to, void *dst,
                    int64_t recv_bytes, int from)
{
    struct comm_post out = {0}, in = {0};
    if (!g->comm->backend->send_post)
        return unsupported(g, "messages", NO_MESSAGES);
    if (to == g->me && from == g->me) {
        assert(send_bytes == recv_bytes);
        return g->comm->backend->copy(g, s, dst, src, send_bytes);
    }
    err_t err = post_recv(g, s, dst, recv_bytes, from, COMM_SLOTS, &in);
    if (err)
        return err;
    err = post_send(g, s, src, send_bytes, to, COMM_SLOTS, &out);
    err = err ? err : comm_wait(g, out);
    err_t last = comm_wait(g, in);
    return err ? err : last;
}
