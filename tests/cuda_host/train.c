/* See train.h. All ranks synchronise on the host between the first and the second step and after the last, so that the
 * counts can be read; streams continue meanwhile. */
#include "tests/cuda_host/train.h"

#include "worker/step/snapshot.h"

#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

/* ---- rendezvous of the ranks ---- */

#define MAX_WORDS 64

struct word {
    char key[128];
    uint8_t value[4096];
    size_t bytes;
};

struct rank_meeting {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct word words[MAX_WORDS];
    int n;
};

static err_t put(void *arg, const char *key, const void *value, size_t bytes, struct why *why)
{
    struct rank_meeting *m = arg;
    pthread_mutex_lock(&m->lock);
    struct word *w = &m->words[m->n++];
    snprintf(w->key, sizeof(w->key), "%s", key);
    memcpy(w->value, value, bytes);
    w->bytes = bytes;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->lock);
    return m->n < MAX_WORDS ? OK : why_set(why, ERR_LIMIT, "too many keys");
}

static err_t get(void *arg, const char *key, int64_t timeout_ms, void *ret, size_t *ret_bytes, struct why *why)
{
    struct rank_meeting *m = arg;
    struct timespec until;
    int late = 0, i;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += timeout_ms / 1000 + 1;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        for (i = 0; i < m->n && strcmp(m->words[i].key, key) != 0; i++)
            ;
        if (i < m->n || late == ETIMEDOUT)
            break;
        late = pthread_cond_timedwait(&m->changed, &m->lock, &until);
    }
    bool found = i < m->n && m->words[i].bytes <= *ret_bytes;
    if (found) {
        memcpy(ret, m->words[i].value, m->words[i].bytes);
        *ret_bytes = m->words[i].bytes;
    }
    pthread_mutex_unlock(&m->lock);
    return found ? OK : why_set(why, ERR_TIMEOUT, "no rank has written %s", key);
}

/* ---- a rank ---- */

struct team {
    const struct parity_model *model;
    const struct train_options *options;
    struct train_result *result;
    struct dev *dev[TRAIN_MAX_RANKS];
    int world, fd;
    struct rank_meeting meeting;
    struct comm_store store;
    pthread_barrier_t all;
    pthread_mutex_t lock;
    double *first_params;
};

struct train_rank {
    struct team *team;
    int rank;
    pthread_t thread;
    struct engine e;
    struct comm *comm;
    struct snapshot snapshot;
    void *arena;
};

/* Copies the pieces of a rank to their places in `to`, or counts the elements that differ. The processor cannot read
 * the device's memory, so the engine's spaces are copied first. */
static err_t collect(struct train_rank *r, enum parity_what what, double *to, bool differ, int64_t *ret_differ)
{
    struct engine copy = r->e;
    uint8_t *memory = malloc(copy.memory_bytes);
    err_t err = dev_copy(copy.stream[STREAM_COMPUTE], memory, copy.memory, copy.memory_bytes);
    err = err ? err : dev_stream_sync(copy.stream[STREAM_COMPUTE], NULL);
    for (int s = 0; s < SPACE_COUNT; s++)
        if (copy.space[s])
            copy.space[s] = memory + ((uint8_t *)copy.space[s] - (uint8_t *)copy.memory);
    pthread_mutex_lock(&r->team->lock); /* replicas write the same numbers */
    int64_t n = err ? 0 : parity_collect(&copy, what, to, differ);
    pthread_mutex_unlock(&r->team->lock);
    free(memory);
    if (!err && ret_differ)
        *ret_differ = n;
    return err;
}

static err_t take_snapshot(struct train_rank *r, struct why *why)
{
    struct train_result *res = r->team->result;
    err_t err = snapshot_copy(&r->snapshot, &r->e, r->arena);
    if (!err && r->team->options->finish)
        err = snapshot_wait(&r->e, why);
    res->arena_bytes[r->rank] = r->snapshot.bytes;
    return err;
}

static err_t keep_snapshot(struct train_rank *r, struct why *why)
{
    struct train_result *res = r->team->result;
    err_t err = snapshot_wait(&r->e, why);
    if (err)
        return err;
    res->arena[r->rank] = malloc(r->snapshot.bytes);
    memcpy(res->arena[r->rank], r->arena, r->snapshot.bytes);
    return OK;
}

static void count(struct train_rank *r, struct cuda_host_counts *to)
{
    pthread_barrier_wait(&r->team->all);
    if (r->rank == 0)
        cuda_host_counts_read(to);
    pthread_barrier_wait(&r->team->all);
}

static err_t run_steps(struct train_rank *r, struct why *why)
{
    struct team *t = r->team;
    struct train_result *res = t->result;
    struct parity_feed data = parity_feed_of(&t->model->job);
    const struct engine_feed feed = parity_engine_feed(&data);
    err_t err = OK;
    for (int64_t step = 1; step <= t->options->steps; step++) {
        struct engine_result one = {0};
        err = err ? err : engine_step(&r->e, &feed, &one, why);
        if (r->rank == 0) {
            res->loss[step - 1] = one.loss;
            res->norm[step - 1] = one.grad_norm;
        }
        if (!err && step == 1)
            err = collect(r, PARITY_GRAD, res->grad, false, NULL);
        if (!err && step == t->options->snapshot)
            err = take_snapshot(r, why);
        if (step == 1)
            count(r, &res->first);
    }
    count(r, &res->last);
    if (!err && t->options->snapshot)
        err = keep_snapshot(r, why);
    double valid = 0;
    if (!err)
        err = engine_eval(&r->e, &feed, 1000, 1001 + t->model->job.train.global_batch / 2, &valid, why);
    if (r->rank == 0)
        res->valid = valid;
    return err;
}

static err_t open_rank(struct train_rank *r, struct why *why)
{
    struct team *t = r->team;
    const struct engine_config config = {.dev = t->dev[r->rank],
                                         .job = &t->model->job,
                                         .graph = &t->model->graph,
                                         .rank = r->rank,
                                         .world = t->world,
                                         .eval = true};
    err_t err = engine_init(&r->e, &config, why);
    const struct comm_config cc = {.backend = t->options->comm,
                                   .dev = t->dev[r->rank],
                                   .store = &t->store,
                                   .fd = t->fd,
                                   .rank = r->rank,
                                   .world = t->world,
                                   .epoch = 1,
                                   .shared_bytes = err ? 0 : engine_shared_bytes(&r->e),
                                   .timeout_ms = 30000};
    err = err ? err : comm_open(&cc, &r->comm, why);
    err = err ? err : engine_start(&r->e, r->comm, why);
    err = err ? err : engine_fill_state(&r->e, why);
    err = err ? err : snapshot_plan_save(&r->e, &r->snapshot);
    err = err ? err : dev_host_alloc(r->e.config.dev, r->snapshot.bytes, "arena", &r->arena, why);
    if (!err && t->options->plant)
        t->options->plant(&r->e, t->options->plant_arg);
    return err;
}

static err_t compare_replicas(struct train_rank *r)
{
    struct train_result *res = r->team->result;
    int64_t differ = 0;
    err_t err = collect(r, PARITY_PARAM, res->param, false, NULL);
    pthread_barrier_wait(&r->team->all);
    err = err ? err : collect(r, PARITY_PARAM, res->param, true, &differ);
    if (differ > 0)
        __atomic_fetch_add(&res->replicas_differ, 1, __ATOMIC_SEQ_CST);
    return err;
}

static void *rank_main(void *arg)
{
    struct train_rank *r = arg;
    struct team *t = r->team;
    struct why why = {""};
    err_t err = open_rank(r, &why);
    if (!err) { /* if a rank fails to open its comm, the others wait until the collectives' deadline */
        err = run_steps(r, &why);
        err = err ? err : compare_replicas(r);
    }
    if (err && r->comm)
        comm_abort(r->comm);
    engine_fini(&r->e);
    dev_host_free(t->dev[r->rank], r->arena, r->snapshot.bytes);
    snapshot_fini(&r->snapshot);
    comm_close(r->comm);
    if (err) {
        pthread_mutex_lock(&t->lock);
        if (!t->result->error[0])
            snprintf(t->result->error, sizeof(t->result->error), "rank %d: %s: %s", r->rank, err_name(err), why.text);
        pthread_mutex_unlock(&t->lock);
    }
    return NULL;
}

/* ---- all ranks ---- */

struct train_result *train_run(const struct parity_model *m, const struct train_options *o)
{
    static struct team t;
    struct train_rank ranks[TRAIN_MAX_RANKS];
    struct train_result *r = calloc(1, sizeof(*r));
    struct why why = {""};
    t = (struct team){.model = m, .options = o, .result = r, .world = (int)m->job.parallel.workers};
    assert_true(t.world <= TRAIN_MAX_RANKS && o->steps <= TRAIN_MAX_STEPS);
    r->n_params = m->graph.n_params;
    r->grad = calloc((size_t)r->n_params, sizeof(double));
    r->param = calloc((size_t)r->n_params, sizeof(double));
    t.fd = memfd_create("train", MFD_CLOEXEC);
    t.store = (struct comm_store){&t.meeting, put, get};
    pthread_mutex_init(&t.meeting.lock, NULL);
    pthread_cond_init(&t.meeting.changed, NULL);
    pthread_mutex_init(&t.lock, NULL);
    pthread_barrier_init(&t.all, NULL, (unsigned)t.world);
    setenv("DTD_CUDA_HOST_DEVICES", "4", 1);
    for (int i = 0; i < t.world; i++)
        if (dev_open("cuda", i, &t.dev[i], &why))
            fail_msg("%s", why.text);
    for (int i = 0; i < t.world; i++) {
        ranks[i] = (struct train_rank){.team = &t, .rank = i};
        pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]);
    }
    for (int i = 0; i < t.world; i++)
        pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < t.world; i++)
        dev_close(t.dev[i]);
    close(t.fd);
    return r;
}

void train_result_free(struct train_result *r)
{
    for (int i = 0; i < TRAIN_MAX_RANKS; i++)
        free(r->arena[i]);
    free(r->grad);
    free(r->param);
    free(r);
}

/* Prints the first number that differs. */
static bool same_numbers(const char *what, int64_t n, const double *a, const double *b)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof(*a)) != 0) {
            print_error("%s: number %lld of %lld is %.17g in one run and %.17g in the other\n", what, (long long)i,
                        (long long)n, a[i], b[i]);
            return false;
        }
    return true;
}

bool train_same_bits(const struct train_result *a, const struct train_result *b)
{
    bool same = same_numbers("loss", sizeof(a->loss) / sizeof(a->loss[0]), a->loss, b->loss) &&
                same_numbers("norm", sizeof(a->norm) / sizeof(a->norm[0]), a->norm, b->norm) && a->valid == b->valid &&
                same_numbers("gradients", a->n_params, a->grad, b->grad) &&
                same_numbers("parameters", a->n_params, a->param, b->param);
    for (int i = 0; same && i < TRAIN_MAX_RANKS; i++)
        same = !a->arena[i] || (b->arena[i] && memcmp(a->arena[i], b->arena[i], a->arena_bytes[i]) == 0);
    return same;
}
