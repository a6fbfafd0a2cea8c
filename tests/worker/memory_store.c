/* See memory_store.h. Values are never changed or removed, so a reader only checks the flag of a row. */
#include "tests/worker/memory_store.h"

#include "common/base/clock.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define ROWS 4096

struct row {
    _Atomic int ready;
    char key[64];
    size_t bytes;
    char value[192];
};
struct memory_store {
    _Atomic int n;
    struct row row[ROWS];
};

struct memory_store *memory_store_new(void)
{
    struct memory_store *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED)
        abort();
    return s;
}

static void name(const struct memory_store_view *v, const char *key, char *ret, size_t room)
{
    snprintf(ret, room, "%llu %s", (unsigned long long)v->epoch, key);
}

static err_t put(void *arg, const char *key, const void *value, size_t bytes, struct why *why)
{
    struct memory_store_view *v = arg;
    int i = atomic_fetch_add(&v->table->n, 1);
    (void)why;
    if (i >= ROWS || bytes > sizeof(v->table->row[0].value))
        return ERR_LIMIT;
    struct row *r = &v->table->row[i];
    name(v, key, r->key, sizeof(r->key));
    memcpy(r->value, value, bytes);
    r->bytes = bytes;
    atomic_store(&r->ready, 1);
    return OK;
}

static const struct row *find(const struct memory_store_view *v, const char *wanted)
{
    for (int i = 0; i < ROWS && i < atomic_load(&v->table->n); i++) {
        const struct row *r = &v->table->row[i];
        if (atomic_load(&r->ready) && strcmp(r->key, wanted) == 0)
            return r;
    }
    return NULL;
}

static err_t get(void *arg, const char *key, int64_t timeout_ms, void *ret, size_t *ret_bytes, struct why *why)
{
    const struct memory_store_view *v = arg;
    const int64_t deadline = clock_mono_ms() + timeout_ms;
    char wanted[64];
    const struct row *r;
    name(v, key, wanted, sizeof(wanted));
    while (!(r = find(v, wanted))) {
        if (clock_mono_ms() >= deadline)
            return why_set(why, ERR_TIMEOUT, "no rank has written %s", key);
        usleep(1000);
    }
    if (r->bytes > *ret_bytes)
        return ERR_LIMIT;
    memcpy(ret, r->value, r->bytes);
    *ret_bytes = r->bytes;
    return OK;
}

const struct comm_store *memory_store_view_init(struct memory_store_view *v, struct memory_store *store, uint64_t epoch)
{
    *v = (struct memory_store_view){.store = {.arg = v, .put = put, .get = get}, .table = store, .epoch = epoch};
    return &v->store;
}
