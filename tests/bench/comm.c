/* Collectives and messages over shm, each one on private and on shared buffers. They are compared with a minimal
 * shared-memory version on the same buffers (the floor: loops that read the data in place, between barriers of the same
 * kind), and with Open MPI if `--mpi FILE` names the output of comm_mpi. One JSON line per case; a ratio above 1 means
 * faster than the other.
 *
 * Before each call every rank writes its source anew, as a training step does, so the bytes lie in the writer's cache
 * and have to come from there. `still`: the same with sources that never change. After the first call the floor's loops
 * then read from their own cache, and no line moves between processors.
 *
 * No other rank can read private buffers, so their bytes have to be written to the segment first, into lines that
 * another processor has read. `copied_floor` does this by memcpy before the loop in place, and copies a result out that
 * has to be private: the floor that private buffers can reach.
 *
 * dtd and the floor take turns within one run, call by call, and medians are compared, so that other load on the
 * machine affects both equally. The time of a call is that between two barriers, including the second. Ranks are bound
 * to processors in turn; otherwise the scheduler may wake several ranks on one processor. */
#include "tests/bench/median.h"
#include "worker/comm/shm/shm.h"

#include <argp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_RANKS 16
#define MAX_TURNS 41
#define UNIT 8        /* tensors of a unit, all of the same size */
#define BUDGET_S 0.25 /* for the calls of one case; at least three calls are made */

struct bench {
    struct comm_group *g;
    struct shm_comm *s;
    float *src, *dst; /* of the current variant: private or shared */
    float *shared_src, *shared_dst, *private;
    int64_t n; /* elements of the large buffer */
    int64_t counts[MAX_RANKS];
    int64_t part_counts[MAX_RANKS]; /* of a tensor of the unit */
    struct comm_part parts[UNIT];
};

/* All ranks of the benchmark have their buffers at the same offsets. */
static float *of_peer(const struct bench *b, const float *x, int i)
{
    const float *own = (const float *)(const void *)b->s->shared[b->g->comm->rank];
    return (float *)(void *)b->s->shared[b->g->ranks[i]] + (x - own);
}

static void wait_all(const struct bench *b)
{
    if (comm_barrier(b->g))
        exit(1);
}

/* ---- the floor: one pass over the data in place ---- */

static void add_slice(const struct bench *b, float *to, int64_t lo, int64_t hi)
{
    const int world = b->g->n;
    const float *x[MAX_RANKS];
    for (int r = 0; r < world; r++)
        x[r] = of_peer(b, b->shared_src, r);
    for (int64_t i = lo; i < hi; i++) {
        float sum = x[0][i];
        for (int r = 1; r < world; r++)
            sum += x[r][i];
        to[i - lo] = sum;
    }
}

static void own_slice(const struct bench *b, int64_t *lo, int64_t *hi)
{
    *lo = b->n / b->g->n * b->g->me;
    *hi = *lo + b->n / b->g->n;
}

static void floor_all_reduce(const struct bench *b)
{
    enum { PIECE = 8192 };
    float piece[PIECE];
    int64_t lo, hi;
    own_slice(b, &lo, &hi);
    wait_all(b);
    for (int64_t at = lo; at < hi; at += PIECE) {
        int64_t m = hi - at < PIECE ? hi - at : PIECE;
        add_slice(b, piece, at, at + m);
        for (int r = 0; r < b->g->n; r++)
            memcpy(of_peer(b, b->shared_src, r) + at, piece, (size_t)m * 4);
    }
    wait_all(b);
}

static void floor_reduce_scatter(const struct bench *b)
{
    int64_t lo, hi;
    own_slice(b, &lo, &hi);
    wait_all(b);
    add_slice(b, b->shared_dst, lo, hi);
    wait_all(b);
}

static void floor_all_gather(const struct bench *b)
{
    const int64_t part = b->n / b->g->n;
    wait_all(b);
    for (int r = 0; r < b->g->n; r++)
        memcpy(b->shared_dst + r * part, of_peer(b, b->shared_src, r), (size_t)part * 4);
    wait_all(b);
}

static void floor_unit_gather(const struct bench *b)
{
    const int64_t piece = b->n / b->g->n / UNIT;
    wait_all(b);
    for (int k = 0; k < UNIT; k++)
        for (int r = 0; r < b->g->n; r++)
            memcpy(b->shared_dst + (k * b->g->n + r) * piece, of_peer(b, b->shared_src, r) + k * piece,
                   (size_t)piece * 4);
    wait_all(b);
}

static void floor_unit_scatter(const struct bench *b)
{
    const int64_t piece = b->n / b->g->n / UNIT;
    wait_all(b);
    for (int k = 0; k < UNIT; k++) {
        const int64_t lo = (k * b->g->n + b->g->me) * piece;
        add_slice(b, b->shared_dst + k * piece, lo, lo + piece);
    }
    wait_all(b);
}

static void floor_broadcast(const struct bench *b)
{
    wait_all(b);
    if (b->g->me)
        memcpy(b->shared_src, of_peer(b, b->shared_src, 0), (size_t)b->n * 4);
    wait_all(b);
}

static void floor_all_to_all(const struct bench *b)
{
    const int64_t part = b->n / b->g->n;
    wait_all(b);
    for (int r = 0; r < b->g->n; r++)
        memcpy(b->shared_dst + r * part, of_peer(b, b->shared_src, r) + b->g->me * part, (size_t)part * 4);
    wait_all(b);
}

static void floor_sendrecv(const struct bench *b)
{
    wait_all(b);
    memcpy(b->shared_dst, of_peer(b, b->shared_src, (b->g->me + b->g->n - 1) % b->g->n), (size_t)b->n * 4);
    wait_all(b);
}

/* ---- dtd ---- */

static err_t our_all_reduce(const struct bench *b)
{
    return comm_all_reduce(b->g, NULL, b->src, b->n, DT_F32, REDUCE_SUM);
}

static err_t our_reduce_scatter(const struct bench *b)
{
    return comm_reduce_scatter(b->g, NULL, b->src, b->dst, b->counts, DT_F32, REDUCE_SUM);
}

static err_t our_all_gather(const struct bench *b)
{
    return comm_all_gather(b->g, NULL, b->src, b->dst, b->counts, DT_F32);
}

static err_t our_unit_gather(const struct bench *b)
{
    return comm_unit_gather(b->g, NULL, b->src, b->dst, b->parts, UNIT, DT_F32);
}

static err_t our_unit_scatter(const struct bench *b)
{
    return comm_unit_scatter(b->g, NULL, b->src, b->dst, b->parts, UNIT, DT_F32, false);
}

static err_t our_broadcast(const struct bench *b)
{
    return comm_broadcast(b->g, NULL, b->src, b->n * 4, 0);
}

static err_t our_all_to_all(const struct bench *b)
{
    return comm_all_to_all(b->g, NULL, b->src, b->counts, b->dst, b->counts, DT_F32);
}

static err_t our_sendrecv(const struct bench *b)
{
    const int n = b->g->n, me = b->g->me;
    return comm_sendrecv(b->g, NULL, b->src, b->n * 4, (me + 1) % n, b->dst, b->n * 4, (me + n - 1) % n);
}

/* ---- what the floor copies for private buffers ---- */

/* Elements that other ranks read; which ones does not matter for the time. */
static int64_t all_of(const struct bench *b)
{
    return b->n;
}

static int64_t part_of(const struct bench *b)
{
    return b->n / b->g->n;
}

static int64_t others_of(const struct bench *b)
{
    return b->n - b->n / b->g->n;
}

static int64_t root_only(const struct bench *b)
{
    return b->g->me ? 0 : b->n;
}

static const struct {
    const char *name;
    err_t (*ours)(const struct bench *b);
    void (*floor)(const struct bench *b);
    int64_t (*copied)(const struct bench *b);
    bool back; /* the result is in the shared source, and is copied back */
} cases[] = {
    {"all_reduce", our_all_reduce, floor_all_reduce, all_of, true},
    {"all_gather", our_all_gather, floor_all_gather, part_of, false},
    {"reduce_scatter", our_reduce_scatter, floor_reduce_scatter, others_of, false},
    {"unit_gather", our_unit_gather, floor_unit_gather, part_of, false},
    {"unit_scatter", our_unit_scatter, floor_unit_scatter, others_of, false},
    {"broadcast", our_broadcast, floor_broadcast, root_only, false},
    {"all_to_all", our_all_to_all, floor_all_to_all, others_of, false},
    {"sendrecv", our_sendrecv, floor_sendrecv, all_of, false},
};
#define N_CASES ((int)(sizeof(cases) / sizeof(cases[0])))
static const int64_t sizes[] = {64 << 10, 1 << 20, 64 << 20};

/* ---- measuring ---- */

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Every call writes other numbers, so that no line can stay valid in another cache. */
static void write_source(const struct bench *b, float *to, int turn)
{
    for (int64_t i = 0; i < b->n; i++)
        to[i] = (float)(turn & 7);
}

enum way { OURS, FLOOR, COPIED_FLOOR, WAYS };

static void call_way(const struct bench *b, int i, enum way way)
{
    const size_t bytes = (size_t)cases[i].copied(b) * 4;
    if (way == OURS) {
        if (cases[i].ours(b))
            exit(1);
        return;
    }
    if (way == COPIED_FLOOR)
        memcpy(b->shared_src, b->private, bytes);
    cases[i].floor(b);
    if (way == COPIED_FLOOR && cases[i].back)
        memcpy(b->private, b->shared_src, bytes);
}

/* `turn` -1: with the source as it is. */
static double time_one(const struct bench *b, int i, enum way way, int turn)
{
    float *const source[WAYS] = {b->src, b->shared_src, b->private};
    if (turn >= 0)
        write_source(b, source[way], turn);
    wait_all(b);
    double start = now_s();
    call_way(b, i, way);
    wait_all(b);
    return now_s() - start;
}

/* The result of comm_mpi, which writes "name ranks bytes seconds" lines; 0 if it has none. */
static double mpi_seconds(const char *file, const char *name, int ranks, int64_t bytes)
{
    char word[32];
    int n;
    long long size;
    double seconds, found = 0;
    FILE *f = file ? fopen(file, "r") : NULL;
    while (f && fscanf(f, "%31s %d %lld %lf", word, &n, &size, &seconds) == 4)
        if (strcmp(word, name) == 0 && n == ranks && size == bytes)
            found = seconds;
    if (f)
        fclose(f);
    return found;
}

/* Fills the medians of all ways, in seconds. All ranks make the same number of turns, which rank 0 publishes. */
static void measure(struct bench *b, int i, bool fresh, double ret[WAYS])
{
    double took[WAYS][MAX_TURNS], once = 0;
    for (int w = 0; w < WAYS; w++)
        once += time_one(b, i, w, -1);
    int64_t turns = once > 0 ? (int64_t)(BUDGET_S / once) : MAX_TURNS;
    turns = turns < 3 ? 3 : turns > MAX_TURNS ? MAX_TURNS : turns;
    if (comm_agree(b->g, &turns, REDUCE_MIN))
        exit(1);
    for (int t = 0; t < turns; t++)
        for (int w = 0; w < WAYS; w++)
            took[w][t] = time_one(b, i, w, fresh ? t : -1);
    for (int w = 0; w < WAYS; w++)
        ret[w] = median_of_all(took[w], (size_t)turns);
}

static void measure_case(struct bench *b, int i, bool shared, const char *mpi_file)
{
    double fresh[WAYS], still[WAYS], mpi = mpi_seconds(mpi_file, cases[i].name, b->g->n, b->n * 4);
    measure(b, i, true, fresh);
    measure(b, i, false, still);
    if (b->g->me)
        return;
    printf("{\"comm\": \"%s\", \"ranks\": %d, \"bytes\": %lld, \"buffers\": \"%s\", \"us\": %.1f, \"gb_s\": %.2f, "
           "\"floor_us\": %.1f, \"of_floor\": %.2f",
           cases[i].name, b->g->n, (long long)b->n * 4, shared ? "shared" : "private", fresh[OURS] * 1e6,
           (double)b->n * 4e-9 / fresh[OURS], fresh[FLOOR] * 1e6, fresh[FLOOR] / fresh[OURS]);
    if (!shared)
        printf(", \"copied_floor_us\": %.1f, \"of_copied_floor\": %.2f", fresh[COPIED_FLOOR] * 1e6,
               fresh[COPIED_FLOOR] / fresh[OURS]);
    printf(", \"still_us\": %.1f, \"still_floor_us\": %.1f, \"of_still_floor\": %.2f", still[OURS] * 1e6,
           still[FLOOR] * 1e6, still[FLOOR] / still[OURS]);
    if (mpi > 0)
        printf(", \"open_mpi_us\": %.1f, \"of_open_mpi\": %.2f", mpi * 1e6, mpi / still[OURS]);
    printf("}\n");
    fflush(stdout);
}

static void set_counts(struct bench *b)
{
    const int64_t piece = b->n / b->g->n / UNIT;
    for (int r = 0; r < b->g->n; r++) {
        b->counts[r] = b->n / b->g->n;
        b->part_counts[r] = piece;
    }
    for (int k = 0; k < UNIT; k++)
        b->parts[k] = (struct comm_part){.local = k * piece * b->g->n, .piece = k * piece, .counts = b->part_counts};
}

static void run_sizes(struct bench *b, const char *mpi_file)
{
    const int64_t most = sizes[2] / 4;
    for (int i = 0; i < N_CASES; i++)
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
            for (int shared = 0; shared <= 1; shared++) {
                b->n = sizes[k] / 4;
                b->src = shared ? b->shared_src : b->private;
                b->dst = shared ? b->shared_dst : b->private + most;
                set_counts(b);
                measure_case(b, i, shared, mpi_file);
            }
}

static void bind_rank(int rank)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)rank % (size_t)sysconf(_SC_NPROCESSORS_ONLN), &set);
    (void)sched_setaffinity(0, sizeof(set), &set); /* in a container without the right, the kernel chooses */
}

static int run_rank(int fd, int rank, int world, const char *mpi_file)
{
    const size_t most = (size_t)sizes[2];
    struct comm_config config = {.backend = "shm",
                                 .fd = fd,
                                 .rank = rank,
                                 .world = world,
                                 .epoch = 1,
                                 .shared_bytes = 2 * most,
                                 .timeout_ms = 10000};
    struct comm *c;
    struct why why;
    struct bench b = {0};
    int ranks[MAX_RANKS];
    for (int r = 0; r < world; r++)
        ranks[r] = r;
    bind_rank(rank);
    float *private = calloc(2, most);
    if (!private || comm_open(&config, &c, &why) || comm_group_new(c, ranks, world, &b.g))
        return 1;
    memset(private, 0, 2 * most);
    b.s = (struct shm_comm *)c;
    b.private = private;
    b.shared_src = comm_shared(c);
    b.shared_dst = b.shared_src + most / 4;
    run_sizes(&b, mpi_file);
    comm_group_free(b.g);
    comm_close(c);
    free(private);
    return 0;
}

static int run_world(int world, const char *mpi_file)
{
    int fd = memfd_create("bench-comm", MFD_CLOEXEC), failed = 0;
    pid_t pid[MAX_RANKS];
    if (fd < 0)
        return 1;
    for (int r = 0; r < world; r++)
        if ((pid[r] = fork()) == 0)
            _exit(run_rank(fd, r, world, mpi_file));
    for (int r = 0; r < world; r++) {
        int status;
        waitpid(pid[r], &status, 0);
        failed |= !WIFEXITED(status) || WEXITSTATUS(status);
    }
    close(fd);
    return failed;
}

struct options {
    int ranks;
    const char *mpi_file;
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    if (key == 'r')
        o->ranks = atoi(arg);
    else if (key == 'm')
        o->mpi_file = arg;
    else
        return ARGP_ERR_UNKNOWN;
    if (o->ranks < 2 || o->ranks > MAX_RANKS)
        argp_error(state, "--ranks is 2 to %d", MAX_RANKS);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct argp_option list[] = {
        {"ranks", 'r', "N", 0, "processes, default 2", 0}, {"mpi", 'm', "FILE", 0, "what comm_mpi measured", 0}, {0}};
    const struct argp argp = {list, parse_option, NULL, "Times collectives of the shm backend.", NULL, NULL, NULL};
    struct options o = {.ranks = 2};
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    return run_world(o.ranks, o.mpi_file);
}
