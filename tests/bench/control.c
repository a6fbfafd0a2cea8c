/* Clients that write to a dtd's control: measures how many records per second the log accepts, and the longest time
 * without one.
 *
 *   bench_control appends CLIENTS SECONDS NODE STATE_DIR...
 *   bench_control gap SECONDS NODE STATE_DIR...
 *
 * A write drains a node with another reason: this is the cheapest call that ends in a record, and it is answered when
 * the record is committed. appends: each client is a thread with a connection of its own, to the daemons in turn, and
 * sends the next write as soon as it has its answer. gap: one client writes every 2 ms, to another daemon if its own
 * does not answer, and the longest time without an answer is printed. Each prints one JSON line. */
#include "client/client.h"
#include "common/base/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_CLIENTS 512
#define MAX_LATENCIES (1 << 20)

struct writer {
    const char *node;
    char **dirs;
    int n_dirs, at;
    struct client *client;
    uint64_t writes;
};

static struct {
    int64_t end_ms;
    atomic_size_t n;
    float ms[MAX_LATENCIES]; /* latency of each write */
} b;

static double now_ms(void)
{
    return (double)clock_mono_ns() * 1e-6;
}

/* Sends a write until some daemon accepts it. Returns false when the time is over. */
static bool write_one(struct writer *w)
{
    struct why why;
    char reason[64];
    snprintf(reason, sizeof(reason), "measured, %llu", (unsigned long long)++w->writes);
    while (clock_mono_ms() < b.end_ms) {
        err_t err = w->client ? OK : client_open(w->dirs[w->at], &w->client, &why);
        if (!err)
            err = client_node_drain(w->client, w->node, reason, &why);
        if (!err)
            return true;
        client_close(w->client);
        w->client = NULL;
        w->at = (w->at + 1) % w->n_dirs;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return false;
}

static void *write_on(void *arg)
{
    struct writer *w = arg;
    for (double begin = now_ms(); write_one(w); begin = now_ms()) {
        size_t i = atomic_fetch_add(&b.n, 1);
        if (i < MAX_LATENCIES)
            b.ms[i] = (float)(now_ms() - begin);
    }
    client_close(w->client);
    return NULL;
}

static int compare_floats(const void *x, const void *y)
{
    const float *p = x, *q = y;
    return *p < *q ? -1 : *p > *q;
}

static int run_appends(int clients, double seconds, const char *node, char **dirs, int n_dirs)
{
    static struct writer writers[MAX_CLIENTS];
    pthread_t threads[MAX_CLIENTS];
    b.end_ms = clock_mono_ms() + (int64_t)(seconds * 1e3);
    for (int i = 0; i < clients; i++) {
        writers[i] = (struct writer){.node = node, .dirs = dirs, .n_dirs = n_dirs, .at = i % n_dirs};
        if (pthread_create(&threads[i], NULL, write_on, &writers[i]))
            return 1;
    }
    for (int i = 0; i < clients; i++)
        pthread_join(threads[i], NULL);
    size_t n = atomic_load(&b.n), kept = n < MAX_LATENCIES ? n : MAX_LATENCIES;
    if (!n) {
        fprintf(stderr, "bench_control: nothing was written in %g s\n", seconds);
        return 1;
    }
    qsort(b.ms, kept, sizeof(b.ms[0]), compare_floats);
    printf("{\"clients\": %d, \"appends_per_s\": %.0f, \"median_ms\": %.3f, \"p99_ms\": %.3f}\n", clients,
           (double)n / seconds, (double)b.ms[kept / 2], (double)b.ms[kept * 99 / 100]);
    return 0;
}

static int run_gap(double seconds, const char *node, char **dirs, int n_dirs)
{
    struct writer w = {.node = node, .dirs = dirs, .n_dirs = n_dirs};
    double longest = 0;
    b.end_ms = clock_mono_ms() + (int64_t)(seconds * 1e3);
    for (double begin = now_ms(); write_one(&w); begin = now_ms()) {
        longest = now_ms() - begin > longest ? now_ms() - begin : longest;
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    client_close(w.client);
    printf("{\"writes\": %llu, \"longest_gap_ms\": %.0f}\n", (unsigned long long)w.writes, longest);
    return 0;
}

int main(int argc, char **argv)
{
    bool many = argc > 1 && strcmp(argv[1], "appends") == 0;
    int at = many ? 3 : 2, clients = many && argc > 2 ? atoi(argv[2]) : 1;
    if (argc < at + 3 || (!many && strcmp(argv[1], "gap") != 0) || clients < 1 || clients > MAX_CLIENTS) {
        fprintf(stderr,
                "usage: bench_control appends CLIENTS SECONDS NODE STATE_DIR... | gap SECONDS NODE STATE_DIR...\n"
                "CLIENTS: 1 to %d\n",
                MAX_CLIENTS);
        return 2;
    }
    double seconds = atof(argv[at]);
    return many ? run_appends(clients, seconds, argv[at + 1], argv + at + 2, argc - at - 2)
                : run_gap(seconds, argv[at + 1], argv + at + 2, argc - at - 2);
}
