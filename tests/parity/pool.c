/* Runs cells in a pool of forked workers for each world size, which take one cell after another from their pipes, so
 * that a cell costs an engine and not a process. The results of all ranks are in shared memory. A rank that exits or is
 * late ends its pool; the next cell starts a new one. Every tenth cell runs in a pool across two network namespaces,
 * that is, on two nodes with TCP between them. */
#include "tests/parity/cells.h"
#include "tests/parity/compare.h"
#include "tests/parity/links.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define STEPS 4
#define MAX_POOL PARITY_MAX_WORKERS
#define SPREAD_EVERY 10 /* runs over two nodes take longer, so only every tenth cell does */
#define MAX_PARAMS 500000
#define PATIENCE_MS 120000 /* a cell takes seconds; this is for a very busy machine */

/* A cell is run in each of these ways. */
enum cell_run { RUN_PROOF, RUN_FLOAT32, RUN_BFLOAT16, CELL_RUNS };

/* The fast kernels' gradients differ from those of the proof by at most factor eps sqrt(K), as in test_twin.c; in
 * float32 more than there, because sums in other orders add their own rounding. `kinked` is the factor of models with
 * kinks, where rounding to bfloat16 decides whether a relu passes a gradient and which experts a token chooses: 30 % of
 * a tensor's largest element, of which 22 % were measured; the others have 5 %, of which 1.2 % were measured. */
static const struct {
    const char *numerics, *dtype;
    int64_t steps;
    double factor, kinked, eps;
} runs[CELL_RUNS] = {
    [RUN_PROOF] = {"proof", "float64", STEPS, 0, 0, 0},
    [RUN_FLOAT32] = {"fast", "float32", 1, 6, 6, 0x1p-24},
    [RUN_BFLOAT16] = {"fast", "bfloat16", 1, 1.5, 9, 0x1p-9},
};

/* Written by all ranks of a cell. */
struct cell_results {
    struct parity_result run[CELL_RUNS];
    char why[MAX_POOL][512];
    double space[2 * CELL_RUNS][MAX_PARAMS]; /* grad and param of each run */
};

struct rank_pool {
    bool spread;
    int world;
    pid_t pid[MAX_POOL];
    int ask[MAX_POOL], answer[MAX_POOL];
};

static struct cell_results *cell_results_new(void)
{
    struct cell_results *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s != MAP_FAILED);
    return s;
}

/* Fills the memory with NaN, so that a value that no rank wrote is noticed. */
static void cell_results_clear(struct cell_results *s, int n_runs)
{
    memset(s, 0, offsetof(struct cell_results, space));
    for (int k = 0; k < 2 * n_runs; k++)
        for (int64_t i = 0; i < MAX_PARAMS; i++)
            s->space[k][i] = NAN;
    for (int k = 0; k < CELL_RUNS; k++) {
        s->run[k].grad = s->space[2 * k];
        s->run[k].param = s->space[2 * k + 1];
    }
}

/* ---- a worker ---- */

/* Inherited by a worker; one descriptor for each node. */
struct pool_nodes {
    int n_nodes, fd[2];
    struct parity_nodes nodes;
};

static int run_cell(const struct cell *c, enum cell_run run, const struct pool_nodes *at, uint64_t epoch, int rank,
                    struct parity_result *r, char *why)
{
    const struct parity_options over = {.comm = "stream", .nodes = &at->nodes};
    struct parity_model m;
    cell_init(c, runs[run].numerics, runs[run].dtype, &m);
    assert_true(m.graph.n_params <= MAX_PARAMS);
    if (rank == 0)
        r->n = m.graph.n_params;
    int rc = parity_run_rank(&m, at->fd[at->nodes.node_of[rank]], epoch, rank, runs[run].steps,
                             at->n_nodes > 1 ? &over : NULL, r, why);
    parity_model_fini(&m);
    return rc;
}

/* A cell to run, or the end. Each task is one epoch: all ranks have left it before the next one starts. */
struct pool_task {
    bool end;
    enum cell_run run;
    struct cell cell;
};

static void run_tasks(struct cell_results *s, int ask, int answer, struct pool_nodes *at, int rank)
{
    const int node = at->nodes.node_of[rank];
    struct pool_task o;
    at->nodes.address = links_address(node);
    if (at->n_nodes > 1 && !links_enter(node))
        _exit(1);
    for (uint64_t epoch = 1; read(ask, &o, sizeof(o)) == (ssize_t)sizeof(o) && !o.end; epoch++) {
        int rc = run_cell(&o.cell, o.run, at, epoch, rank, &s->run[o.run], s->why[rank]);
        if (write(answer, &rc, sizeof(rc)) != (ssize_t)sizeof(rc))
            break;
    }
    _exit(0);
}

/* ---- a pool ---- */

static void start_one(struct rank_pool *w, struct cell_results *s, struct pool_nodes *at, int rank)
{
    int down[2], up[2];
    assert_int_equal(pipe(down), 0);
    assert_int_equal(pipe(up), 0);
    fflush(NULL);
    if ((w->pid[rank] = fork()) == 0) {
        close(down[1]);
        close(up[0]);
        run_tasks(s, down[0], up[1], at, rank);
    }
    close(down[0]);
    close(up[1]);
    w->ask[rank] = down[1];
    w->answer[rank] = up[0];
}

static void pool_start(struct rank_pool *w, struct cell_results *s, int world)
{
    struct pool_nodes at = {.n_nodes = w->spread ? 2 : 1};
    assert_true(world <= MAX_POOL);
    for (int i = 0; i < at.n_nodes; i++)
        assert_true((at.fd[i] = memfd_create("cells", MFD_CLOEXEC)) >= 0);
    for (int i = 0; i < world; i++)
        at.nodes.node_of[i] = i * at.n_nodes / world;
    if (w->spread)
        at.nodes.store = memory_store_new(); /* small, and there is one pool per world size, so it is never freed */
    w->world = world;
    for (int i = 0; i < world; i++)
        start_one(w, s, &at, i);
    for (int i = 0; i < at.n_nodes; i++)
        close(at.fd[i]);
}

/* Ends a pool with a task, not by closing its pipes: workers of other pools have copies of them, so the end of a pipe
 * would not arrive. */
static void pool_end(struct rank_pool *w, bool now)
{
    const struct pool_task end = {.end = true};
    for (int i = 0; i < w->world; i++) {
        if (now || write(w->ask[i], &end, sizeof(end)) != (ssize_t)sizeof(end))
            kill(w->pid[i], SIGKILL);
        waitpid(w->pid[i], NULL, 0);
        close(w->ask[i]);
        close(w->answer[i]);
    }
    w->world = 0;
}

/* Returns the rank's answer; -1 if it exited or is late. */
static int rank_answer(const struct rank_pool *w, int rank)
{
    struct pollfd p = {.fd = w->answer[rank], .events = POLLIN};
    int rc;
    if (poll(&p, 1, PATIENCE_MS) != 1 || read(p.fd, &rc, sizeof(rc)) != (ssize_t)sizeof(rc))
        return -1;
    return rc;
}

/* Copies the message of the first rank that has one. */
static void find_why(const struct cell_results *s, int world, const char *otherwise, char *ret, size_t size)
{
    snprintf(ret, size, "%s", otherwise);
    for (int i = 0; i < world; i++)
        if (s->why[i][0] && !strstr(s->why[i], err_name(ERR_CANCELED))) {
            snprintf(ret, size, "rank %d: %s", i, s->why[i]);
            return;
        }
}

/* Runs a task on all ranks. Returns false with a message if a rank failed, exited or is late; the last two also end the
 * pool. */
static bool pool_run_task(struct rank_pool *w, const struct cell_results *s, const struct pool_task *o, char *why,
                          size_t size)
{
    int failed = 0, lost = -1;
    char late[64] = "a rank failed";
    for (int i = 0; i < w->world; i++)
        failed += write(w->ask[i], o, sizeof(*o)) != (ssize_t)sizeof(*o);
    for (int i = 0; i < w->world && lost < 0; i++) {
        int rc = rank_answer(w, i);
        failed += rc != 0;
        lost = rc < 0 ? i : -1;
    }
    if (lost >= 0)
        snprintf(late, sizeof(late), "rank %d died or did not answer in time", lost);
    if (failed)
        find_why(s, w->world, late, why, size);
    if (lost >= 0)
        pool_end(w, true);
    return !failed;
}

/* Runs the cell in the first n_runs ways. */
static bool pool_run(struct rank_pool *w, struct cell_results *s, const struct cell *c, int n_runs, char *why,
                     size_t size)
{
    if (w->world != cell_workers(c)) {
        pool_end(w, false);
        pool_start(w, s, cell_workers(c));
    }
    cell_results_clear(s, n_runs);
    for (int run = 0; run < n_runs; run++)
        if (!pool_run_task(w, s, &(struct pool_task){.cell = *c, .run = (enum cell_run)run}, why, size))
            return false;
    return true;
}

/* ---- comparison ---- */

struct reference {
    struct cell cell;
    struct cell_results *sheet;
};

struct references {
    struct reference list[64];
    int n;
    struct rank_pool pool;
};

static const struct cell_results *reference_of(struct references *r, const struct cell *c)
{
    const struct cell alone = cell_alone(c);
    char why[600];
    for (int i = 0; i < r->n; i++)
        if (cell_same(&r->list[i].cell, &alone))
            return r->list[i].sheet;
    assert_true(r->n < 64);
    struct reference *x = &r->list[r->n++];
    *x = (struct reference){alone, cell_results_new()};
    pool_end(&r->pool, false); /* a pool has the shared memory of one comparison */
    if (!pool_run(&r->pool, x->sheet, &alone, RUN_PROOF + 1, why, sizeof(why)))
        fail_msg("one worker: %s", why);
    return x->sheet;
}

static bool has_kinks(const struct cell *c)
{
    return c->model == CELL_TRANSFORMER || c->model == CELL_MIXTURE;
}

/* Compares the gradients of a step with the fast kernels with the float64 gradients of one worker. */
static bool twin_differs(const struct cell *c, const struct parity_model *m, enum cell_run run,
                         const struct cell_results *one, const struct cell_results *many, char *why, size_t size)
{
    const struct parity_result *proof = &one->run[RUN_PROOF], *fast = &many->run[run];
    double k = fmax((double)(m->job.train.global_batch * m->job.train.seq), (double)m->job.model.vocab);
    const double unit = runs[run].eps * sqrt(k), bound = (has_kinks(c) ? runs[run].kinked : runs[run].factor) * unit;
    char text[200];
    bool bad = !(fabs(proof->loss[0] - fast->loss[0]) <= runs[run].factor * unit * proof->loss[0]);
    if (bad)
        snprintf(text, sizeof(text), "loss %.9g, float64 %.9g", fast->loss[0], proof->loss[0]);
    bad = bad || parity_gradients_differ(&m->graph, proof->grad, fast->grad, proof->n, bound, text, sizeof(text));
    if (bad)
        snprintf(why, size, "%s: %s", runs[run].dtype, text);
    return bad;
}

static bool differs(const struct cell *c, const struct cell_results *one, const struct cell_results *many, char *why,
                    size_t size)
{
    struct parity_model m;
    cell_init(c, "proof", "float64", &m);
    bool bad = false;
    for (int run = 0; run < CELL_RUNS && !bad; run++) {
        bad = many->run[run].replicas_differ;
        if (bad)
            snprintf(why, size, "%s: replicas differ", runs[run].dtype);
    }
    bad = bad || parity_differ(&m.graph, &one->run[RUN_PROOF], &many->run[RUN_PROOF], STEPS, why, size);
    for (int run = RUN_FLOAT32; run < CELL_RUNS && !bad; run++)
        bad = twin_differs(c, &m, (enum cell_run)run, one, many, why, size);
    parity_model_fini(&m);
    return bad;
}

static int by_world(const void *a, const void *b)
{
    return cell_workers(a) - cell_workers(b);
}

static bool is_spread(const struct cell *c, int i)
{
    return i % SPREAD_EVERY == SPREAD_EVERY - 1 && cell_workers(c) > 1 && links_make();
}

void cells_run(const struct cells *c)
{
    struct references *refs = calloc(1, sizeof(*refs));
    struct rank_pool near = {0}, spread = {.spread = true};
    struct cell_results *s = cell_results_new();
    int failed = 0, n_spread = 0;
    char why[600], name[128];
    signal(SIGPIPE, SIG_IGN);
    qsort(c->list, (size_t)c->n, sizeof(*c->list), by_world);
    for (int i = 0; i < c->n; i++) {
        const struct cell_results *one = reference_of(refs, &c->list[i]);
        struct rank_pool *pool = is_spread(&c->list[i], i) ? &spread : &near;
        bool bad = !pool_run(pool, s, &c->list[i], CELL_RUNS, why, sizeof(why)) ||
                   differs(&c->list[i], one, s, why, sizeof(why));
        cell_name(&c->list[i], name, sizeof(name));
        if (bad)
            printf("%s%s: %s\n", name, pool->spread ? " over two nodes" : "", why);
        n_spread += pool->spread;
        fflush(stdout);
        failed += bad;
    }
    pool_end(&near, false);
    pool_end(&spread, false);
    pool_end(&refs->pool, false);
    for (int i = 0; i < refs->n; i++)
        munmap(refs->list[i].sheet, sizeof(struct cell_results));
    munmap(s, sizeof(*s));
    free(refs);
    printf("%d cells, %d of them over two network namespaces\n", c->n, n_spread);
    fflush(stdout);
    if (failed)
        fail_msg("%d of %d cells differ from one worker", failed, c->n);
}
