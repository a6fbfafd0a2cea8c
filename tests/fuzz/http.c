/* Any bytes on a connection to dtd-web: request line, headers, cookies and tokens, queries, JSON bodies, several
 * requests in a row. http.c, api.c and scrape.c are the real ones and listen on a real socket; sessions and topics are
 * replaced, so that every token is logged in. The first byte chooses how dtd-control answers: soon or later, with an
 * error or with an empty message. Every answer is HTTP, and every request to dtd-control can be packed. */
#include "client/web/web.h"
#include "common/base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define QUIET_ROUNDS 8 /* of the loop without news: a local connection has no delay */
#define LATER_MAX 512

enum { ANSWER_LATER = 1, ANSWER_EMPTY = 2, LOGGED_OUT = 4, REFUSED = 8 }; /* bits of the first byte */

static struct web web;
static uint8_t mode;
static char session, topic; /* only their addresses are used */

struct later {
    rpc_callback cb;
    void *arg;
    const struct rpc_method *method;
};
static struct later later[LATER_MAX];
static int n_later;

/* ---- sessions ---- */

struct session *session_find(struct web *w, const char *token)
{
    return token[0] && !(mode & LOGGED_OUT) ? (struct session *)&session : NULL;
}

err_t session_open(struct web *w, const char *token, struct session **ret)
{
    if (strlen(token) >= WEB_TOKEN_BYTES)
        abort();
    *ret = (struct session *)&session;
    return mode & REFUSED ? ERR_LIMIT : OK;
}

err_t session_wait(struct session *s, session_cb cb, void *arg)
{
    cb(arg, mode & REFUSED ? SESSION_REFUSED : SESSION_IN, mode & REFUSED ? "the token is wrong" : "");
    return OK;
}

enum session_state session_state(const struct session *s)
{
    return SESSION_IN;
}

const char *session_user(const struct session *s)
{
    return "ann";
}

uint32_t session_uid(const struct session *s)
{
    return 1000;
}

bool session_system(const struct session *s)
{
    return true;
}

bool session_is_operator(const struct session *s)
{
    return false;
}

struct topic *session_topic(struct session *s, const char *job)
{
    return mode & REFUSED ? NULL : (struct topic *)&topic;
}

struct topic *session_log_topic(struct session *s, const char *job, int rank, int64_t lines)
{
    return mode & REFUSED ? NULL : (struct topic *)&topic;
}

void session_cancel(struct session *s, uint64_t call)
{
}

static void answer(const struct later *l)
{
    union {
        ProtobufCMessage message;
        char room[1024];
    } reply;
    struct rpc_result r = {.err = ERR_NOTFOUND, .last = true, .text = "there is no such job"};
    if (l->method->reply->sizeof_message > sizeof(reply))
        abort();
    protobuf_c_message_init(l->method->reply, &reply);
    if (mode & ANSWER_EMPTY && l->method->stream)
        r = (struct rpc_result){.last = true, .text = ""};
    else if (mode & ANSWER_EMPTY && protobuf_c_message_check(&reply.message)) /* it has no required texts */
        r = (struct rpc_result){.last = true, .text = "", .reply = &reply.message};
    l->cb(l->arg, &r);
}

err_t session_call(struct session *s, enum rpc_method_id method, const ProtobufCMessage *request, rpc_callback cb,
                   void *arg, uint64_t *ret_call)
{
    const struct rpc_method *m = rpc_methods();
    while (m->id != method)
        m++;
    if (!protobuf_c_message_check(request) || protobuf_c_message_get_packed_size(request) > 1024)
        abort(); /* the limit of these methods (common/rpc/methods.h) */
    const struct later l = {cb, arg, m};
    if (ret_call)
        *ret_call = 1;
    if (n_later == LATER_MAX)
        return ERR_CLOSED;
    later[n_later++] = l; /* rpc_send never calls back before it returns */
    return OK;
}

/* ---- plans: plan.c starts a process for each ---- */

void plan_serve_table(struct request *r)
{
    request_fail(r, ERR_NOTFOUND, "");
}

void plan_serve_timeline(struct request *r)
{
    request_fail(r, ERR_NOTFOUND, "");
}

void plan_serve_forecast(struct request *r)
{
    request_fail(r, ERR_NOTFOUND, "");
}

void plan_serve_explain(struct request *r)
{
    request_fail(r, ERR_NOTFOUND, "");
}

void plan_serve_layouts(struct request *r)
{
    request_fail(r, ERR_NOTFOUND, "");
}

/* ---- streams: they end at once ---- */

err_t stream_open(struct topic *t, struct MHD_Connection *connection, struct stream **ret)
{
    *ret = malloc(1);
    return *ret ? OK : ERR_NOMEM;
}

void stream_close(struct stream *s)
{
    free(s);
}

ssize_t stream_read(struct stream *s, char *ret, size_t max)
{
    return -1;
}

/* ---- the connection ---- */

static void start(void)
{
    const struct web_listen listen = {.address = "127.0.0.1:0"};
    struct why why;
    log_init("fuzz");
    log_level_set(LOG_ERROR);
    signal(SIGPIPE, SIG_IGN);
    uv_loop_init(&web.loop);
    LIST_INIT(&web.sessions);
    if (http_start(&web, &listen, &why)) {
        fprintf(stderr, "%s\n", why.text);
        exit(1);
    }
}

static int connect_to_web(void)
{
    const struct linger at_once = {.l_onoff = 1}; /* else the machine runs out of ports */
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    char url[128];
    http_url(&web, url, sizeof(url));
    a.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0 || (connect(fd, (struct sockaddr *)&a, sizeof(a)) && errno != EINPROGRESS) ||
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)))
        exit(1);
    return fd;
}

static void run(void)
{
    uv_run(&web.loop, UV_RUN_NOWAIT);
    if (mode & ANSWER_LATER)
        uv_run(&web.loop, UV_RUN_NOWAIT);
    for (int n = n_later; n > 0; n--) {
        const struct later l = later[0];
        memmove(later, later + 1, (size_t)--n_later * sizeof(later[0]));
        answer(&l);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char block[65536];
    bool first = true;
    if (!web.http)
        start();
    if (size < 1)
        return 0;
    mode = data[0];
    size_t sent = 1;
    int fd = connect_to_web();
    for (int quiet = 0; quiet < QUIET_ROUNDS; quiet++) {
        ssize_t n = sent < size ? send(fd, data + sent, size - sent, 0) : 0;
        if (n > 0) {
            sent += (size_t)n;
            quiet = 0;
        }
        run();
        n = recv(fd, block, sizeof(block), 0);
        if (n > 0 && first && (n < 9 || memcmp(block, "HTTP/1.", 7) != 0))
            abort();
        first = first && n <= 0;
        quiet = n > 0 || n_later ? 0 : quiet;
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != ENOTCONN))
            break;
    }
    close(fd);
    for (int i = 0; i < 3 || n_later; i++)
        run();
    return 0;
}
