/* From samples of processes to a table: which of a collective's times counts, and quartiles. Expected figures are
 * counted by hand. That a step of a small model is recorded is in the last case. */
#include "tests/lib/test.h"
#include "worker/measure_part.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct measure_samples *samples_new(int n)
{
    struct measure_samples *ret =
        mmap(NULL, (size_t)n * sizeof(*ret), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(ret != MAP_FAILED);
    return ret;
}

static void add(struct measure_samples *to, enum op_kind kind, double size, double seconds, uint64_t call)
{
    to->list[to->n++] = (struct measure_sample){
        .key = {kind, DT_F32, 0, call ? 2 : 1}, .size = {size}, .seconds = seconds, .call = call};
}

static void expect_table(struct measure_all *all, const char *text)
{
    struct buf b = {0};
    assert_int_equal(measure_table(all, &b), OK);
    assert_int_equal(buf_append(&b, "", 1), OK);
    assert_string_equal((const char *)b.data, text);
    buf_fini(&b);
}

TEST(quartiles_are_those_of_all_samples_of_a_size)
{
    struct measure_samples *of = samples_new(2);
    struct measure_all all = {0};
    static const double seconds[] = {8, 1, 3, 2, 7, 5, 6, 4};
    for (int i = 0; i < 8; i++)
        add(&of[i % 2], OP_ADD, 100, seconds[i], 0);
    add(&of[1], OP_ADD, 50, 9, 0);
    assert_int_equal(measure_collect(&all, of, 2), OK);
    expect_table(&all, "add float32 - 1  50 0 0  9 9 9\nadd float32 - 1  100 0 0  5 3 7\n");
    measure_all_fini(&all);
}

/* Rank 1 arrives last at the first call, rank 0 at the second one. */
TEST(of_a_collective_the_last_rank_counts)
{
    struct measure_samples *of = samples_new(2);
    struct measure_all all = {0};
    add(&of[0], OP_ALL_REDUCE, 100, 10, 1);
    add(&of[0], OP_ALL_REDUCE, 100, 2, 2);
    add(&of[1], OP_ALL_REDUCE, 100, 1, 1);
    add(&of[1], OP_ALL_REDUCE, 100, 20, 2);
    for (uint64_t call = 3; call <= 10; call++)
        add(&of[1], OP_ALL_REDUCE, 100, (double)call, call);
    assert_int_equal(measure_collect(&all, of, 2), OK);
    assert_int_equal(all.n, 10);
    expect_table(&all, "all_reduce float32 - 2  100 0 0  3 2 6\n"); /* of 1 to 10 */
    measure_all_fini(&all);
}

/* The fourth turn is a small model with tp 2. */
TEST(a_step_of_two_ranks_gives_times_of_its_operations)
{
    struct measure_samples *of = samples_new(2);
    struct measure_all all = {0};
    struct buf b = {0};
    const int fd = memfd_create("measure", MFD_CLOEXEC);
    for (int r = 0; r < 2; r++)
        if (fork() == 0) {
            struct why why = {""};
            struct measure m = {.rank = r, .world = 2, .fd = fd, .turn = 3, .samples = &of[r], .why = &why};
            err_t err = dev_open("cpu", 0, &m.dev, &why);
            err = err ? err : measure_steps(&m);
            if (err)
                fprintf(stderr, "%s\n", why.text);
            _exit(err ? 1 : 0);
        }
    for (int status; wait(&status) > 0;)
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_int_equal(measure_collect(&all, of, 2), OK);
    assert_int_equal(measure_table(&all, &b), OK);
    assert_int_equal(buf_append(&b, "", 1), OK);
    static const char *const rows[] = {"layernorm float32 - 1 ", "adamw float32 - 1 ", "own_gather float32 shared 2 ",
                                       "own_scatter float32 shared 2 ", "loss_part float32 - 1 "};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (!strstr((const char *)b.data, rows[i]))
            fail_msg("%s is not in\n%s", rows[i], (const char *)b.data);
    assert_null(strstr((const char *)b.data, "gemm")); /* products have a grid of their own */
    buf_fini(&b);
    measure_all_fini(&all);
    close(fd);
}
