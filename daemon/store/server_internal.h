/* What server.c, client.c and serve.c share: the inside of a store. */
#ifndef DTD_DAEMON_STORE_SERVER_INTERNAL_H
#define DTD_DAEMON_STORE_SERVER_INTERNAL_H

#include "daemon/store/listener.h"
#include "daemon/store/server.h"
#include "daemon/store/table.h"

#include <sys/queue.h>

#define STORE_READ_BYTES (64u << 10) /* of a connection, a turn */

struct store_client {
    uv_poll_t poll;
    struct store_server *server;
    LIST_ENTRY(store_client) of_all;
    TAILQ_ENTRY(store_client) of_new;   /* while !greeted */
    TAILQ_ENTRY(store_client) of_ready; /* while ready */
    int fd, events;
    bool greeted; /* a whole request has come */
    bool ready;   /* in the list of those with something to send */
    bool closing;
    const char *failed; /* to be closed, when nobody is using it any more */
    uint64_t due;       /* of the greeting, loop time in ms */
    uint32_t pid;       /* as PING says it */
    struct wire_parser wire;
    struct table_waiter waiter;
    bool all_there;     /* of a CHECK under way */
    struct bytebuf out; /* answers; the first `sent` bytes have gone */
    size_t sent;
    struct bytebuf rest; /* input that was read and not looked at yet, from `rest_at` */
    size_t rest_at;
    struct bytebuf asked; /* keys of a MULTI_GET: length, bytes, length, bytes ..; answered up to `asked_at` */
    size_t asked_at;
    bool answering; /* all keys of a MULTI_GET are known, not all are answered */
};

struct store_server {
    uv_loop_t *loop;
    struct store_listener listener;
    uint64_t handshake_ms;
    struct budget budget;
    struct store_table *table;
    uv_timer_t greet; /* the first of `news` is due */
    uv_check_t check; /* after a turn's reading: answers of those that others woke */
    uv_idle_t idle;   /* keeps the turn short while there are any */
    int open_handles;
    bool closing;
    LIST_HEAD(, store_client) all;
    TAILQ_HEAD(store_client_list, store_client) news;
    struct store_client_list ready;
    struct store_server_stats stats;
    void (*closed)(void *arg);
    void *closed_arg;
    uint8_t scratch[STORE_READ_BYTES];
};

/* server.c */
void store_server_handle_closed(uv_handle_t *handle);
void store_server_handle_gone(struct store_server *s);

/* client.c: of the functions without a comment the header of client.c tells */
err_t store_client_open(struct store_server *s, int fd); /* takes the descriptor, on an error too */
void store_client_close(struct store_client *c);
/* Logs the one line and closes. */
void store_client_break(struct store_client *c, const char *reason);
/* Input from anywhere; the fuzzer's way in. */
void store_client_feed(struct store_client *c, struct byte_view in);

/* serve.c: the answer to one request, or a part of one, goes behind c->out. ERR_PROTO, ERR_INVALID, ERR_LIMIT,
 * ERR_NOMEM: the connection is to be closed. */
err_t serve(struct store_client *c, const struct wire_request *r);
/* What a client reads when its wait is over. */
err_t serve_woken(struct store_client *c);
/* Goes on with a MULTI_GET until it is answered or the client has enough to read. */
err_t serve_asked(struct store_client *c);

#endif
