/* Command jobs: the form in the log reads back, and errors. */
#include "common/conf/job.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static err_t parse(const char *text, struct job_spec *ret, struct why *why)
{
    return job_parse("job.yaml", text, strlen(text), NULL, 0, ret, why);
}

static void refused(const char *text, const char *sentence)
{
    struct job_spec j = {0};
    struct why why = {""};
    assert_int_equal(ERR_INVALID, parse(text, &j, &why));
    if (!strstr(why.text, sentence))
        fail_msg("\"%s\" does not contain \"%s\"", why.text, sentence);
}

TEST(a_command_job_has_no_training_keys)
{
    struct job_spec j;
    struct why why = {""};
    assert_int_equal(OK, parse("{name: x, command: [python, -u, train.py, ''], parallel: {workers: 6, min_workers: 2}, "
                               "run: {nodes: 3, restarts: 1}}",
                               &j, &why));
    assert_true(job_is_command(&j));
    assert_int_equal(4, j.n_command);
    assert_string_equal("train.py", j.command[2]);
    assert_string_equal("", j.command[3]);
    assert_int_equal(6, j.parallel.workers);
    assert_int_equal(1, job_replica_workers(&j));
    assert_int_equal(3, j.run.nodes);
    job_fini(&j);
}

/* Newlines, quotes and non-ASCII characters, which environment variables may contain. */
TEST(printing_reads_back)
{
    char *command[] = {"sh", "-c", "echo \"a'b\"\n# c: [d] {e}", "\xc3\xa4"}, *env[] = {"A=1", "B=x: y\n\t- z", "C="};
    struct job_spec j = {.name = "n", .command = command, .n_command = 4, .parallel = {.workers = 2}}, back;
    struct buf text = {0};
    struct why why = {""};
    char *inherited[] = {"T=1", "T=2", "BASH_FUNC_f%%=() { :\n}", "without"};
    j.run = (struct job_run){
        .workers_per_gpu = 1, .orphan_seconds = 60, .stop_signal = SIGUSR1, .env = env, .n_env = 3, .workdir = "/a b"};
    j.run.caller = "env umask=0022 ignored=13";
    j.run.caller_env = inherited;
    j.run.n_caller_env = 4;
    assert_int_equal(OK, job_print(&j, &text));
    if (job_parse("log", (const char *)text.data, text.len, NULL, 0, &back, &why))
        fail_msg("%s", why.text);
    assert_int_equal(4, back.n_command);
    assert_int_equal(3, back.run.n_env);
    for (int i = 0; i < 4; i++)
        assert_string_equal(command[i], back.command[i]);
    for (int i = 0; i < 3; i++)
        assert_string_equal(env[i], back.run.env[i]);
    assert_int_equal(4, back.run.n_caller_env);
    for (int i = 0; i < 4; i++)
        assert_string_equal(inherited[i], back.run.caller_env[i]);
    assert_string_equal(j.run.caller, back.run.caller);
    assert_string_equal("/a b", back.run.workdir);
    assert_int_equal(SIGUSR1, back.run.stop_signal);
    assert_int_equal(0, back.run.grace_seconds);
    job_fini(&back);
    buf_fini(&text);
}

TEST(how_a_command_is_stopped)
{
    static const struct {
        const char *run;
        int signal, seconds;
    } table[] = {
        {"restarts: 0", SIGTERM, 30},
        {"stop_signal: USR1, grace_seconds: 90", SIGUSR1, 90},
        {"stop_signal: SIGHUP, grace_seconds: 0", SIGHUP, 0},
        {"stop_signal: INT, grace_seconds: 10m", SIGINT, 600},
        {"stop_signal: SIGQUIT, grace_seconds: 1d", SIGQUIT, 86400},
    };
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct job_spec j;
        struct why why = {""};
        char text[200];
        snprintf(text, sizeof(text), "{name: x, command: [a], run: {%s}}", table[i].run);
        if (parse(text, &j, &why))
            fail_msg("%s", why.text);
        assert_int_equal(table[i].signal, j.run.stop_signal);
        assert_int_equal(table[i].seconds, j.run.grace_seconds);
        job_fini(&j);
    }
}

TEST(what_is_refused)
{
    refused("{name: x, command: []}", "no program is given");
    refused("{name: x, command: ['']}", "no program is given");
    refused("{name: x, command: train.py}", "a list of strings");
    refused("{name: x, command: [a], train: {steps: 3}}", "unknown key");
    refused("{command: [a]}", "name: required key is missing");
    refused("{name: x, command: [a], parallel: {workers: 3}, run: {nodes: 2}}", "cannot be spread evenly over 2 nodes");
    refused("{name: x, command: [a], parallel: {workers: 6, min_workers: 3}, run: {nodes: 3}}", "write 4");
    refused("{name: x, command: [a], parallel: {workers: 2, min_workers: 3}}", "more than parallel.workers");
    refused("{name: x, command: [a], run: {caller: 'umask=9'}}", "run.caller: expected settings such as");
    refused("{name: x, command: [a], run: {master_addr: 'a b'}}", "run.master_addr: expected a host name");
    refused("{name: x, command: [a], run: {master_port: 29400}}", "write 0, or run.master_addr: auto");
    refused("{name: x, command: [a], run: {stop_signal: SIGFOO}}",
            "run.stop_signal: expected one of TERM, INT, HUP, QUIT, USR1, USR2, ALRM, found \"SIGFOO\"");
    refused("{name: x, command: [a], run: {stop_signal: KILL}}", "run.stop_signal: expected one of TERM");
    refused("{name: x, command: [a], run: {grace_seconds: 86401}}",
            "run.grace_seconds: expected an integer from 0 to 86400 (or 90s, 30m, 1h, 2d), found \"86401\"");
    refused("{name: x, command: [a], run: {grace_seconds: -1}}", "run.grace_seconds: expected an integer from 0");
}

TEST(a_command_job_cannot_be_resumed)
{
    struct job_spec j;
    struct why why = {""};
    assert_int_equal(OK, parse("{name: x, command: [a]}", &j, &why));
    assert_int_equal(ERR_INVALID, job_resume_check(&j, &j, &why));
    assert_int_equal(OK, job_paths_resolve(&j, "/folder", &why));
    assert_string_equal("/folder", j.run.workdir);
    job_fini(&j);
}
