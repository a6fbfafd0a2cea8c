/* Internals of a store, shared by server.c, client.c and serve.c. */
#ifndef DTD_DAEMON_STORE_SERVER_INTERNAL_H
#define DTD_DAEMON_STORE_SERVER_INTERNAL_H

#include "daemon/store/listener.h"
#include "daemon/store/server.h"
#include "daemon/store/table.h"

#include <sys/queue.h>

#define STORE_READ_BYTES (64u << 10) /* the most that is read from a connection per turn of the loop */

struct store_client {
    uv_poll_t poll;
    struct store_server *server;
    LIST_ENTRY(store_client) of_all;
    TAILQ_ENTRY(store_client) of_new;   /* while !greeted: in server.news; while has_begun: in server.begun */
    TAILQ_ENTRY(store_client) of_ready; /* while ready */
    int fd, events;
    bool greeted;   /* a complete request has been received */
    bool has_begun; /* a request has arrived in part, and no other one before it is unanswered */
    bool ready;     /* in server.ready: another client's request has produced output for this one */
    bool closing;
    const char *failed; /* not NULL: close the connection at the end of the turn, for this reason */
    uint64_t due;       /* deadline of the first request or of the one that has begun, loop time in ms */
    uint32_t pid;       /* the nonce of PING, which PyTorch sets to the process id */
    struct wire_parser wire;
    struct table_waiter waiter;
    bool all_there;     /* of a CHECK in progress: all keys so far exist */
    struct bytebuf out; /* answers; the first `sent` bytes have been sent */
    size_t sent;
    struct bytebuf rest; /* input that was read and not served yet, from `rest_at` */
    size_t rest_at;
    struct bytebuf asked; /* keys of a MULTI_GET: length, bytes, length, bytes ..; answered up to `asked_at` */
    size_t asked_at;
    bool answering; /* all keys of a MULTI_GET have been received, not all have been answered */
};

struct store_server {
    uv_loop_t *loop;
    struct store_listener listener;
    uint64_t handshake_ms, request_ms;
    struct budget budget;
    struct store_table *table;
    uv_timer_t greet;   /* deadline of the first of `news` and of the first of `begun` */
    uint64_t greet_due; /* when it fires */
    uv_check_t check;   /* active while `ready` is not empty: sends to these clients after the reads of a turn */
    uv_idle_t idle;     /* active at the same time: keeps the loop from sleeping */
    int open_handles;
    bool closing;
    LIST_HEAD(, store_client) all;
    TAILQ_HEAD(store_client_list, store_client) news;
    struct store_client_list begun;
    struct store_client_list ready;
    struct store_server_stats stats;
    void (*closed)(void *arg);
    void *closed_arg;
    uint8_t scratch[STORE_READ_BYTES];
};

/* server.c */
void store_server_handle_closed(uv_handle_t *handle);
void store_server_handle_gone(struct store_server *s);

/* client.c */
err_t store_client_open(struct store_server *s, int fd); /* takes over the descriptor, also on an error */
void store_client_close(struct store_client *c);
/* Logs one line with the reason and closes the connection. */
void store_client_break(struct store_client *c, const char *reason);
/* Serves input of any origin; the fuzzer calls it directly. */
void store_client_feed(struct store_client *c, struct byte_view in);

/* serve.c: appends the answer to one request, or to a part of one, to c->out. ERR_PROTO, ERR_INVALID, ERR_LIMIT,
 * ERR_NOMEM: the connection must be closed. */
err_t serve(struct store_client *c, const struct wire_request *r);
/* Appends the answer to a wait that has ended. */
err_t serve_woken(struct store_client *c);
/* Continues a MULTI_GET until it is answered or c->out is full. */
err_t serve_asked(struct store_client *c);

#endif
