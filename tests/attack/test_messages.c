/* Random requests on each listener of a running dtd, from a peer that is allowed to call its methods: a client, a
 * worker and a dtd-io of a job (with valid tokens), and a node with the cluster's key. They affect no job except the
 * sender's: afterwards control and dtd-io are the same processes, and another job is still in its first epoch and makes
 * progress. */
#include "common/base/clock.h"
#include "common/base/ticket.h"
#include "common/tunnel/key.h"
#include "daemon/control/state/features.h"
#include "proto/io.pb-c.h"
#include "proto/peer.pb-c.h"
#include "proto/worker.pb-c.h"
#include "tests/attack/attacker.h"
#include "tests/daemon/programs/harness.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>

enum {
    TIMES = 1000,
    WAIT_MS = 60000,
    PATIENCE_MS = 15000 /* then the job is assumed to wait forever because of the requests sent in its name */
};

static struct dtd d;
static char bystander[32];

static uint64_t seed(void)
{
    const char *given = getenv("DTD_TEST_SEED");
    uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)clock_wall_ms();
    print_message("DTD_TEST_SEED=%llu\n", (unsigned long long)seed);
    return seed;
}

static struct client_node node_now(void)
{
    struct client_node node;
    struct why why = {""};
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    return node;
}

static int control_pid(void)
{
    struct client_node node = node_now();
    int pid = node.control_pid;
    client_node_fini(&node);
    return pid;
}

/* Starts an unrelated job. */
static void bystander_begin(void)
{
    job_submit(&d, spec_text("bystander", 1, 1000000, "DOUBLE_STEP_MS: \"10\"", ""), bystander);
    job_wait_step(&d, bystander, 1, 2, WAIT_MS);
}

static void bystander_continues(void)
{
    int64_t step = job_status(&d, bystander)->last.step;
    job_wait_step(&d, bystander, 1, step + 5, WAIT_MS);
    assert_int_equal(1, job_status(&d, bystander)->epoch);
}

static int connect_to(const char *path)
{
    int fd;
    assert_ok(rpc_connect_unix(path, &fd));
    return fd;
}

static const char *control_path(void)
{
    static char path[512];
    snprintf(path, sizeof(path), "%s/control.sock", d.dir);
    return path;
}

/* Reads the ticket of the process. Returns false if it has ended. */
static bool ticket_of(int pid, struct ticket *ret)
{
    struct why why = {""};
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/fd/3", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    err_t err = ticket_read(fd, ret, &why);
    close(fd);
    return !err;
}

/* ---- a client ---- */

static void open_control(struct attacker *s)
{
    s->fd = connect_to(control_path());
}

TEST(client_sends_random_messages)
{
    static const uint16_t but[] = {CLIENT_SHUTDOWN, CLIENT_CLUSTER_INIT, CLIENT_CLUSTER_JOIN,
                                   0}; /* these end control */
    static const int64_t numbers[] = {1, 2};
    dtd_start(&d, "state");
    const char *spec = spec_text("a", 1, 3, "", "");
    const char *text[] = {"1", "2", spec, NULL};
    struct attacker s = {.dice = seed(), .values = {text, numbers, 2}, .open = open_control};
    int control = control_pid();
    s.open(&s);
    attacker_send_random(&s, 0x01, but, TIMES);
    close(s.fd);
    assert_true(s.closed < s.sent);
    assert_int_equal(control, control_pid());
    bystander_begin();
    assert_int_equal(0, dtd_down(&d));
}

/* ---- processes of a job ---- */

/* The attacker's own job, with one worker and one dtd-io. The test stops the process and sends requests in its place,
 * with its ticket. Control may kill the process for these requests and start another; the test then continues with that
 * one. */
struct process {
    bool io;
    int jobs; /* number of jobs submitted so far */
    char job[32];
};

/* Returns the pid of the process, 0 if there is none at the moment. When the job has ended, another one is submitted,
 * with a checkpoint folder of its own, because a cancelled job keeps its folder until its last process has ended. */
static int process_pid(struct process *p)
{
    char want[64];
    if (!p->job[0] || client_job_ended(job_status(&d, p->job))) {
        snprintf(want, sizeof(want), "attacker-%d", ++p->jobs);
        job_submit(&d, spec_text(want, 1, 1000000, "DOUBLE_STEP_MS: \"10\"", "restarts: 100000"), p->job);
    }
    const struct client_job *job = job_status(&d, p->job);
    if (!p->io)
        return job->n_worker && strcmp(job->state, "running") == 0 ? job->worker[0].pid : 0;
    struct client_node node = node_now();
    int pid = 0;
    snprintf(want, sizeof(want), "/jobs/%s/io.sock", p->job);
    for (int i = 0; i < node.n_io; i++) {
        struct ticket ticket;
        if (ticket_of(node.io_pid[i], &ticket) && strstr(ticket.io, want))
            pid = node.io_pid[i];
    }
    client_node_fini(&node);
    return pid;
}

static bool process_hello(struct attacker *s, struct process *p, struct ticket *ticket)
{
    Dtd__WorkerHello worker = DTD__WORKER_HELLO__INIT;
    Dtd__IoControlHello io = DTD__IO_CONTROL_HELLO__INIT;
    worker.job = io.job = p->job;
    worker.token = io.token = (ProtobufCBinaryData){TICKET_TOKEN_BYTES, ticket->token};
    worker.pid = io.pid = getpid();
    return p->io ? attacker_call_valid(s, IO_CONTROL_HELLO, &io.base)
                 : attacker_call_valid(s, WORKER_HELLO, &worker.base);
}

/* Requests of its own processes may leave a job waiting forever, which affects this job only. It is cancelled, and
 * process_pid submits another. */
static void abandon_job(struct process *p)
{
    uint8_t id[16];
    struct client_job canceled;
    struct why why = {""};
    assert_ok(client_request_id(id));
    if (client_cancel(dtd_client(&d), id, p->job, false, CLIENT_GRACE_DEFAULT, &canceled, &why) == OK)
        client_job_fini(&canceled);
    p->job[0] = '\0';
}

static void open_process(struct attacker *s)
{
    struct process *p = s->arg;
    int64_t patience = clock_mono_ms() + PATIENCE_MS;
    for (int64_t until = clock_mono_ms() + WAIT_MS; clock_mono_ms() < until; sleep_ms(5)) {
        struct ticket ticket;
        if (clock_mono_ms() > patience) {
            abandon_job(p);
            patience = clock_mono_ms() + PATIENCE_MS;
        }
        int pid = process_pid(p);
        if (!pid || !ticket_of(pid, &ticket))
            continue;
        kill(pid, SIGSTOP);
        s->fd = connect_to(control_path());
        s->call = 0;
        if (process_hello(s, p, &ticket))
            return;
        close(s->fd);
    }
    fail_msg("no process of job %s started within %d s", p->job, WAIT_MS / 1000);
}

static void process_sends_random_messages(bool io)
{
    static const uint16_t nothing[] = {0};
    static const int64_t numbers[] = {1, 2, 3, 10};
    static const char *const text[] = {"1", "2", "comm/stream/0", "step-1", NULL};
    struct process p = {.io = io};
    dtd_start(&d, "state");
    bystander_begin();
    int control = control_pid();
    struct attacker s = {.dice = seed(), .values = {text, numbers, 4}, .open = open_process, .arg = &p};
    s.open(&s);
    attacker_send_random(&s, io ? 0x04 : 0x02, nothing, TIMES);
    close(s.fd);
    print_message("%d calls, %d connections closed\n", s.sent, s.closed);
    assert_int_equal(control, control_pid());
    bystander_continues();
    assert_int_equal(0, dtd_down(&d));
}

TEST(worker_sends_random_messages)
{
    process_sends_random_messages(false);
}

TEST(io_sends_random_messages)
{
    process_sends_random_messages(true);
}

/* ---- a worker, to its dtd-io ---- */

static void open_io(struct attacker *s)
{
    struct ticket *ticket = s->arg;
    Dtd__IoHello m = DTD__IO_HELLO__INIT;
    m.job = (char *)"2"; /* job 1 is the bystander */
    m.token = (ProtobufCBinaryData){TICKET_TOKEN_BYTES, ticket->io_token};
    s->fd = connect_to(ticket->io);
    s->call = 0;
    assert_true(attacker_call_valid(s, IO_HELLO, &m.base));
}

TEST(worker_sends_random_messages_to_its_io)
{
    static const uint16_t but[] = {IO_HELLO, 0};
    static const int64_t numbers[] = {1, 2, 64, 128, 256, 512, 4096, 65536};
    struct process p = {.io = true};
    struct ticket ticket;
    char step[512];
    dtd_start(&d, "state");
    bystander_begin();
    while (!process_pid(&p))
        sleep_ms(5);
    job_wait_step(&d, p.job, 1, 2, WAIT_MS);
    int io = process_pid(&p), control = control_pid();
    assert_true(ticket_of(io, &ticket));
    snprintf(step, sizeof(step), "%s/attacker-1/step-1", test_tmpdir());
    const char *text[] = {"embed.weight", "layers.0.norm1.weight", step, "step", NULL};
    struct attacker s = {.dice = seed(), .values = {text, numbers, 8}, .open = open_io, .arg = &ticket};
    s.open(&s);
    attacker_send_random(&s, 0x03, but, TIMES);
    close(s.fd);
    print_message("%d calls, %d connections closed\n", s.sent, s.closed);
    assert_int_equal(io, process_pid(&p));
    assert_int_equal(control, control_pid());
    bystander_continues();
    assert_int_equal(0, dtd_down(&d));
}

/* ---- a node ---- */

struct other {
    uv_loop_t loop;
    struct tunnel_host *host;
    struct key_ring ring;
    struct identity identity;
    char address[64];
    int fd;
};

static err_t find_key(void *owner, struct tunnel_key_id id, struct tunnel_secret *ret)
{
    return key_ring_secret(&((struct other *)owner)->ring, id, ret);
}

static void run_loop_once(void *arg)
{
    uv_run(&((struct other *)arg)->loop, UV_RUN_NOWAIT);
}

static void connected(void *owner, err_t err, const char *why, const struct tunnel_peer *peer, int fd)
{
    (void)why, (void)peer;
    ((struct other *)owner)->fd = err ? -2 : fd;
}

/* False: refused, as while too many connections of this node are still closing. */
static bool open_for(struct attacker *s, enum tunnel_purpose purpose)
{
    struct other *o = s->arg;
    struct tunnel_request *request;
    struct why why = {""};
    const struct tunnel_connect_config config = {
        .address = o->address, .key = key_id(key_ring_newest(&o->ring)), .purpose = purpose};
    o->fd = -1;
    assert_ok(tunnel_connect(o->host, &config, connected, o, &request, &why));
    while (o->fd == -1)
        uv_run(&o->loop, UV_RUN_ONCE);
    s->fd = o->fd;
    s->call = 0;
    return o->fd >= 0;
}

static void open_tunnel(struct attacker *s)
{
    static uint8_t instance[16] = {1};
    struct other *o = s->arg;
    Dtd__JoinRequest join = DTD__JOIN_REQUEST__INIT;
    Dtd__PeerHello process_hello = DTD__PEER_HELLO__INIT;
    join.name = process_hello.node = (char *)"mallory";
    join.version = process_hello.version = (char *)DTD_VERSION;
    join.address = (char *)"127.0.0.1:1";
    join.instance = process_hello.instance = (ProtobufCBinaryData){sizeof(instance), instance};
    process_hello.has_instance = join.has_public_key = join.has_newest = process_hello.has_newest = true;
    /* Without it the dtd is older than the cluster's version, and is refused. */
    join.newest = process_hello.newest = FEATURES_NEWEST;
    join.public_key = (ProtobufCBinaryData){IDENTITY_BYTES, o->identity.public_key};
    for (int64_t until = clock_mono_ms() + WAIT_MS; clock_mono_ms() < until; sleep_ms(5)) {
        /* If the node sent PEER_LEAVE, it joins again. If another node has taken its name since then, the Hello is
         * refused, and it leaves. */
        if (open_for(s, TUNNEL_JOIN)) {
            (void)attacker_call_valid(s, PEER_JOIN, &join.base);
            close(s->fd);
        }
        if (!open_for(s, TUNNEL_RPC))
            continue;
        if (attacker_call_valid(s, PEER_HELLO, &process_hello.base))
            return;
        (void)attacker_call_valid(s, PEER_LEAVE, &process_hello.base);
        close(s->fd);
    }
    fail_msg("no tunnel to dtd opened within %d s", WAIT_MS / 1000);
}

/* A free port. Another process could take it before dtd listens, which is unlikely. */
static void free_address(char *ret, size_t size)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(in);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(0, bind(fd, (struct sockaddr *)&in, len));
    assert_int_equal(0, getsockname(fd, (struct sockaddr *)&in, &len));
    close(fd);
    snprintf(ret, size, "127.0.0.1:%d", ntohs(in.sin_port));
}

/* Starts dtd as the first node of a cluster whose key this test also has. */
static void start_node(struct other *o)
{
    struct why why = {""};
    char key[300], conf[300];
    snprintf(key, sizeof(key), "%s/key", test_tmpdir());
    snprintf(conf, sizeof(conf), "%s/dtd.yaml", test_tmpdir());
    assert_ok(key_ring_make(&o->ring, &why));
    assert_ok(key_file_write(key, &o->ring, &why));
    free_address(o->address, sizeof(o->address));
    FILE *f = fopen(conf, "w");
    assert_non_null(f);
    fprintf(f,
            "name: honest\ncluster: {listen: \"%s\", advertise: \"%s\", key_file: %s, first: true, peers: [\"%s\"]}\n",
            o->address, o->address, key, o->address);
    fclose(f);
    dtd_start_with(&d, "state", conf);
    assert_ok(identity_make(&o->identity, &why));
    const struct tunnel_host_config host = {
        .loop = &o->loop, .name = "mallory", .keys = {o, find_key}, .identity = {.own = &o->identity}};
    assert_int_equal(0, uv_loop_init(&o->loop));
    assert_ok(tunnel_host_open(&host, &o->host, &why));
}

/* A node that has the key and has joined may do anything to the cluster and its jobs, but it must not corrupt the
 * memory of other nodes. */
TEST(node_sends_random_messages)
{
    static const uint16_t nothing[] = {0};
    static const int64_t numbers[] = {1, 2, CLIENT_STATUS, CLIENT_LIST, CLIENT_LOGS, WORKER_REPORT, WORKER_STORE_GET};
    const char *text[] = {"honest", "mallory", "127.0.0.1:1", "1", DTD_VERSION, NULL};
    struct other o = {.fd = -1};
    start_node(&o);
    bystander_begin();
    int control = control_pid();
    struct attacker s = {
        .dice = seed(), .values = {text, numbers, 7}, .turn = run_loop_once, .open = open_tunnel, .arg = &o};
    s.open(&s);
    attacker_send_random(&s, 0x05, nothing, TIMES);
    close(s.fd);
    print_message("%d calls, %d connections closed\n", s.sent, s.closed);
    assert_int_equal(control, control_pid());
    tunnel_host_close(o.host, NULL, NULL);
    uv_run(&o.loop, UV_RUN_DEFAULT);
    assert_int_equal(0, uv_loop_close(&o.loop));
    dtd_kill(&d);
}
