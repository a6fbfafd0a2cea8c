/* A dtd that serves all users of the machine: the owners of its processes and files, and what one user may do to
 * another user's job. The test runs as root and acts as each of the users. */
#include "common/rpc/methods.h"
#include "proto/worker.pb-c.h"
#include "tests/daemon/programs/harness.h"

#include "common/base/clock.h"
#include "common/base/ticket.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define ALICE "daemon" /* two users that every Debian has */
#define MALLORY "games"
#define NOBODY "nobody" /* the user as whom control runs */

static struct dtd d;

static const struct passwd *user(const char *name)
{
    const struct passwd *pw = getpwnam(name);
    if (geteuid() != 0)
        TEST_SKIP("a system-wide dtd is started by root");
    if (!pw)
        TEST_SKIP("this machine has no user %s", name);
    return pw;
}

/* Runs `fn` as the user and returns its result. The child process connects itself, because the kernel reports the user
 * of the process that connects. */
static int as(const char *name, int (*fn)(struct client *c, const char *job), const char *job)
{
    const struct passwd *pw = user(name);
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct client *c;
        struct why why = {""};
        if (setgroups(0, NULL) || setgid(pw->pw_gid) || setuid(pw->pw_uid))
            _exit(100);
        if (client_open(d.dir, &c, &why)) {
            fprintf(stderr, "%s\n", why.text);
            _exit(101);
        }
        _exit(fn(c, job));
    }
    assert_int_equal(pid, waitpid(pid, &status, 0));
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int do_submit(struct client *c, const char *spec)
{
    uint8_t id[16];
    char job[32];
    struct why why = {""};
    if (client_request_id(id))
        return 102;
    err_t err = client_submit(c, id, spec, NULL, job, &why);
    if (err)
        printf("submit: %s: %s\n", err_name(err), why.text);
    return err ? 100 - err : atoi(job);
}

/* Submits a job of the user, with a folder for its checkpoints; returns its number. */
static void submit_as(const char *name, const char *spec_name, const char *more, char ret[32])
{
    char dir[512];
    snprintf(dir, sizeof(dir), "%s/%s", test_tmpdir(), spec_name);
    assert_int_equal(0, mkdir(dir, 0700));
    assert_int_equal(0, chown(dir, user(name)->pw_uid, user(name)->pw_gid));
    int job = as(name, do_submit, spec_text(spec_name, 2, 100000, "", more));
    assert_in_range(job, 1, 99);
    snprintf(ret, 32, "%d", job);
}

static void start(void)
{
    user(ALICE);
    user(MALLORY);
    user(NOBODY);
    dtd_start_system(&d);
}

static char *proc(int pid, const char *name)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
    char *text = calloc(1, 1 << 16);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    ssize_t n = read(fd, text, (1 << 16) - 1);
    assert_true(n > 0);
    close(fd);
    for (ssize_t i = 0; i < n; i++) /* environ contains strings that end with NUL */
        text[i] = text[i] ? text[i] : '\n';
    return text;
}

static void assert_runs_as(int pid, const struct passwd *pw)
{
    char want[128];
    char *text = proc(pid, "status");
    snprintf(want, sizeof(want), "Uid:\t%u\t%u\t%u\t%u\n", pw->pw_uid, pw->pw_uid, pw->pw_uid, pw->pw_uid);
    assert_non_null(strstr(text, want));
    snprintf(want, sizeof(want), "Gid:\t%u\t%u\t%u\t%u\n", pw->pw_gid, pw->pw_gid, pw->pw_gid, pw->pw_gid);
    assert_non_null(strstr(text, want));
    assert_non_null(strstr(text, "CapPrm:\t0000000000000000\n"));
    assert_non_null(strstr(text, "CapAmb:\t0000000000000000\n"));
    free(text);
}

static struct stat file_of(const char *job, const char *name)
{
    char path[512];
    struct stat st;
    snprintf(path, sizeof(path), "%s/state/jobs/%s/%s", test_tmpdir(), job, name);
    if (lstat(path, &st))
        fail_msg("%s: %s", path, strerror(errno));
    return st;
}

static struct client_node node_of(void)
{
    struct client_node node;
    struct why why = {""};
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    return node;
}

TEST(processes_and_files_belong_to_the_user)
{
    char job[32], want[256];
    start();
    submit_as(ALICE, "a", "workdir: /usr/share", job);
    job_wait(&d, job, "running", 20000);
    struct client_node node = node_of();
    int worker = job_status(&d, job)->worker[1].pid;
    assert_runs_as(node.control_pid, user(NOBODY));
    assert_int_equal(1, node.n_io);
    assert_runs_as(node.io_pid[0], user(ALICE));
    assert_runs_as(worker, user(ALICE));
    assert_string_equal(ALICE, job_status(&d, job)->user);
    char *env = proc(worker, "environ");
    snprintf(want, sizeof(want), "HOME=%s\n", user(ALICE)->pw_dir);
    assert_non_null(strstr(env, want));
    assert_non_null(strstr(env, "LOGNAME=" ALICE "\n"));
    free(env);
    snprintf(want, sizeof(want), "/proc/%d/cwd", worker);
    char cwd[64] = "";
    assert_true(readlink(want, cwd, sizeof(cwd) - 1) > 0);
    assert_string_equal("/usr/share", cwd);
    assert_int_equal(user(ALICE)->pw_uid, file_of(job, "rank-0.log").st_uid);
    assert_int_equal(user(NOBODY)->pw_gid, file_of(job, "rank-0.log").st_gid);
    assert_int_equal(S_IFREG | 0640, file_of(job, "rank-0.log").st_mode);
    assert_int_equal(user(ALICE)->pw_uid, file_of(job, "io.sock").st_uid);
    assert_int_equal(S_IFSOCK | 0600, file_of(job, "io.sock").st_mode);
    assert_int_equal(user(NOBODY)->pw_uid, file_of(job, "../../metrics").st_uid);
    assert_int_equal(0, file_of(job, "").st_uid);
    client_node_fini(&node);
    assert_int_equal(0, dtd_down(&d));
}

/* The probe runs as control's user, and control can read its output. */
TEST(gpus_are_known)
{
    start();
    struct client_node node = node_of();
    for (int64_t until = clock_mono_ms() + 20000; node.gpus < 0 && clock_mono_ms() < until; sleep_ms(10)) {
        client_node_fini(&node);
        node = node_of();
    }
    assert_int_equal(0, node.gpus);
    assert_string_equal("the double has none", node.gpu_missing);
    client_node_fini(&node);
    assert_int_equal(0, dtd_down(&d));
}

/* ---- another user's job ---- */

static bool refused(err_t err, const char *what, const struct why *why)
{
    if (err == ERR_DENIED && strstr(why->text, ALICE))
        return true;
    printf("%s: %s: %s\n", what, err_name(err), why->text);
    return false;
}

static err_t profile(struct client *c, const char *job, struct why *why)
{
    Dtd__ProfileRequest q = DTD__PROFILE_REQUEST__INIT;
    q.job = (char *)job;
    q.request = 1;
    return client_call(c, CLIENT_PROFILE, &q.base, NULL, why);
}

static int do_everything(struct client *c, const char *job)
{
    static const struct client_stream stream;
    struct client_job status;
    struct client_checkpoint *list;
    struct why why = {""};
    uint8_t id[16];
    char name[32];
    int n;
    if (client_request_id(id))
        return 102;
    const char *spec = spec_text("b", 1, 10, "", "");
    bool ok = refused(client_status(c, job, &status, &why), "status", &why);
    ok = refused(client_cancel(c, id, job, false, CLIENT_GRACE_DEFAULT, &status, &why), "cancel", &why) && ok;
    ok = refused(client_checkpoints(c, job, &list, &n, &why), "checkpoints", &why) && ok;
    ok = refused(client_logs(c, job, -1, false, -1, &stream, &why), "logs", &why) && ok;
    ok = refused(client_metrics(c, job, false, 0, &stream, &why), "metrics", &why) && ok;
    ok = refused(client_watch(c, job, &stream, &why), "watch", &why) && ok;
    ok = refused(client_events(c, job, false, 0, 0, &stream, &why), "events", &why) && ok;
    ok = refused(client_submit(c, id, spec, job, name, &why), "resume", &why) && ok;
    ok = refused(profile(c, job, &why), "profile", &why) && ok;
    return ok ? 0 : 1;
}

static int do_list(struct client *c, const char *job)
{
    struct client_job *jobs;
    struct why why = {""};
    int n;
    if (client_list(c, &jobs, &n, &why) || n != 1)
        return 1;
    bool known = strcmp(jobs[0].job, job) == 0 && strcmp(jobs[0].name, "a") == 0 && strcmp(jobs[0].user, ALICE) == 0 &&
                 strcmp(jobs[0].state, "running") == 0;
    bool hidden = !jobs[0].checkpoint_dir[0] && !jobs[0].spec_yaml[0] && !jobs[0].reason[0] && !jobs[0].has_last &&
                  jobs[0].step == 0 && jobs[0].n_worker == 0;
    return known && hidden ? 0 : 2;
}

static bool count_event(void *arg, const struct client_event *e)
{
    (void)e;
    ++*(int *)arg;
    return true;
}

/* Returns the number of events of all jobs. */
static int do_events(struct client *c, const char *job)
{
    (void)job;
    struct why why = {""};
    int n = 0;
    return client_events(c, NULL, false, 0, 0, &(struct client_stream){.event = count_event, .arg = &n}, &why) ? 99 : n;
}

static int do_shutdown(struct client *c, const char *job)
{
    (void)job;
    struct why why = {""};
    return client_shutdown(c, &why) == ERR_DENIED ? 0 : 1;
}

static int do_own(struct client *c, const char *job)
{
    struct client_job status;
    struct why why = {""};
    uint8_t id[16];
    if (client_request_id(id) || client_status(c, job, &status, &why) || !status.spec_yaml[0])
        return 1;
    return client_cancel(c, id, job, false, CLIENT_GRACE_DEFAULT, &status, &why) ? 2 : 0;
}

TEST(another_users_job_is_refused)
{
    char job[32];
    start();
    submit_as(ALICE, "a", "", job);
    job_wait(&d, job, "running", 20000);
    assert_int_equal(0, as(MALLORY, do_everything, job));
    assert_int_equal(0, as(NOBODY, do_everything, job)); /* control's user does not own the job either */
    assert_int_equal(0, as(MALLORY, do_list, job));
    assert_int_equal(0, as(MALLORY, do_events, job));
    assert_int_equal(0, as(NOBODY, do_events, job));
    assert_in_range(as(ALICE, do_events, job), 2, 3); /* submitted, started, soon running */
    assert_in_range(as("root", do_events, job), 2, 3);
    assert_int_equal(0, as(ALICE, do_shutdown, job));
    job_wait(&d, job, "running", 20000);
    assert_int_equal(0, as(ALICE, do_own, job));
    job_wait(&d, job, "canceled", 20000);
    assert_int_equal(0, dtd_down(&d)); /* root may stop dtd */
}

/* ---- users that may not submit ---- */

TEST(root_submits_nothing)
{
    uint8_t id[16];
    char job[32];
    struct why why = {""};
    start();
    assert_ok(client_request_id(id));
    assert_err(ERR_DENIED, client_submit(dtd_client(&d), id, spec_text("a", 1, 10, "", ""), NULL, job, &why));
    assert_non_null(strstr(why.text, "root"));
    assert_int_equal(0, dtd_down(&d));
}

static int do_submit_unknown(struct client *c, const char *spec)
{
    (void)c;
    struct client *own;
    struct why why = {""};
    if (setuid(54321) || client_open(d.dir, &own, &why))
        return 101;
    return do_submit(own, spec);
}

TEST(a_uid_without_a_user_runs_nothing)
{
    char job[32];
    start();
    int number = as("root", do_submit_unknown, spec_text("a", 1, 10, "", ""));
    snprintf(job, sizeof(job), "%d", number);
    job_wait(&d, job, "failed", 20000);
    assert_non_null(strstr(job_status(&d, job)->reason, "not permitted"));
    assert_string_equal("uid 54321", job_status(&d, job)->user);
    assert_int_equal(0, dtd_down(&d));
}

/* ---- tokens ---- */

static uint8_t stolen[TICKET_TOKEN_BYTES];
static err_t answer;
static bool came;

static void answered(void *arg, const struct rpc_result *result)
{
    (void)arg;
    answer = result->err;
    came = true;
}

static void closed(void *owner, struct rpc_conn *conn)
{
    (void)owner, (void)conn;
}

static int do_hello(struct client *c, const char *job)
{
    (void)c;
    char path[512];
    uv_loop_t loop;
    int fd;
    struct rpc_conn *conn;
    snprintf(path, sizeof(path), "%s/control.sock", d.dir);
    const struct rpc_conn_config config = {
        .loop = &loop, .methods = rpc_methods(), .n_methods = RPC_METHOD_COUNT, .on_close = closed};
    Dtd__WorkerHello hello = DTD__WORKER_HELLO__INIT;
    hello.job = (char *)job;
    hello.token.data = stolen;
    hello.token.len = sizeof(stolen);
    hello.pid = getpid();
    if (uv_loop_init(&loop) || rpc_connect_unix(path, &fd) || rpc_conn_open(&config, fd, RPC_ROLE_ANY, &conn) ||
        rpc_send(conn, WORKER_HELLO, &hello.base, 5000, answered, NULL, NULL))
        return 1;
    while (!came)
        uv_run(&loop, UV_RUN_ONCE);
    return answer == ERR_DENIED ? 10 : answer ? 2 : 0;
}

/* Another user cannot use a token that has leaked. */
TEST(token_works_only_for_its_user)
{
    char job[32], path[64];
    struct ticket ticket;
    struct why why = {""};
    start();
    submit_as(ALICE, "a", "", job);
    job_wait(&d, job, "running", 20000);
    snprintf(path, sizeof(path), "/proc/%d/fd/3", job_status(&d, job)->worker[0].pid);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_ok(ticket_read(fd, &ticket, &why));
    close(fd);
    memcpy(stolen, ticket.token, sizeof(stolen));
    assert_int_equal(10, as(MALLORY, do_hello, job));
    assert_int_equal(0, as(ALICE, do_hello, job));
    assert_int_equal(0, dtd_down(&d));
}

/* ---- paths ---- */

static void write_victim(char path[512])
{
    snprintf(path, 512, "%s/victim", test_tmpdir());
    FILE *f = fopen(path, "w");
    fputs("untouched\n", f);
    fclose(f);
    assert_int_equal(0, chmod(path, 0600));
}

static void check_victim(const char *path)
{
    char *text = read_text(path);
    assert_string_equal("untouched\n", text);
    free(text);
}

static int do_plant(struct client *c, const char *job)
{
    (void)c;
    char path[512];
    snprintf(path, sizeof(path), "%s/state/jobs/%s/rank-9.log", test_tmpdir(), job);
    if (symlink("/etc/passwd", path) == 0)
        return 1;
    snprintf(path, sizeof(path), "%s/state/jobs/%s/rank-0.log", test_tmpdir(), job);
    if (rename(path, "/tmp/dtd-test-renamed") == 0 || unlink(path) == 0)
        return 2;
    snprintf(path, sizeof(path), "%s/state/jobs/77", test_tmpdir());
    return mkdir(path, 0700) == 0 ? 3 : 0;
}

/* Neither the job's user nor control's user can create a link in the folders that the supervisor writes to. If there is
 * a link nevertheless, the supervisor does not follow it. */
TEST(no_link_is_followed)
{
    char job[32], victim[512], path[512];
    start();
    write_victim(victim);
    submit_as(ALICE, "a", "", job);
    job_wait(&d, job, "running", 20000);
    assert_int_equal(0, as(ALICE, do_plant, job));
    assert_int_equal(0, as(NOBODY, do_plant, job));
    static const char *const names[] = {"rank-0.log", "io.log"};
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/state/jobs/%s/%s", test_tmpdir(), job, names[i]);
        assert_int_equal(0, unlink(path));
        assert_int_equal(0, symlink(victim, path));
    }
    struct client_node node = node_of();
    kill(node.io_pid[0], SIGKILL);
    client_node_fini(&node);
    kill(job_status(&d, job)->worker[0].pid, SIGKILL);
    job_wait_step(&d, job, 2, 1, 30000);
    check_victim(victim);
    assert_int_equal(0, dtd_down(&d));
}

/* Paths that a user names are opened as the user: a folder of root is neither entered nor written to. */
TEST(workdir_is_entered_as_the_user)
{
    char job[32], more[700], path[512];
    start();
    snprintf(path, sizeof(path), "%s/secret", test_tmpdir());
    assert_int_equal(0, mkdir(path, 0700));
    snprintf(more, sizeof(more), "restarts: 0, workdir: \"%s/a/../secret\"", test_tmpdir());
    submit_as(ALICE, "a", more, job);
    job_wait(&d, job, "failed", 30000);
    snprintf(path, sizeof(path), "%s/state/jobs/%s/rank-0.log", test_tmpdir(), job);
    char *text = read_text(path);
    assert_non_null(strstr(text, "cannot enter run.workdir"));
    free(text);
    assert_int_equal(0, dtd_down(&d));
}

TEST(checkpoints_are_written_as_the_user)
{
    char job[32], dir[512], link[512];
    struct stat st;
    start();
    snprintf(dir, sizeof(dir), "%s/secret", test_tmpdir());
    snprintf(link, sizeof(link), "%s/a", test_tmpdir());
    assert_int_equal(0, mkdir(dir, 0700));
    assert_int_equal(0, symlink(dir, link)); /* in place of the job's checkpoint folder */
    int number = as(ALICE, do_submit, spec_text("a", 2, 100000, "", "restarts: 0"));
    snprintf(job, sizeof(job), "%d", number);
    job_wait(&d, job, "failed", 30000);
    assert_int_equal(0, stat(dir, &st));
    assert_int_equal(2, st.st_nlink);
    assert_int_equal(0, dtd_down(&d));
}

/* The child of a process with this name; 0: it has none. */
static int child_named(int parent, const char *name)
{
    char path[64], *children, want[64];
    int ret = 0;
    snprintf(path, sizeof(path), "task/%d/children", parent);
    children = proc(parent, path);
    snprintf(want, sizeof(want), "Name:\t%s\n", name);
    for (char *at = children, *end; !ret && *at; at = end) {
        const long pid = strtol(at, &end, 10);
        if (end == at)
            break;
        char *status = proc((int)pid, "status");
        ret = strncmp(status, want, strlen(want)) == 0 ? (int)pid : 0;
        free(status);
    }
    free(children);
    return ret;
}

/* Exit code of a process of this user: the number of files of the state directory that it can read. */
static int readable_as(const char *name, const char *const *files, int n)
{
    const struct passwd *pw = user(name);
    int status, readable = 0;
    pid_t pid = fork();
    if (pid == 0) {
        if (setgroups(0, NULL) || setgid(pw->pw_gid) || setuid(pw->pw_uid))
            _exit(100);
        for (int i = 0; i < n; i++) {
            char path[512];
            snprintf(path, sizeof(path), "%s/state/%s", test_tmpdir(), files[i]);
            readable += open(path, O_RDONLY) >= 0;
        }
        _exit(readable);
    }
    assert_int_equal(pid, waitpid(pid, &status, 0));
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* dtd-web has a user of its own, no capability, and cannot read what dtd keeps. */
TEST(the_page_has_no_rights)
{
    static const char *const files[] = {"raft", "jobs/1/rank-0.log"};
    char job[32];
    user(ALICE);
    user(MALLORY);
    user(NOBODY);
    dtd_start_system_with(&d, "web: {listen: \"127.0.0.1:0\", user: " MALLORY "}\n");
    submit_as(ALICE, "a", "workdir: /usr/share", job);
    job_wait(&d, job, "running", 20000);
    struct client_node node = node_of();
    int web = 0;
    for (int64_t until = clock_mono_ms() + 10000; !web && clock_mono_ms() < until;)
        web = child_named(node.supervisor_pid, "dtd-web");
    assert_true(web > 0); /* else see web.log */
    assert_runs_as(web, user(MALLORY));
    char *text = proc(web, "status");
    assert_non_null(strstr(text, "NoNewPrivs:\t1\n"));
    free(text);
    assert_int_equal(0, readable_as(MALLORY, files, 2));
    assert_int_equal(2, readable_as(NOBODY, files, 2)); /* control's user: the files exist */
    client_node_fini(&node);
    assert_int_equal(0, dtd_down(&d));
}

TEST(only_root_starts_one)
{
    char text[4096], config[512];
    user(NOBODY);
    assert_int_equal(0, chmod(test_tmpdir(), 0711));
    snprintf(config, sizeof(config), "%s/dtd.yaml", test_tmpdir());
    FILE *f = fopen(config, "w");
    fprintf(f, "state_dir: %s/state\nrun_dir: %s/run\nuser: root\n", test_tmpdir(), test_tmpdir());
    fclose(f);
    assert_int_equal(2, dtd_run((const char *[]){"--system", "--config", config, NULL}, text, sizeof(text)));
    assert_non_null(strstr(text, "must not be"));
    f = fopen(config, "w");
    fprintf(f, "state_dir: %s/state\nrun_dir: %s/run\nuser: no-such-user\n", test_tmpdir(), test_tmpdir());
    fclose(f);
    assert_int_equal(2, dtd_run((const char *[]){"--system", "--config", config, NULL}, text, sizeof(text)));
    assert_non_null(strstr(text, "no-such-user"));
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        bool left = setresuid(user(NOBODY)->pw_uid, user(NOBODY)->pw_uid, user(NOBODY)->pw_uid) == 0;
        int code = left ? dtd_run((const char *[]){"--system", "--config", config, NULL}, text, sizeof(text)) : 0;
        _exit(code == 2 && strstr(text, "dtctl up") ? 0 : 1);
    }
    assert_int_equal(pid, waitpid(pid, &status, 0));
    assert_int_equal(0, status);
}
