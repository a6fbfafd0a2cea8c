/* Fixture of the rpc tests: two connections over one socketpair in one loop, and methods to call. */
#ifndef DTD_TESTS_COMMON_RPC_PAIR_H
#define DTD_TESTS_COMMON_RPC_PAIR_H

#include "common/rpc/methods.h"
#include "common/rpc/rpc.h"
#include "proto/client.pb-c.h"
#include "tests/lib/test.h"

/* Requests are LogsRequests (job: any text), answers LogChunks (the text). */
enum { M_ECHO = 1, M_STREAM, M_NEVER, M_PEERS_ONLY, M_SMALL, M_UNBOUND, M_COUNT = M_UNBOUND };
#define M_SMALL_BYTES 32

struct pair {
    uv_loop_t loop;
    struct rpc_method methods[M_COUNT];
    struct rpc_conn *client, *server; /* NULL after on_close */
    int client_closes, server_closes;
    struct rpc_call *pending[512]; /* of M_NEVER and M_STREAM */
    int n_pending, canceled;
    int raw; /* pair_open_raw: the peer's end */
    /* pair_open_forwarding: client - middle, way - server */
    struct rpc_method middle_methods[M_COUNT], server_methods[M_COUNT + 2];
    struct rpc_conn *middle, *way; /* NULL after on_close */
    struct rpc_forwarded forwarded;
    struct rpc_origin origin; /* of the last received call */
    bool hold;
    int handled;
    int stream_items; /* number of items that M_STREAM sends; -1: sends until it is canceled */
    size_t item_bytes;
    int64_t stream_sent;
};

/* Results of a call. */
struct pair_answer {
    int calls, items;
    int64_t bytes;
    bool last;
    err_t err;
    char text[256];
};

void pair_open(struct pair *p, uint32_t server_roles);
/* The server's end is a connection, the client's end a plain descriptor. */
void pair_open_raw(struct pair *p, uint32_t server_roles);
/* A third program forwards the client's calls. The server's end serves only Peer.Forward. */
void pair_open_forwarding(struct pair *p, uint32_t roles);
void pair_fini(struct pair *p); /* closes what is open; asserts that each on_close came once */
bool pair_pump(struct pair *p, bool (*done)(void *), void *arg); /* false after 30 s */
void pair_pump_ms(struct pair *p, int ms);
void pair_pump_answer(struct pair *p, struct pair_answer *a); /* until `last` */
void pair_pump_closed(struct pair *p);                        /* until the server's end has closed */

void answer_cb(void *arg, const struct rpc_result *result);
/* The client calls the method with job=text. */
err_t pair_call(struct pair *p, uint16_t method, const char *text, uint32_t deadline_ms, struct pair_answer *a,
                uint64_t *ret_call);
/* Reads up to `size` bytes from the raw end and waits for at least `least`. */
size_t pair_raw_read(struct pair *p, uint8_t *data, size_t size, size_t least);

#endif
