/* A standalone c10d store, for tests and benchmarks that need one on a port:
 *
 *     store_serve [PORT [UID [MAX_BYTES]]]
 *
 * Prints {"port": P}, serves until its standard input ends, and prints its statistics. */
#include "common/base/log.h"
#include "daemon/store/server.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

static struct store_server *server;
static uv_poll_t input;

static void print_stats(void)
{
    struct store_server_stats stats;
    store_server_stats(server, &stats);
    printf("{\"connections\": %d, \"accepted\": %" PRIu64 ", \"refused\": %" PRIu64 ", \"broken\": %" PRIu64
           ", \"keys\": %zu, \"bytes\": %zu, \"operations\": %" PRIu64 ", \"by_op\": {",
           stats.connections, stats.accepted, stats.refused, stats.broken, stats.keys, stats.bytes, stats.operations);
    for (int op = 0; op < WIRE_OPS; op++)
        printf("%s\"%s\": %" PRIu64, op ? ", " : "", wire_op_name(op), stats.by_op[op]);
    printf("}}\n");
}

static void server_closed(void *arg)
{
    (void)arg;
    uv_close((uv_handle_t *)&input, NULL);
}

static void input_readable(uv_poll_t *poll, int status, int events)
{
    char room[256];
    (void)status, (void)events;
    if (read(STDIN_FILENO, room, sizeof(room)) > 0)
        return;
    uv_poll_stop(poll);
    print_stats();
    store_server_close(server, server_closed, NULL);
}

static void raise_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit))
        return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit))
        perror("setrlimit");
}

int main(int argc, char **argv)
{
    uv_loop_t loop;
    struct why why = {""};
    struct store_server_config config = {.name = "serve", .uid = getuid()};
    if (argc > 1)
        config.port = (uint16_t)atoi(argv[1]);
    if (argc > 2)
        config.uid = (uid_t)atoi(argv[2]);
    if (argc > 3)
        config.max_bytes = (size_t)atoll(argv[3]);
    log_init("store_serve");
    raise_limit();
    uv_loop_init(&loop);
    if (store_server_open(&loop, &config, &server, &why)) {
        fprintf(stderr, "%s\n", why.text);
        uv_run(&loop, UV_RUN_DEFAULT);
        return 1;
    }
    printf("{\"port\": %d}\n", store_server_port(server));
    fflush(stdout);
    if (uv_poll_init(&loop, &input, STDIN_FILENO) || uv_poll_start(&input, UV_READABLE, input_readable))
        return 1;
    uv_run(&loop, UV_RUN_DEFAULT);
    uv_loop_close(&loop);
    return 0;
}
