/* See cpus.h. The kernel refuses to fill a mask (EINVAL) that is smaller than its own, whose size is that of the CPUs
 * the machine could ever have: glibc's fixed one of 1,024 bits fails on larger machines whatever the affinity is. So
 * the mask grows until the kernel takes it. */
#include "common/base/cpus.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#define MOST_CPUS (1 << 16) /* 8 times the largest NR_CPUS that Linux can be built with */
#define DIGITS 9            /* of a number: it fits into an int */

/* ---- lists ---- */

static bool take_number(const char **at, const char *end, int *ret)
{
    const char *from = *at;
    int n = 0;
    while (*at < end && **at >= '0' && **at <= '9' && *at - from < DIGITS)
        n = 10 * n + (*(*at)++ - '0');
    *ret = n;
    return *at > from;
}

static bool take_char(const char **at, const char *end, char c)
{
    bool there = *at < end && **at == c;
    *at += there;
    return there;
}

err_t cpus_parse(const char *text, size_t len, int max, uint8_t *ret)
{
    const char *at = text, *end = text + len;
    memset(ret, 0, (size_t)max / 8);
    if (len && end[-1] == '\n')
        end--;
    for (bool more = at < end; more; more = take_char(&at, end, ',')) {
        int first, last;
        if (!take_number(&at, end, &first))
            return ERR_CORRUPT;
        last = first;
        if (take_char(&at, end, '-') && (!take_number(&at, end, &last) || last < first))
            return ERR_CORRUPT;
        for (int c = first; c <= last && c < max; c++)
            cpus_add(ret, c);
    }
    return at == end ? OK : ERR_CORRUPT;
}

void cpus_print(const uint8_t *set, int max, char *ret, size_t size)
{
    size_t at = 0;
    ret[0] = '\0';
    for (int c = 0, last; c < max; c = last + 1) {
        char one[32];
        last = c;
        if (!cpus_has(set, c))
            continue;
        while (last + 1 < max && cpus_has(set, last + 1))
            last++;
        int n = snprintf(one, sizeof(one), last > c ? "%s%d-%d" : "%s%d", at ? "," : "", c, last);
        bool fits = at + (size_t)n + sizeof(",..") <= size;
        at += (size_t)snprintf(ret + at, size - at, "%s", fits ? one : ",..");
        if (!fits)
            return;
    }
}

/* ---- affinity ---- */

static void copy_set(const cpu_set_t *set, size_t bytes, uint8_t *ret, int max)
{
    memset(ret, 0, (size_t)max / 8);
    for (int c = 0; c < max; c++)
        if (CPU_ISSET_S((size_t)c, bytes, set))
            cpus_add(ret, c);
}

int cpus_usable(uint8_t *ret, int max)
{
    int n = 0, error = EINVAL;
    for (size_t size = CPU_SETSIZE; !n && error == EINVAL && size <= MOST_CPUS; size *= 2) {
        size_t bytes = CPU_ALLOC_SIZE(size);
        cpu_set_t *set = CPU_ALLOC(size);
        if (!set)
            return 0;
        if (sched_getaffinity(0, bytes, set)) {
            error = errno;
        } else {
            n = CPU_COUNT_S(bytes, set);
            if (ret)
                copy_set(set, bytes, ret, max);
        }
        CPU_FREE(set);
    }
    return n;
}
