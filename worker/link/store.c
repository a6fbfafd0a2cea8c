/* The rendezvous store: implements comm_store (worker/comm) by calls to control.
 *
 * A put stays in the list until the next epoch and is sent again after every Hello, because a control that has
 * restarted has an empty store. A get stays in the list while its caller waits. An operation whose caller has returned
 * is `dropped`: it is no longer in the list, and its reply frees it. link.mu protects all fields except `sent`, which
 * belongs to the loop thread. */
#include "worker/link/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/methods.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define KEY_MAX 128
#define VALUE_MAX 4096
#define PUTS_IN_FLIGHT 64
#define PUT_TIMEOUT_MS 30000 /* for a control that is connected and does not answer */
/* A get waits this much longer than its deadline for control's reply, whose timeout message names more details. */
#define GRACE_MS 2000

struct store_op {
    struct store_op *next;
    struct link *link;
    bool put, sent, in_flight, done, dropped;
    char key[KEY_MAX + 1];
    uint8_t value[VALUE_MAX];
    size_t bytes;
    uint64_t epoch;
    int64_t deadline_ms; /* only for a get */
    err_t err;
    struct why why;
};

/* ---- loop thread: requests and replies ---- */

static void op_set_value(struct store_op *op, const Dtd__StoreValue *v)
{
    if (v->value.len > VALUE_MAX) {
        op->err = why_set(&op->why, ERR_PROTO, "control's value for %s has %zu bytes", op->key, v->value.len);
        return;
    }
    memcpy(op->value, v->value.data, v->value.len);
    op->bytes = v->value.len;
}

static void op_complete(struct store_op *op, const struct rpc_result *result)
{
    if (op->done) { /* the reply to a repeated put */
        if (result->err)
            log_warn("store_put_not_repeated key=%s error=%s text=\"%s\"", op->key, err_name(result->err),
                     result->text);
        return;
    }
    op->done = true;
    op->err = result->err == ERR_STALE ? ERR_CANCELED : result->err;
    if (op->err)
        why_set(&op->why, op->err, "%s",
                *result->text ? result->text : "control did not answer; see its log, control.log");
    else if (!op->put)
        op_set_value(op, (const Dtd__StoreValue *)(const void *)result->reply);
}

static void on_store_reply(void *arg, const struct rpc_result *result)
{
    struct store_op *op = arg;
    struct link *l = op->link;
    pthread_mutex_lock(&l->mu);
    op->in_flight = false;
    l->puts_in_flight -= op->put;
    if (op->dropped)
        free(op);
    else if (result->err != ERR_CLOSED) /* otherwise it is sent again after the next Hello */
        op_complete(op, result);
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->mu);
    if (result->err != ERR_CLOSED)
        link_store_flush(l);
}

static err_t send_put(struct rpc_conn *conn, struct store_op *op)
{
    Dtd__StorePutRequest m = DTD__STORE_PUT_REQUEST__INIT;
    m.epoch = op->epoch;
    m.key = op->key;
    m.value = (ProtobufCBinaryData){op->bytes, op->value};
    return rpc_send(conn, WORKER_STORE_PUT, &m.base, PUT_TIMEOUT_MS, on_store_reply, op, NULL);
}

static err_t send_get(struct rpc_conn *conn, struct store_op *op)
{
    Dtd__StoreGetRequest m = DTD__STORE_GET_REQUEST__INIT;
    int64_t left = op->deadline_ms - clock_mono_ms();
    m.epoch = op->epoch;
    m.key = op->key;
    m.timeout_ms = left <= 0 ? 0 : left > INT32_MAX ? INT32_MAX : (uint32_t)left;
    return rpc_send(conn, WORKER_STORE_GET, &m.base, 0, on_store_reply, op, NULL);
}

void link_store_flush(struct link *l)
{
    struct rpc_conn *conn = rpc_link_conn(l->control);
    if (!l->control_ready || !conn)
        return;
    pthread_mutex_lock(&l->mu);
    for (struct store_op *op = l->store_ops; op; op = op->next) {
        if (op->sent || (op->put && l->puts_in_flight >= PUTS_IN_FLIGHT))
            continue;
        if (op->put ? send_put(conn, op) : send_get(conn, op))
            break; /* retried after the next reply or the next Hello */
        op->sent = op->in_flight = true;
        l->puts_in_flight += op->put;
    }
    pthread_mutex_unlock(&l->mu);
}

void link_store_up(struct link *l)
{
    pthread_mutex_lock(&l->mu);
    for (struct store_op *op = l->store_ops; op; op = op->next)
        op->sent = op->in_flight || (op->done && !op->put);
    pthread_mutex_unlock(&l->mu);
    link_store_flush(l);
}

/* ---- compute thread ---- */

static void op_drop(struct link *l, struct store_op *op)
{
    struct store_op **at = &l->store_ops;
    while (*at != op)
        at = &(*at)->next;
    *at = op->next;
    op->dropped = true;
    if (!op->in_flight)
        free(op);
}

void link_store_forget(struct link *l)
{
    while (l->store_ops)
        op_drop(l, l->store_ops);
}

static bool is_valid_key(const char *key)
{
    for (const char *c = key; *c; c++)
        if (*c <= ' ' || *c > '~')
            return false;
    return *key && strlen(key) <= KEY_MAX;
}

static err_t op_new(struct link *l, const char *key, bool put, struct store_op **ret, struct why *why)
{
    if (!is_valid_key(key))
        return why_set(why, ERR_INVALID, "a key in the rendezvous store has 1 to %d visible ASCII characters", KEY_MAX);
    struct store_op *op = calloc(1, sizeof(*op));
    if (!op)
        return why_set(why, ERR_NOMEM, "out of memory");
    op->link = l;
    op->put = put;
    snprintf(op->key, sizeof(op->key), "%s", key);
    *ret = op;
    return OK;
}

/* Adds the operation to the current epoch's list and waits for its reply, until until_ms if that is not 0. Called with
 * mu held. */
static err_t op_run(struct link *l, struct store_op *op, int64_t until_ms, struct why *why)
{
    const struct timespec until = {until_ms / 1000, until_ms % 1000 * 1000000};
    struct store_op **at = &l->store_ops;
    int rc = 0;
    while (*at)
        at = &(*at)->next;
    *at = op;
    op->epoch = l->epoch;
    uv_async_send(&l->wake);
    while (!op->done && !atomic_load(&l->cancel) && rc == 0)
        rc = until_ms ? pthread_cond_timedwait(&l->changed, &l->mu, &until) : pthread_cond_wait(&l->changed, &l->mu);
    if (op->done)
        return op->err ? why_set(why, op->err, "%s", op->why.text) : OK;
    if (atomic_load(&l->cancel))
        return why_set(why, ERR_CANCELED, "the epoch ended during the %s of %s in the rendezvous store",
                       op->put ? "put" : "get", op->key);
    return why_set(why, ERR_TIMEOUT, "no rank has put %s in time, and control does not answer", op->key);
}

static err_t store_put(void *arg, const char *key, const void *value, size_t bytes, struct why *why)
{
    struct link *l = arg;
    struct store_op *op = NULL;
    if (bytes > VALUE_MAX)
        return why_set(why, ERR_INVALID, "a value in the rendezvous store has at most %d bytes, but %s has %zu",
                       VALUE_MAX, key, bytes);
    err_t err = op_new(l, key, true, &op, why);
    if (err)
        return err;
    assert(op);
    op->bytes = bytes;
    if (bytes)
        memcpy(op->value, value, bytes);
    pthread_mutex_lock(&l->mu);
    err = op_run(l, op, 0, why); /* if control is disconnected: waits until it returns or the orphan timer cancels */
    if (err)
        op_drop(l, op);
    pthread_mutex_unlock(&l->mu);
    return err;
}

static err_t store_get(void *arg, const char *key, int64_t timeout_ms, void *ret, size_t *ret_bytes, struct why *why)
{
    struct link *l = arg;
    struct store_op *op = NULL;
    err_t err = op_new(l, key, false, &op, why);
    if (err)
        return err;
    assert(op);
    op->deadline_ms = clock_mono_ms() + timeout_ms;
    pthread_mutex_lock(&l->mu);
    err = op_run(l, op, op->deadline_ms + GRACE_MS, why);
    if (!err && op->bytes > *ret_bytes)
        err = why_set(why, ERR_LIMIT, "the value of %s has %zu bytes, but the buffer has %zu", key, op->bytes,
                      *ret_bytes);
    if (!err) {
        memcpy(ret, op->value, op->bytes);
        *ret_bytes = op->bytes;
    }
    op_drop(l, op);
    pthread_mutex_unlock(&l->mu);
    return err;
}

const struct comm_store *link_store(struct link *l)
{
    return &l->store;
}

void link_store_init(struct link *l)
{
    l->store = (struct comm_store){l, store_put, store_get};
}
