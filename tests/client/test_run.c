/* dtctl run: the real dtctl with a fake control, which keeps the spec. */
#include "tests/client/fake_control.h"
#include "tests/client/run.h"
#include "tests/lib/test.h"

#include <limits.h>

static struct fake_control *start(void)
{
    static const struct fake_script script = {.steps = 1, .end_state = "done"};
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%s/dtd", test_tmpdir());
    return fake_start(dir, &script);
}

/* Options end at the command, as with torchrun: what follows is the script's, whether it looks like an option of dtctl
 * or not. */
TEST(options_of_the_script_are_the_script_s)
{
    static const char want[] =
        "command: [\"python3\", \"train.py\", \"-d\", \"data\", \"-n\", \"4\", \"--env\", \"A=B\", \"-o\", "
        "\"json\", \"--help\", \"--nodes\", \"9\"]";
    static const char *const lines[] = {
        "dtctl run --name mine --env C=D python3 train.py -d data -n 4 --env A=B -o json --help --nodes 9",
        "dtctl run --name mine --env C=D -- python3 train.py -d data -n 4 --env A=B -o json --help --nodes 9"};
    struct fake_control *f = start();
    struct run_result r;
    for (size_t i = 0; i < 2; i++) {
        run_expect(&r, 0, lines[i]);
        expect_text(fake_spec(f), want);
        expect_text(fake_spec(f), "name: \"mine\"");
        expect_text(fake_spec(f), "\"C=D\"");
        const char *argument = strstr(fake_spec(f), "\"A=B\"");
        assert_non_null(argument);
        assert_null(strstr(argument + 1, "\"A=B\"")); /* not a variable, too */
    }
    run_expect(&r, 2, "dtctl run --nodes two python3 train.py");
    fake_stop(f);
    fake_free(f);
}

static void expect_no_text(const char *where, const char *text)
{
    if (!strstr(where, text))
        return;
    print_error("\"%s\" is in:\n%s", text, where);
    fail();
}

/* torchrun's names of the options, with its two spellings. */
TEST(options_of_torchrun)
{
    static const struct {
        const char *line, *nodes, *workers, *device;
    } table[] = {
        {"dtctl run --nproc-per-node 3 -- true", "nodes: 1\n", "workers: 3\n", "device: cpu\n"},
        {"dtctl run --nnodes=2 --nproc_per_node=3 -- true", "nodes: 2\n", "workers: 6\n", "device: cpu\n"},
        {"dtctl run --nnodes=1:2 --gpus 4 -- true", "nodes: 2\n", "workers: 8\n", "device: cuda\n"},
    };
    struct fake_control *f = start();
    struct run_result r;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        run_expect(&r, 0, table[i].line);
        expect_text(fake_spec(f), table[i].nodes);
        expect_text(fake_spec(f), table[i].workers);
        expect_text(fake_spec(f), table[i].device);
    }
    run_expect(&r, 2, "dtctl run --nproc-per-node gpu -- true");
    expect_text(r.err, "--gpus 4");
    run_expect(&r, 2, "dtctl run --rdzv-backend c10d -- true");
    expect_text(r.err, "are not needed");
    run_expect(&r, 2, "dtctl run --batch --detach -- true");
    fake_stop(f);
    fake_free(f);
}

TEST(how_workers_are_stopped)
{
    static const struct {
        const char *line, *message;
    } refused[] = {
        {"dtctl run --grace 86401 -- true", "--grace 86401: expected a number of seconds from 0 to 86400"},
        {"dtctl run --stop-signal KILL -- true", "--stop-signal KILL: expected one of TERM, INT, HUP"},
        {"dtctl cancel --grace soon 7", "--grace soon: expected a number of seconds"},
        {"dtctl cancel --now --save 7", "give either --now"},
        {"dtctl cancel --grace 5 --now 7", "give either --now"},
    };
    struct fake_control *f = start();
    struct run_result r;
    run_expect(&r, 0, "dtctl run -- true");
    expect_text(fake_spec(f), "grace_seconds: 30\n");
    expect_text(fake_spec(f), "stop_signal: TERM\n");
    run_expect(&r, 0, "dtctl run --grace 86400 --stop-signal SIGUSR2 -- true");
    expect_text(fake_spec(f), "grace_seconds: 86400\n");
    expect_text(fake_spec(f), "stop_signal: USR2\n");
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        run_expect(&r, 2, refused[i].line);
        expect_text(r.err, refused[i].message);
    }
    fake_stop(f);
    fake_free(f);
}

TEST(shows_the_output_of_the_workers)
{
    struct fake_control *f = start();
    struct run_result r;
    run_expect(&r, 0, "dtctl run -- true");
    expect_text(r.out, "[rank 0] hello from 0\n");
    expect_text(r.out, "[rank 1] hello from 1\n");
    run_expect(&r, 0, "dtctl run -q -- true");
    expect_no_text(r.out, "hello from");
    run_expect(&r, 0, "dtctl run -o json -- true"); /* standard output has only the status */
    expect_no_text(r.out, "hello from");
    expect_text(r.err, "[rank 1] hello from 1\n");
    fake_stop(f);
    fake_free(f);
}

/* Without an interpreter the workers could only exit with 127. */
TEST(a_script_without_an_interpreter_is_refused)
{
    struct fake_control *f = start();
    struct run_result r;
    run_write("train.py", "print(1)\n");
    run_expect(&r, 2, "dtctl run train.py --epochs 4");
    expect_text(r.err, "dtctl run -- python3 train.py");
    run_expect(&r, 2, "dtctl run -- ./train.py");
    expect_text(r.err, "./train.py is not executable");
    run_expect(&r, 0, "chmod +x train.py && dtctl run -- ./train.py");
    run_expect(&r, 0, "PATH=$PWD:$PATH dtctl run -- train.py");
    run_expect(&r, 0, "dtctl run -- only-on-the-nodes.py");
    run_expect(&r, 0, "dtctl run -- python3 train.py");
    assert_string_equal(r.err, "");
    fake_stop(f);
    fake_free(f);
}

TEST(a_launcher_inside_gets_a_note)
{
    static const struct {
        const char *line, *launcher;
    } table[] = {{"dtctl run -- torchrun --nproc-per-node 2 train.py", "torchrun"},
                 {"dtctl run -- /usr/bin/accelerate launch train.py", "accelerate launch"},
                 {"dtctl run -- python3 -u -m torch.distributed.run train.py", "torchrun"},
                 {"dtctl run -- accelerate config", NULL},
                 {"dtctl run -- python3 train.py -m torch.distributed.run", NULL}};
    struct fake_control *f = start();
    struct run_result r;
    char note[128];
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        run_expect(&r, 0, table[i].line);
        snprintf(note, sizeof(note), "note: %s starts workers of its own", table[i].launcher);
        if (table[i].launcher)
            expect_text(r.err, note);
        else
            assert_string_equal(r.err, "");
    }
    fake_stop(f);
    fake_free(f);
}
