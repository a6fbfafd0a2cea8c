/* A job that does not fit has an owner who chose its layout for a reason. Proposals therefore change few keys: those
 * with one change come first, and of them the fastest. */
#include "client/planner/nearest.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TRIES 64
#define SHOWN 3        /* proposals in a sentence */
#define MOST_FACTOR 64 /* how many times the nodes that are tried */

struct nearest_try {
    struct plan_layout layout;
    unsigned keys; /* a bit for each key that differs */
    double seconds;
};

struct nearest {
    const struct planning *p;
    const struct plan_layout *own;
    struct nearest_try list[MAX_TRIES];
    int n;
};

/* ---- keys that differ ---- */

struct text_end {
    char *at;
    size_t room;
};

static void __attribute__((format(printf, 2, 3))) text_add(struct text_end *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(t->at, t->room, fmt, ap);
    va_end(ap);
    const size_t written = n < 0 ? 0 : (size_t)n < t->room ? (size_t)n : t->room - 1;
    t->at += written;
    t->room -= written;
}

/* Adds "parallel.zero=3 and parallel.fsdp=8", and returns a bit for each key. */
static unsigned changes_add(struct text_end *t, const struct plan_layout *own, const struct plan_layout *l)
{
    const struct {
        const char *key;
        int64_t own, now;
    } numbers[] = {{"parallel.workers", plan_layout_workers(own), plan_layout_workers(l)},
                   {"parallel.fsdp", own->fsdp, l->fsdp},
                   {"parallel.zero", own->zero, l->zero},
                   {"parallel.tp", own->tp, l->tp},
                   {"parallel.pp", own->pp, l->pp},
                   {"train.micro_batch", own->micro_batch, l->micro_batch}};
    const size_t n = sizeof(numbers) / sizeof(numbers[0]);
    unsigned keys = 0;
    for (size_t i = 0; i < n; i++)
        if (numbers[i].own != numbers[i].now) {
            text_add(t, "%s%s=%" PRId64, keys ? " and " : "", numbers[i].key, numbers[i].now);
            keys |= 1u << i;
        }
    if (own->recompute != l->recompute) {
        text_add(t, "%sparallel.recompute=%s", keys ? " and " : "", planner_recompute_word(l->recompute));
        keys |= 1u << n;
    }
    return keys;
}

static unsigned keys_changed(const struct plan_layout *own, const struct plan_layout *l)
{
    char ignored[1];
    struct text_end t = {ignored, sizeof(ignored)};
    return changes_add(&t, own, l);
}

/* ---- layouts near by ---- */

static void try_add(struct nearest *k, const struct plan_layout *l)
{
    struct nearest_try t = {.layout = *l, .keys = keys_changed(k->own, l)};
    struct plan_time time;
    if (k->n == MAX_TRIES || !t.keys || (double)(l->dp * l->fsdp) > k->p->shape.global_batch ||
        (double)l->tp > k->p->shape.heads || (double)(l->pp * (l->chunks > 1 ? l->chunks : 1)) > k->p->shape.layers)
        return;
    plan_step_time(&k->p->shape, l, &k->p->machine, &k->p->search.overlap, &time);
    t.seconds = time.seconds;
    k->list[k->n++] = t;
}

static void try_recomputes(struct nearest *k, struct plan_layout l)
{
    static const enum recompute hows[] = {RECOMPUTE_POINTWISE, RECOMPUTE_ATTENTION, RECOMPUTE_FULL};
    for (size_t i = 0; i < sizeof(hows) / sizeof(hows[0]); i++) {
        l.recompute = hows[i];
        try_add(k, &l);
    }
}

static void try_micro_batches(struct nearest *k, struct plan_layout l)
{
    while (l.micro_batch > 1) {
        l.micro_batch /= 2;
        try_add(k, &l);
    }
}

/* Replicas that hold everything become ranks that share it. */
static void try_zero(struct nearest *k, struct plan_layout l)
{
    if (l.fsdp == 1 && l.dp > 1) {
        l.fsdp = l.dp;
        l.dp = 1;
    }
    for (l.zero++; l.fsdp > 1 && l.zero <= 3; l.zero++) {
        try_add(k, &l);
        try_recomputes(k, l);
        struct plan_layout smaller = l;
        smaller.micro_batch = 1;
        smaller.recompute = RECOMPUTE_FULL;
        try_add(k, &smaller);
    }
}

/* The ranks of an axis are taken from those of data parallelism. `axis` is a member of `l`. */
static void try_axis(struct nearest *k, struct plan_layout *l, int64_t *axis)
{
    while (l->dp % 2 == 0 || l->fsdp % 2 == 0) {
        int64_t *from = l->dp % 2 == 0 ? &l->dp : &l->fsdp;
        *from /= 2;
        *axis *= 2;
        l->zero = l->fsdp > 1 ? l->zero : 0;
        l->sp = l->tp > 1;
        try_add(k, l);
    }
}

static void try_axes(struct nearest *k)
{
    struct plan_layout tp = *k->own, pp = *k->own;
    if (pp.pp == 1) {
        pp.schedule = PIPE_1F1B;
        pp.chunks = 1;
    }
    try_axis(k, &tp, &tp.tp);
    try_axis(k, &pp, &pp.pp);
}

static int by_changes(const void *a, const void *b)
{
    const struct nearest_try *x = a, *y = b;
    const int a_keys = __builtin_popcount(x->keys), b_keys = __builtin_popcount(y->keys);
    if (a_keys != b_keys)
        return a_keys - b_keys;
    return (x->seconds > y->seconds) - (x->seconds < y->seconds);
}

/* ---- the sentence ---- */

#define PART 200

struct parts {
    char text[SHOWN + 1][PART];
    int n;
};

static struct text_end part_begin(struct parts *parts)
{
    char *text = parts->text[parts->n++];
    text[0] = 0;
    return (struct text_end){text, PART};
}

/* "it fits with a, with b, or with c"; begin: "it fits" */
static void parts_join(const char *begin, const struct parts *parts, char *ret, size_t size)
{
    struct text_end t = {ret, size};
    ret[0] = 0;
    for (int i = 0; i < parts->n; i++)
        text_add(&t, "%s %s", i == 0 ? begin : i + 1 < parts->n ? "," : parts->n > 2 ? ", or" : " or", parts->text[i]);
}

static void proposal_add(struct parts *parts, const struct nearest *k, const struct nearest_try *n, double seconds)
{
    struct text_end t = part_begin(parts);
    const double more = 100 * (n->seconds / seconds - 1);
    text_add(&t, "with ");
    changes_add(&t, k->own, &n->layout);
    if (more >= 0.5)
        text_add(&t, " (%.0f %% more time)", more);
    else if (more <= -0.5)
        text_add(&t, " (%.0f %% less time)", -more);
    else
        text_add(&t, " (as fast)");
}

/* More nodes help if the state is divided over all of them. */
static bool try_nodes(const struct nearest *k, nearest_fits_fn *fits, void *arg, struct plan_layout *ret,
                      int64_t *ret_nodes)
{
    const struct machine *m = &k->p->machine;
    const int64_t workers = plan_layout_workers(k->own);
    for (int64_t factor = 2; factor <= MOST_FACTOR; factor *= 2) {
        struct plan_layout l = *k->own;
        const int64_t nodes = (factor * workers + m->device.per_node - 1) / m->device.per_node;
        l.fsdp *= factor * (l.fsdp == 1 ? l.dp : 1);
        l.dp = k->own->fsdp == 1 ? 1 : l.dp;
        l.zero = l.zero ? l.zero : 1;
        if ((double)(l.dp * l.fsdp) > k->p->shape.global_batch || (m->nodes && nodes > m->nodes) ||
            (nodes > 1 && m->network.bandwidth_gb == 0))
            return false;
        for (; l.zero <= 3; l.zero++)
            if (fits(arg, &l)) {
                *ret = l;
                *ret_nodes = nodes;
                return true;
            }
    }
    return false;
}

/* A proposal that changes all keys of one before it, and perhaps more, adds nothing. */
static bool is_new(const struct nearest_try *const *shown, int n, const struct nearest_try *t)
{
    for (int i = 0; i < n; i++)
        if ((t->keys & shown[i]->keys) == shown[i]->keys)
            return false;
    return true;
}

static void nodes_add(struct parts *parts, const struct nearest *k, nearest_fits_fn *fits, void *arg)
{
    struct plan_layout more;
    int64_t nodes;
    if (!try_nodes(k, fits, arg, &more, &nodes))
        return;
    struct text_end t = part_begin(parts);
    if (nodes != k->p->nodes)
        text_add(&t, "on %" PRId64 " nodes ", nodes);
    text_add(&t, "with ");
    changes_add(&t, k->own, &more);
}

void planner_nearest_text(const struct planning *p, const struct plan_layout *own, nearest_fits_fn *fits, void *arg,
                          char *ret, size_t size)
{
    struct nearest k = {.p = p, .own = own};
    struct parts parts = {.n = 0};
    struct plan_time time;
    const struct nearest_try *shown[SHOWN];
    int n = 0;
    plan_step_time(&p->shape, own, &p->machine, &p->search.overlap, &time);
    try_recomputes(&k, *own);
    try_micro_batches(&k, *own);
    try_zero(&k, *own);
    try_axes(&k);
    qsort(k.list, (size_t)k.n, sizeof(k.list[0]), by_changes);
    for (int i = 0; i < k.n && n < SHOWN; i++) {
        if (!is_new(shown, n, &k.list[i]) || !fits(arg, &k.list[i].layout))
            continue;
        proposal_add(&parts, &k, &k.list[i], time.seconds);
        shown[n++] = &k.list[i];
    }
    nodes_add(&parts, &k, fits, arg);
    parts_join("it fits", &parts, ret, size);
}

/* ---- no layout fits ---- */

static bool search_finds(struct planning *p, int64_t nodes, bool fitting)
{
    struct plan_results r = {0};
    planning_set_nodes(p, nodes);
    const bool found = plan_search(&p->search, &r) == OK && (r.n_fit > 0 || (!fitting && r.n_unfit > 0));
    plan_results_fini(&r);
    return found;
}

static bool search_fits(struct planning *p, int64_t nodes)
{
    return search_finds(p, nodes, true);
}

/* The fewest nodes on which a layout fits; 0: none of those that were tried. A step of an eighth is near enough. */
static int64_t fewest_nodes(const struct planning *p)
{
    struct planning other = *p; /* borrows the machine */
    const struct machine *m = &p->machine;
    const int64_t most = m->nodes ? m->nodes : m->network.bandwidth_gb > 0 ? MOST_FACTOR * p->nodes : p->nodes;
    int64_t nodes = 2 * p->nodes;
    other.search.shape = &other.shape;
    other.search.machine = &other.machine;
    while (nodes <= most && !search_fits(&other, nodes))
        nodes *= 2;
    if (nodes > most)
        return 0;
    const int64_t step = nodes / 8 ? nodes / 8 : 1;
    for (int64_t fewer = nodes / 2 + step; fewer < nodes; fewer += step)
        if (search_fits(&other, fewer))
            return fewer;
    return nodes;
}

/* The first machine that dtd brings along on which a layout fits on as many nodes. */
static const char *other_machine(const struct planning *p, const struct job_spec *job)
{
    const char *found = NULL;
    for (const struct planner_file *f = planner_files; f->name && !found; f++) {
        struct planning other = *p;
        struct why ignored = {0};
        if (p->machine.device.one_thread || planner_machine(f->name, job, &other.machine, &ignored))
            continue;
        other.search.shape = &other.shape;
        other.search.machine = &other.machine;
        other.search.overlap = planner_overlap(&other.machine);
        other.search.memory = planner_memory(&other.machine);
        const bool enough = !other.machine.nodes || other.machine.nodes >= p->nodes;
        if (enough && !other.machine.device.one_thread && other.search.memory > p->search.memory &&
            search_fits(&other, p->nodes))
            found = f->name;
        machine_fini(&other.machine);
    }
    return found;
}

static double shorter_sequence(const struct planning *p)
{
    struct planning other = *p;
    other.search.shape = &other.shape;
    for (other.shape.seq = floor(p->shape.seq / 2); other.shape.seq >= 128;
         other.shape.seq = floor(other.shape.seq / 2))
        if (search_fits(&other, p->nodes))
            return other.shape.seq;
    return 0;
}

void planner_elsewhere_text(const struct planning *p, const struct job_spec *job, char *ret, size_t size)
{
    struct parts parts = {.n = 0};
    struct text_end t;
    const int64_t nodes = fewest_nodes(p);
    const char *machine = other_machine(p, job);
    const double seq = shorter_sequence(p);
    if (nodes) {
        t = part_begin(&parts);
        text_add(&t, "on %" PRId64 " nodes (--nodes %" PRId64 ")", nodes, nodes);
    }
    if (machine) {
        t = part_begin(&parts);
        text_add(&t, "on %" PRId64 " node%s of %s", p->nodes, p->nodes == 1 ? "" : "s", machine);
    }
    if (seq > 0) {
        t = part_begin(&parts);
        text_add(&t, "with train.seq=%.0f", seq);
    }
    parts_join("it fits", &parts, ret, size);
}

/* ---- no layout at all ---- */

#define MOST_BATCHES 20 /* doublings */

void planner_any_text(const struct planning *p, char *ret, size_t size)
{
    struct planning other = *p; /* borrows the machine */
    struct parts parts = {.n = 0};
    struct text_end t;
    int64_t nodes = p->nodes - 1;
    int doublings = 0;
    other.search.shape = &other.shape;
    while (nodes > 0 && !search_finds(&other, nodes, false))
        nodes--;
    if (nodes > 0) {
        t = part_begin(&parts);
        text_add(&t, "on %" PRId64 " node%s", nodes, nodes == 1 ? "" : "s");
    }
    do
        other.shape.global_batch *= 2;
    while (++doublings < MOST_BATCHES && !search_finds(&other, p->nodes, false));
    if (doublings < MOST_BATCHES) {
        t = part_begin(&parts);
        text_add(&t, "with train.global_batch=%.0f", other.shape.global_batch);
    }
    parts_join("there is one", &parts, ret, size);
}
