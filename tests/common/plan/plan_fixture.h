/* Jobs and compiled programs for the tests of common/plan. */
#ifndef DTD_TESTS_COMMON_PLAN_PLAN_FIXTURE_H
#define DTD_TESTS_COMMON_PLAN_PLAN_FIXTURE_H

#include "common/plan/compile/compile.h"
#include "common/plan/models/build.h"
#include "common/plan/program.h"
#include "tests/lib/test.h"

#define MAX_RANKS 8

/* A tiny job whose keys are all legal. */
static inline struct job_spec job_small(enum model_arch arch, int workers)
{
    struct job_spec job = {.name = "small"};
    job.model = (struct job_model){
        .arch = arch, .dim = 16, .layers = 2, .heads = 4, .vocab = 32, .norm_eps = 1e-5, .rope_theta = 10000};
    job.model.kv_heads = arch == ARCH_LLAMA ? 2 : 0;
    job.model.tied = arch == ARCH_GPT2;
    job.train = (struct job_train){.steps = 10,
                                   .seq = 8,
                                   .global_batch = 10,
                                   .micro_batch = 2,
                                   .lr = 1e-3,
                                   .clip = 1,
                                   .beta1 = 0.9,
                                   .beta2 = 0.95,
                                   .eps = 1e-8,
                                   .dtype = DT_F32,
                                   .numerics = NUMERICS_FAST};
    job.parallel = (struct job_parallel){.workers = workers,
                                         .fsdp = 1,
                                         .tp = 1,
                                         .pp = 1,
                                         .cp = 1,
                                         .ep = 1,
                                         .chunks = 1,
                                         .prefetch = 1,
                                         .sp = true,
                                         .reshard = true};
    return job;
}

/* Sizes that no mesh divides: heads, columns of the feed-forward, rows of the vocabulary, tokens, the last microbatch.
 */
static inline struct job_spec job_uneven(struct job_spec job)
{
    bool llama = job.model.arch == ARCH_LLAMA;
    job.model.heads = llama ? 6 : 5;
    job.model.kv_heads = llama ? 3 : 0;
    job.model.dim = llama ? 24 : 20;
    job.model.ffn = 21;
    job.model.vocab = 37;
    job.train.seq = 7;
    job.train.global_batch = 5;
    return job;
}

/* All ranks' programs of a job. */
struct fixture {
    struct job_spec job;
    struct graph graph;
    struct program programs[MAX_RANKS];
    int n;
    struct why why;
};

static inline void fixture_init(struct fixture *f, const struct job_spec *job, enum program_mode mode)
{
    memset(f, 0, sizeof(*f));
    f->job = *job;
    f->n = (int)job->parallel.workers;
    assert_true(f->n <= MAX_RANKS);
    if (graph_build(&f->job.model, f->job.train.seq, &f->graph, &f->why) != OK)
        fail_msg("graph_build: %s", f->why.text);
    if (plan_compile_all(&f->job, &f->graph, mode, f->n, f->programs, &f->why) != OK)
        fail_msg("plan_compile_all: %s", f->why.text);
}

static inline void fixture_fini(struct fixture *f)
{
    for (int r = 0; r < f->n; r++)
        program_fini(&f->programs[r]);
    graph_fini(&f->graph);
}

static inline int fixture_tensor(const struct fixture *f, const char *name)
{
    for (int i = 0; i < f->graph.n_tensors; i++)
        if (strcmp(f->graph.tensors[i].name, name) == 0)
            return i;
    fail_msg("the graph has no tensor %s", name);
    return -1;
}

/* Asserts that the error message contains `words`. */
static inline void assert_message(const struct why *why, const char *words)
{
    if (!strstr(why->text, words))
        fail_msg("\"%s\" does not contain \"%s\"", why->text, words);
}

#endif
