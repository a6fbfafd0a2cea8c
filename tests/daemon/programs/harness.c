/* Waits poll the state that they wait for; none of them is a fixed sleep. */
#include "tests/daemon/programs/harness.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_MS 20000

static const char *program(void)
{
    static char path[4096];
    const char *folder = getenv("DTD_TEST_STAR") ? "star" : "bin";
    snprintf(path, sizeof(path), "%s/../tests/%s/dtd", getenv("DTD_BIN"), folder);
    return path;
}

void sleep_ms(int ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

static pid_t spawned[16];
static pid_t spawner;

/* The kernel forgets PR_SET_PDEATHSIG of a system-wide dtd, which becomes other users for a while. */
static void kill_spawned(void)
{
    for (size_t i = 0; getpid() == spawner && i < sizeof(spawned) / sizeof(spawned[0]); i++)
        if (spawned[i] && waitpid(spawned[i], NULL, WNOHANG) == 0) /* it is still our child */
            kill(spawned[i], SIGKILL);
}

static void remember(pid_t pid)
{
    if (!spawner)
        atexit(kill_spawned);
    spawner = getpid();
    for (size_t i = 0; i < sizeof(spawned) / sizeof(spawned[0]); i++)
        if (!spawned[i]) {
            spawned[i] = pid;
            return;
        }
}

static int wait_and_forget(pid_t pid)
{
    int status;
    assert_int_equal(pid, waitpid(pid, &status, 0));
    for (size_t i = 0; i < sizeof(spawned) / sizeof(spawned[0]); i++)
        spawned[i] = spawned[i] == pid ? 0 : spawned[i];
    return status;
}

static pid_t spawn(const char *const *argv, int out)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(out, 2);
    execv(argv[0], (char *const *)argv);
    _exit(126);
}

void dtd_start(struct dtd *d, const char *dir)
{
    dtd_start_with(d, dir, NULL);
}

static void start(struct dtd *d, const char *const *argv)
{
    char log[512];
    struct client_node node;
    struct why why = {""};
    signal(SIGPIPE, SIG_IGN); /* tests kill control while a call is under way */
    snprintf(log, sizeof(log), "%s.log", d->dir);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    d->pid = spawn(argv, fd);
    remember(d->pid);
    close(fd);
    assert_ok(client_node_get(dtd_client(d), &node, &why));
    assert_int_equal(d->pid, node.supervisor_pid);
    client_node_fini(&node);
}

void dtd_start_with(struct dtd *d, const char *dir, const char *config)
{
    *d = (struct dtd){0};
    snprintf(d->dir, sizeof(d->dir), "%s/%s", test_tmpdir(), dir);
    start(d, (const char *[]){program(), "--state-dir", d->dir, config ? "--config" : NULL, config, NULL});
}

void dtd_start_system(struct dtd *d)
{
    dtd_start_system_with(d, "");
}

void dtd_start_system_with(struct dtd *d, const char *more)
{
    dtd_start_system_at(d, test_tmpdir(), more);
}

void dtd_start_system_at(struct dtd *d, const char *folder, const char *more)
{
    char config[512];
    *d = (struct dtd){0};
    snprintf(d->dir, sizeof(d->dir), "%s/run", folder);
    snprintf(config, sizeof(config), "%s/dtd.yaml", folder);
    assert_int_equal(0, chmod(test_tmpdir(), 0711));
    FILE *f = fopen(config, "w");
    assert_non_null(f);
    fprintf(f, "state_dir: %s/state\nrun_dir: %s\nuser: nobody\n%s", folder, d->dir, more);
    fclose(f);
    assert_int_equal(0, chmod(config, 0644));
    start(d, (const char *[]){program(), "--system", "--config", config, NULL});
}

struct client *dtd_client(struct dtd *d)
{
    int64_t until = clock_mono_ms() + START_MS;
    struct client_node node;
    struct why why = {""};
    for (;;) {
        if (d->client && client_node_get(d->client, &node, &why) == OK) {
            client_node_fini(&node);
            return d->client;
        }
        client_close(d->client);
        d->client = NULL;
        if (client_open(d->dir, &d->client, &why))
            sleep_ms(10);
        if (clock_mono_ms() > until)
            fail_msg("dtd does not answer: %s", why.text);
    }
}

int dtd_control_pid(struct dtd *d)
{
    struct client_node node;
    struct why why = {""};
    assert_ok(client_node_get(dtd_client(d), &node, &why));
    int pid = node.control_pid;
    client_node_fini(&node);
    assert_true(pid > 1); /* the caller may kill it: -1, 0 and 1 would be other processes */
    return pid;
}

void *dtd_preload(const char *library, const char *env, size_t size)
{
    char file[512], path[4096], asan[1024];
    const char *options = getenv("ASAN_OPTIONS");
    snprintf(file, sizeof(file), "%s/%s", test_tmpdir(), library);
    int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(0, ftruncate(fd, (off_t)size));
    void *ret = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(ret != MAP_FAILED);
    close(fd);
    snprintf(path, sizeof(path), "%s/../tests/lib%s.so", getenv("DTD_BIN"), library);
    snprintf(asan, sizeof(asan), "%s%sverify_asan_link_order=0", options ? options : "", options ? ":" : "");
    setenv("ASAN_OPTIONS", asan, 1); /* a sanitizer's library wants to be the first one otherwise */
    setenv(env, file, 1);
    setenv("LD_PRELOAD", path, 1);
    return ret;
}

void dtd_kill(struct dtd *d)
{
    client_close(d->client);
    d->client = NULL;
    kill(d->pid, SIGKILL);
    (void)wait_and_forget(d->pid);
}

/* A crash of control fails the test even if a new control has continued its work. */
static void check_log(const char *dir, const char *name)
{
    static const char *const bad[] = {"Sanitizer", "runtime error:", "illegal move", "Assertion", "not acknowledged"};
    char path[512];
    snprintf(path, sizeof(path), "%s%s", dir, name);
    char *text = read_text(path);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        const char *at = strstr(text, bad[i]);
        if (at)
            fail_msg("%s says: %.1500s", path, at);
    }
    free(text);
}

int dtd_down(struct dtd *d)
{
    struct why why = {""};
    assert_ok(client_shutdown(dtd_client(d), &why));
    client_close(d->client);
    d->client = NULL;
    int status = wait_and_forget(d->pid);
    check_log(d->dir, ".log");
    check_log(d->dir, "/control.log");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int dtd_run(const char *const *args, char *ret, size_t size)
{
    const char *argv[16] = {program()};
    int fd[2], status, n = 1;
    for (; *args; args++)
        argv[n++] = *args;
    assert_int_equal(0, pipe2(fd, O_CLOEXEC));
    pid_t pid = spawn(argv, fd[1]);
    close(fd[1]);
    size_t len = 0;
    for (ssize_t got; len < size - 1 && (got = read(fd[0], ret + len, size - 1 - len)) > 0;)
        len += (size_t)got;
    ret[len] = '\0';
    close(fd[0]);
    assert_int_equal(pid, waitpid(pid, &status, 0));
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* ---- jobs ---- */

const char *spec_text(const char *name, int workers, int steps, const char *env, const char *more)
{
    static char text[4096];
    snprintf(text, sizeof(text),
             "name: %s\n"
             "model: {arch: llama, dim: 64, layers: 1, heads: 2, ffn: 128}\n"
             "data: {train: [/etc/passwd]}\n"
             "train: {steps: %d, seq: 16, global_batch: 4, micro_batch: 1, warmup: 0}\n"
             "parallel: {workers: %d}\n"
             "checkpoint: {dir: %s/%s, every: 1000}\n"
             "run: {env: {%s}%s%s}\n",
             name, steps, workers, test_tmpdir(), name, env, *more ? ", " : "", more);
    return text;
}

void job_submit(struct dtd *d, const char *spec, char ret[32])
{
    uint8_t id[16];
    struct why why = {""};
    assert_ok(client_request_id(id));
    err_t err = client_submit(dtd_client(d), id, spec, NULL, ret, &why);
    if (err)
        fail_msg("submit: %s: %s", err_name(err), why.text);
}

const struct client_job *job_status(struct dtd *d, const char *job)
{
    static struct client_job status;
    static bool have;
    struct why why = {""};
    if (have)
        client_job_fini(&status);
    have = false;
    err_t err = client_status(dtd_client(d), job, &status, &why);
    if (err)
        fail_msg("status: %s: %s", err_name(err), why.text);
    have = true;
    for (int k = 0; k < status.n_worker; k++)
        assert_true(status.worker[k].pid >= 0);
    return &status;
}

void job_wait(struct dtd *d, const char *job, const char *state, int ms)
{
    int64_t until = clock_mono_ms() + ms;
    for (;;) {
        const struct client_job *s = job_status(d, job);
        if (strcmp(s->state, state) == 0)
            return;
        if (client_job_ended(s) || clock_mono_ms() > until)
            fail_msg("job %s is %s (%s) at epoch %llu step %lld, expected %s", job, s->state, s->reason,
                     (unsigned long long)s->epoch, (long long)s->step, state);
        sleep_ms(10);
    }
}

void job_wait_step(struct dtd *d, const char *job, uint64_t epoch, int64_t step, int ms)
{
    int64_t until = clock_mono_ms() + ms;
    for (;;) {
        const struct client_job *s = job_status(d, job);
        if (s->has_last && s->last.epoch >= epoch && s->last.step >= step)
            return;
        if (client_job_ended(s) || clock_mono_ms() > until)
            fail_msg("job %s is %s (%s) at epoch %llu step %lld, expected epoch %llu step %lld", job, s->state,
                     s->reason, (unsigned long long)s->epoch, (long long)s->step, (unsigned long long)epoch,
                     (long long)step);
        sleep_ms(10);
    }
}

/* ---- files ---- */

char *read_text(const char *path)
{
    struct buf b = {0};
    err_t err = file_read(path, 1 << 26, &b);
    assert_true(err == OK || err == ERR_NOTFOUND);
    assert_ok(buf_append(&b, "", 1));
    return (char *)b.data;
}

int count_text(const char *text, const char *what)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
        n++;
    return n;
}
