/* Fills the log of a dtd with jobs of large job files, and measures its control meanwhile.
 *
 *   bench_state STATE_DIR NODE SUPERVISOR_PID JOBS LIVE KIB [RESTART]
 *   bench_state watch STATE_DIR SUPERVISOR_PID FILE
 *
 * The node is drained, so that all jobs wait. CLIENTS threads submit JOBS jobs whose files have KIB KiB, and all but
 * the last LIVE are canceled as soon as they are submitted. A probe sends the cheapest call all the time. The longest
 * time to an answer is the longest pause of control's loop, as a client sees it (pause_ms). The processor time of the
 * loop's thread during a call (busy_ms) is the part of it that does not come from other programs on the machine, nor
 * from the disk. Then all memory is counted, control is killed, and the time until it answers for the last job is
 * measured (restart_s), with its processor time (restart_cpu_s); its supervisor starts it again at once. Prints one
 * JSON line. */
#include "client/client.h"
#include "common/base/clock.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CLIENTS 8
#define WATCH_MS 150000 /* longer than the script waits, which may have ended without a word */

static struct {
    const char *dir;
    int control;    /* its pid, which is the thread of its loop, too */
    int supervisor; /* 0: control must not restart */
    int jobs, live;
    size_t bytes; /* of a job file */
    atomic_int next;
    atomic_bool is_over;
    double pause_ms, busy_ms, pauses[1 << 16];
    int n_pauses;
} b;

static void check(err_t err, const char *what, const struct why *why)
{
    if (!err)
        return;
    fprintf(stderr, "bench_state: %s: %s\n", what, why->text);
    exit(1);
}

static struct client *open_client(void)
{
    struct client *c;
    struct why why = {""};
    check(client_open(b.dir, &c, &why), "connect", &why);
    return c;
}

/* Three workers: the nodes that join later have no slots for them. A comment fills the file to its size: the least that
 * control can do with a byte of it is to keep it. */
static char *make_spec(int i)
{
    char *text = malloc(b.bytes + 1);
    if (!text)
        exit(1);
    int n =
        snprintf(text, b.bytes, "command: [/bin/true]\nname: job-%d\nparallel: {workers: 3}\nrun: {device: cpu}\n", i);
    for (size_t at = (size_t)n; at < b.bytes; at++)
        text[at] = at % 100 == 0 ? '\n' : at % 100 == 1 ? '#' : (char)('a' + (at * 7 + (size_t)i) % 26);
    text[n] = '#';
    text[b.bytes] = '\0';
    return text;
}

static void *submit_jobs(void *arg)
{
    (void)arg;
    struct client *c = open_client();
    for (int i; (i = atomic_fetch_add(&b.next, 1)) < b.jobs;) {
        struct why why = {""};
        uint8_t id[16];
        char job[32];
        char *spec = make_spec(i);
        check(client_request_id(id), "request id", &why);
        check(client_submit(c, id, spec, NULL, job, &why), "submit", &why);
        free(spec);
        if (i >= b.jobs - b.live)
            continue;
        struct client_job after;
        check(client_request_id(id), "request id", &why);
        check(client_cancel(c, id, job, false, CLIENT_GRACE_DEFAULT, &after, &why), "cancel", &why);
        client_job_fini(&after);
    }
    client_close(c);
    return NULL;
}

static double now_ms(void)
{
    return (double)clock_mono_ns() * 1e-6;
}

/* Processor time of the loop's thread. */
static double loop_ms(void)
{
    char path[64];
    double ns = 0;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", b.control, b.control);
    FILE *f = fopen(path, "r");
    if (f && fscanf(f, "%lf", &ns) != 1)
        ns = 0;
    if (f)
        fclose(f);
    return ns * 1e-6;
}

/* The process `name` among the children of `parent`; 0: there is none. */
static int child_of(int parent, const char *name)
{
    char path[64], comm[32];
    int pid, found = 0;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/children", parent, parent);
    FILE *f = fopen(path, "r");
    while (f && !found && fscanf(f, "%d", &pid) == 1) {
        snprintf(path, sizeof(path), "/proc/%d/comm", pid);
        FILE *g = fopen(path, "r");
        if (g && fscanf(g, "%31s", comm) == 1 && strcmp(comm, name) == 0)
            found = pid;
        if (g)
            fclose(g);
    }
    if (f)
        fclose(f);
    return found;
}

/* Returns when a new control has answered, so that its start is no pause; NULL: it is over. */
static struct client *open_again(void)
{
    struct client *c = NULL;
    struct client_node node;
    struct why why;
    while (client_open(b.dir, &c, &why) || client_node_get(c, &node, &why)) {
        client_close(c);
        c = NULL;
        if (atomic_load(&b.is_over))
            return NULL;
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    client_node_fini(&node);
    b.control = child_of(b.supervisor, "dtd-control");
    return c;
}

static void *probe(void *arg)
{
    (void)arg;
    struct client *c = open_client();
    while (!atomic_load(&b.is_over)) {
        struct client_node node;
        struct why why = {""};
        double begin = now_ms(), busy = loop_ms();
        err_t err = client_node_get(c, &node, &why);
        if (err && b.supervisor) { /* control of a node that joins a cluster restarts */
            client_close(c);
            c = open_again();
            continue;
        }
        check(err, "node", &why);
        client_node_fini(&node);
        double ms = now_ms() - begin;
        busy = loop_ms() - busy;
        b.pause_ms = ms > b.pause_ms ? ms : b.pause_ms;
        b.busy_ms = busy > b.busy_ms ? busy : b.busy_ms;
        if (b.n_pauses < (int)(sizeof(b.pauses) / sizeof(b.pauses[0])))
            b.pauses[b.n_pauses++] = ms;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    client_close(c);
    return NULL;
}

/* In MiB. VmRSS or VmHWM, the most that there was. */
static double memory(int pid, const char *name)
{
    char path[64], line[200];
    double kib = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", pid);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof(line), f))
        if (strncmp(line, name, strlen(name)) == 0)
            kib = atof(line + strlen(name) + 1);
    if (f)
        fclose(f);
    return kib / 1024;
}

static bool answers_for(int job)
{
    char number[32];
    struct client *c;
    struct client_job ret;
    struct why why;
    snprintf(number, sizeof(number), "%d", job);
    if (client_open(b.dir, &c, &why))
        return false;
    bool ok = client_status(c, number, &ret, &why) == OK;
    if (ok)
        client_job_fini(&ret);
    client_close(c);
    return ok;
}

static double restart_s(int supervisor)
{
    double begin = now_ms();
    kill(b.control, SIGKILL);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    while (!answers_for(b.jobs))
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    b.control = child_of(supervisor, "dtd-control");
    return (now_ms() - begin) / 1e3;
}

static int watch(const char *file)
{
    pthread_t prober;
    pthread_create(&prober, NULL, probe, NULL);
    for (double end = now_ms() + WATCH_MS; access(file, F_OK) && now_ms() < end;)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    atomic_store(&b.is_over, true);
    pthread_join(prober, NULL);
    printf("{\"pause_ms\": %.1f, \"busy_ms\": %.1f, \"rss_mib\": %.0f, \"peak_mib\": %.0f}\n", b.pause_ms, b.busy_ms,
           memory(b.control, "VmRSS:"), memory(b.control, "VmHWM:"));
    return 0;
}

static int compare(const void *x, const void *y)
{
    const double *p = x, *q = y;
    return *p < *q ? -1 : *p > *q;
}

static int fill(const char *node, int supervisor, bool is_restarted)
{
    pthread_t threads[CLIENTS], prober;
    struct why why = {""};
    struct client *c = open_client();
    check(client_node_drain(c, node, "bench", &why), "drain", &why);
    client_close(c);
    double before = memory(b.control, "VmRSS:"), begin = now_ms();
    pthread_create(&prober, NULL, probe, NULL);
    for (int i = 0; i < CLIENTS; i++)
        pthread_create(&threads[i], NULL, submit_jobs, NULL);
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    double filled_s = (now_ms() - begin) / 1e3;
    nanosleep(&(struct timespec){.tv_sec = 2}, NULL); /* for a snapshot that is still under way */
    atomic_store(&b.is_over, true);
    pthread_join(prober, NULL);
    qsort(b.pauses, (size_t)b.n_pauses, sizeof(b.pauses[0]), compare);
    double after = memory(b.control, "VmRSS:"), most = memory(b.control, "VmHWM:");
    double again_s = is_restarted ? restart_s(supervisor) : 0;
    printf("{\"jobs\": %d, \"live\": %d, \"kib\": %zu, \"fill_s\": %.1f, \"rss_mib\": %.0f, \"peak_mib\": %.0f, "
           "\"kib_per_job\": %.0f, \"pause_p99_ms\": %.1f, \"pause_ms\": %.1f, \"busy_ms\": %.1f",
           b.jobs, b.live, b.bytes >> 10, filled_s, after, most, (after - before) * 1024 / b.jobs,
           b.pauses[b.n_pauses * 99 / 100], b.pause_ms, b.busy_ms);
    if (is_restarted)
        printf(", \"restart_s\": %.2f, \"restart_cpu_s\": %.2f", again_s, loop_ms() / 1e3);
    printf("}\n");
    return 0;
}

int main(int argc, char **argv)
{
    bool watches = argc == 5 && strcmp(argv[1], "watch") == 0;
    if (!watches && argc != 7 && argc != 8) {
        fprintf(stderr, "usage: bench_state STATE_DIR NODE SUPERVISOR_PID JOBS LIVE KIB [RESTART]\n"
                        "       bench_state watch STATE_DIR SUPERVISOR_PID FILE\n");
        return 2;
    }
    b.dir = argv[watches ? 2 : 1];
    b.control = child_of(atoi(argv[3]), "dtd-control");
    b.supervisor = watches ? atoi(argv[3]) : 0;
    if (watches)
        return watch(argv[4]);
    b.jobs = atoi(argv[4]);
    b.live = atoi(argv[5]);
    b.bytes = (size_t)atoi(argv[6]) << 10;
    return fill(argv[2], atoi(argv[3]), argc == 7 || atoi(argv[7]));
}
