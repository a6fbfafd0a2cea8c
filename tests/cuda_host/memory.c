/* Device memory of the stand-in.
 *
 * It is mapped separately and inaccessible to the processor (PROT_NONE) while no work runs, so host code that touches
 * it crashes at that access. It begins on a page boundary, with a guard page on either side. The rest of the last page
 * is poisoned under the address sanitizer and holds a pattern that is checked when the memory is freed. The first
 * megabyte of new memory is filled with 0xff bytes (NaNs); the rest is not touched, so that large scratch memory costs
 * nothing. Addresses of freed memory are never reused. */
#include "tests/cuda_host/block.h"
#include "tests/cuda_host/queue.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define MEMORY_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MEMORY_ASAN 1
#endif
#endif
#ifdef MEMORY_ASAN
#include <sanitizer/asan_interface.h>
#endif

#define TAIL 0xa5
#define FILL ((size_t)1 << 20)

struct region {
    struct region *next;
    enum host_memory kind;
    bool freed;
    int device;
    uint8_t *base;
    size_t bytes, mapped; /* mapped: whole pages, without the two guard pages */
};

static struct region *regions;

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

int64_t host_memory_total(void)
{
    const char *text = getenv("DTD_CUDA_HOST_MEMORY");
    return text ? strtoll(text, NULL, 10) : INT64_C(4) << 30;
}

int64_t host_memory_live(int device)
{
    int64_t bytes = 0;
    for (const struct region *r = regions; r; r = r->next)
        if (!r->freed && r->kind == HOST_DEVICE && r->device == device)
            bytes += (int64_t)r->bytes;
    return bytes;
}

static struct region *region_add(enum host_memory kind, int device, void *base, size_t bytes, size_t mapped)
{
    struct region *r = calloc(1, sizeof(*r));
    if (!r)
        abort();
    *r = (struct region){regions, kind, false, device, base, bytes, mapped};
    regions = r;
    host_counts.allocations++;
    host_counts.live_allocations++;
    return r;
}

void *host_memory_new(enum host_memory kind, int device, size_t bytes)
{
    size_t page = page_bytes(), mapped = (bytes + page - 1) / page * page;
    if (kind == HOST_DEVICE && (int64_t)bytes > host_memory_total() - host_memory_live(device))
        return NULL;
    uint8_t *p = mmap(NULL, mapped + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    p += page;
    if (mprotect(p, mapped, PROT_READ | PROT_WRITE))
        abort();
    memset(p, 0xff, bytes < FILL ? bytes : FILL);
    memset(p + bytes, TAIL, mapped - bytes);
#ifdef MEMORY_ASAN
    ASAN_POISON_MEMORY_REGION(p + bytes, mapped - bytes);
#endif
    if (kind == HOST_DEVICE)
        mprotect(p, mapped, PROT_NONE);
    region_add(kind, device, p, bytes, mapped);
    return p;
}

bool host_memory_register(void *p, size_t bytes)
{
    if (host_memory_of(p, 1, "registering") != HOST_PAGEABLE)
        return false;
    region_add(HOST_REGISTERED, 0, p, bytes, 0);
    return true;
}

static void check_tail(const struct region *r)
{
#ifdef MEMORY_ASAN
    ASAN_UNPOISON_MEMORY_REGION(r->base + r->bytes, r->mapped - r->bytes);
#endif
    mprotect(r->base, r->mapped, PROT_READ | PROT_WRITE);
    for (size_t i = r->bytes; i < r->mapped; i++)
        if (r->base[i] != TAIL)
            cuda_host_fail("%zu bytes were written past the end of an allocation of %zu bytes", i - r->bytes + 1,
                           r->bytes);
}

bool host_memory_free(enum host_memory kind, void *p)
{
    struct region **at = &regions, *r;
    while (*at && ((*at)->base != p || (*at)->freed || (*at)->kind != kind))
        at = &(*at)->next;
    if (!(r = *at))
        return false;
    host_counts.live_allocations--;
    if (kind == HOST_REGISTERED) {
        *at = r->next;
        free(r);
        return true;
    }
    check_tail(r);
    r->freed = true;
    madvise(r->base, r->mapped, MADV_DONTNEED);
    mprotect(r->base, r->mapped, PROT_NONE);
    return true;
}

enum host_memory host_memory_of(const void *p, size_t bytes, const char *what)
{
    const uint8_t *b = p;
    for (const struct region *r = regions; r; r = r->next) {
        if (b < r->base || b >= r->base + r->bytes + (r->bytes == 0))
            continue;
        if (r->freed)
            cuda_host_fail("%s: memory at %p that was freed", what, p);
        if (bytes > r->bytes - (size_t)(b - r->base))
            cuda_host_fail("%s: %zu bytes at %p, of an allocation that ends after %zu bytes", what, bytes, p,
                           r->bytes - (size_t)(b - r->base));
        return r->kind;
    }
    return HOST_PAGEABLE;
}

void host_memory_open(bool open)
{
    for (const struct region *r = regions; r; r = r->next)
        if (r->kind == HOST_DEVICE && !r->freed &&
            mprotect(r->base, r->mapped, open ? PROT_READ | PROT_WRITE : PROT_NONE))
            abort();
}
