/* The log keeps the order of proposals, and answers them in this order. When it refuses one, or a proposal ends with
 * ERR_CANCELED, those after it end so, too; then nothing is proposed until all have ended, and what was not applied is
 * proposed again, from the first. A proposal that ended with ERR_CANCELED may have been applied: every record may be
 * applied twice without harm, and because all later ones follow again, so may a sequence of them. */
#include "daemon/control/state/outbox.h"

#include "common/base/log.h"

#include <stdlib.h>

#define MAX_ITEMS 65536

struct outbox_item {
    struct outbox_item *next;
    struct buf bytes;
    uint64_t job;
    outbox_cb cb;
};

void outbox_init(struct outbox *o, const struct replica *replica, void *owner)
{
    *o = (struct outbox){.replica = replica, .owner = owner};
    o->tail = &o->head;
}

static void drop_head(struct outbox *o)
{
    struct outbox_item *item = o->head;
    o->head = item->next;
    if (!o->head)
        o->tail = &o->head;
    o->n--;
    buf_fini(&item->bytes);
    free(item);
}

void outbox_fini(struct outbox *o)
{
    while (o->head)
        drop_head(o);
}

static void proposed(void *arg, err_t err, uint64_t index, const void *result);

void outbox_retry(struct outbox *o)
{
    while (o->next && !o->is_failing && o->n_flight < OUTBOX_WINDOW && o->replica->log) {
        struct outbox_item *item = o->next;
        err_t err = log_propose(o->replica->log, item->bytes.data, item->bytes.len, proposed, o);
        if (err && err != o->err)
            log_warn("records are waiting for the log n=%d error=%s", o->n, err_text(err));
        o->err = err;
        if (err)
            return;
        o->next = item->next;
        o->n_flight++;
    }
}

/* The answer to the oldest proposal. */
static void proposed(void *arg, err_t err, uint64_t index, const void *result)
{
    struct outbox *o = arg;
    o->n_flight--;
    o->is_failing = o->is_failing || err;
    o->err = err;
    if (o->is_failing) {
        o->is_failing = o->n_flight > 0;
        o->next = o->head;
        return; /* the timer of control tries again */
    }
    outbox_cb cb = o->head->cb;
    uint64_t job = o->head->job;
    const struct state_result answer = *(const struct state_result *)result;
    drop_head(o);
    if (cb)
        cb(o->owner, job, &answer);
    outbox_retry(o);
}

err_t outbox_add(struct outbox *o, const struct record *record, outbox_cb cb)
{
    if (o->n == MAX_ITEMS)
        return ERR_LIMIT;
    struct outbox_item *item = calloc(1, sizeof(*item));
    if (!item)
        return ERR_NOMEM;
    item->job = record->job;
    item->cb = cb;
    err_t err = replica_encode(o->replica, record, &item->bytes);
    if (err) {
        buf_fini(&item->bytes);
        free(item);
        return err;
    }
    *o->tail = item;
    o->tail = &item->next;
    o->next = o->next ? o->next : item;
    o->n++;
    outbox_retry(o);
    return OK;
}
