/* A session is a user's connection to dtd-control. It logs in with his token after every connect, and asks for nothing
 * before that has succeeded. */
#include "client/web/web.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/link.h"
#include "proto/client.pb-c.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOGIN_MS 10000
#define IDLE_MS 600000 /* a session without open pages is closed */
#define WAITERS_MAX 64

struct waiter {
    session_cb cb;
    void *arg;
};

struct session {
    LIST_ENTRY(session) entry;
    struct web *web;
    char token[WEB_TOKEN_BYTES];
    char user[80];
    uint32_t uid;
    bool system, is_operator;
    enum session_state state;
    bool closing;
    struct rpc_link *link;
    struct topic *topics;
    struct waiter waiters[WAITERS_MAX];
    int n_waiters;
    uv_timer_t timer;
    int64_t used_ms;
};

/* ---- login ---- */

static void answer_waiters(struct session *s, const char *text)
{
    int n = s->n_waiters;
    s->n_waiters = 0;
    for (int i = 0; i < n; i++)
        s->waiters[i].cb(s->waiters[i].arg, s->state, text);
}

static void login_answered(void *arg, const struct rpc_result *r)
{
    struct session *s = arg;
    if (s->closing)
        return;
    if (r->err == ERR_DENIED) {
        s->state = SESSION_REFUSED;
        for (struct topic *t = s->topics; t; t = topic_next(t))
            topic_down(t, r->text);
        answer_waiters(s, r->text);
        session_close(s); /* else strangers with wrong tokens would leave no room for others */
        return;
    }
    if (r->err || !r->reply) { /* control is ending or busy: the next connection tries again */
        rpc_link_reset(s->link);
        return;
    }
    const Dtd__WebLoginReply *m = (const Dtd__WebLoginReply *)r->reply;
    snprintf(s->user, sizeof(s->user), "%s", m->user);
    s->uid = m->uid;
    s->system = m->system;
    s->is_operator = m->has_operator_ && m->operator_;
    s->state = SESSION_IN;
    rpc_link_healthy(s->link);
    answer_waiters(s, "");
    for (struct topic *t = s->topics; t; t = topic_next(t))
        topic_up(t);
}

static void link_up(void *owner, struct rpc_conn *conn)
{
    struct session *s = owner;
    Dtd__WebLoginRequest q = DTD__WEB_LOGIN_REQUEST__INIT;
    q.token = s->token;
    if (rpc_send(conn, CLIENT_WEB_LOGIN, &q.base, LOGIN_MS, login_answered, s, NULL))
        rpc_link_reset(s->link);
}

static void link_down(void *owner, err_t err)
{
    struct session *s = owner;
    if (s->state == SESSION_REFUSED)
        return;
    s->state = SESSION_CONNECTING;
    for (struct topic *t = s->topics; t; t = topic_next(t))
        topic_down(t, "dtd does not answer; trying again");
    answer_waiters(s, "dtd does not answer. Start it: dtctl up");
}

/* ---- opening and closing ---- */

struct session *session_find(struct web *w, const char *token)
{
    struct session *s;
    LIST_FOREACH(s, &w->sessions, entry)
    if (!s->closing && strcmp(s->token, token) == 0) {
        s->used_ms = clock_mono_ms();
        return s;
    }
    return NULL;
}

static void timer_closed(uv_handle_t *timer)
{
    struct session *s = timer->data;
    struct web *w = s->web;
    free(s);
    web_part_closed(w);
}

static void link_closed(void *owner)
{
    struct session *s = owner;
    uv_close((uv_handle_t *)&s->timer, timer_closed);
}

void session_close(struct session *s)
{
    if (s->closing)
        return;
    s->closing = true;
    LIST_REMOVE(s, entry);
    s->web->n_sessions--;
    s->state = SESSION_REFUSED;
    answer_waiters(s, "the session has ended");
    while (s->topics) {
        struct topic *t = s->topics;
        s->topics = topic_next(t);
        topic_close(t);
    }
    uv_timer_stop(&s->timer);
    rpc_link_close(s->link, link_closed, false);
}

void session_close_all(struct web *w)
{
    while (!LIST_EMPTY(&w->sessions))
        session_close(LIST_FIRST(&w->sessions));
}

/* Topics that no page follows are closed, then the session itself. */
static void tick(uv_timer_t *timer)
{
    struct session *s = timer->data;
    struct topic *last = NULL;
    for (struct topic *t = s->topics, *next; t; t = next) {
        next = topic_next(t);
        if (!topic_unused(t)) {
            topic_keep_alive(t);
            last = t;
            continue;
        }
        if (last)
            topic_link(last, next);
        else
            s->topics = next;
        topic_close(t);
    }
    if (s->topics)
        s->used_ms = clock_mono_ms();
    if (clock_mono_ms() - s->used_ms > IDLE_MS)
        session_close(s);
}

err_t session_open(struct web *w, const char *token, struct session **ret)
{
    if (w->n_sessions >= WEB_MAX_SESSIONS)
        return ERR_LIMIT;
    struct session *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    s->web = w;
    s->used_ms = clock_mono_ms();
    snprintf(s->token, sizeof(s->token), "%s", token);
    const struct rpc_link_config config = {.loop = &w->loop,
                                           .path = w->control,
                                           .methods = rpc_methods(),
                                           .n_methods = RPC_METHOD_COUNT,
                                           .roles = RPC_ROLE_ANY,
                                           .owner = s,
                                           .backoff_min_ms = 100,
                                           .backoff_max_ms = 2000,
                                           .on_up = link_up,
                                           .on_down = link_down};
    err_t err = rpc_link_open(&config, &s->link);
    if (err) {
        free(s);
        return err;
    }
    uv_timer_init(&w->loop, &s->timer);
    s->timer.data = s;
    uv_timer_start(&s->timer, tick, 15000, 15000);
    LIST_INSERT_HEAD(&w->sessions, s, entry);
    w->n_sessions++;
    w->live++;
    *ret = s;
    return OK;
}

err_t session_wait(struct session *s, session_cb cb, void *arg)
{
    if (s->state != SESSION_CONNECTING) {
        cb(arg, s->state, "the token was refused; `dtctl web` makes a new one");
        return OK;
    }
    if (s->n_waiters == WAITERS_MAX)
        return ERR_LIMIT;
    s->waiters[s->n_waiters++] = (struct waiter){cb, arg};
    return OK;
}

/* ---- use ---- */

enum session_state session_state(const struct session *s)
{
    return s->state;
}

const char *session_user(const struct session *s)
{
    return s->user;
}

uint32_t session_uid(const struct session *s)
{
    return s->uid;
}

bool session_is_operator(const struct session *s)
{
    return s->is_operator;
}

bool session_system(const struct session *s)
{
    return s->system;
}

struct web *session_web(const struct session *s)
{
    return s->web;
}

err_t session_call(struct session *s, enum rpc_method_id method, const ProtobufCMessage *request, rpc_callback cb,
                   void *arg, uint64_t *ret_call)
{
    struct rpc_conn *conn = s->state == SESSION_IN ? rpc_link_conn(s->link) : NULL;
    return conn ? rpc_send(conn, method, request, 0, cb, arg, ret_call) : ERR_CLOSED;
}

void session_cancel(struct session *s, uint64_t call)
{
    struct rpc_conn *conn = s->link ? rpc_link_conn(s->link) : NULL;
    if (conn)
        rpc_cancel(conn, call);
}

static void add_topic(struct session *s, struct topic *t)
{
    topic_link(t, s->topics);
    s->topics = t;
    if (s->state == SESSION_IN)
        topic_up(t);
}

struct topic *session_topic(struct session *s, const char *job)
{
    for (struct topic *t = s->topics; t; t = topic_next(t))
        if (topic_is(t, job))
            return t;
    struct topic *t;
    if (topic_open(s, job, &t))
        return NULL;
    add_topic(s, t);
    return t;
}

struct topic *session_log_topic(struct session *s, const char *job, int rank, int64_t lines)
{
    struct topic *t;
    if (topic_open(s, job, &t))
        return NULL;
    topic_follow_log(t, rank, lines);
    add_topic(s, t);
    return t;
}
