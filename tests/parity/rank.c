#include "tests/parity/rank.h"

#include <sys/mman.h>
#include <sys/wait.h>

void parity_fork(int world, parity_rank_fn fn, void *arg)
{
    pid_t pid[PARITY_MAX_WORKERS];
    int fd = memfd_create("ranks", MFD_CLOEXEC), failed = 0;
    assert_true(fd >= 0 && world <= PARITY_MAX_WORKERS);
    for (int i = 0; i < world; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i] == 0)
            _exit(fn(arg, fd, i));
    }
    for (int i = 0; i < world; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    close(fd);
    assert_int_equal(failed, 0);
}

err_t parity_rank_open(struct parity_rank *r, const struct parity_model *m, int fd, int rank, struct why *why)
{
    r->m = m;
    r->data = (struct parity_feed){.seq = m->job.train.seq, .vocab = m->job.model.vocab};
    const struct engine_config config = {.dev = test_cpu(),
                                         .job = &m->job,
                                         .graph = &m->graph,
                                         .rank = rank,
                                         .world = (int)m->job.parallel.workers,
                                         .comm_thread = m->job.run.comm_thread == COMM_THREAD_ON};
    err_t err = engine_init(&r->e, &config, why);
    const struct comm_config cc = {.backend = "shm",
                                   .fd = fd,
                                   .rank = rank,
                                   .world = config.world,
                                   .epoch = 1,
                                   .shared_bytes = engine_shared_bytes(&r->e),
                                   .timeout_ms = 30000};
    err = err ? err : comm_open(&cc, &r->comm, why);
    err = err ? err : engine_start(&r->e, r->comm, why);
    return err ? err : engine_fill_state(&r->e, why);
}

err_t parity_rank_step(struct parity_rank *r, struct engine_result *ret, struct why *why)
{
    const struct engine_feed feed = {.sample = parity_sample, .arg = &r->data};
    return engine_step(&r->e, &feed, ret, why);
}

void parity_rank_close(struct parity_rank *r)
{
    engine_fini(&r->e);
    comm_close(r->comm);
}
