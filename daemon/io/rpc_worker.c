/* Adapter: converts the messages of workers to and from plain structs. It checks the contents of each message: numbers
 * of dimensions, types, and lengths that must agree. */
#include "daemon/io/io.h"

#include "proto/io.pb-c.h"

#include <math.h>
#include <openssl/crypto.h>
#include <stdlib.h>
#include <string.h>

static int slot_of(struct rpc_call *call)
{
    struct rpc_conn *conn = rpc_call_conn(call);
    const struct io_conn *c = conn ? rpc_conn_data(conn) : NULL;
    return c ? c->slot : -1;
}

static struct io_request *request_new(struct rpc_call *call, enum io_request_kind kind)
{
    struct io_request *r = calloc(1, sizeof(*r));
    if (!r) {
        rpc_fail(call, ERR_NOMEM, "out of memory");
        return NULL;
    }
    r->kind = kind;
    r->call = call;
    r->slot = slot_of(call);
    return r;
}

static void request_refuse(struct io_request *r, err_t err, const char *text)
{
    rpc_fail(r->call, err, "%s", text);
    r->call = NULL;
    io_request_free(r);
}

/* ---- Hello ---- */

void rpc_worker_hello(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct io *io = owner;
    const Dtd__IoHello *h = (const Dtd__IoHello *)request;
    struct io_request *r = request_new(call, IO_REQUEST_HELLO);
    if (!r)
        return;
    struct rpc_conn *conn = rpc_call_conn(call);
    bool token = h->token.len == TICKET_TOKEN_BYTES &&
                 CRYPTO_memcmp(h->token.data, io->ticket.io_token, TICKET_TOKEN_BYTES) == 0;
    if (!token || strcmp(h->job, io->job) != 0 || h->slot < 0 || h->slot >= io->ticket.slots) {
        request_refuse(r, ERR_DENIED, "the token is not the token of a worker of this job");
        if (conn)
            rpc_conn_finish(conn);
        return;
    }
    r->slot = h->slot;
    io_take(io, r);
}

void rpc_worker_hello_done(struct rpc_call *call)
{
    Dtd__Empty empty = DTD__EMPTY__INIT;
    rpc_reply(call, &empty.base);
}

/* ---- pieces and values ---- */

static bool piece_take(const Dtd__Piece *m, struct ckpt_piece *p, uint64_t *offset)
{
    size_t n = m->n_shape;
    if (n > BOX_MAX_DIMS || m->box->n_offset != n || m->box->n_size != n || m->arena_offset < 0 ||
        !dtype_bytes((enum dtype)m->dtype))
        return false;
    *p = (struct ckpt_piece){.fqn = strdup(m->fqn), .dtype = (enum dtype)m->dtype, .ndim = (int)n, .box.ndim = (int)n};
    for (size_t d = 0; d < n; d++) {
        p->shape[d] = m->shape[d];
        p->box.offset[d] = m->box->offset[d];
        p->box.size[d] = m->box->size[d];
    }
    *offset = (uint64_t)m->arena_offset;
    return p->fqn;
}

static bool pieces_take(struct io_request *r, Dtd__Piece *const *m, size_t n)
{
    r->pieces = calloc(n + 1, sizeof(*r->pieces));
    r->arena_offsets = calloc(n + 1, sizeof(*r->arena_offsets));
    if (!r->pieces || !r->arena_offsets)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!piece_take(m[i], &r->pieces[r->n_pieces++], &r->arena_offsets[i]))
            return false;
    return true;
}

static bool scalar_take(const Dtd__Scalar *m, struct ckpt_scalar *s)
{
    s->fqn = strdup(m->fqn);
    s->kind = m->has_i         ? CKPT_INT
              : m->has_f       ? CKPT_FLOAT
              : m->has_b       ? CKPT_BOOL
              : m->s           ? CKPT_STR
              : m->n_pair == 2 ? CKPT_FLOAT_PAIR
                               : CKPT_NONE;
    s->i = m->has_i ? m->i : m->b;
    s->f[0] = m->n_pair == 2 ? m->pair[0] : m->f;
    s->f[1] = m->n_pair == 2 ? m->pair[1] : 0;
    s->s = m->s ? strdup(m->s) : NULL;
    return s->fqn && (s->s || !m->s);
}

static bool scalars_take(struct io_request *r, Dtd__Scalar *const *m, size_t n)
{
    r->scalars = calloc(n + 1, sizeof(*r->scalars));
    if (!r->scalars)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!scalar_take(m[i], &r->scalars[r->n_scalars++]))
            return false;
    return true;
}

/* ---- Save ---- */

void rpc_worker_save(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__SaveRequest *m = (const Dtd__SaveRequest *)request;
    struct io_request *r = request_new(call, IO_REQUEST_SAVE);
    if (!r)
        return;
    r->epoch = m->epoch;
    r->step = m->step;
    r->rank = m->rank;
    r->world = m->world;
    r->loss = m->has_loss ? m->loss : (double)NAN;
    if (!pieces_take(r, m->piece, m->n_piece) || !scalars_take(r, m->scalar, m->n_scalar)) {
        request_refuse(r, ERR_INVALID, "a piece of the save has an invalid type, shape or box");
        return;
    }
    io_take(owner, r);
}

void rpc_worker_event(struct rpc_call *call, bool committed)
{
    Dtd__SaveEvent e = DTD__SAVE_EVENT__INIT;
    e.kind = committed ? DTD__SAVE_EVENT__KIND__COMMITTED : DTD__SAVE_EVENT__KIND__WRITTEN;
    err_t err = rpc_item(call, &e.base);
    if (err && err != ERR_CANCELED)
        rpc_conn_close(rpc_call_conn(call)); /* no event may get lost: the worker reconnects and repeats its save */
}

/* ---- Load ---- */

static bool names_take(struct io_request *r, char *const *names, size_t n)
{
    r->names = calloc(n + 1, sizeof(*r->names));
    for (size_t i = 0; r->names && i < n; i++)
        if (!(r->names[r->n_names++] = strdup(names[i])))
            return false;
    return r->names;
}

void rpc_worker_load(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__LoadRequest *m = (const Dtd__LoadRequest *)request;
    struct io_request *r = request_new(call, IO_REQUEST_LOAD);
    if (!r)
        return;
    if (m->path[0] != '/') {
        request_refuse(r, ERR_INVALID, "the path of a step folder must be absolute");
        return;
    }
    r->path = strdup(m->path);
    if (!r->path || !pieces_take(r, m->piece, m->n_piece) || !names_take(r, m->scalar, m->n_scalar)) {
        request_refuse(r, ERR_INVALID, "a piece of the load has an invalid type, shape or box");
        return;
    }
    io_take(owner, r);
}

static void scalar_put(Dtd__Scalar *m, const struct ckpt_scalar *s, double pair[2])
{
    dtd__scalar__init(m);
    m->fqn = s->fqn;
    m->has_i = s->kind == CKPT_INT;
    m->i = s->i;
    m->has_f = s->kind == CKPT_FLOAT;
    m->f = s->f[0];
    m->has_b = s->kind == CKPT_BOOL;
    m->b = s->i != 0;
    m->s = s->kind == CKPT_STR ? s->s : NULL;
    pair[0] = s->f[0];
    pair[1] = s->f[1];
    m->pair = pair;
    m->n_pair = s->kind == CKPT_FLOAT_PAIR ? 2 : 0;
}

void rpc_worker_load_done(struct rpc_call *call, const struct ckpt_read_stats *stats, const struct ckpt_scalar *scalars,
                          int n_scalars)
{
    Dtd__LoadReply reply = DTD__LOAD_REPLY__INIT;
    size_t n = (size_t)n_scalars;
    Dtd__Scalar *values = calloc(n + 1, sizeof(*values)), **pointers = calloc(n + 1, sizeof(Dtd__Scalar *));
    double(*pairs)[2] = calloc(n + 1, sizeof(*pairs));
    if (values && pointers && pairs) {
        for (size_t i = 0; i < n; i++) {
            scalar_put(&values[i], &scalars[i], pairs[i]);
            pointers[i] = &values[i];
        }
        reply.bytes_needed = stats->bytes_needed;
        reply.bytes_read = stats->bytes_read;
        reply.scalar = pointers;
        reply.n_scalar = n;
        rpc_reply(call, &reply.base);
    } else {
        rpc_fail(call, ERR_NOMEM, "out of memory");
    }
    free(values);
    free(pointers);
    free(pairs);
}

/* ---- Stage ---- */

void rpc_worker_stage(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__StageRequest *m = (const Dtd__StageRequest *)request;
    struct io_request *r = request_new(call, IO_REQUEST_STAGE);
    if (!r)
        return;
    if (m->world < 1 || m->need_bytes < 0 || m->need_bytes > INT64_MAX / m->world) {
        request_refuse(r, ERR_INVALID, "the number of ranks or the memory of the worker is not legal");
        return;
    }
    r->epoch = m->epoch;
    r->world = m->world;
    r->need_bytes = m->need_bytes;
    io_take(owner, r);
}

void rpc_worker_stage_done(struct rpc_call *call, const struct io_copy *copy, const char *note)
{
    Dtd__StageReply reply = DTD__STAGE_REPLY__INIT;
    Dtd__StagedSet *sets = calloc((size_t)copy->n + 1, sizeof(*sets)),
                   **pointers = calloc((size_t)copy->n + 1, sizeof(Dtd__StagedSet *));
    for (int i = 0; sets && pointers && i < copy->n; i++) {
        dtd__staged_set__init(&sets[i]);
        sets[i].hash = copy->sets[i].hash;
        sets[i].offset = copy->sets[i].offset;
        pointers[i] = &sets[i];
    }
    reply.path = copy->fd >= 0 ? (char *)(uintptr_t)copy->path : NULL;
    reply.has_device = reply.has_inode = copy->fd >= 0;
    reply.device = copy->device;
    reply.inode = copy->inode;
    reply.has_bytes = true;
    reply.bytes = copy->bytes;
    reply.set = pointers;
    reply.n_set = (size_t)copy->n;
    reply.note = *note ? (char *)(uintptr_t)note : NULL;
    if (sets && pointers)
        rpc_reply(call, &reply.base);
    else
        rpc_fail(call, ERR_NOMEM, "out of memory");
    free(sets);
    free(pointers);
}
