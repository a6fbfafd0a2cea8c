/* CPUs are assigned in turns. A turn considers the CPUs that the fewest workers use, compares them by `misfit`, and
 * assigns the best one, or as many threads of its physical core as are still wanted. The number of users is compared
 * before everything else; so no CPU is shared while another one is free, on any number of NUMA nodes. */
#include "daemon/control/local/cores.h"

#include "common/base/cpus.h"
#include "common/base/log.h"

#include <limits.h>
#include <string.h>

/* Workers of a node with few CPUs: a small machine can run a job of 16 ranks, which then share its CPUs. */
#define DEFAULT_SLOTS 16
/* Factors that make one number of two, the first of which decides. A distance between nodes is 0 to 255 (topology.h).
 * A count of threads of a physical core, plus or minus half of THREADS, stays below THREADS. */
#define DISTANCES 256
#define THREADS (2 * CHANNEL_MAX_CPUS)

enum way {
    BY_NUMBER, /* in the order of their numbers: the node of the worker's GPU is not known */
    APART,     /* each CPU on a physical core of its own */
    WHOLE,     /* all threads of a physical core */
};

struct deal {
    const struct cores *s;
    enum way way;
    bool stays;                  /* a CPU in `home` is preferred to a physical core of its own */
    int home;                    /* index of the preferred NUMA node */
    int left;                    /* number of CPUs that are still wanted */
    uint8_t *taken;              /* bit set of this worker's CPUs, by index: CHANNEL_MAX_CPUS / 8 bytes */
    int far, shared;             /* number of `taken` CPUs outside `home`; on a core that another worker also uses */
    int users;                   /* number of users of each CPU that this turn considers */
    int free[CHANNEL_MAX_CPUS];  /* per physical core: threads that this turn considers */
    int used[CHANNEL_MAX_CPUS];  /* per physical core: threads that any worker uses, including this one */
    int other[CHANNEL_MAX_CPUS]; /* per physical core: threads that other workers use */
};

/* Returns the number of usable CPUs, which may exceed CHANNEL_MAX_CPUS. If none below this limit is usable, the set
 * contains CPU 0. */
static int find_cpus(uint8_t ret[CHANNEL_MAX_CPUS / 8])
{
    static const uint8_t none[CHANNEL_MAX_CPUS / 8];
    memset(ret, 0, sizeof(none));
    int n = cpus_usable(ret, CHANNEL_MAX_CPUS);
    if (memcmp(ret, none, sizeof(none)) == 0)
        cpus_add(ret, 0);
    return n;
}

void cores_init(struct cores *s, const char *sysfs)
{
    uint8_t cpus[CHANNEL_MAX_CPUS / 8];
    struct why why = {""};
    *s = (struct cores){0};
    int n = find_cpus(cpus);
    topology_init(&s->at, cpus);
    if (n > s->at.n_cpus)
        log_warn("CPUs with numbers from %d on are not used: dtd cannot bind workers to them n=%d", CHANNEL_MAX_CPUS,
                 n - s->at.n_cpus);
    err_t err = topology_read(&s->at, sysfs, &why);
    if (err && err != ERR_NOTFOUND)
        log_warn("workers are bound to CPUs without regard to NUMA nodes why=\"%s\"", why.text);
}

int cores_default(const struct cores *s)
{
    int slots = s->at.n_cpus > DEFAULT_SLOTS ? s->at.n_cpus : DEFAULT_SLOTS;
    return slots < CHANNEL_MAX_WORKERS ? slots : CHANNEL_MAX_WORKERS;
}

int cores_home(const struct cores *s, int number)
{
    int home = number < 0 ? -1 : topology_find(&s->at, number);
    return home < 0 || s->at.n_cpu_nodes < 2 ? CORES_UNKNOWN : home;
}

/* ---- one worker ---- */

static bool is_free(const struct deal *d, int i)
{
    return d->s->users[i] == d->users && !cpus_has(d->taken, i);
}

static void begin_turn(struct deal *d)
{
    const struct cores *s = d->s;
    const size_t bytes = (size_t)s->at.n_cpus * sizeof(int);
    memset(d->free, 0, bytes);
    memset(d->used, 0, bytes);
    memset(d->other, 0, bytes);
    d->users = INT_MAX;
    for (int i = 0; i < s->at.n_cpus; i++)
        if (!cpus_has(d->taken, i) && s->users[i] < d->users)
            d->users = s->users[i];
    for (int i = 0; i < s->at.n_cpus; i++) {
        int core = s->at.cpu[i].core;
        d->free[core] += is_free(d, i);
        d->other[core] += s->users[i] > 0;
        d->used[core] += s->users[i] > 0 || cpus_has(d->taken, i);
    }
}

/* The cost of CPU i; the turn assigns the CPU with the lowest cost. Among whole cores, the best one has the most free
 * threads but not more than are wanted; so a single last thread goes to a core that is already split. */
static int misfit(const struct deal *d, int i)
{
    const struct topology_cpu *cpu = &d->s->at.cpu[i];
    int free = d->free[cpu->core], used = d->used[cpu->core];
    if (d->way == BY_NUMBER)
        return 0;
    int distance = d->s->at.distance[d->home][cpu->node];
    if (d->way == WHOLE)
        return distance * THREADS + (free <= d->left ? THREADS / 2 - free : THREADS / 2 + free);
    return d->stays ? distance * THREADS + used : used * DISTANCES + distance;
}

static void assign_cpu(struct deal *d, int i)
{
    const struct topology_cpu *cpu = &d->s->at.cpu[i];
    cpus_add(d->taken, i);
    d->left--;
    d->far += d->way != BY_NUMBER && cpu->node != d->home;
    d->shared += d->other[cpu->core] > 0;
}

static void assign_turn(struct deal *d)
{
    const struct topology *t = &d->s->at;
    int best = -1;
    begin_turn(d);
    for (int i = 0; i < t->n_cpus; i++)
        if (is_free(d, i) && (best < 0 || misfit(d, i) < misfit(d, best)))
            best = i;
    assign_cpu(d, best);
    for (int i = best + 1; i < t->n_cpus && d->way == WHOLE && d->left > 0; i++)
        if (is_free(d, i) && t->cpu[i].core == t->cpu[best].core)
            assign_cpu(d, i);
}

/* ---- all homes ---- */

static enum way choose_way(const struct cores *s, int wanted, int home)
{
    int cores = 0;
    for (int i = 0; i < s->at.n_cpus; i++)
        cores += s->at.cpu[i].core == i;
    if (home == CORES_UNKNOWN)
        return BY_NUMBER;
    return wanted <= cores ? APART : WHOLE;
}

static void assign_cpus(struct deal *d, int home, int width, uint8_t taken[CHANNEL_MAX_CPUS / 8])
{
    memset(taken, 0, CHANNEL_MAX_CPUS / 8);
    d->taken = taken;
    d->home = home;
    d->left = width;
    d->far = d->shared = 0;
    while (d->left > 0)
        assign_turn(d);
}

static int threads_per_core(const struct topology *t)
{
    int threads[CHANNEL_MAX_CPUS] = {0}, most = 1;
    for (int i = 0; i < t->n_cpus; i++)
        if (++threads[t->cpu[i].core] > most)
            most = threads[t->cpu[i].core];
    return most;
}

/* Workers that want whole cores and an odd thread share the cores of these threads with each other. That does not count
 * as sharing here, because it would send every second worker to another node than its neighbor. */
static int choose_home(struct deal *d, int width)
{
    uint8_t taken[CHANNEL_MAX_CPUS / 8];
    const int odd = d->way == WHOLE ? width % threads_per_core(&d->s->at) : 0;
    int best = 0, far = CHANNEL_MAX_CPUS, shared = CHANNEL_MAX_CPUS; /* worse than any */
    for (int home = 0; home < d->s->at.n_nodes && far + shared > 0; home++) {
        assign_cpus(d, home, width, taken);
        int extra = d->shared > odd ? d->shared - odd : 0;
        if (d->far > far || (d->far == far && extra >= shared))
            continue;
        best = home;
        far = d->far;
        shared = extra;
    }
    return best;
}

int cores_width(const struct cores *s, int workers, int run_threads, int64_t run_cores)
{
    const bool fits = run_cores > 0 && workers > 0 && run_cores <= s->at.n_cpus / workers;
    return run_threads ? run_threads : fits ? (int)run_cores : 0;
}

int cores_bind(struct cores *s, int workers, int threads, int home, uint8_t ret_cpus[CHANNEL_MAX_CPUS / 8])
{
    int n = s->at.n_cpus, width = threads ? threads : n / workers;
    uint8_t taken[CHANNEL_MAX_CPUS / 8];
    memset(ret_cpus, 0, CHANNEL_MAX_CPUS / 8);
    if (workers > n || width > n)
        return 0;
    if (s->at.n_cpu_nodes < 2)
        home = CORES_ANY;
    struct deal d = {.s = s, .way = choose_way(s, workers * width, home), .stays = home >= 0};
    assign_cpus(&d, home == CORES_ANY ? choose_home(&d, width) : home, width, taken);
    for (int i = 0; i < n; i++)
        if (cpus_has(taken, i)) {
            s->users[i]++;
            cpus_add(ret_cpus, s->at.cpu[i].number);
        }
    return d.far;
}

static void add_users(struct cores *s, const uint8_t *cpus, int users)
{
    for (int i = 0; i < s->at.n_cpus; i++)
        if (cpus_has(cpus, s->at.cpu[i].number))
            s->users[i] += users;
}

void cores_use(struct cores *s, const uint8_t cpus[CHANNEL_MAX_CPUS / 8])
{
    add_users(s, cpus, 1);
}

void cores_unbind(struct cores *s, const uint8_t cpus[CHANNEL_MAX_CPUS / 8])
{
    add_users(s, cpus, -1);
}
