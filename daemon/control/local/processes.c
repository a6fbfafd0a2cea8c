#include "daemon/control/local/processes.h"

#include "common/base/caller.h"
#include "common/base/cpus.h"
#include "common/base/log.h"
#include "common/base/paths.h"
#include "common/base/ports.h"
#include "daemon/control/local/error_file.h"
#include "daemon/control/local/limits.h"
#include "daemon/control/local/local.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void local_processes_init(struct children *c, const char *dir)
{
    *c = (struct children){0};
    sharing_init(&c->sharing, dir);
    cores_init(&c->cores, path_sysfs());
}

bool child_runs(const struct child *c)
{
    return c->state == 0 || c->state == CHANNEL_RUNNING;
}

bool child_failed(const struct child *c)
{
    return c->slot >= 0 && c->state == CHANNEL_EXITED && (c->exit_status || c->exit_signal);
}

static struct child *child_find(struct children *c, uint64_t job, int slot)
{
    for (struct child *e = c->head; e; e = e->next)
        if (e->job == job && e->slot == slot)
            return e;
    return NULL;
}

static struct child *child_get(struct children *c, uint64_t job, int slot)
{
    struct child *e = child_find(c, job, slot);
    if (e)
        return e;
    e = calloc(1, sizeof(*e));
    if (!e)
        return NULL;
    e->job = job;
    e->slot = slot;
    e->device = -1;
    e->next = c->head;
    c->head = e;
    return e;
}

/* Another process uses the slot; only its binding to cores remains. */
static void child_begin(const struct local *l, struct child *e, const uint8_t *token, int device, uint32_t uid)
{
    if (e->peer)
        l->events->disconnect(e->peer);
    e->peer = NULL;
    memcpy(e->token, token, sizeof(e->token));
    e->state = (enum channel_state)0;
    e->pid = 0;
    e->exit_status = e->exit_signal = e->error = 0;
    e->cause = CAUSE_UNKNOWN;
    e->cause_text[0] = '\0';
    e->device = device;
    e->uid = uid;
    e->epoch = 0;
    e->stranded = false;
}

/* ---- starting ---- */

static int home_of(const struct local *l, int device)
{
    return device < 0 ? CORES_ANY : cores_home(&l->children.cores, gpus_numa_node(&l->gpus, device));
}

static void log_elsewhere(const struct local *l, const struct child *e, int elsewhere)
{
    char cores[128];
    cpus_print(e->cpus, CHANNEL_MAX_CPUS, cores, sizeof(cores));
    log_info("some cores are outside the GPU's NUMA node, which has too few job=%" PRIu64
             " slot=%d gpu=%d numa_node=%d cores=%s elsewhere=%d",
             e->job, e->slot, e->device, gpus_numa_node(&l->gpus, e->device), cores, elsewhere);
}

/* `before`: the GPU of the process that had the slot; -1: none. */
static void bind_cores(struct local *l, struct child *e, const struct process_spawn *x, int before)
{
    struct cores *s = &l->children.cores;
    int home = home_of(l, x->device);
    bool moved = home >= 0 && before >= 0 && home != home_of(l, before);
    const int width = cores_width(s, x->workers, x->threads, x->cores);
    bool as_daemon = x->n_command && !width; /* as torchrun, which leaves the cores to the script */
    if (x->slot == CHANNEL_SLOT_IO || as_daemon || (e->bound && !moved))
        return;
    if (e->bound)
        cores_unbind(s, e->cpus);
    e->bound = true;
    if (x->workers > s->at.n_cpus && x->slot == 0)
        log_warn("more workers than cores: the workers are not bound to cores job=%" PRIu64 " workers=%d cores=%d",
                 x->job, x->workers, s->at.n_cpus);
    int elsewhere = cores_bind(s, x->workers, width, home, e->cpus);
    if (home >= 0 && elsewhere)
        log_elsewhere(l, e, elsewhere);
}

/* Workers on a GPU compute there. */
static void count_workers(struct local *l)
{
    uint32_t n = 0;
    for (const struct child *e = l->children.head; e; e = e->next)
        n += e->job != CHANNEL_JOB_PROBE && e->slot >= 0 && e->device < 0 && child_runs(e);
    sharing_set(&l->children.sharing, n);
}

/* A worker of a managed job gets the file from which it learns its share of the cores, unless it computes on a GPU, and
 * the ports and the network of this node. */
static err_t spawn_managed(struct local *l, const struct process_spawn *x, struct supervisor_link_spawn *s)
{
    const struct {
        const char *name, *value;
    } own[] = {{PATH_WORKERS_ENV, x->device < 0 ? l->children.sharing.path : ""},
               {PORTS_ENV, l->conf->cluster.ports},
               {FABRIC_ENV, l->conf->cluster.fabric}};
    char text[sizeof(own) / sizeof(own[0])][PATH_MAX];
    char **env = calloc((size_t)x->n_env + sizeof(own) / sizeof(own[0]), sizeof(*env));
    if (!env)
        return ERR_NOMEM;
    int n = 0;
    for (int i = 0; i < x->n_env; i++)
        env[n++] = x->env[i];
    for (size_t i = 0; i < sizeof(own) / sizeof(own[0]); i++) {
        snprintf(text[i], sizeof(text[i]), "%s=%s", own[i].name, own[i].value);
        if (own[i].value[0])
            env[n++] = text[i];
    }
    s->env = env;
    s->n_env = n;
    err_t err = supervisor_link_spawn(&l->supervisor, s);
    free(env);
    return err;
}

#define NODE_VARIABLES 2

/* Writes the command's variables, and those that differ by node: the path of its error file, and the port of its
 * epoch's store if it has one. */
static err_t pack_variables(struct local *l, const struct process_spawn *x, struct buf *ret)
{
    char port_text[40], error[PATH_MAX + sizeof(ERROR_FILE_ENV) + 1] = ERROR_FILE_ENV "=";
    uint16_t port = 0;
    char **words = calloc((size_t)x->n_env + NODE_VARIABLES, sizeof(*words));
    int n = 0;
    err_t err = !words ? ERR_NOMEM : x->store_node ? l->events->command_port(l->owner, x, &port) : OK;
    if (!err)
        err = buf_append(ret, CALLER_ENV "=", strlen(CALLER_ENV "="));
    if (!err) {
        snprintf(port_text, sizeof(port_text), "MASTER_PORT=%u", port);
        error_file_path(l->dir, x->job, x->slot, x->epoch, error + strlen(error));
        words[n++] = error;
        if (x->store_node)
            words[n++] = port_text;
        for (int i = 0; i < x->n_env; i++)
            words[n++] = x->env[i];
        err = caller_pack(words, n, ret);
    }
    free(words);
    return err ? err : buf_append(ret, "", 1);
}

/* dt-worker runs in the daemon's environment and finds the command's in one variable. So the command's variables cannot
 * break dt-worker, as LD_LIBRARY_PATH might, and names may repeat. */
static err_t spawn_command(struct local *l, const struct process_spawn *x, struct supervisor_link_spawn *s)
{
    struct buf variables = {0}, settings = {0};
    err_t err = pack_variables(l, x, &variables);
    if (!err)
        err = buf_printf(&settings, CALLER_SETTINGS "=%s", x->caller ? x->caller : "");
    if (!err)
        err = buf_append(&settings, "", 1);
    if (!err) {
        char *env[] = {(char *)settings.data, (char *)variables.data};
        s->env = env;
        s->n_env = 2;
        err = supervisor_link_spawn(&l->supervisor, s);
        s->env = NULL;
    }
    buf_fini(&variables);
    buf_fini(&settings);
    return err;
}

/* dtd-io needs no GPU and is started before the job has any. A leader of an older version does not send the set. */
static bool knows_gpus(const struct process_spawn *x)
{
    return x->slot != CHANNEL_SLOT_IO && (x->device < 0 || x->gpu_set >> x->device & 1);
}

static void find_limits(const struct local *l, const struct process_spawn *x, struct channel_limits *ret)
{
    int slots = (int)l->conf->slots;
    const struct limits_node node = {.memory_bytes = limits_memory(),
                                     .slots = slots ? slots : cores_default(&l->children.cores),
                                     .gpus = l->gpus.known ? gpus_count(&l->gpus) : 0,
                                     .memory_percent = l->conf->jobs.memory_percent,
                                     .processes = l->conf->jobs.processes,
                                     .system = l->system};
    const struct limits_job job = {
        .memory_bytes = x->memory_bytes, .cores = x->cores, .workers = x->workers, .gpus = x->gpus};
    limits_compute(&node, &job, ret);
    ret->gpu_guard = l->system && knows_gpus(x) && gpus_minors(&l->gpus, x->gpu_set, &ret->gpu_minors);
}

err_t local_process_spawn(struct local *l, const struct process_spawn *x)
{
    struct child *e = child_get(&l->children, x->job, x->slot);
    if (!e)
        return ERR_NOMEM;
    int before = e->device;
    child_begin(l, e, x->token, x->device, x->uid);
    e->epoch = x->n_command ? x->epoch : 0;
    e->log_bytes = x->log_bytes;
    bind_cores(l, e, x, before);
    struct supervisor_link_spawn s = {.job = x->job,
                                      .slot = x->slot,
                                      .slots = x->slots,
                                      .device = x->device,
                                      .uid = x->uid,
                                      .token = x->token,
                                      .cpus = e->bound ? e->cpus : NULL,
                                      .env = x->env,
                                      .n_env = x->n_env,
                                      .workdir = x->workdir,
                                      .command = x->command,
                                      .n_command = x->n_command,
                                      .epoch = e->epoch,
                                      .log_bytes = x->log_bytes};
    find_limits(l, x, &s.limits);
    count_workers(l);
    if (x->n_command)
        return spawn_command(l, x, &s);
    return x->slot >= 0 ? spawn_managed(l, x, &s) : supervisor_link_spawn(&l->supervisor, &s);
}

/* ---- messages of the supervisor ---- */

/* Adopts a process that an earlier control started; `fresh`: the slot was not known before. False: the message is about
 * an earlier process of the slot. One that was killed may exit after the next one has been requested. */
static bool child_adopt(struct local *l, struct child *e, bool fresh, const struct channel_msg *m)
{
    bool newer = m->state == CHANNEL_RUNNING && !child_runs(e); /* a running process replaces an ended one */
    if (!fresh && !newer)
        return false;
    child_begin(l, e, m->token, m->gpu - 1, m->uid);
    e->epoch = m->epoch;
    e->log_bytes = m->log_bytes;
    e->stranded = m->epoch > 0;
    if (!e->bound && m->slot != CHANNEL_SLOT_IO) {
        e->bound = true;
        memcpy(e->cpus, m->cpus, sizeof(e->cpus));
        cores_use(&l->children.cores, e->cpus);
    }
    return true;
}

bool local_process_gpu_cause(const struct local *l, int device, char ret[CHILD_CAUSE_BYTES])
{
    const char *sick = gpus_sick(&l->gpus, device);
    if (*sick)
        snprintf(ret, CHILD_CAUSE_BYTES, "GPU %d of %.64s %s", device, l->name, sick);
    return *sick != '\0';
}

static void find_cause(struct local *l, struct child *e)
{
    bool was_killed = e->state == CHANNEL_EXITED && e->exit_signal == SIGKILL;
    bool is_counted = e->oom && (e->exit_signal || e->exit_status); /* by the control group of the process */
    enum health_oom oom = was_killed && !is_counted ? health_oom(&l->health, e->pid) : HEALTH_OOM_NO;
    e->cause = CAUSE_UNKNOWN;
    e->cause_text[0] = '\0';
    if (e->state == CHANNEL_REFUSED && e->error == EOPNOTSUPP)
        snprintf(
            e->cause_text, sizeof(e->cause_text),
            "run.memory and run.cores need a control group that is delegated to dtd on %.64s, with the controllers "
            "memory and cpu (docs/operate/systemd.md, Limits); or remove the key",
            l->name);
    if (child_failed(e) && local_process_gpu_cause(l, e->device, e->cause_text)) {
        e->cause = CAUSE_GPU;
    } else if (is_counted) {
        e->cause = CAUSE_OUT_OF_MEMORY;
        limits_why_killed(e->oom, &e->limits, !was_killed, e->cause_text, sizeof(e->cause_text));
    } else if (oom == HEALTH_OOM_YES) {
        e->cause = CAUSE_OUT_OF_MEMORY;
        snprintf(e->cause_text, sizeof(e->cause_text), "%s", CHILD_OUT_OF_MEMORY_TEXT);
    } else if (oom == HEALTH_OOM_MAYBE) {
        e->cause = CAUSE_OTHER;
        snprintf(e->cause_text, sizeof(e->cause_text),
                 "by a user, or by the kernel, which killed some process for lack of memory within 5 s; see dmesg");
    }
}

struct child *local_process_event(struct local *l, const struct channel_msg *m)
{
    struct children *c = &l->children;
    bool known = child_find(c, m->job, m->slot) != NULL;
    struct child *e = child_get(c, m->job, m->slot);
    if (!e) {
        log_error("out of memory: a process is not tracked job=%" PRIu64 " slot=%d", m->job, m->slot);
        return NULL;
    }
    bool same = known && memcmp(e->token, m->token, sizeof(e->token)) == 0;
    if (!same && !child_adopt(l, e, !known, m)) {
        log_info("report about an earlier process of the slot ignored job=%" PRIu64 " slot=%d pid=%d", m->job, m->slot,
                 m->pid);
        return NULL;
    }
    e->state = (enum channel_state)m->state;
    e->pid = m->pid;
    e->exit_status = m->exit_status;
    e->exit_signal = m->exit_signal;
    e->error = m->error;
    e->limits = m->limits;
    e->oom = (enum channel_oom)m->oom;
    find_cause(l, e);
    e->when_ns = m->when_ns;
    count_workers(l);
    if (!child_runs(e))
        log_watch_ended(l, e);
    if (!child_runs(e) && e->peer) {
        l->events->disconnect(e->peer);
        e->peer = NULL;
    }
    return e;
}

err_t local_process_release(struct local *l, uint64_t job, bool remove)
{
    struct children *c = &l->children;
    for (struct child *e = c->head; e; e = e->next)
        if (e->job == job && child_runs(e))
            return OK; /* the function is called again when the last process has ended */
    l->events->released(l->owner, job);
    for (struct child **at = &c->head; *at;) {
        struct child *e = *at;
        if (e->job != job) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        if (e->bound)
            cores_unbind(&c->cores, e->cpus);
        free(e);
    }
    if (remove) {
        static const char *const files[] = {"jsonl", "jsonl.tmp", "usage.jsonl", "usage.jsonl.tmp", "curve"};
        char path[PATH_MAX];
        for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
            snprintf(path, sizeof(path), "%s/metrics/%" PRIu64 ".%s", l->dir, job, files[i]);
            if (unlink(path) && errno != ENOENT)
                log_warn("not removed path=%s error=%s", path, strerror(errno));
        }
    }
    return supervisor_link_release(&l->supervisor, job, remove);
}

/* ---- connections ---- */

static bool token_equal(const uint8_t *a, const uint8_t *b)
{
    unsigned d = 0;
    for (int i = 0; i < CHANNEL_TOKEN_BYTES; i++)
        d |= (unsigned)(a[i] ^ b[i]);
    return d == 0;
}

err_t local_process_hello(struct local *l, uint64_t job, int slot, const void *token, size_t token_bytes, uint32_t uid,
                          struct peer *peer)
{
    struct child *e = child_find(&l->children, job, slot);
    if (!e || !child_runs(e) || token_bytes != CHANNEL_TOKEN_BYTES || !token_equal(token, e->token) ||
        (l->system && uid != e->uid))
        return ERR_DENIED;
    if (e->peer && e->peer != peer) /* the process has given up its old connection, even if that still looks open */
        l->events->disconnect(e->peer);
    e->peer = peer;
    return OK;
}

void local_process_disconnected(struct local *l, struct peer *peer)
{
    for (struct child *e = l->children.head; e; e = e->next)
        if (e->peer == peer)
            e->peer = NULL;
}

/* ---- process states ---- */

/* Parses "pid (name) S ..". The name may contain any characters, so the state follows the last parenthesis. */
static char state_of(pid_t pid)
{
    char path[64], text[512];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t len = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    if (len <= 0)
        return '\0';
    text[len] = '\0';
    const char *end = strrchr(text, ')');
    return end && end[1] == ' ' ? end[2] : '\0';
}

void local_processes_look(struct local *l)
{
    for (struct child *c = l->children.head; c; c = c->next)
        c->proc = c->state == CHANNEL_RUNNING ? state_of(c->pid) : '\0';
}
