/* Another user of the machine attacks a system-wide dtd. He sends random requests of any method and opens as many
 * connections as he can. The job and the connections of its owner and the node itself are not affected. */
#include "common/base/clock.h"
#include "tests/attack/attacker.h"
#include "tests/attack/users.h"
#include "tests/daemon/programs/harness.h"

#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum {
    TIMES = 1000,
    WAIT_MS = 60000,
    CONNECTIONS = 3000,      /* more than control accepts from one user */
    CLIENTS_PER_USER = 1024, /* the limit in daemon/control/rpc/server.c */
    JOBS_OF_A_USER = 200
};

static struct dtd d;

static int submit(void *arg)
{
    struct client *c;
    struct why why = {""};
    uint8_t id[16];
    char job[32];
    if (client_open(d.dir, &c, &why) || client_request_id(id) || client_submit(c, id, arg, NULL, job, &why))
        return 101;
    return atoi(job);
}

/* `more`: lines of the configuration. */
static void start_with_job(char job[32], const char *more)
{
    users_require();
    dtd_start_system_with(&d, more);
    users_make_folder("a", ALICE, 0700);
    int number = users_run(ALICE, submit, (void *)spec_text("a", 1, 1000000, "DOUBLE_STEP_MS: \"10\"", ""));
    assert_in_range(number, 1, 99);
    snprintf(job, 32, "%d", number);
    job_wait_step(&d, job, 1, 2, WAIT_MS);
}

static void assert_job_continues(const char *job)
{
    int64_t step = job_status(&d, job)->last.step;
    job_wait_step(&d, job, 1, step + 5, WAIT_MS);
    assert_int_equal(1, job_status(&d, job)->epoch);
}

/* ---- random requests ---- */

static void open_control(struct attacker *s)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/control.sock", d.dir);
    assert_ok(rpc_connect_unix(path, &s->fd));
    s->call = 0;
}

/* No method is left out: methods that end a daemon, a cluster or a job must be refused. */
static int send_random_requests(void *arg)
{
    static const uint16_t nothing[] = {0};
    static const int64_t numbers[] = {1, 2};
    const char *text[] = {arg, "mallory", "127.0.0.1:0", NULL};
    struct attacker s = {.dice = (uint64_t)clock_wall_ms(), .values = {text, numbers, 2}, .open = open_control};
    print_message("seed %llu\n", (unsigned long long)s.dice);
    s.open(&s);
    attacker_send_random(&s, 0x01, nothing, TIMES);
    return 0;
}

TEST(another_user_sends_random_requests)
{
    char job[32];
    start_with_job(job, "");
    int control = dtd_control_pid(&d);
    assert_int_equal(0, users_run(MALLORY, send_random_requests, job));
    assert_int_equal(control, dtd_control_pid(&d));
    assert_job_continues(job);
    assert_int_equal(0, dtd_down(&d));
}

/* ---- idle connections ---- */

static int open_count[2]; /* pipe: MALLORY's process writes the number of its open connections */

static int connect_often(void *arg)
{
    static struct pollfd fds[CONNECTIONS];
    struct rlimit files = {2 * CONNECTIONS, 2 * CONNECTIONS};
    int open = 0;
    (void)arg;
    if (setrlimit(RLIMIT_NOFILE, &files))
        return 102;
    for (int i = 0; i < CONNECTIONS; i++) {
        struct attacker s;
        open_control(&s);
        (void)!send(s.fd, "DTD1\1\1", 6, MSG_NOSIGNAL); /* an incomplete header */
        fds[i] = (struct pollfd){.fd = s.fd};
    }
    for (int64_t until = clock_mono_ms() + WAIT_MS; clock_mono_ms() < until; sleep_ms(20)) {
        open = CONNECTIONS;
        poll(fds, CONNECTIONS, 0);
        for (int i = 0; i < CONNECTIONS; i++)
            open -= (fds[i].revents & POLLHUP) != 0;
        if (open <= CLIENTS_PER_USER)
            break;
    }
    (void)!write(open_count[1], &open, sizeof(open));
    pause();
    return 0;
}

TEST(another_user_opens_idle_connections)
{
    char job[32];
    int open = 0, status;
    struct rlimit files;
    if (geteuid() == 0 && (getrlimit(RLIMIT_NOFILE, &files) || files.rlim_max < 2 * CONNECTIONS))
        TEST_SKIP("the limit of open descriptors is too low (ulimit -Hn)");
    start_with_job(job, "");
    assert_int_equal(0, pipe(open_count));
    pid_t mallory = users_begin(MALLORY, connect_often, NULL);
    assert_int_equal(sizeof(open), read(open_count[0], &open, sizeof(open)));
    print_message("%d of %d are open\n", open, CONNECTIONS);
    assert_in_range(open, 1, CLIENTS_PER_USER);
    int hers =
        users_run(ALICE, submit, (void *)spec_text("b", 1, 1, "", "")); /* while MALLORY's connections are open */
    assert_in_range(hers, 2, 99);
    assert_job_continues(job);
    kill(mallory, SIGKILL);
    assert_int_equal(mallory, waitpid(mallory, &status, 0));
    assert_int_equal(0, dtd_down(&d));
}

/* A job of one worker whose checkpoints go to `folder`. */
static const char *endless(const char *folder)
{
    static char text[1024];
    snprintf(text, sizeof(text),
             "name: m\nmodel: {arch: llama, dim: 64, layers: 1, heads: 2, ffn: 128}\ndata: {train: [/etc/passwd]}\n"
             "train: {steps: 1000000, seq: 16, global_batch: 4, micro_batch: 1, warmup: 0}\nparallel: {workers: 1}\n"
             "checkpoint: {dir: %s/%s, every: 1000}\nrun: {env: {DOUBLE_STEP_MS: \"10\"}, priority: 1000}\n",
             test_tmpdir(), folder);
    return text;
}

/* Submits until dtd refuses; the last job that is accepted names ALICE's folder. Returns the number of jobs that were
 * accepted, or 0 if the refusal is not that of the user's share. */
static int submit_until_refused(void *arg)
{
    struct client *c;
    struct why why = {""};
    uint8_t id[16];
    char job[32], folder[32];
    int n = 0;
    (void)arg;
    if (client_open(d.dir, &c, &why))
        return 0;
    for (err_t err = OK; !err && n <= JOBS_OF_A_USER; n += !err) {
        snprintf(folder, sizeof(folder), n == JOBS_OF_A_USER - 1 ? "hers" : "free/%d", n);
        err = client_request_id(id);
        err = err ? err : client_submit(c, id, endless(folder), NULL, job, &why);
    }
    bool is_share = strstr(why.text, "you have 200 jobs that have not ended, and users.jobs of dtd's configuration "
                                     "allows 200");
    if (!is_share)
        print_message("refused: %s\n", why.text);
    return is_share ? n : 0;
}

/* MALLORY submits endless jobs until dtd refuses them. ALICE's job is accepted nevertheless, and gets the next slot:
 * all of MALLORY's waiting jobs are older and have a higher priority. MALLORY's waiting job that names ALICE's folder
 * does not reserve it. */
TEST(another_user_submits_all_jobs_he_can)
{
    char job[32], second[32];
    uint8_t id[16];
    struct why why = {""};
    struct client_job s;
    start_with_job(job, "users: {jobs: 200}\n");
    users_make_folder("free", MALLORY, 0755);
    users_make_folder("hers", ALICE, 0700);
    assert_int_equal(JOBS_OF_A_USER, users_run(MALLORY, submit_until_refused, NULL));
    int number = users_run(ALICE, submit, (void *)spec_text("hers", 1, 3, "", "priority: -1000"));
    assert_int_equal(2 + JOBS_OF_A_USER, number);
    snprintf(second, sizeof(second), "%d", number);
    assert_string_equal("pending", job_status(&d, second)->state);
    assert_non_null(strstr(job_status(&d, second)->reason, "waits for 1 slot"));
    assert_ok(client_request_id(id));
    assert_ok(client_cancel(dtd_client(&d), id, "2", false, CLIENT_GRACE_DEFAULT, &s, &why));
    client_job_fini(&s);
    job_wait(&d, second, "done", WAIT_MS);
    assert_job_continues(job);
    assert_int_equal(0, dtd_down(&d));
}
