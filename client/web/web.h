/* dtd-web: the web page. One process, one thread, one uv loop; a client of dtd-control like any other.
 *
 *   http.c      the HTTP server: requests, routes, files of the page, cookies
 *   api.c       what a request asks dtd-control for, and its answer as JSON
 *   session.c   one connection to dtd-control for each token that is logged in
 *   plan.c      the plan of a job and its pictures, which child processes compute
 *   scrape.c    /metrics for Prometheus
 *   topic.c     what the open pages of a user follow: the overview, or one job
 *
 * A page holds a token that dtd-control made for its user (`dtctl web`). dtd-web has no rights of its own beyond those
 * of its process's user, and gives these up on each connection: it logs in with the page's token before any other
 * call. Pages with the same token share
 * its connection, and what several of them follow is requested once. */
#ifndef DTD_CLIENT_WEB_WEB_H
#define DTD_CLIENT_WEB_WEB_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/rpc/methods.h"

#include <jansson.h>
#include <microhttpd.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#define WEB_MAX_SESSIONS 256
#define WEB_MAX_CONNECTIONS 4096
#define WEB_TOKEN_BYTES 128 /* of a cookie, with the terminating 0 */
#define WEB_JOB_BYTES 24    /* a job's number in decimal, with the terminating 0 */
#define WEB_USAGE "usage:"  /* before the job's number: the topic of the usage of its ranks */

struct http;
struct plan;
struct request;
struct session;
struct stream;
struct topic;

/* ---- the server (http.c) ---- */

struct web {
    uv_loop_t loop;
    const char *control; /* path of control.sock */
    struct http *http;
    LIST_HEAD(, session) sessions;
    int n_sessions;          /* that are open */
    int live;                /* sessions and plans, with those that are closing */
    LIST_HEAD(, plan) plans; /* that are being made */
    int n_plans;
    void (*all_closed)(struct web *w); /* when `live` becomes 0; NULL: until it is to end */
    bool tls;
};

struct web_listen {
    const char *address;           /* numeric "1.2.3.4:port" or "[v6]:port"; port 0: any */
    const char *certificate, *key; /* PEM files; "" or NULL: no TLS */
};

/* ERR_INVALID: the address is not of the loopback interface and there is no TLS. */
/* One of the `live` parts is gone. */
void web_part_closed(struct web *w);
NODISCARD err_t http_start(struct web *w, const struct web_listen *listen, struct why *why);
/* "http://127.0.0.1:7812" */
void http_url(const struct web *w, char *ret, size_t size);
void http_stop(struct web *w);

/* A request is answered exactly once, at any time. The answer takes over `body` (from malloc; may be NULL). */
void request_answer(struct request *r, int status, const char *type, char *body, size_t len);
void request_answer_json(struct request *r, int status, json_t *value); /* takes over `value`; NULL: out of memory */
void request_fail(struct request *r, err_t err, const char *text);      /* {"error": text} and the status for `err` */
/* Answers with the events of a topic until the page closes the connection. */
void request_follow(struct request *r, struct topic *t);
void request_set_cookie(struct request *r, const char *token); /* NULL: removes it */
struct web *request_web(const struct request *r);
struct session *request_session(const struct request *r); /* NULL for a request without a login */
const char *request_cookie(const struct request *r);      /* its token, also of `Authorization: Bearer`; "": none */
const char *request_header(const struct request *r, const char *name); /* NULL: it has none */
const char *request_job(const struct request *r);
const char *request_body(const struct request *r, size_t *ret_len);
/* A text of the address's query; NULL: it has none. */
const char *request_text(const struct request *r, const char *name);
/* A number of the address's query; `otherwise`: it is absent or not between min and max. */
int64_t request_number(const struct request *r, const char *name, int64_t min, int64_t max, int64_t otherwise);

/* A stream's connection can be written again: its topic has news. */
void http_resume(struct web *w, struct MHD_Connection *connection);

/* ---- the API (api.c) ---- */

struct api_route {
    const char *method, *path; /* the path's "ID" stands for a job's number */
    bool open;                 /* no login is needed */
    void (*serve)(struct request *r);
};
extern const struct api_route api_routes[];
extern const int api_n_routes;
/* GET /metrics (scrape.c) */
void scrape_serve(struct request *r);

/* ---- plans (plan.c) ---- */

void plan_serve_table(struct request *r);
void plan_serve_timeline(struct request *r);
void plan_serve_forecast(struct request *r);
void plan_serve_explain(struct request *r);
void plan_serve_layouts(struct request *r);
/* Ends those that are being made; their requests fail. */
void plans_stop(struct web *w);

/* ---- sessions (session.c) ---- */

enum session_state { SESSION_CONNECTING, SESSION_IN, SESSION_REFUSED };

typedef void (*session_cb)(void *arg, enum session_state state, const char *text);

/* The session of a token; NULL: it has none. */
struct session *session_find(struct web *w, const char *token);
/* ERR_LIMIT: there are too many. */
NODISCARD err_t session_open(struct web *w, const char *token, struct session **ret);
/* Calls `cb` once, when the login has succeeded or failed; at once if that is known. */
NODISCARD err_t session_wait(struct session *s, session_cb cb, void *arg);
void session_close(struct session *s);
void session_close_all(struct web *w);
enum session_state session_state(const struct session *s);
const char *session_user(const struct session *s);
uint32_t session_uid(const struct session *s);
bool session_system(const struct session *s);
bool session_is_operator(const struct session *s); /* he sees the jobs of all users */
struct web *session_web(const struct session *s);
/* ERR_CLOSED: dtd-control does not answer now. */
NODISCARD err_t session_call(struct session *s, enum rpc_method_id method, const ProtobufCMessage *request,
                             rpc_callback cb, void *arg, uint64_t *ret_call);
void session_cancel(struct session *s, uint64_t call);
/* The topic of a job, with "" of the overview, or with WEB_USAGE and a job of the usage of its ranks; NULL: out of
 * memory. It lives while pages follow it. */
struct topic *session_topic(struct session *s, const char *job);
/* A topic of the log of a job, for one stream. */
struct topic *session_log_topic(struct session *s, const char *job, int rank, int64_t lines);

/* ---- topics (topic.c) ---- */

NODISCARD err_t topic_open(struct session *s, const char *job, struct topic **ret);
void topic_close(struct topic *t); /* ends its streams */
/* Instead of the job, its log: of one rank, or -1: of all, beginning with the last lines. Before topic_up. */
void topic_follow_log(struct topic *t, int rank, int64_t lines);
bool topic_is(const struct topic *t, const char *job);
struct topic *topic_next(const struct topic *t);
void topic_link(struct topic *t, struct topic *next);
void topic_up(struct topic *t);                     /* the session's connection is logged in: request the news */
void topic_down(struct topic *t, const char *text); /* it is lost */
bool topic_unused(const struct topic *t);
void topic_keep_alive(struct topic *t);

NODISCARD err_t stream_open(struct topic *t, struct MHD_Connection *connection, struct stream **ret);
void stream_close(struct stream *s);
/* Copies what the stream has not sent yet. 0: nothing now; it will be resumed. -1: the topic has ended. */
ssize_t stream_read(struct stream *s, char *ret, size_t max);

#endif
