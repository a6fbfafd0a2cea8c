/* The operations of a store. Lists of keys are served key by key as they arrive. MULTI_GET is the exception: its client
 * reads no answer before it has sent the last key. Earlier answers could fill both directions of the connection, and
 * neither side could continue. */
#include "daemon/store/server_internal.h"

#include <endian.h>
#include <string.h>

enum { READY = 0, NOT_READY = 1, STOP_WAITING = 0, WAIT_CANCELED = 1 };

static err_t answer_add(struct store_client *c, const void *data, size_t len)
{
    return bytebuf_add(&c->out, data, len);
}

static err_t answer_byte(struct store_client *c, uint8_t byte)
{
    return answer_add(c, &byte, sizeof(byte));
}

static err_t answer_number(struct store_client *c, uint64_t number)
{
    number = htole64(number);
    return answer_add(c, &number, sizeof(number));
}

static err_t answer_bytes(struct store_client *c, struct byte_view bytes)
{
    err_t err = bytebuf_reserve(&c->out, sizeof(uint64_t) + bytes.len);
    if (!err)
        err = answer_number(c, bytes.len);
    return err ? err : answer_add(c, bytes.data, bytes.len);
}

/* ---- values ---- */

static err_t serve_validate(struct store_client *c, const struct wire_request *r)
{
    (void)c, (void)r;
    return OK;
}

static err_t serve_ping(struct store_client *c, const struct wire_request *r)
{
    uint32_t nonce = htole32(r->nonce);
    c->pid = r->nonce;
    return answer_add(c, &nonce, sizeof(nonce));
}

static err_t serve_set(struct store_client *c, const struct wire_request *r)
{
    return table_set(c->server->table, r->key, r->value);
}

static err_t serve_append(struct store_client *c, const struct wire_request *r)
{
    return table_append(c->server->table, r->key, r->value);
}

static err_t serve_multi_set(struct store_client *c, const struct wire_request *r)
{
    return r->head ? OK : table_set(c->server->table, r->key, r->value);
}

static err_t serve_compare_set(struct store_client *c, const struct wire_request *r)
{
    struct byte_view now;
    err_t err = table_compare_set(c->server->table, r->key, r->value, r->desired, &now);
    return err ? err : answer_bytes(c, now);
}

static err_t serve_get(struct store_client *c, const struct wire_request *r)
{
    struct byte_view value = {NULL, 0};
    table_get(c->server->table, r->key, &value);
    return answer_bytes(c, value);
}

static err_t serve_add(struct store_client *c, const struct wire_request *r)
{
    int64_t sum;
    err_t err = table_add(c->server->table, r->key, r->number, &sum);
    return err ? err : answer_number(c, (uint64_t)sum);
}

static err_t serve_delete(struct store_client *c, const struct wire_request *r)
{
    return answer_number(c, table_delete(c->server->table, r->key));
}

static err_t serve_count(struct store_client *c, const struct wire_request *r)
{
    return answer_number(c, table_keys(c->server->table));
}

/* Cannot fail: the caller has reserved room for all keys. */
static void list_key(void *arg, struct byte_view key)
{
    err_t err = answer_bytes(arg, key);
    (void)err;
}

static err_t serve_list_keys(struct store_client *c, const struct wire_request *r)
{
    const struct store_table *t = c->server->table;
    size_t n = table_keys(t);
    err_t err = bytebuf_reserve(&c->out, (n + 1) * sizeof(uint64_t) + table_key_bytes(t));
    if (!err)
        err = answer_number(c, n);
    if (!err)
        table_each(t, list_key, c);
    return err;
}

/* ---- many values ---- */

static err_t serve_multi_get(struct store_client *c, const struct wire_request *r)
{
    const uint64_t len = r->key.len;
    err_t err = r->head ? OK : bytebuf_add(&c->asked, &len, sizeof(len));
    if (!err && !r->head)
        err = bytebuf_add(&c->asked, r->key.data, r->key.len);
    if (!err && !r->left)
        c->answering = true;
    return err ? err : serve_asked(c);
}

err_t serve_asked(struct store_client *c)
{
    while (c->answering && c->out.len - c->sent < STORE_OUTPUT_HIGH_BYTES) {
        if (c->asked_at == c->asked.len) {
            c->answering = false;
            c->asked_at = 0;
            bytebuf_clear(&c->asked, 1024);
            return OK;
        }
        uint64_t len;
        struct byte_view value = {NULL, 0};
        memcpy(&len, c->asked.data + c->asked_at, sizeof(len));
        const struct byte_view key = {c->asked.data + c->asked_at + sizeof(len), len};
        table_get(c->server->table, key, &value);
        err_t err = answer_bytes(c, value);
        if (err)
            return err;
        c->asked_at += sizeof(len) + len;
    }
    return OK;
}

/* ---- waiting ---- */

static err_t serve_check(struct store_client *c, const struct wire_request *r)
{
    if (r->head)
        c->all_there = true;
    else if (c->all_there)
        c->all_there = table_has(c->server->table, r->key);
    return r->left ? OK : answer_byte(c, c->all_there ? READY : NOT_READY);
}

static err_t serve_wait(struct store_client *c, const struct wire_request *r)
{
    struct store_table *t = c->server->table;
    err_t err = r->head ? table_wait_begin(t, &c->waiter) : table_wait_key(t, &c->waiter, r->key);
    if (err || r->left)
        return err;
    return table_wait_end(t, &c->waiter) ? answer_byte(c, STOP_WAITING) : OK;
}

static err_t serve_barrier(struct store_client *c, const struct wire_request *r)
{
    bool ready;
    err_t err = table_barrier(c->server->table, r->key, r->number, &c->waiter, &ready);
    if (err || !ready)
        return err;
    return answer_byte(c, STOP_WAITING);
}

err_t serve_woken(struct store_client *c)
{
    return answer_byte(c, STOP_WAITING);
}

/* Always answered, also when the wait ended first: the client then reads both answers. */
static err_t serve_cancel(struct store_client *c, const struct wire_request *r)
{
    table_wait_cancel(c->server->table, &c->waiter);
    return answer_byte(c, WAIT_CANCELED);
}

/* ---- queues ---- */

static err_t serve_push(struct store_client *c, const struct wire_request *r)
{
    return table_queue_push(c->server->table, r->key, r->value);
}

static err_t serve_pop(struct store_client *c, const struct wire_request *r)
{
    struct store_table *t = c->server->table;
    struct table_item *item;
    size_t n = table_queue_pop(t, r->key, &c->waiter, &item);
    err_t err = answer_number(c, n);
    if (!n)
        return err;
    if (!err)
        err = answer_bytes(c, (struct byte_view){item->bytes, item->len});
    table_item_free(t, item);
    return err;
}

static err_t serve_len(struct store_client *c, const struct wire_request *r)
{
    return answer_number(c, table_queue_len(c->server->table, r->key));
}

static err_t (*const serves[WIRE_OPS])(struct store_client *c, const struct wire_request *r) = {
    [WIRE_VALIDATE] = serve_validate,
    [WIRE_SET] = serve_set,
    [WIRE_COMPARE_SET] = serve_compare_set,
    [WIRE_GET] = serve_get,
    [WIRE_ADD] = serve_add,
    [WIRE_CHECK] = serve_check,
    [WIRE_WAIT] = serve_wait,
    [WIRE_GETNUMKEYS] = serve_count,
    [WIRE_DELETE_KEY] = serve_delete,
    [WIRE_APPEND] = serve_append,
    [WIRE_MULTI_GET] = serve_multi_get,
    [WIRE_MULTI_SET] = serve_multi_set,
    [WIRE_CANCEL_WAIT] = serve_cancel,
    [WIRE_PING] = serve_ping,
    [WIRE_QUEUE_PUSH] = serve_push,
    [WIRE_QUEUE_POP] = serve_pop,
    [WIRE_QUEUE_LEN] = serve_len,
    [WIRE_LIST_KEYS] = serve_list_keys,
    [WIRE_BARRIER] = serve_barrier,
};

err_t serve(struct store_client *c, const struct wire_request *r)
{
    struct store_server_stats *stats = &c->server->stats;
    if (!r->left) {
        stats->operations++;
        stats->by_op[r->op]++;
    }
    return serves[r->op](c, r);
}
