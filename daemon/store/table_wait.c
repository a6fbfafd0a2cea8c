/* Waits. A waiter counts its missing keys. Each missing key has a node in the key's list and in the waiter's list, so
 * that neither waking the waiters of a key nor cancelling a waiter has to look at any other waiter or key.
 *
 *   wait_begin -> wait_key .. -> wait_end -> (a key is set: satisfy) .. -> woken
 *                                        \-> wait_cancel
 *
 * A waiter that is woken by a queue item owes a pop of that item. If it cancels or closes instead, the next waiter is
 * woken; otherwise the item would stay in the queue while a client waits for it. */
#include "daemon/store/table_internal.h"

#include <assert.h>
#include <string.h>

/* ---- nodes ---- */

static struct table_waits *list_of(struct table_wait *node)
{
    return node->parked ? &node->entry->parked : &node->entry->waits;
}

static err_t add_node(struct store_table *t, struct table_waiter *w, struct table_entry *e, bool parked, int64_t world)
{
    struct table_wait *node = &w->first;
    if (node->entry) {
        void *p;
        err_t err = budget_alloc(t->budget, sizeof(*node), &p);
        if (err)
            return err;
        node = p;
    }
    *node = (struct table_wait){.entry = e, .waiter = w, .parked = parked, .world = world};
    TAILQ_INSERT_TAIL(list_of(node), node, of_entry);
    LIST_INSERT_HEAD(&w->waits, node, of_waiter);
    w->missing++;
    return OK;
}

static void drop_node(struct store_table *t, struct table_wait *node)
{
    struct table_waiter *w = node->waiter;
    TAILQ_REMOVE(list_of(node), node, of_entry);
    LIST_REMOVE(node, of_waiter);
    w->missing--;
    if (node == &w->first)
        node->entry = NULL;
    else
        budget_free(t->budget, node, sizeof(*node));
}

/* A missing key exists now. Returns true if it was the last one and the waiter has been woken. */
static bool satisfy(struct store_table *t, struct table_wait *node)
{
    struct table_waiter *w = node->waiter;
    drop_node(t, node);
    if (w->missing || w->collecting)
        return false;
    w->waiting = false;
    w->woken(w);
    return true;
}

void table_wake_present(struct store_table *t, struct table_entry *e)
{
    struct table_wait *node;
    while ((node = TAILQ_FIRST(&e->waits)))
        satisfy(t, node);
}

/* ---- owed pops ---- */

static void owe(struct table_waiter *w, struct table_entry *e)
{
    w->owes = e;
    LIST_INSERT_HEAD(&e->owed, w, of_owed);
}

static void settle(struct table_waiter *w)
{
    LIST_REMOVE(w, of_owed);
    w->owes = NULL;
}

/* Satisfies all nodes of the waiter for this entry: a wait may name a key twice. */
static bool satisfy_all(struct store_table *t, struct table_waiter *w, struct table_entry *e)
{
    bool woken = false;
    for (struct table_wait *node = LIST_FIRST(&w->waits), *next; node; node = next) {
        next = LIST_NEXT(node, of_waiter);
        if (node->entry == e)
            woken = satisfy(t, node);
    }
    return woken;
}

/* Wakes one waiter. A waiter that also waits for other keys no longer waits for this one, and the next is tried. */
static void wake_one(struct store_table *t, struct table_entry *e)
{
    struct table_wait *node;
    while ((node = TAILQ_FIRST(&e->waits))) {
        struct table_waiter *w = node->waiter;
        if (satisfy_all(t, w, e)) {
            owe(w, e);
            return;
        }
    }
}

/* The waiter does not pop the item that woke it: wakes the next waiter. */
static void pass_on(struct store_table *t, struct table_waiter *w)
{
    struct table_entry *e = w->owes;
    if (!e)
        return;
    settle(w);
    if (e->n_items)
        wake_one(t, e);
    table_free_if_empty(t, e);
}

/* ---- waits ---- */

err_t table_wait_begin(struct store_table *t, struct table_waiter *w)
{
    if (w->waiting)
        return ERR_PROTO;
    pass_on(t, w);
    w->waiting = w->collecting = true;
    return OK;
}

err_t table_wait_key(struct store_table *t, struct table_waiter *w, struct byte_view key)
{
    struct table_entry *e;
    assert(w->collecting);
    err_t err = table_find_or_make(t, key, &e);
    if (!err && !e->present && !e->n_items) {
        err = add_node(t, w, e, false, 0);
        table_free_if_empty(t, e);
    }
    if (err)
        table_wait_cancel(t, w);
    return err;
}

bool table_wait_end(struct store_table *t, struct table_waiter *w)
{
    (void)t;
    assert(w->collecting);
    w->collecting = false;
    w->waiting = w->missing > 0;
    return !w->waiting;
}

void table_wait_cancel(struct store_table *t, struct table_waiter *w)
{
    struct table_wait *node;
    while ((node = LIST_FIRST(&w->waits))) {
        struct table_entry *e = node->entry;
        drop_node(t, node);
        table_free_if_empty(t, e);
    }
    w->waiting = w->collecting = false;
    pass_on(t, w);
}

/* ---- queues ---- */

err_t table_queue_push(struct store_table *t, struct byte_view key, struct byte_view bytes)
{
    struct table_entry *e;
    void *p;
    err_t err = table_find_or_make(t, key, &e);
    if (err)
        return err;
    err = budget_alloc(t->budget, sizeof(struct table_item) + bytes.len, &p);
    if (err) {
        table_free_if_empty(t, e);
        return err;
    }
    struct table_item *item = p;
    item->len = bytes.len;
    if (bytes.len)
        memcpy(item->bytes, bytes.data, bytes.len);
    STAILQ_INSERT_TAIL(&e->items, item, link);
    e->n_items++;
    wake_one(t, e);
    return OK;
}

size_t table_queue_pop(struct store_table *t, struct byte_view key, struct table_waiter *w, struct table_item **ret)
{
    struct table_entry *e = table_find(t, key);
    if (!e)
        return 0;
    size_t n = e->n_items;
    if (n) {
        *ret = STAILQ_FIRST(&e->items);
        STAILQ_REMOVE_HEAD(&e->items, link);
        e->n_items--;
    }
    if (w->owes == e)
        settle(w);
    table_free_if_empty(t, e);
    return n;
}

size_t table_queue_len(const struct store_table *t, struct byte_view key)
{
    const struct table_entry *e = table_find(t, key);
    return e ? e->n_items : 0;
}

void table_item_free(struct store_table *t, struct table_item *item)
{
    budget_free(t->budget, item, sizeof(*item) + item->len);
}

/* ---- barriers ---- */

void table_wake_reached(struct store_table *t, struct table_entry *e)
{
    int64_t number;
    if (TAILQ_EMPTY(&e->parked) || !table_number(e, &number))
        return;
    for (struct table_wait *node = TAILQ_FIRST(&e->parked), *next; node; node = next) {
        next = TAILQ_NEXT(node, of_entry);
        if (node->world <= number)
            satisfy(t, node);
    }
}

static err_t park(struct store_table *t, struct table_entry *e, int64_t world, struct table_waiter *w)
{
    err_t err = add_node(t, w, e, true, world);
    w->waiting = !err;
    return err;
}

err_t table_barrier(struct store_table *t, struct byte_view key, int64_t world, struct table_waiter *w, bool *ret_ready)
{
    struct table_entry *e;
    int64_t count;
    struct table_wait *node;
    if (w->waiting)
        return ERR_PROTO;
    pass_on(t, w);
    err_t err = table_find_or_make(t, key, &e);
    if (err)
        return err;
    err = table_add_to(t, e, 1, &count);
    if (err) {
        table_free_if_empty(t, e);
        return err;
    }
    table_wake_present(t, e);
    *ret_ready = count >= world;
    if (!*ret_ready)
        return park(t, e, world, w);
    while ((node = TAILQ_FIRST(&e->parked)))
        satisfy(t, node);
    return OK;
}
