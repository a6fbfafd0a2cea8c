/* See slots.h. */
#include "daemon/control/slots.h"

#include <sched.h>
#include <string.h>

#define DEFAULT_SLOTS 16

void slots_init(struct slots *s)
{
    cpu_set_t set;
    *s = (struct slots){0};
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof(set), &set))
        CPU_SET(0, &set);
    for (int c = 0; c < CHANNEL_MAX_CPUS && c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &set))
            s->core[s->n_cores++] = c;
}

int slots_default(const struct slots *s)
{
    return s->n_cores > DEFAULT_SLOTS ? s->n_cores : DEFAULT_SLOTS;
}

static int least_used(const struct slots *s, const uint8_t *taken)
{
    int best = -1;
    for (int i = 0; i < s->n_cores; i++)
        if (!(taken[s->core[i] / 8] >> (s->core[i] % 8) & 1) && (best < 0 || s->users[i] < s->users[best]))
            best = i;
    return best;
}

void slots_bind(struct slots *s, int workers, int threads, uint8_t ret_cpus[CHANNEL_MAX_CPUS / 8])
{
    int width = threads ? threads : s->n_cores / workers;
    memset(ret_cpus, 0, CHANNEL_MAX_CPUS / 8);
    if (workers > s->n_cores || width > s->n_cores)
        return;
    for (int k = 0; k < width; k++) {
        int i = least_used(s, ret_cpus);
        s->users[i]++;
        ret_cpus[s->core[i] / 8] |= (uint8_t)(1 << (s->core[i] % 8));
    }
}

static void add(struct slots *s, const uint8_t *cpus, int users)
{
    for (int i = 0; i < s->n_cores; i++)
        if (cpus[s->core[i] / 8] >> (s->core[i] % 8) & 1)
            s->users[i] += users;
}

void slots_use(struct slots *s, const uint8_t cpus[CHANNEL_MAX_CPUS / 8])
{
    add(s, cpus, 1);
}

void slots_unbind(struct slots *s, const uint8_t cpus[CHANNEL_MAX_CPUS / 8])
{
    add(s, cpus, -1);
}
