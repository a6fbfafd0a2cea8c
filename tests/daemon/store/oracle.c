/* To find the waiter to wake, the oracle looks at all waiters in the order in which they started to wait. */
#include "tests/daemon/store/oracle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool oracle_has(const struct oracle *o, int key)
{
    return o->present[key] || o->n_items[key] > 0;
}

/* The waiter with the earliest start after `since`. */
static struct oracle_waiter *after(struct oracle *o, int64_t since)
{
    struct oracle_waiter *first = NULL;
    for (int i = 0; i < ORACLE_WAITERS; i++) {
        struct oracle_waiter *w = &o->waiters[i];
        if (w->waiting && w->since > since && (!first || w->since < first->since))
            first = w;
    }
    return first;
}

static void wake(struct oracle *o, struct oracle_waiter *w)
{
    w->waiting = false;
    o->woken[o->n_woken++] = (int)(w - o->waiters);
}

/* True: the waiter was woken. */
static bool found(struct oracle *o, struct oracle_waiter *w, int key)
{
    int n = 0, had = w->n_misses;
    for (int i = 0; i < w->n_misses; i++)
        if (w->misses[i] != key)
            w->misses[n++] = w->misses[i];
    w->n_misses = n;
    if (n || n == had)
        return false;
    wake(o, w);
    return true;
}

static bool number(const struct oracle *o, int key, int64_t *ret)
{
    char *end;
    errno = 0;
    *ret = strtoll(o->value[key], &end, 10);
    return !errno && end != o->value[key];
}

static void wake_reached(struct oracle *o, int key)
{
    int64_t n;
    if (!number(o, key, &n))
        return;
    for (struct oracle_waiter *w = after(o, 0), *next; w; w = next) {
        next = after(o, w->since);
        if (w->at_barrier && w->misses[0] == key && w->world <= n)
            wake(o, w);
    }
}

static void wake_present(struct oracle *o, int key)
{
    for (struct oracle_waiter *w = after(o, 0), *next; w; w = next) {
        next = after(o, w->since);
        if (!w->at_barrier)
            found(o, w, key);
    }
}

static void store(struct oracle *o, int key, const char *value)
{
    o->present[key] = true;
    snprintf(o->value[key], ORACLE_TEXT, "%s", value);
}

void oracle_set(struct oracle *o, int key, const char *value)
{
    store(o, key, value);
    wake_present(o, key);
    wake_reached(o, key);
}

void oracle_append(struct oracle *o, int key, const char *tail)
{
    char whole[2 * ORACLE_TEXT];
    snprintf(whole, sizeof(whole), "%s%s", o->present[key] ? o->value[key] : "", tail);
    oracle_set(o, key, whole);
}

const char *oracle_compare_set(struct oracle *o, int key, const char *expected, const char *desired)
{
    if (!o->present[key] && expected[0])
        return expected;
    if (!o->present[key] || !strcmp(o->value[key], expected))
        oracle_set(o, key, desired);
    return o->value[key];
}

static bool sum(struct oracle *o, int key, int64_t delta, int64_t *ret)
{
    char text[ORACLE_TEXT];
    int64_t was = 0;
    if (o->present[key] && !number(o, key, &was))
        return false;
    *ret = (int64_t)((uint64_t)was + (uint64_t)delta);
    snprintf(text, sizeof(text), "%lld", (long long)*ret);
    store(o, key, text);
    return true;
}

bool oracle_add(struct oracle *o, int key, int64_t delta, int64_t *ret)
{
    if (!sum(o, key, delta, ret))
        return false;
    wake_present(o, key);
    wake_reached(o, key);
    return true;
}

bool oracle_delete(struct oracle *o, int key)
{
    bool there = o->present[key];
    o->present[key] = false;
    o->value[key][0] = '\0';
    return there;
}

static void wake_one(struct oracle *o, int key)
{
    for (struct oracle_waiter *w = after(o, 0), *next; w; w = next) {
        next = after(o, w->since);
        if (!w->at_barrier && found(o, w, key)) {
            w->owes = key + 1;
            return;
        }
    }
}

static void pass_on(struct oracle *o, struct oracle_waiter *w)
{
    int key = w->owes - 1;
    w->owes = 0;
    if (key >= 0 && o->n_items[key])
        wake_one(o, key);
}

void oracle_push(struct oracle *o, int key, const char *item)
{
    snprintf(o->items[key][o->n_items[key]++], ORACLE_TEXT, "%s", item);
    wake_one(o, key);
}

int oracle_pop(struct oracle *o, int key, int waiter, char *ret)
{
    int n = o->n_items[key];
    if (o->waiters[waiter].owes == key + 1)
        o->waiters[waiter].owes = 0;
    if (!n)
        return 0;
    memcpy(ret, o->items[key][0], ORACLE_TEXT);
    memmove(o->items[key][0], o->items[key][1], (size_t)(n - 1) * ORACLE_TEXT);
    return o->n_items[key]--;
}

bool oracle_wait(struct oracle *o, int waiter, const int *keys, int n)
{
    struct oracle_waiter *w = &o->waiters[waiter];
    pass_on(o, w);
    *w = (struct oracle_waiter){.since = ++o->now};
    for (int i = 0; i < n; i++)
        if (!oracle_has(o, keys[i]))
            w->misses[w->n_misses++] = keys[i];
    w->waiting = w->n_misses > 0;
    return !w->waiting;
}

bool oracle_barrier(struct oracle *o, int key, int64_t world, int waiter, bool *ret_ready)
{
    struct oracle_waiter *w = &o->waiters[waiter];
    int64_t n;
    pass_on(o, w);
    if (!sum(o, key, 1, &n))
        return false;
    wake_present(o, key);
    *ret_ready = n >= world;
    if (!*ret_ready) {
        *w = (struct oracle_waiter){
            .waiting = true, .since = ++o->now, .misses = {key}, .n_misses = 1, .at_barrier = true, .world = world};
        return true;
    }
    for (struct oracle_waiter *x = after(o, 0), *next; x; x = next) {
        next = after(o, x->since);
        if (x->at_barrier && x->misses[0] == key)
            wake(o, x);
    }
    return true;
}

void oracle_cancel(struct oracle *o, int waiter)
{
    struct oracle_waiter *w = &o->waiters[waiter];
    w->waiting = false;
    pass_on(o, w);
}
