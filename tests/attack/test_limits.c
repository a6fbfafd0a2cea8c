/* MALLORY attacks a system-wide dtd in one way after another, for as long as ALICE submits jobs. Each of her submits
 * must be accepted soon, and control must not grow. Figures are printed; docs/figures.md has those of an idle machine.
 */
#include "common/base/clock.h"
#include "common/rpc/frame.h"
#include "common/rpc/methods.h"
#include "common/rpc/rpc.h"
#include "proto/client.pb-c.h"
#include "tests/attack/users.h"
#include "tests/daemon/programs/harness.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pwd.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum {
    SUBMITS = 20,
    PAUSE_MS = 100,   /* between two submits */
    LIMIT_MS = 30000, /* the deadline of a client's call: the figure that is printed decides nothing */
    BEGIN_MS = 60000, /* until an attack is under way */
    LARGE_SPEC = 1900000,
    USERS_CONNECTIONS = 1024 /* users.connections, if not configured */
};

static struct dtd d;
/* Folders of the control.sock to which MALLORY connects, and of that to which ALICE does. NULL: that of `d`. */
static const char *attacked, *submits_to;
static int under_way[2]; /* pipes: from MALLORY's process, with a number; from ALICE's */
static int measured[2];

/* ALICE's submits. */
struct measure {
    int longest_ms;
    char job[32]; /* the last one */
};

/* ---- jobs ---- */

static int step_ms = 10;

/* A job of one worker. `padding`: bytes of comments. The caller frees it. */
static char *job_text(const char *folder, int steps, const char *env, size_t padding)
{
    char *text = malloc(padding + 2048), *at = text;
    assert_non_null(text);
    at +=
        sprintf(text,
                "name: m\nmodel: {arch: llama, dim: 64, layers: 1, heads: 2, ffn: 128}\ndata: {train: [/etc/passwd]}\n"
                "train: {steps: %d, seq: 16, global_batch: 4, micro_batch: 1, warmup: 0}\nparallel: {workers: 1}\n"
                "checkpoint: {dir: %s/%s, every: 1000}\nrun: {env: {DOUBLE_STEP_MS: \"%d\"%s%s}}\n",
                steps, test_tmpdir(), folder, step_ms, *env ? ", " : "", env);
    for (size_t n = 0; n < padding; n += 100, at += 100) {
        memset(at, 'x', 100);
        memcpy(at, "# ", 2);
        at[99] = '\n';
    }
    *at = '\0';
    return text;
}

static err_t submit(struct client *c, const char *spec, char job[32], struct why *why)
{
    uint8_t id[16];
    err_t err = client_request_id(id);
    return err ? err : client_submit(c, id, spec, NULL, job, why);
}

/* MALLORY's process ends with this when a step of the attack itself fails. */
static void require(bool holds, const char *what, const char *text)
{
    if (holds)
        return;
    fprintf(stderr, "%s: %s (%s)\n", what, text, strerror(errno));
    _exit(101);
}

/* ---- measuring ---- */

/* As dtctl does, repeats a submit whose answer was lost because control or the leader changed. */
static void submit_until_accepted(const char *spec, char job[32])
{
    uint8_t id[16];
    err_t err = client_request_id(id);
    for (int64_t until = clock_mono_ms() + BEGIN_MS;; sleep_ms(20)) {
        struct client *c = NULL;
        struct why why = {""};
        err = err ? err : client_open(submits_to ? submits_to : d.dir, &c, &why);
        require(err == OK, "open", why.text);
        err = client_submit(c, id, spec, NULL, job, &why);
        client_close(c);
        if (!err)
            return;
        require((err == ERR_AGAIN || err == ERR_CLOSED) && clock_mono_ms() < until, "submit", why.text);
        err = OK;
    }
}

static int submit_and_measure(void *arg)
{
    struct measure m = {0};
    char folder[32];
    (void)arg;
    for (int i = 0; i < SUBMITS; i++) {
        snprintf(folder, sizeof(folder), "alice/%d", i);
        char *spec = job_text(folder, 1, "", 0);
        int64_t began = clock_mono_ms();
        submit_until_accepted(spec, m.job);
        int ms = (int)(clock_mono_ms() - began);
        m.longest_ms = ms > m.longest_ms ? ms : m.longest_ms;
        free(spec);
        sleep_ms(PAUSE_MS);
    }
    (void)!write(measured[1], &m, sizeof(m));
    return 0;
}

static long control_kib(const char *what)
{
    struct client_node node;
    struct why why = {""};
    char path[64], *text, *at;
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    snprintf(path, sizeof(path), "/proc/%d/status", node.control_pid);
    client_node_fini(&node);
    text = read_text(path);
    at = strstr(text, what);
    long kib = at ? atol(at + strlen(what)) : 0;
    free(text);
    return kib;
}

/* Root cancels a job of ALICE; returns how long that took. */
static int cancel_as_root(const char *job)
{
    uint8_t id[16];
    struct client_node node;
    struct client_job s;
    struct why why = {""};
    int64_t began = clock_mono_ms();
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    client_node_fini(&node);
    assert_ok(client_request_id(id));
    assert_ok(client_cancel(dtd_client(&d), id, job, false, CLIENT_GRACE_DEFAULT, &s, &why));
    client_job_fini(&s);
    return (int)(clock_mono_ms() - began);
}

static void begin_users(void)
{
    users_require();
    assert_int_equal(0, pipe(under_way));
    assert_int_equal(0, pipe(measured));
    assert_int_equal(0, chmod(test_tmpdir(), 0711));
    users_make_folder("alice", ALICE, 0700);
    users_make_folder("mallory", MALLORY, 0755);
}

static void start(const char *conf)
{
    begin_users();
    dtd_start_system_with(&d, conf);
}

static int measure_submits(char ret_job[32])
{
    struct measure m;
    assert_int_equal(0, users_run(ALICE, submit_and_measure, NULL));
    assert_int_equal(sizeof(m), read(measured[0], &m, sizeof(m)));
    memcpy(ret_job, m.job, sizeof(m.job));
    return m.longest_ms;
}

/* Runs the attack, and ALICE beside it. Returns the number that the attack reports when it is under way. */
static int endure(const char *what, int (*attack)(void *arg), void *arg, int max_mib)
{
    char job[32];
    int number = 0, status;
    struct pollfd begun = {.fd = under_way[0], .events = POLLIN};
    long before = control_kib("VmRSS:");
    pid_t mallory = users_begin(MALLORY, attack, arg);
    if (poll(&begun, 1, BEGIN_MS) != 1)
        fail_msg("the attack is not under way within %d s", BEGIN_MS / 1000);
    assert_int_equal(sizeof(number), read(under_way[0], &number, sizeof(number)));
    int longest_ms = measure_submits(job);
    int root_ms = cancel_as_root(job);
    assert_int_equal(0, waitpid(mallory, &status, WNOHANG)); /* it has lasted */
    long most = control_kib("VmHWM:") - before;
    print_message(
        "beside %s: longest of %d submits %d ms, root cancels in %d ms; control has grown by at most %ld MiB\n", what,
        SUBMITS, longest_ms, root_ms, most / 1024);
    users_end(mallory);
    assert_in_range(longest_ms, 0, LIMIT_MS);
    assert_in_range(root_ms, 0, LIMIT_MS);
    assert_in_range(most < 0 ? 0 : most / 1024, 0, max_mib);
    return number;
}

static void begun(int number)
{
    (void)!write(under_way[1], &number, sizeof(number));
}

/* ---- connections of MALLORY ---- */

static void many_files(void)
{
    struct rlimit files;
    require(getrlimit(RLIMIT_NOFILE, &files) == 0, "getrlimit", "");
    files.rlim_cur = files.rlim_max;
    require(setrlimit(RLIMIT_NOFILE, &files) == 0, "setrlimit", "");
}

static int connect_control(void)
{
    char path[512];
    int fd;
    snprintf(path, sizeof(path), "%s/control.sock", attacked ? attacked : d.dir);
    require(rpc_connect_unix(path, &fd) == OK, "connect", path);
    require(fcntl(fd, F_SETFL, O_NONBLOCK) == 0, "fcntl", "");
    return fd;
}

static size_t pack(uint16_t method, uint64_t call, const ProtobufCMessage *m, uint8_t *ret)
{
    const struct frame f = {.version = RPC_VERSION,
                            .kind = RPC_REQUEST,
                            .method = method,
                            .call = call,
                            .length = (uint32_t)protobuf_c_message_get_packed_size(m)};
    frame_encode(&f, ret);
    return RPC_HEADER_BYTES + protobuf_c_message_pack(m, ret + RPC_HEADER_BYTES);
}

/* False: the connection has been closed. */
static bool discard_answers(int fd)
{
    static char bytes[1 << 16];
    ssize_t n;
    while ((n = recv(fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
        ;
    return n < 0 && errno == EAGAIN;
}

/* ---- attacks ---- */

enum { READERS = 600 };

static char *large_job(void)
{
    static char job[32];
    struct client *c;
    struct why why = {""};
    char *spec = job_text("mallory/large", 1000000, "", LARGE_SPEC);
    require(client_open(d.dir, &c, &why) == OK, "open", why.text);
    require(submit(c, spec, job, &why) == OK, "submit", why.text);
    client_close(c);
    free(spec);
    return job;
}

/* 600 connections ask for a status of 1.9 MB twice and read nothing. Those that are closed come back. */
static int read_no_answers(void *arg)
{
    static int fds[READERS];
    uint8_t bytes[128];
    Dtd__JobRequest m = DTD__JOB_REQUEST__INIT;
    (void)arg;
    many_files();
    m.job = large_job();
    for (int i = 0; i < READERS; i++)
        fds[i] = -1;
    for (bool first = true;; first = false) {
        for (int i = 0; i < READERS; i++) {
            struct pollfd p = {.fd = fds[i]};
            if (fds[i] >= 0 && (poll(&p, 1, 0) != 1 || !(p.revents & (POLLHUP | POLLERR))))
                continue;
            if (fds[i] >= 0)
                close(fds[i]);
            fds[i] = connect_control();
            for (uint64_t call = 1; call <= 2; call++)
                (void)!send(fds[i], bytes, pack(CLIENT_STATUS, call, &m.base, bytes), MSG_NOSIGNAL);
        }
        if (first)
            begun(0);
        sleep_ms(10);
    }
    return 0;
}

TEST(beside_answers_that_nobody_reads)
{
    start("");
    endure("600 connections that read no answers", read_no_answers, NULL, 200);
    assert_int_equal(0, dtd_down(&d));
}

/* 1,000 connections begin a submit of 2 MB and do not complete it. */
static int begin_requests(void *arg)
{
    enum { N = 1000, LENGTH = 2000000, SENT = LENGTH - 1 };
    static int fds[N];
    static size_t sent[N];
    static const char zeros[1 << 16];
    (void)arg;
    many_files();
    for (int i = 0; i < N; i++) {
        uint8_t header[RPC_HEADER_BYTES];
        const struct frame f = {
            .version = RPC_VERSION, .kind = RPC_REQUEST, .method = CLIENT_SUBMIT, .call = 1, .length = LENGTH};
        frame_encode(&f, header);
        fds[i] = connect_control();
        require(send(fds[i], header, sizeof(header), MSG_NOSIGNAL) == sizeof(header), "send", "a header");
    }
    begun(0);
    for (;; sleep_ms(1))
        for (int i = 0; i < N; i++) {
            size_t left = SENT - sent[i];
            ssize_t n =
                left ? send(fds[i], zeros, left < sizeof(zeros) ? left : sizeof(zeros), MSG_NOSIGNAL | MSG_DONTWAIT)
                     : 0;
            sent[i] += n > 0 ? (size_t)n : 0;
        }
    return 0;
}

TEST(beside_requests_that_never_end)
{
    start("");
    endure("1,000 requests that are not completed", begin_requests, NULL, 100);
    assert_int_equal(0, dtd_down(&d));
}

/* Sends the requests over the connections as fast as the sockets take them, and discards the answers. */
static void flood(int *fds, int n, uint16_t method, ProtobufCMessage *(*next)(void))
{
    static uint64_t calls[64];
    static uint8_t bytes[64][256];
    static size_t len[64], at[64];
    for (int turn = 0;; turn++) {
        for (int i = 0; i < n; i++) {
            for (int k = 0; k < 64; k++) {
                if (at[i] == len[i]) {
                    len[i] = pack(method, ++calls[i], next(), bytes[i]);
                    at[i] = 0;
                }
                ssize_t sent = send(fds[i], bytes[i] + at[i], len[i] - at[i], MSG_NOSIGNAL | MSG_DONTWAIT);
                at[i] += sent > 0 ? (size_t)sent : 0;
                if (sent < 0)
                    break;
            }
            if (discard_answers(fds[i]))
                continue;
            close(fds[i]);
            fds[i] = connect_control();
            calls[i] = at[i] = len[i] = 0;
        }
        if (turn == 100)
            begun(0);
    }
}

static char *small_job(void)
{
    static char job[32];
    struct client *c;
    struct why why = {""};
    char *spec = job_text("mallory/small", 1, "", 0);
    require(client_open(d.dir, &c, &why) == OK, "open", why.text);
    require(submit(c, spec, job, &why) == OK, "submit", why.text);
    client_close(c);
    free(spec);
    return job;
}

static char *flooded;

static ProtobufCMessage *next_cancel(void)
{
    static uint8_t id[16];
    static uint64_t n;
    static Dtd__CancelRequest m;
    n++;
    memcpy(id, &n, sizeof(n));
    dtd__cancel_request__init(&m);
    m.request_id = (ProtobufCBinaryData){sizeof(id), id};
    m.job = flooded;
    return &m.base;
}

static int cancel_without_end(void *arg)
{
    int fds[16];
    (void)arg;
    flooded = small_job();
    for (int i = 0; i < 16; i++)
        fds[i] = connect_control();
    flood(fds, 16, CLIENT_CANCEL, next_cancel);
    return 0;
}

TEST(beside_cancels_without_end)
{
    start("");
    endure("16 connections that cancel without a pause", cancel_without_end, NULL, 200);
    assert_int_equal(0, dtd_down(&d));
}

static ProtobufCMessage *next_list(void)
{
    static Dtd__Empty m;
    dtd__empty__init(&m);
    return &m.base;
}

static void submit_500(struct client *c)
{
    struct why why = {""};
    for (int i = 0; i < 500; i++) {
        char folder[32], job[32];
        snprintf(folder, sizeof(folder), "mallory/%d", i);
        char *spec = job_text(folder, 1000000, "", 0);
        require(submit(c, spec, job, &why) == OK, "submit", why.text);
        free(spec);
    }
}

static int list_without_end(void *arg)
{
    int fds[64];
    struct client *c;
    struct why why = {""};
    (void)arg;
    require(client_open(d.dir, &c, &why) == OK, "open", why.text);
    submit_500(c);
    client_close(c);
    for (int i = 0; i < 64; i++)
        fds[i] = connect_control();
    flood(fds, 64, CLIENT_LIST, next_list);
    return 0;
}

TEST(beside_lists_of_500_jobs_without_end)
{
    start("");
    endure("64 connections that list 500 jobs without a pause", list_without_end, NULL, 200);
    assert_int_equal(0, dtd_down(&d));
}

/* The connections that control has not closed, when there are at most `most`, or after BEGIN_MS / 2. */
static int count_open(const int *fds, int n, int most)
{
    int open = n;
    for (int64_t until = clock_mono_ms() + BEGIN_MS / 2; open > most && clock_mono_ms() < until; sleep_ms(20)) {
        open = 0;
        for (int i = 0; i < n; i++) {
            struct pollfd p = {.fd = fds[i]};
            open += poll(&p, 1, 0) == 0;
        }
    }
    return open;
}

/* Reports the number of connections that control keeps. */
static int connect_without_end(void *arg)
{
    enum { N = 2000 };
    static int fds[N];
    (void)arg;
    many_files();
    for (int i = 0; i < N; i++)
        fds[i] = connect_control();
    begun(count_open(fds, N, USERS_CONNECTIONS));
    for (int i = 0;; i = (i + 1) % N) {
        close(fds[i]);
        fds[i] = connect_control();
        (void)!send(fds[i], "DTD1\1\1", 6, MSG_NOSIGNAL);
    }
    return 0;
}

TEST(beside_connections_without_end)
{
    start("");
    int open = endure("connections without end", connect_without_end, NULL, 100);
    print_message("%d of 2000 connections were kept\n", open);
    assert_in_range(open, 1, USERS_CONNECTIONS);
    assert_int_equal(0, dtd_down(&d));
}

/* Submits jobs with files of 1.9 MB without end. Reports the number of those that were accepted before the first was
 * refused. */
static int submit_large_jobs(void *arg)
{
    struct client *c;
    struct why why = {""};
    char job[32], folder[32];
    bool is_refused = false;
    (void)arg;
    require(client_open(d.dir, &c, &why) == OK, "open", why.text);
    for (int i = 0;; i++) {
        snprintf(folder, sizeof(folder), "mallory/%d", i);
        char *spec = job_text(folder, 1000000, "", LARGE_SPEC);
        err_t err = submit(c, spec, job, &why);
        free(spec);
        if (!err)
            require(!is_refused, "submit", "was accepted above the limit");
        if (!err || is_refused)
            continue;
        require(strstr(why.text, "users.job_mib of dtd's configuration allows 67108864"), "refused", why.text);
        is_refused = true;
        begun(i);
    }
    return 0;
}

/* 64 MiB have room for 35 files of 1.9 MB. */
TEST(beside_large_job_files)
{
    start("");
    int n = endure("submits of job files of 1.9 MB", submit_large_jobs, NULL, 600);
    assert_int_equal(n, (64 << 20) / LARGE_SPEC);
    assert_int_equal(0, dtd_down(&d));
}

/* Jobs that have ended are forgotten, the oldest first, so that a user can always go on. 12 files of 1.9 MB do not fit
 * in 16 MiB. */
static int submit_one_after_another(void *arg)
{
    struct client *c;
    struct client_job s;
    struct why why = {""};
    char job[32];
    int number = 0;
    (void)arg;
    require(client_open(d.dir, &c, &why) == OK, "open", why.text);
    for (int i = 0; i < 12; i++) {
        char *spec = job_text("mallory/one", 1, "", LARGE_SPEC);
        require(submit(c, spec, job, &why) == OK, "submit", why.text);
        free(spec);
        number = atoi(job);
        for (bool over = false; !over; sleep_ms(20)) {
            require(client_status(c, job, &s, &why) == OK, "status", why.text);
            over = strcmp(s.state, "done") == 0;
            client_job_fini(&s);
        }
    }
    return number;
}

TEST(jobs_that_have_ended_make_room)
{
    struct client_job s;
    struct why why = {""};
    start("users: {job_mib: 16}\n");
    assert_int_equal(12, users_run(MALLORY, submit_one_after_another, NULL));
    assert_int_equal(ERR_NOTFOUND, client_status(dtd_client(&d), "1", &s, &why));
    assert_ok(client_status(dtd_client(&d), "11", &s, &why));
    client_job_fini(&s);
    assert_int_equal(0, dtd_down(&d));
}

/* ---- c10d stores ---- */

static int connect_store(int port)
{
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    require(fd >= 0, "socket", "");
    if (connect(fd, (const struct sockaddr *)&to, sizeof(to))) {
        close(fd);
        return -1;
    }
    return fd;
}

static int open_store(const char *name)
{
    struct client *c;
    struct why why = {""};
    Dtd__StoreRequest q = DTD__STORE_REQUEST__INIT;
    Dtd__StoreReply *reply;
    q.name = (char *)name;
    require(client_open(d.dir, &c, &why) == OK, "open", why.text);
    require(client_call(c, CLIENT_STORE_OPEN, &q.base, &reply, &why) == OK, "store", why.text);
    int port = (int)reply->port;
    client_reply_free(reply);
    client_close(c);
    return port;
}

static const char hello[] = "\0\xce\xf7\x85\x3c"; /* VALIDATE and its number */

/* Opens 32 stores and as many connections as they take, and reports how many are open. */
static int use_stores(void *arg)
{
    enum { STORES = 32, EACH = 100 };
    static struct pollfd fds[STORES * EACH];
    char name[16];
    (void)arg;
    many_files();
    for (int i = 0; i < STORES; i++) {
        snprintf(name, sizeof(name), "s%d", i);
        int port = open_store(name);
        for (int k = 0; k < EACH; k++) {
            int fd = connect_store(port);
            fds[i * EACH + k] = (struct pollfd){.fd = fd};
            if (fd >= 0)
                (void)!send(fd, hello, 5, MSG_NOSIGNAL);
        }
    }
    sleep_ms(500);
    int open = 0;
    poll(fds, STORES * EACH, 0);
    for (int i = 0; i < STORES * EACH; i++)
        open += fds[i].fd >= 0 && !(fds[i].revents & (POLLHUP | POLLERR));
    begun(open);
    for (;;)
        pause();
    return 0;
}

/* ALICE's store works: PING is answered by its number. */
static int use_one_store(void *arg)
{
    char answer[4] = "";
    (void)arg;
    int fd = connect_store(open_store("hers"));
    require(fd >= 0, "connect", "her store");
    require(send(fd, hello, 5, MSG_NOSIGNAL) == 5, "send", "");
    require(send(fd, "\x0d\x01\x02\x03\x04", 5, MSG_NOSIGNAL) == 5, "send", "");
    require(recv(fd, answer, 4, MSG_WAITALL) == 4 && !memcmp(answer, "\1\2\3\4", 4), "recv", "no answer");
    return 0;
}

TEST(beside_stores_with_all_connections)
{
    start("users: {store_connections: 300}\n");
    int open = endure("32 stores with 100 connections each", use_stores, NULL, 100);
    print_message("%d of 3200 connections were kept\n", open);
    assert_int_equal(300, open);
    assert_int_equal(0, users_run(ALICE, use_one_store, NULL));
    assert_int_equal(0, dtd_down(&d));
}

/* ---- processes of jobs ---- */

static char flood_file[512];

static int run_flood(void *arg)
{
    struct client *c;
    struct why why = {""};
    char job[32], env[600];
    (void)arg;
    snprintf(env, sizeof(env), "DOUBLE_FLOOD: %s", flood_file);
    char *spec = job_text("mallory/flood", 1000000, env, 0);
    require(client_open(d.dir, &c, &why) == OK, "open", why.text);
    require(submit(c, spec, job, &why) == OK, "submit", why.text);
    client_close(c);
    while (access(flood_file, F_OK))
        sleep_ms(20);
    begun(0);
    for (;;)
        pause();
    return 0;
}

/* A worker reports that a save has failed, again and again: 8,192 times at once, and then 1,000 times a second.
 * Control's log has 20 lines of it at once, and one a second. */
TEST(beside_a_worker_that_reports_without_end)
{
    char log[300];
    start("");
    snprintf(flood_file, sizeof(flood_file), "%s/mallory/reports", test_tmpdir());
    int64_t began = clock_mono_ms();
    endure("a worker that reports without a pause", run_flood, NULL, 100);
    char *text = read_text(flood_file);
    int64_t ms = clock_mono_ms() - began;
    print_message("%d reports were answered in %d ms\n", atoi(text), (int)ms);
    assert_in_range(atoi(text), 8192 / 2, 8192 + 1000 + ms);
    free(text);
    snprintf(log, sizeof(log), "%s.log", d.dir);
    text = read_text(log);
    int lines = count_text(text, "save failed job=");
    print_message("%d of them are in the log\n", lines);
    assert_in_range(lines, 1, 20 + ms / 1000 + 2);
    free(text);
    assert_int_equal(0, dtd_down(&d));
}

/* Runs one job of 2,000 steps, or several of 6,000 at once, to their ends. */
static int run_long_jobs(void *arg)
{
    int n = *(const int *)arg;
    struct client *c;
    struct client_job s;
    struct why why = {""};
    char job[4][32], folder[32];
    require(client_open(d.dir, &c, &why) == OK, "open", why.text);
    for (int i = 0; i < n; i++) {
        snprintf(folder, sizeof(folder), "%s/long-%d", n > 1 ? "mallory" : "alice", i);
        char *spec = job_text(folder, n > 1 ? 6000 : 2000, "", 0);
        require(submit(c, spec, job[i], &why) == OK, "submit", why.text);
        free(spec);
    }
    for (int i = 0; i < n; i++)
        for (bool over = false; !over; sleep_ms(50)) {
            require(client_status(c, job[i], &s, &why) == OK, "status", why.text);
            over = strcmp(s.state, "done") == 0;
            client_job_fini(&s);
        }
    client_close(c);
    return atoi(job[0]);
}

static off_t metrics_bytes(int job)
{
    char path[512];
    struct stat st = {0};
    snprintf(path, sizeof(path), "%s/state/metrics/%d.jsonl", test_tmpdir(), job);
    return stat(path, &st) ? 0 : st.st_size;
}

static bool count_metric(void *arg, const struct metric *m)
{
    (void)m;
    ++*(int *)arg;
    return true;
}

/* MALLORY's two jobs have some 3 MB of metrics, and ALICE's job half a megabyte. */
TEST(metrics_of_all_jobs_of_a_user_have_a_limit)
{
    enum { SLACK = 2 << 18 }; /* the sum is computed when a file has grown by 256 KiB */
    int two = 2, one = 1, rows = 0, status;
    char text[32];
    struct why why = {""};
    start("users: {metrics_mib: 1}\n");
    step_ms = 1;
    pid_t mallory = users_begin(MALLORY, run_long_jobs, &two);
    int hers = users_run(ALICE, run_long_jobs, &one);
    assert_int_equal(mallory, waitpid(mallory, &status, 0));
    assert_true(WIFEXITED(status));
    int his = WEXITSTATUS(status), other = his + 1 == hers ? his + 2 : his + 1;
    int64_t until = clock_mono_ms() + BEGIN_MS;
    while (metrics_bytes(his) + metrics_bytes(other) > (1 << 20) + SLACK && clock_mono_ms() < until)
        sleep_ms(50);
    print_message("his metrics have %d KiB, hers %d KiB\n", (int)((metrics_bytes(his) + metrics_bytes(other)) >> 10),
                  (int)(metrics_bytes(hers) >> 10));
    assert_in_range(metrics_bytes(his) + metrics_bytes(other), 1 << 18, (1 << 20) + SLACK);
    snprintf(text, sizeof(text), "%d", hers);
    assert_ok(client_metrics(dtd_client(&d), text, false, 0,
                             &(struct client_stream){.metric = count_metric, .arg = &rows}, &why));
    assert_int_equal(2000, rows);
    assert_int_equal(0, dtd_down(&d));
}

static int print_without_end(void *arg)
{
    struct client *c;
    struct client_job s;
    struct why why = {""};
    char job[32];
    int64_t step = 0;
    (void)arg;
    char *spec = job_text("mallory/print", 1000000, "DOUBLE_PRINT: \"1000000\"", 0);
    require(client_open(d.dir, &c, &why) == OK, "open", why.text);
    require(submit(c, spec, job, &why) == OK, "submit", why.text);
    for (; step < 20; sleep_ms(20)) {
        require(client_status(c, job, &s, &why) == OK, "status", why.text);
        step = s.last.step;
        client_job_fini(&s);
    }
    client_close(c);
    begun(atoi(job));
    for (;;)
        pause();
    return 0;
}

/* A worker prints 1 MB in each step of 10 ms. Its log keeps the size that the configuration permits, and what a writer
 * adds between two looks. */
TEST(beside_a_worker_that_prints_without_end)
{
    char path[512];
    struct stat st;
    start("disk: {log_mib: 8}\n");
    int job = endure("a worker that prints 1 MB in each step", print_without_end, NULL, 100);
    snprintf(path, sizeof(path), "%s/state/jobs/%d/rank-0.log", test_tmpdir(), job);
    assert_int_equal(0, stat(path, &st));
    print_message("%d MiB were printed, of which %d are kept\n", (int)(st.st_size >> 20), (int)(st.st_blocks >> 11));
    assert_true(st.st_size > 16 << 20);
    assert_true(st.st_blocks >> 11 < 40);
    assert_int_equal(0, dtd_down(&d));
}

/* ---- two nodes ---- */

static int free_port(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(0, bind(fd, (struct sockaddr *)&a, len));
    assert_int_equal(0, getsockname(fd, (struct sockaddr *)&a, &len));
    close(fd);
    return ntohs(a.sin_port);
}

static void start_node(struct dtd *node, const char *name)
{
    char folder[512], conf[256];
    int port = free_port();
    snprintf(folder, sizeof(folder), "%s/%s", test_tmpdir(), name);
    assert_int_equal(0, mkdir(folder, 0755));
    snprintf(conf, sizeof(conf), "name: %s\ncluster: {listen: \"127.0.0.1:%d\", advertise: \"127.0.0.1:%d\"}\n", name,
             port, port);
    dtd_start_system_at(node, folder, conf);
}

/* Repeats a call while the node opens its log again. */
static void call_until_done(struct dtd *node, enum rpc_method_id method, const ProtobufCMessage *m, void *ret)
{
    struct why why = {""};
    int64_t until = clock_mono_ms() + BEGIN_MS;
    while (client_call(dtd_client(node), method, m, ret, &why)) {
        if (clock_mono_ms() > until)
            fail_msg("%s", why.text);
        sleep_ms(50);
    }
}

/* The control of a node that joins starts again. */
static void wait_for_two_nodes(struct dtd *node)
{
    Dtd__Empty empty = DTD__EMPTY__INIT;
    int64_t until = clock_mono_ms() + BEGIN_MS;
    for (bool both = false; !both; sleep_ms(50)) {
        Dtd__ClusterReport *report;
        call_until_done(node, CLIENT_CLUSTER_STATUS, &empty.base, &report);
        both = report->leader && report->n_node == 2;
        for (size_t i = 0; i < report->n_node; i++)
            both = both && strcmp(report->node[i]->state, "up") == 0;
        client_reply_free(report);
        if (clock_mono_ms() > until)
            fail_msg("the second node has not joined");
    }
}

static void join(struct dtd *first, struct dtd *second)
{
    Dtd__ClusterInitRequest init = DTD__CLUSTER_INIT_REQUEST__INIT;
    Dtd__JoinToken ask = DTD__JOIN_TOKEN__INIT, *token;
    call_until_done(first, CLIENT_CLUSTER_INIT, &init.base, NULL);
    call_until_done(first, CLIENT_CLUSTER_TOKEN, &ask.base, &token);
    init.token = token->token;
    call_until_done(second, CLIENT_CLUSTER_JOIN, &init.base, NULL);
    client_reply_free(token);
    wait_for_two_nodes(second);
}

static int list_from_the_other_node(void *arg)
{
    int fds[64];
    (void)arg;
    for (int i = 0; i < 64; i++)
        fds[i] = connect_control();
    flood(fds, 64, CLIENT_LIST, next_list);
    return 0;
}

static int submit_many(void *arg)
{
    struct client *c;
    struct why why = {""};
    (void)arg;
    require(client_open(d.dir, &c, &why) == OK, "open", why.text);
    submit_500(c);
    client_close(c);
    return 0;
}

/* MALLORY's calls reach the leader over the other node's connection, which ALICE and all that runs there share. */
static void endure_other_node(bool alice_too)
{
    struct dtd second;
    char dir[sizeof(second.dir)], job[32];
    begin_users();
    start_node(&d, "one");
    start_node(&second, "two");
    join(&d, &second);
    memcpy(dir, second.dir, sizeof(dir));
    submits_to = alice_too ? dir : NULL;
    int quiet_ms = measure_submits(job);
    assert_int_equal(0, users_run(MALLORY, submit_many, NULL));
    attacked = dir;
    endure("64 connections to another node that list 500 jobs without a pause", list_from_the_other_node, NULL, 200);
    attacked = submits_to = NULL;
    print_message("without an attack: longest of %d submits %d ms\n", SUBMITS, quiet_ms);
    dtd_kill(&second);
    dtd_kill(&d);
}

/* A connection of this user, who need not be the user of this process. */
static int connect_as(const char *user)
{
    assert_int_equal(0, seteuid(getpwnam(user)->pw_uid));
    int fd = connect_control();
    assert_int_equal(0, seteuid(0));
    return fd;
}

/* The frames that have arrived on a connection. */
struct answers {
    uint8_t bytes[1 << 16];
    size_t header, left; /* of the present frame */
    uint8_t head[RPC_HEADER_BYTES];
    int frames;
};

static void read_answers(int fd, struct answers *a)
{
    const char *reason;
    struct frame f;
    ssize_t n = recv(fd, a->bytes, sizeof(a->bytes), MSG_DONTWAIT);
    assert_true(n > 0 || (n < 0 && errno == EAGAIN));
    for (ssize_t at = 0; at < n;) {
        size_t want = a->header < RPC_HEADER_BYTES ? RPC_HEADER_BYTES - a->header : a->left;
        size_t take = (size_t)(n - at) < want ? (size_t)(n - at) : want;
        if (a->header < RPC_HEADER_BYTES) {
            memcpy(a->head + a->header, a->bytes + at, take);
            a->header += take;
            if (a->header == RPC_HEADER_BYTES) {
                assert_ok(frame_decode(a->head, &f, &reason));
                a->left = f.length;
            }
        } else {
            a->left -= take;
        }
        at += (ssize_t)take;
        if (a->header == RPC_HEADER_BYTES && !a->left) {
            a->header = 0;
            a->frames++;
        }
    }
}

/* MALLORY asks for 200 lists at once. When the first has arrived, ALICE asks for one. Returns whether hers came before
 * the last of his. */
static bool overtakes(void)
{
    enum { LISTS = 200 };
    static struct answers his, hers;
    static uint8_t bytes[LISTS * 64];
    size_t len = 0;
    int fd = connect_as(MALLORY), her_fd = connect_as(ALICE);
    his = hers = (struct answers){0};
    for (uint64_t call = 1; call <= LISTS; call++)
        len += pack(CLIENT_LIST, call, next_list(), bytes + len);
    assert_int_equal(len, send(fd, bytes, len, MSG_NOSIGNAL));
    for (int64_t until = clock_mono_ms() + BEGIN_MS; !hers.frames && clock_mono_ms() < until;) {
        bool asked = his.frames > 0;
        read_answers(fd, &his);
        if (his.frames && !asked)
            assert_int_equal(RPC_HEADER_BYTES, send(her_fd, bytes, pack(CLIENT_LIST, 1, next_list(), bytes), 0));
        read_answers(her_fd, &hers);
    }
    close(fd);
    close(her_fd);
    assert_int_equal(1, hers.frames);
    print_message("%d of %d lists were answered before hers\n", his.frames, LISTS);
    return his.frames < LISTS;
}

/* In the order of the connection hers would be the last. The second node reads MALLORY in turns, and the leader handles
 * his calls in turns; each of both suffices for this test (daemon.control.rpc.test_turn shows those of the leader). */
TEST(a_call_through_another_node_overtakes)
{
    struct dtd second;
    char dir[sizeof(second.dir)];
    bool once = false;
    begin_users();
    start_node(&d, "one");
    start_node(&second, "two");
    join(&d, &second);
    assert_int_equal(0, users_run(MALLORY, submit_many, NULL));
    memcpy(dir, second.dir, sizeof(dir));
    attacked = dir;
    for (int i = 0; i < 20 && !once; i++) /* the leader may change, or the machine stop this process */
        once = overtakes();
    attacked = NULL;
    assert_true(once);
    dtd_kill(&second);
    dtd_kill(&d);
}

TEST(beside_calls_from_another_node)
{
    endure_other_node(false);
}

TEST(beside_calls_through_the_same_other_node)
{
    endure_other_node(true);
}
