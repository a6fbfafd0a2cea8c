/* The supervisor's side of the channel keeps its record of a child until control acknowledges the child's end, like the
 * real one. A packet from control arrives in an event of host 0, since the supervisor survives control. */
#include "tests/sim/control/machine.h"

#include "common/tunnel/identity.h"
#include "common/tunnel/key.h"
#include "tests/sim/bugs.h"
#include "tests/sim/check.h"
#include "tests/sim/control/branches.h"
#include "tests/sim/control/ledger.h"
#include "tests/sim/control/process.h"
#include "tests/sim/control/saved.h"
#include "tests/sim/disk.h"
#include "tests/sim/libraft.h"
#include "tests/sim/stream.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SNAPSHOT_ENTRIES 60 /* small, so that a run has many snapshots */
#define SNAPSHOT_TRAILING 20

struct machine machines[MAX_HOSTS + 1];
bool machine_is_measured, machines_join_by_token;
bool (*machine_may_end)(const struct host *host);
void (*machine_refused)(struct machine *m, const char *why), (*machine_started)(struct machine *m);

static bool may_end(const struct host *host)
{
    return machine_may_end && machine_may_end(host);
}

bool machine_has_power(int id)
{
    return machines[id].has_power;
}

struct host *machine_at(const char *address)
{
    int id = 0;
    return sscanf(address, "10.0.0.%d:7811", &id) == 1 && id >= 1 && id <= world.n_hosts ? &world.hosts[id] : NULL;
}

struct machine *machine_of(const char *name)
{
    int id = 0;
    if (sscanf(name, "node-%d", &id) != 1 || id < 1 || id > world.n_hosts)
        broken("there is no node %s", name);
    return &machines[id];
}

bool machine_is_well(const struct machine *m)
{
    return m->host->is_up && m->node && m->node->rpc.listener && cluster_leader(m->node->cluster);
}

bool machine_is_member(const struct machine *m)
{
    char path[64];
    snprintf(path, sizeof(path), "/node-%d/cluster/self", m->host->id);
    bool is_other = m->node && m->node->cluster && !cluster_named(m->node->cluster);
    return saved_find(m->host->id, path) && !is_other;
}

/* ---- messages to control ---- */

static void send_to_control(struct machine *m, const struct channel_msg *message)
{
    if (m->channel)
        stream_send(m->channel, message, channel_msg_bytes(message));
}

static void say_child(struct machine *m, const struct child_entry *c)
{
    struct channel_msg message = {.kind = CHANNEL_CHILD,
                                  .job = c->job,
                                  .slot = c->slot,
                                  .pid = c->pid,
                                  .state = (int32_t)c->state,
                                  .exit_status = c->exit_status,
                                  .exit_signal = c->exit_signal,
                                  .error = c->error,
                                  .epoch = c->epoch,
                                  .when_ns = c->when_ns};
    memcpy(message.token, c->token, sizeof(message.token));
    send_to_control(m, &message);
}

static struct child_entry *find_running(struct machine *m, uint64_t job, int slot)
{
    for (struct child_entry *c = m->children; c < m->children + MACHINE_CHILDREN; c++)
        if (c->job == job && c->slot == slot && c->state == CHANNEL_RUNNING)
            return c;
    return NULL;
}

static int64_t now_ns(const struct machine *m)
{
    return host_mono_us(m->host) * 1000;
}

void machine_child_ended(struct machine *m, struct process *p, int exit_status, int exit_signal)
{
    for (struct child_entry *c = m->children; c < m->children + MACHINE_CHILDREN; c++) {
        if (c->process != p)
            continue;
        c->process = NULL;
        c->state = CHANNEL_EXITED;
        c->exit_status = exit_status;
        c->exit_signal = exit_signal;
        c->when_ns = now_ns(m);
        say_child(m, c);
    }
}

/* ---- messages from control ---- */

static void on_spawn(struct machine *m, const struct channel_msg *message)
{
    struct child_entry *c = m->children;
    while (c < m->children + MACHINE_CHILDREN && c->job)
        c++;
    assert(c < m->children + MACHINE_CHILDREN);
    bool is_taken = find_running(m, message->job, message->slot) != NULL;
    *c = (struct child_entry){.job = message->job,
                              .slot = message->slot,
                              .state = is_taken ? CHANNEL_REFUSED : CHANNEL_RUNNING,
                              .error = is_taken ? EEXIST : 0,
                              .epoch = message->epoch,
                              .pid = is_taken ? 0 : (int)(1000 * m->host->id + ++m->spawns),
                              .when_ns = now_ns(m)};
    memcpy(c->token, message->token, sizeof(c->token));
    if (!is_taken)
        c->process = process_start(m, message, c->pid);
    size_t at = 0;
    while (m->jobs[at] && m->jobs[at] != message->job)
        at++;
    m->jobs[at] = message->job;
    say_child(m, c);
}

static void on_kill(struct machine *m, const struct channel_msg *message)
{
    struct child_entry *c = find_running(m, message->job, message->slot);
    if (m->node && m->node->jobs.leads)
        ledger_killed(m, message->job);
    if (c)
        process_signal(c->process, message->signal);
}

static void on_release(struct machine *m, const struct channel_msg *message)
{
    for (struct child_entry *c = m->children; c < m->children + MACHINE_CHILDREN; c++)
        if (c->job == message->job && c->state == CHANNEL_RUNNING)
            return;
    for (size_t i = 0; i < MACHINE_CHILDREN; i++)
        if (m->jobs[i] == message->job)
            m->jobs[i] = 0;
}

static void on_ack(struct machine *m, const struct channel_msg *message)
{
    for (struct child_entry *c = m->children; c < m->children + MACHINE_CHILDREN; c++)
        if (c->job == message->job && c->slot == message->slot && c->state != CHANNEL_RUNNING &&
            memcmp(c->token, message->token, sizeof(c->token)) == 0)
            *c = (struct child_entry){0};
}

static void on_list(struct machine *m, const struct channel_msg *message)
{
    struct channel_msg listed = {.kind = CHANNEL_LISTED};
    (void)message;
    for (size_t i = 0; i < MACHINE_CHILDREN; i++) {
        struct channel_msg job = {.kind = CHANNEL_JOB, .job = m->jobs[i], .slots = 1};
        if (m->jobs[i])
            send_to_control(m, &job);
    }
    for (struct child_entry *c = m->children; c < m->children + MACHINE_CHILDREN; c++)
        if (c->job)
            say_child(m, c);
    send_to_control(m, &listed);
}

static void on_end(struct machine *m, const struct channel_msg *message)
{
    (void)message;
    machine_kill(m, false);
}

static void receive_from_control(void *arg, const void *data, size_t len)
{
    static void (*const handlers[])(struct machine * m, const struct channel_msg *message) = {
        [CHANNEL_SPAWN] = on_spawn, [CHANNEL_KILL] = on_kill, [CHANNEL_RELEASE] = on_release,
        [CHANNEL_LIST] = on_list,   [CHANNEL_ACK] = on_ack,   [CHANNEL_END] = on_end};
    struct channel_msg message = {0};
    struct machine *m = arg;
    memcpy(&message, data, len);
    if (!channel_msg_valid(&message, len))
        broken("host %d sends a malformed message to its supervisor", m->host->id);
    if (message.kind < sizeof(handlers) / sizeof(handlers[0]) && handlers[message.kind])
        handlers[message.kind](m, &message);
}

/* ---- control ---- */

static void fill_config(struct machine *m, struct control *n)
{
    struct why why = {""};
    char text[64];
    err_t err = node_conf_default(&n->conf, &why);
    if (err && may_end(m->host))
        host_exit();
    assert(!err);
    snprintf(n->dir, sizeof(n->dir), "/node-%d", m->host->id);
    snprintf(text, sizeof(text), "node-%d", m->host->id);
    n->conf.name = strdup(text);
    snprintf(text, sizeof(text), "10.0.0.%d:7811", m->host->id);
    n->conf.cluster.listen = strdup(text);
    n->conf.cluster.advertise = calloc(1, sizeof(char *));
    n->conf.cluster.advertise[0] = strdup(text);
    n->conf.cluster.n_advertise = 1;
    if (!machines_join_by_token)
        n->conf.cluster.key_file = strdup("/key");
    n->conf.cluster.first = m->host->id == 1;
    n->conf.cluster.peers = calloc(1, sizeof(char *));
    n->conf.cluster.peers[0] = strdup("10.0.0.1:7811");
    n->conf.cluster.n_peers = 1;
    n->conf.gpus = strdup("0");
    n->conf.slots = m->slots;
    if (!machine_is_measured) {
        n->conf.snapshot.entries = SNAPSHOT_ENTRIES;
        n->conf.snapshot.trailing = SNAPSHOT_TRAILING;
    }
    n->conf.disk.reserve_mib = 1;
}

static void begin_control(void *arg)
{
    struct machine *m = arg;
    struct control *n = calloc(1, sizeof(*n));
    struct why why = {""};
    assert(n);
    fill_config(m, n);
    m->node = n;
    err_t err = control_start(n, &why);
    /* On a full disk control ends with an error that names the file, and the supervisor starts it again. */
    bool is_excused = machine_refused || may_end(m->host) || disks[m->host->id].is_full;
    if (err && !is_excused)
        broken("control of host %d failed to start: %s", m->host->id, why.text);
    if (err && machine_refused)
        machine_refused(m, why.text);
    else if (!err && machine_started)
        machine_started(m);
    if (err)
        host_exit();
}

static void start_control(void *arg)
{
    struct machine *m = arg;
    if (m->host->is_up || !m->has_dtd)
        return;
    trace("host %d: control starts", m->host->id);
    m->running = m->version;
    host_up(m->host);
    m->channel = stream_channel(m->host, receive_from_control, m);
    voters[m->host->id] = (struct voter){.host = m->host};
    world_after(m->host, world_between(FROM_FAULTS, 0, 20000), begin_control, m);
}

static void end_control(struct machine *m, bool power)
{
    if (!m->host->is_up)
        return;
    trace("host %d: control is gone", m->host->id);
    host_down(m->host);
    libraft_forget(m->host);
    disk_crash(&disks[m->host->id]);
    tunnel_forget(m->host);
    stream_forget(m->host, !power);
    voters[m->host->id] = (struct voter){.host = m->host};
    m->node = NULL;
    m->channel = NULL;
}

void machine_kill_control(struct machine *m)
{
    end_control(m, false);
    world_after(&world.hosts[0], world_between(FROM_FAULTS, 1, 300) * US_PER_MS, start_control, m);
}

void machine_died(struct host *host)
{
    machine_kill_control(&machines[host->id]);
}

/* ---- the computer ---- */

void machine_init(int id, int slots)
{
    machines[id] = (struct machine){.host = &world.hosts[id], .slots = slots, .version = machines[id].version};
}

void machine_start(struct machine *m)
{
    if (m->is_held)
        return;
    m->has_power = true;
    if (m->has_dtd)
        return;
    m->has_dtd = true;
    start_control(m);
}

void machine_kill(struct machine *m, bool power)
{
    if (!m->has_dtd)
        return;
    trace("host %d %s", m->host->id, power ? "loses its power" : "loses its dtd");
    m->has_dtd = false;
    m->has_power = !power;
    if (power)
        saved_boot(m->host->id);
    end_control(m, power);
    for (struct child_entry *c = m->children; c < m->children + MACHINE_CHILDREN; c++) {
        if (c->process)
            process_forget(c->process, power);
        *c = (struct child_entry){0};
    }
    memset(m->jobs, 0, sizeof(m->jobs));
}

void machine_hold(struct machine *m)
{
    machine_kill(m, true);
    m->has_power = false;
    m->is_held = true;
}

void machine_release(struct machine *m)
{
    m->is_held = false;
    machine_start(m);
}

void machine_wipe(struct machine *m)
{
    trace("the state directory of host %d is removed", m->host->id);
    machine_kill(m, false);
    for (int i = 0; i < SAVED_FILES; i++)
        saved_remove(&saved_files(m->host->id)[i]);
    log_disk_forget_witness(m->host);
    disks[m->host->id].log = disks[m->host->id].fresh = (struct files){.exists = false};
    machine_start(m);
}

void machine_stop(struct machine *m)
{
    const struct channel_msg shutdown = {.kind = CHANNEL_SHUTDOWN};
    trace("host %d gets a stop", m->host->id);
    send_to_control(m, &shutdown);
}

/* ---- the log, wrapped for the checks ---- */

struct machine_mark { /* the header that the test puts in front of a snapshot */
    uint64_t applied, chain;
};

err_t __real_log_start(const struct log_config *config, struct log **ret);
err_t __wrap_log_start(const struct log_config *config, struct log **ret);
void __real_log_close(struct log *log, void (*cb)(void *owner));
void __wrap_log_close(struct log *log, void (*cb)(void *owner));

static struct log_machine inner[MAX_HOSTS + 1];

/* A node that has not joined has a log of its own, which is not the cluster's. */
static bool is_checked(const struct voter *v)
{
    return !machine_is_measured && cluster_named(machines[v->host->id].node->cluster);
}

/* What a check does is no act of the host, which may have no memory. Returns the host, for world.current. */
static struct host *begin_check(void)
{
    struct host *here = world.current;
    world.current = &world.hosts[0];
    return here;
}

static err_t checked_apply(void *arg, const void *bytes, size_t len, uint64_t index, void *result)
{
    struct voter *v = arg;
    struct record r;
    err_t err = inner[v->host->id].apply(inner[v->host->id].arg, bytes, len, index, result);
    if (err == ERR_NOMEM && may_end(v->host))
        host_exit(); /* the log aborts the process, and the next one applies the record */
    if (err || v->host->is_dying || !is_checked(v))
        return err;
    struct host *here = begin_check();
    err = record_decode(bytes, len, &r);
    assert(!err);
    check_applied(v, index, bytes, len, &r, result);
    record_fini(&r);
    world.current = here;
    return OK;
}

/* A frozen state, or one that was read, of the machine inside. */
struct marked {
    struct machine_mark mark;
    void *inside;
};

static const struct log_machine *inner_now(void)
{
    return &inner[world.current->id];
}

static err_t checked_freeze(void *arg, void **ret)
{
    struct voter *v = arg;
    struct marked *m = malloc(sizeof(*m));
    assert(m);
    m->mark = (struct machine_mark){v->applied, v->chain};
    err_t err = inner_now()->freeze(inner_now()->arg, &m->inside);
    if (err)
        free(m);
    else
        *ret = m;
    return err;
}

static err_t checked_write(const void *frozen, struct pieces *ret)
{
    const struct marked *m = frozen;
    err_t err = pieces_borrow(ret, &m->mark, sizeof(m->mark));
    return err ? err : inner_now()->write(m->inside, ret);
}

static void checked_thaw(void *frozen)
{
    struct marked *m = frozen;
    inner_now()->thaw(m->inside);
    free(m);
}

static err_t checked_read(const void *data, size_t len, void **ret)
{
    struct marked *m = malloc(sizeof(*m));
    assert(m);
    err_t err = len < sizeof(m->mark) ? ERR_CORRUPT : OK;
    if (!err) {
        memcpy(&m->mark, data, sizeof(m->mark));
        err = inner_now()->read((const char *)data + sizeof(m->mark), len - sizeof(m->mark), &m->inside);
    }
    if (err == ERR_NOMEM && may_end(world.current))
        host_exit(); /* the log aborts the process */
    if (err)
        free(m);
    else
        *ret = m;
    return err;
}

static void checked_adopt(void *arg, void *fresh)
{
    struct voter *v = arg;
    struct marked *m = fresh;
    inner_now()->adopt(inner_now()->arg, m->inside);
    v->applied = m->mark.applied;
    v->chain = m->mark.chain;
    free(m);
    struct host *here = begin_check();
    if (!v->host->is_dying && is_checked(v))
        check_restored(v);
    world.current = here;
}

static void checked_drop(void *fresh)
{
    struct marked *m = fresh;
    inner_now()->drop(m->inside);
    free(m);
}

bool machines_make_slices;
bool __real_jobs_make(struct jobs *jobs, int64_t until_ms);
bool __wrap_jobs_make(struct jobs *jobs, int64_t until_ms);

bool __wrap_jobs_make(struct jobs *jobs, int64_t until_ms)
{
    if (machines_make_slices && !world_chance(FROM_WORLD, 0.01))
        return false;
    return __real_jobs_make(jobs, machines_make_slices ? 0 : until_ms);
}

err_t __wrap_log_start(const struct log_config *config, struct log **ret)
{
    struct voter *v = &voters[world.current->id];
    struct log_config c = *config;
    inner[v->host->id] = config->machine;
    v->state = machines[v->host->id].node->replica.state;
    v->is_ready = true;
    if (is_checked(v))
        branch_open(v, config);
    c.machine = (struct log_machine){
        v, checked_apply, checked_freeze, checked_write, checked_thaw, checked_read, checked_adopt, checked_drop};
    c.snapshot_part =
        1000000; /* the size of the state, to which a threshold of records is little, delays no snapshot */
    c.segment_bytes = 64u << 10;
    err_t err = __real_log_start(&c, ret);
    v->log = is_checked(v) ? *ret : NULL;
    return err;
}

void __wrap_log_close(struct log *log, void (*cb)(void *owner))
{
    voters[world.current->id].log = NULL;
    __real_log_close(log, cb);
}

/* ---- keys, identities, chance, the end ---- */

err_t __wrap_key_file_read(const char *path, struct key_ring *ret, struct why *why);
ssize_t __wrap_getrandom(void *data, size_t len, unsigned flags);
err_t __wrap_identity_make(struct identity *ret, struct why *why);
_Noreturn void __wrap_exit(int status);
_Noreturn void __real_exit(int status);

err_t __wrap_key_file_read(const char *path, struct key_ring *ret, struct why *why)
{
    (void)path, (void)why;
    *ret = (struct key_ring){.n = 1, .keys = {{.version = 1, .secret = "the key of the cluster"}}};
    return OK;
}

ssize_t __wrap_getrandom(void *data, size_t len, unsigned flags)
{
    (void)flags;
    for (size_t i = 0; i < len; i++)
        ((uint8_t *)data)[i] = (uint8_t)world_draw(FROM_WORLD);
    return (ssize_t)len;
}

/* Without a draw, so that it does not change what the seed gives to others. */
err_t __wrap_identity_make(struct identity *ret, struct why *why)
{
    struct identity x = {{0}, {0}};
    char file[IDENTITY_FILE_BYTES + 1];
    int id = world.current->id;
    unsigned made = bug(BUG_IDENTITY_KEPT) ? 1 : ++machines[id].identities;
    (void)why;
    memcpy(x.private_key, &id, sizeof(id));
    memcpy(x.private_key + sizeof(id), &made, sizeof(made));
    identity_write(&x, file);
    return identity_parse(file, IDENTITY_FILE_BYTES, ret);
}

void __wrap_exit(int status)
{
    if (world.current->id == 0)
        __real_exit(status);
    trace("control ends with status %d", status);
    bool is_excused = disks[world.current->id].has_failed || may_end(world.current); /* the log cannot be opened */
    if (status && !world.current->is_dying && !is_excused)
        broken("control of host %d exits with status %d", world.current->id, status);
    host_exit();
}
