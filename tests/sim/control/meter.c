/* Memory of each computer, for sim-scale: allocations are charged to the computer whose event makes them, until they
 * are freed. Replaces the allocator's functions by the linker's --wrap. Memory from within shared libraries has no tag.
 */
#include "tests/sim/world.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC UINT32_C(0x73c1a1e5)

struct tag {
    uint64_t len;
    uint32_t host, magic;
};

void *__wrap_malloc(size_t len);
void *__wrap_calloc(size_t n, size_t len);
void *__wrap_realloc(void *data, size_t len);
void __wrap_free(void *data);
char *__wrap_strdup(const char *text);
void *__real_malloc(size_t len);
void *__real_calloc(size_t n, size_t len);
void *__real_realloc(void *data, size_t len);
void __real_free(void *data);

static struct host *payer(void)
{
    return world.current ? world.current->on : &world.hosts[0];
}

static void *charge(struct tag *t, size_t len)
{
    struct host *host = payer();
    struct use *u = &host->use;
    if (!t)
        return NULL;
    *t = (struct tag){len, (uint32_t)(host - world.hosts), MAGIC};
    u->memory += (int64_t)len;
    u->memory_peak = u->memory > u->memory_peak ? u->memory : u->memory_peak;
    return t + 1;
}

/* What is in front of memory without a tag belongs to the allocator, and may be read, but not in the eyes of the
 * address sanitizer. */
__attribute__((no_sanitize_address, noinline)) static struct tag *tag_of(void *data)
{
    struct tag *t = (struct tag *)data - 1;
    return t->magic == MAGIC && t->host <= MAX_PROCESSES ? t : NULL;
}

static void discharge(struct tag *t)
{
    world.hosts[t->host].use.memory -= (int64_t)t->len;
    t->magic = 0;
}

void *__wrap_malloc(size_t len)
{
    return charge(__real_malloc(len + sizeof(struct tag)), len);
}

void *__wrap_calloc(size_t n, size_t len)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, len, &bytes))
        return NULL;
    return charge(__real_calloc(1, bytes + sizeof(struct tag)), bytes);
}

void *__wrap_realloc(void *data, size_t len)
{
    struct tag *t = data ? tag_of(data) : NULL;
    if (data && !t)
        return __real_realloc(data, len);
    if (t)
        discharge(t);
    return charge(__real_realloc(t, len + sizeof(struct tag)), len);
}

void __wrap_free(void *data)
{
    struct tag *t = data ? tag_of(data) : NULL;
    if (t)
        discharge(t);
    __real_free(t ? (void *)t : data);
}

char *__wrap_strdup(const char *text)
{
    size_t len = strlen(text) + 1;
    char *copy = __wrap_malloc(len);
    return copy ? memcpy(copy, text, len) : NULL;
}
