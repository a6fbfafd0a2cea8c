/* Every planted bug of common/plan/mutant.h is found by the checker or by the comparison with one worker. A bug is
 * tried on one job after another, each in its own process, until a check or a comparison fails; a crash does not count.
 */
#include "common/plan/mutant.h"
#include "tests/common/plan/world.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* `name` describes what distinguishes the job. */
static const struct cell {
    const char *name;
    enum model_arch arch;
    int dp, fsdp, zero, tp, pp, cp, chunks;
    bool no_sp, canonical, dropout, async;
    enum pipe_schedule schedule;
    enum recompute recompute;
    enum qk_norm qk_norm;
    int64_t window;
    bool documents;
    const char *csv;    /* of 3 microbatches */
    bool experts, sets; /* layers have experts; the auxiliary loss balances samples */
    int ep;
    bool batch, balanced; /* the auxiliary loss balances the batch; every rank computes equally many rows */
    bool gather, rounds;  /* tokens are gathered by the ranks of the experts; rows are computed in rounds */
    bool ahead;           /* post-validation */
    double capacity;      /* of experts, by probability */
} cells[] = {
    {"dp 3", ARCH_LLAMA, .dp = 3},
    {"dp 2, fsdp 2, zero 1", ARCH_LLAMA, .dp = 2, .fsdp = 2, .zero = 1},
    {"fsdp 2, zero 2", ARCH_GPT2, .fsdp = 2, .zero = 2},
    {"fsdp 2, zero 3", ARCH_LLAMA, .fsdp = 2, .zero = 3},
    {"fsdp 2, zero 3, canonical", ARCH_LLAMA, .fsdp = 2, .zero = 3, .canonical = true},
    {"tp 2", ARCH_LLAMA, .tp = 2},
    {"tp 2, no sp", ARCH_GPT2, .tp = 2, .no_sp = true},
    {"tp 3", ARCH_GPT2, .tp = 3},
    {"tp 4", ARCH_LLAMA, .tp = 4},
    {"tp 2, dropout", ARCH_TRANSFORMER, .tp = 2, .dropout = true},
    {"cp 2", ARCH_LLAMA, .cp = 2},
    {"cp 3, tp 2", ARCH_GPT2, .cp = 3, .tp = 2},
    {"cp 2, canonical", ARCH_LLAMA, .cp = 2, .canonical = true},
    {"pp 2", ARCH_LLAMA, .pp = 2},
    {"pp 2, gpipe", ARCH_GPT2, .pp = 2, .schedule = PIPE_GPIPE},
    {"pp 2, zb-h1", ARCH_GPT2, .pp = 2, .schedule = PIPE_ZB_H1},
    {"pp 2, interleaved", ARCH_LLAMA, .pp = 2, .chunks = 2, .schedule = PIPE_INTERLEAVED},
    {"pp 2, zb-v, tied", ARCH_GPT2, .pp = 2, .chunks = 2, .schedule = PIPE_ZB_V},
    {"pp 2, fsdp 2, zero 2, zb-v, tied", ARCH_GPT2, .pp = 2, .fsdp = 2, .zero = 2, .chunks = 2, .schedule = PIPE_ZB_V},
    {"pp 2, chunk after chunk", ARCH_LLAMA, .pp = 2, .chunks = 2, .schedule = PIPE_FILE,
     .csv = "F0.0,F0.1,F0.2,F1.0,F1.1,F1.2,B1.0,B1.1,B1.2,B0.0,B0.1,B0.2\n"
            "F0.0,F0.1,F0.2,F1.0,F1.1,F1.2,B1.0,B1.1,B1.2,B0.0,B0.1,B0.2\n"},
    {"pp 2, fsdp 2, zero 2", ARCH_LLAMA, .pp = 2, .fsdp = 2, .zero = 2},
    {"pp 2, zb-h2, post-validation", ARCH_LLAMA, .pp = 2, .schedule = PIPE_ZB_H2, .ahead = true},
    {"pp 2, fsdp 2, zero 2, zb-v, tied, post-validation", ARCH_GPT2, .pp = 2, .fsdp = 2, .zero = 2, .chunks = 2,
     .schedule = PIPE_ZB_V, .ahead = true},
    {"tp 3, async", ARCH_GPT2, .tp = 3, .async = true},
    {"experts, dp 2", ARCH_LLAMA, .dp = 2, .experts = true},
    {"experts, tp 2", ARCH_LLAMA, .tp = 2, .experts = true, .sets = true},
    {"experts, tp 2, no sp", ARCH_LLAMA, .tp = 2, .no_sp = true, .experts = true},
    {"experts, cp 2", ARCH_LLAMA, .cp = 2, .experts = true, .sets = true},
    {"experts, dp 2, batch", ARCH_LLAMA, .dp = 2, .experts = true, .batch = true},
    {"ep 2 over tp", ARCH_LLAMA, .dp = 2, .tp = 2, .experts = true, .ep = 2},
    {"ep 2 over tp, all-gather", ARCH_LLAMA, .tp = 2, .experts = true, .ep = 2, .gather = true},
    {"ep 2 over cp", ARCH_LLAMA, .cp = 2, .experts = true, .ep = 2},
    {"ep 2 over tp, no sp", ARCH_LLAMA, .tp = 2, .no_sp = true, .experts = true, .ep = 2},
    {"ep 2 over part of tp", ARCH_LLAMA, .tp = 4, .experts = true, .ep = 2},
    {"ep 2 over part of fsdp, zero 3", ARCH_LLAMA, .fsdp = 4, .zero = 3, .experts = true, .ep = 2},
    {"ep 2 over fsdp, zero 1", ARCH_LLAMA, .fsdp = 2, .zero = 1, .experts = true, .ep = 2},
    {"ep 2 over cp, balanced", ARCH_LLAMA, .cp = 2, .experts = true, .ep = 2, .balanced = true},
    {"ep 2 over tp, rounds", ARCH_LLAMA, .dp = 2, .tp = 2, .experts = true, .ep = 2, .rounds = true},
    {"capacity, tp 2", ARCH_LLAMA, .tp = 2, .experts = true, .capacity = 0.75},
    {"capacity, tp 2, no sp", ARCH_LLAMA, .tp = 2, .no_sp = true, .experts = true, .capacity = 0.75},
    {"cp 2, window", ARCH_LLAMA, .cp = 2, .window = 4},
    {"cp 2, documents", ARCH_LLAMA, .cp = 2, .documents = true},
    {"tp 2, heads normed", ARCH_LLAMA, .tp = 2, .qk_norm = QK_NORM_HEAD},
    {"tp 4, heads normed, no sp", ARCH_LLAMA, .tp = 4, .qk_norm = QK_NORM_HEAD, .no_sp = true},
    {"tp 4, all heads normed together", ARCH_LLAMA, .tp = 4, .qk_norm = QK_NORM_WHOLE},
};
#define N_CELLS (sizeof(cells) / sizeof(cells[0]))

static int one_or(int n)
{
    return n > 1 ? n : 1;
}

static void try_cell(const struct cell *c)
{
    struct job_spec job =
        job_small(c->arch, one_or(c->dp) * one_or(c->fsdp) * one_or(c->tp) * one_or(c->pp) * one_or(c->cp));
    job.model.layers = 4;
    job.model.vocab = 150; /* more rows than a grain, so that shards cut them */
    job.model.ffn = 144;
    job.model.qk_norm = c->qk_norm;
    job.model.window = c->window;
    job.model.documents = c->documents;
    job.parallel.fsdp = one_or(c->fsdp);
    job.parallel.zero = c->zero;
    job.parallel.tp = one_or(c->tp);
    job.parallel.pp = one_or(c->pp);
    job.parallel.cp = one_or(c->cp);
    job.parallel.ep = one_or(c->ep);
    job.parallel.expert_load = c->balanced ? EXPERT_LOAD_BALANCED : EXPERT_LOAD_ROUTED;
    job.parallel.expert_rows = c->rounds ? 1 : 0;
    job.parallel.dispatch = c->gather ? DISPATCH_ALL_GATHER : DISPATCH_ALL_TO_ALL;
    job.parallel.chunks = one_or(c->chunks);
    job.parallel.sp = !c->no_sp;
    job.parallel.async_tp = c->async;
    job.parallel.post_validation = c->ahead;
    job.parallel.schedule = c->schedule;
    job.parallel.schedule_csv = (char *)c->csv;
    job.train.global_batch = c->csv ? 3 * job.train.micro_batch : job.train.global_batch;
    job.parallel.recompute = c->rounds ? RECOMPUTE_EXPERTS : c->recompute;
    if (c->experts) {
        job.model.experts = 6;
        job.model.experts_per_token = 2;
        job.model.expert_ffn = 24;
        job.model.expert_bias = 0.05;
        job.model.aux_loss = 0.5;
        job.model.expert_capacity = c->capacity;
        job.model.expert_drop = c->capacity > 0 ? DROP_PROBABILITY : DROP_POSITION;
        job.model.aux_scope = c->batch ? AUX_BATCH : c->sets ? AUX_SAMPLE : AUX_MICRO_BATCH;
    }
    job.train.dropout = c->dropout ? 0.25 : 0;
    job.train.numerics = c->canonical ? NUMERICS_CANONICAL : NUMERICS_FAST;
    if (c->canonical && job.parallel.cp == 1)
        world_compare_exact(&job);
    else
        world_compare(&job);
}

/* 0: the bug was not found; else the signal, or -1 for an exit. `out` receives the output. */
static int run_apart(const char *mutant, const struct cell *c, int out)
{
    pid_t pid = fork();
    int status;
    assert_true(pid >= 0);
    if (pid == 0) {
        setenv("DTD_MUTANT", mutant, 1);
        setenv("CMOCKA_TEST_ABORT", "1", 1);
        dup2(out, 1);
        dup2(out, 2);
        try_cell(c);
        fflush(NULL);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) ? -1 : 0;
}

static void first_error(int out, char *to, size_t size)
{
    char text[4096];
    ssize_t n = pread(out, text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = 0;
    const char *at = strstr(text, "ERROR: ");
    snprintf(to, size, "%.*s", (int)strcspn(at ? at + 7 : text, "\n"), at ? at + 7 : text);
}

static const struct cell *first_failing_cell(const char *mutant, char *text, size_t size)
{
    for (size_t i = 0; i < N_CELLS; i++) {
        int out = memfd_create("output", MFD_CLOEXEC), how = run_apart(mutant, &cells[i], out);
        first_error(out, text, size);
        close(out);
        if (how == SIGABRT)
            return &cells[i];
        if (how != 0)
            fail_msg("%s on %s ends with signal %d, which is no finding: %s", mutant, cells[i].name, how, text);
    }
    return NULL;
}

TEST(without_a_bug_every_job_is_one_worker)
{
    char text[256];
    const struct cell *c = first_failing_cell("", text, sizeof(text));
    if (c)
        fail_msg("%s: %s", c->name, text);
}

TEST(every_planted_bug_is_found)
{
#define X(name, what) {#name, what},
    static const struct {
        const char *name, *what;
    } mutants[] = {MUTANT_LIST(X)};
#undef X
    int found = 0, checked = 0;
    char text[256];
    for (int i = 0; i < MUTANT_COUNT; i++) {
        const struct cell *c = first_failing_cell(mutants[i].name, text, sizeof(text));
        found += c != NULL;
        checked += c && strstr(text, "plan_check") == text;
        print_message("%-30s %-28s %s\n", mutants[i].name, c ? c->name : "NOT FOUND", c ? text : mutants[i].what);
    }
    print_message("%d of %d planted bugs found, %d of them by the checker\n", found, MUTANT_COUNT, checked);
    assert_int_equal(found, MUTANT_COUNT);
}
