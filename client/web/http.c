/* The HTTP server: libmicrohttpd without threads. Its epoll descriptor is polled by the loop of the process.
 *
 * A request waits suspended while dtd-control works on its answer, and a stream while its topic has no news; neither
 * costs anything then. The input of an unknown client is bounded: the library refuses headers above HEADER_BYTES, and
 * this file bodies above BODY_MAX, methods and paths that are not in the tables, and requests that change something and
 * that another site may have caused (no header X-DTD, or another Origin). */
#include "client/web/files.h"
#include "client/web/web.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include <zlib.h>

#define HEADER_BYTES 16384 /* of a connection, with its output buffer */
#define BODY_MAX 4096
#define IDLE_S 30    /* until a connection that neither reads nor writes is closed */
#define REQUEST_S 30 /* from the end of one request, or the connection, to the last byte of the next one */
#define SLOW_MS 5000 /* between two looks at that */
#define BLOCK_BYTES 4096
#define FILES_MAX 64 /* of the page */

struct packed_file {
    char etag[24];
    unsigned char *gzip;
    size_t n_gzip;
};

/* A connection, for as long as it is open. */
struct slow_connection {
    LIST_ENTRY(slow_connection) link;
    int fd;
    int64_t since_ms; /* since when a request is awaited; 0: none is, one is being answered */
};

struct http {
    struct web *web;
    LIST_HEAD(, slow_connection) connections;
    uv_timer_t slow;
    struct MHD_Daemon *daemon;
    uv_poll_t poll;
    uv_timer_t timer;
    int open_handles;
    char url[128], cookie[24];
    char *certificate, *key;
    struct packed_file packed[FILES_MAX];
};

struct request {
    struct web *web;
    struct MHD_Connection *connection;
    const struct api_route *route; /* NULL: a file */
    int file;
    char token[WEB_TOKEN_BYTES], job[WEB_JOB_BYTES], set_cookie[WEB_TOKEN_BYTES + 128];
    struct buf body;
    bool too_long, served, suspended, answered, ends_connection;
    int status;
    const char *type;
    char *text;
    size_t n_text;
    struct stream *stream;
};

/* ---- the loop ---- */

static void timer_due(uv_timer_t *timer);

static void run(struct http *h)
{
    MHD_UNSIGNED_LONG_LONG ms;
    MHD_run(h->daemon);
    if (MHD_get_timeout(h->daemon, &ms) == MHD_YES)
        uv_timer_start(&h->timer, timer_due, ms, 0);
    else
        uv_timer_stop(&h->timer);
}

static void timer_due(uv_timer_t *timer)
{
    run(timer->data);
}

static void poll_ready(uv_poll_t *poll, int status, int events)
{
    run(poll->data);
}

void http_resume(struct web *w, struct MHD_Connection *connection)
{
    MHD_resume_connection(connection);
    uv_timer_start(&w->http->timer, timer_due, 0, 0);
}

/* ---- answers ---- */

static void add_headers(struct MHD_Response *m, bool file)
{
    MHD_add_response_header(m, "Content-Security-Policy",
                            "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    MHD_add_response_header(m, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(m, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(m, "Cross-Origin-Resource-Policy", "same-origin");
    MHD_add_response_header(m, "Cache-Control", file ? "no-cache" : "no-store");
}

static enum MHD_Result send_text(struct request *r)
{
    struct MHD_Response *m = MHD_create_response_from_buffer(r->n_text, r->text ? r->text : "",
                                                             r->text ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (!m)
        return MHD_NO;
    r->text = NULL;
    add_headers(m, false);
    MHD_add_response_header(m, "Content-Type", r->type);
    if (r->ends_connection)
        MHD_add_response_header(m, "Connection", "close");
    if (r->set_cookie[0])
        MHD_add_response_header(m, "Set-Cookie", r->set_cookie);
    enum MHD_Result ret = MHD_queue_response(r->connection, (unsigned)r->status, m);
    MHD_destroy_response(m);
    return ret;
}

void request_answer(struct request *r, int status, const char *type, char *body, size_t len)
{
    r->answered = true;
    r->status = status;
    r->type = type;
    r->text = body;
    r->n_text = len;
    if (r->suspended) {
        r->suspended = false;
        http_resume(r->web, r->connection);
    }
}

void request_answer_json(struct request *r, int status, json_t *value)
{
    char *text = value ? json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    json_decref(value);
    if (text)
        request_answer(r, status, "application/json", text, strlen(text));
    else
        request_answer(r, 503, "text/plain", NULL, 0);
}

void request_fail(struct request *r, err_t err, const char *text)
{
    static const struct {
        err_t err;
        int status;
    } statuses[] = {{ERR_INVALID, 400}, {ERR_DENIED, 403}, {ERR_NOTFOUND, 404}, {ERR_LIMIT, 429}};
    int status = 503;
    for (size_t i = 0; i < sizeof(statuses) / sizeof(statuses[0]); i++)
        if (statuses[i].err == err)
            status = statuses[i].status;
    const char *shown = text && text[0] ? text : err_text(err);
    json_t *sentence = json_string(shown);
    request_answer_json(r, status, json_pack("{s:o}", "error", sentence ? sentence : json_string(err_text(err))));
}

void request_set_cookie(struct request *r, const char *token)
{
    snprintf(r->set_cookie, sizeof(r->set_cookie), "%s=%s; Path=/; HttpOnly; SameSite=Strict; Max-Age=%d%s",
             r->web->http->cookie, token ? token : "", token ? 7 * 86400 : 0, r->web->tls ? "; Secure" : "");
    snprintf(r->token, sizeof(r->token), "%s", token ? token : "");
}

static enum MHD_Result refuse(struct request *r, int status, const char *text)
{
    request_answer_json(r, status, json_pack("{s:s}", "error", text));
    return send_text(r);
}

/* ---- streams ---- */

static ssize_t stream_block(void *cls, uint64_t pos, char *buf, size_t max)
{
    struct request *r = cls;
    ssize_t n = stream_read(r->stream, buf, max);
    if (n == 0)
        MHD_suspend_connection(r->connection);
    return n < 0 ? MHD_CONTENT_READER_END_OF_STREAM : n;
}

void request_follow(struct request *r, struct topic *t)
{
    if (stream_open(t, r->connection, &r->stream))
        request_fail(r, ERR_NOMEM, err_text(ERR_NOMEM));
}

static enum MHD_Result send_stream(struct request *r)
{
    struct MHD_Response *m = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, stream_block, r, NULL);
    if (!m)
        return MHD_NO;
    r->answered = true;
    add_headers(m, false);
    MHD_add_response_header(m, "Content-Type", "text/event-stream");
    MHD_add_response_header(m, "X-Accel-Buffering", "no");
    enum MHD_Result ret = MHD_queue_response(r->connection, 200, m);
    MHD_destroy_response(m);
    return ret;
}

/* ---- the page's files ---- */

static bool takes_gzip(struct MHD_Connection *c)
{
    const char *encodings = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Accept-Encoding");
    return encodings && strstr(encodings, "gzip");
}

static enum MHD_Result send_file(struct request *r)
{
    const struct web_file *f = &web_files[r->file];
    const struct packed_file *p = &r->web->http->packed[r->file];
    const char *known = MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, "If-None-Match");
    bool same = known && strstr(known, p->etag), gzip = p->gzip && takes_gzip(r->connection);
    const void *data = gzip ? p->gzip : f->data;
    size_t len = gzip ? p->n_gzip : (size_t)(f->end - f->data);
    struct MHD_Response *m = MHD_create_response_from_buffer(same ? 0 : len, (void *)data, MHD_RESPMEM_PERSISTENT);
    if (!m)
        return MHD_NO;
    add_headers(m, true);
    MHD_add_response_header(m, "Content-Type", f->type);
    MHD_add_response_header(m, "ETag", p->etag);
    MHD_add_response_header(m, "Vary", "Accept-Encoding");
    if (gzip && !same)
        MHD_add_response_header(m, "Content-Encoding", "gzip");
    enum MHD_Result ret = MHD_queue_response(r->connection, same ? 304 : 200, m);
    MHD_destroy_response(m);
    return ret;
}

/* Each file is compressed once. A file that does not get smaller, or finds no memory, is sent as it is. */
static void pack_files(struct http *h)
{
    for (int i = 0; i < web_n_files && i < FILES_MAX; i++) {
        const struct web_file *f = &web_files[i];
        struct packed_file *p = &h->packed[i];
        size_t len = (size_t)(f->end - f->data);
        z_stream z = {0};
        snprintf(p->etag, sizeof(p->etag), "\"%08lx%zx\"", crc32(0, f->data, (uInt)len), len);
        if (deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY))
            continue;
        p->gzip = malloc(len);
        z.next_in = (Bytef *)f->data;
        z.avail_in = (uInt)len;
        z.next_out = p->gzip;
        z.avail_out = p->gzip ? (uInt)len : 0;
        if (deflate(&z, Z_FINISH) == Z_STREAM_END) {
            p->n_gzip = z.total_out;
        } else {
            free(p->gzip);
            p->gzip = NULL;
        }
        deflateEnd(&z);
    }
}

/* ---- requests ---- */

struct web *request_web(const struct request *r)
{
    return r->web;
}

struct session *request_session(const struct request *r)
{
    struct session *s = r->token[0] ? session_find(r->web, r->token) : NULL;
    return s && session_state(s) == SESSION_IN ? s : NULL;
}

const char *request_cookie(const struct request *r)
{
    return r->token;
}

const char *request_header(const struct request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_HEADER_KIND, name);
}

const char *request_job(const struct request *r)
{
    return r->job;
}

const char *request_body(const struct request *r, size_t *ret_len)
{
    *ret_len = r->body.len;
    return r->body.len ? (const char *)r->body.data : "";
}

const char *request_text(const struct request *r, const char *name)
{
    return MHD_lookup_connection_value(r->connection, MHD_GET_ARGUMENT_KIND, name);
}

int64_t request_number(const struct request *r, const char *name, int64_t min, int64_t max, int64_t otherwise)
{
    const char *text = MHD_lookup_connection_value(r->connection, MHD_GET_ARGUMENT_KIND, name);
    char *end;
    errno = 0;
    long long x = text ? strtoll(text, &end, 10) : 0;
    return text && *text && !*end && !errno && x >= min && x <= max ? x : otherwise;
}

/* Whether `path` is the route's, in which "ID" stands for a job's number. */
static bool route_matches(const char *route, const char *path, char job[WEB_JOB_BYTES])
{
    const char *id = strstr(route, "ID");
    if (!id)
        return strcmp(route, path) == 0;
    size_t before = (size_t)(id - route), digits;
    if (strncmp(route, path, before))
        return false;
    digits = strspn(path + before, "0123456789");
    if (!digits || digits >= WEB_JOB_BYTES || strcmp(path + before + digits, id + strlen("ID")))
        return false;
    memcpy(job, path + before, digits);
    job[digits] = '\0';
    return true;
}

static const struct api_route *route_find(const char *method, const char *path, char job[WEB_JOB_BYTES], bool *ret_path)
{
    *ret_path = false;
    for (int i = 0; i < api_n_routes; i++) {
        if (!route_matches(api_routes[i].path, path, job))
            continue;
        *ret_path = true;
        if (strcmp(api_routes[i].method, method) == 0)
            return &api_routes[i];
    }
    return NULL;
}

static int file_find(const char *path)
{
    const char *name = strcmp(path, "/") == 0 ? "/index.html" : path;
    for (int i = 0; i < web_n_files && i < FILES_MAX; i++)
        if (strcmp(web_files[i].path, name) == 0)
            return i;
    return -1;
}

/* Another site's page can make a browser send a request here, but it can neither set X-DTD nor hide its Origin. */
static bool is_from_here(const struct request *r)
{
    struct MHD_Connection *c = r->connection;
    const char *mark = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "X-DTD");
    const char *origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin");
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    const char *scheme = r->web->tls ? "https://" : "http://";
    if (!mark || !host)
        return false;
    return !origin || (strncmp(origin, scheme, strlen(scheme)) == 0 && strcmp(origin + strlen(scheme), host) == 0);
}

static struct request *request_new(struct web *w, struct MHD_Connection *c)
{
    struct request *r = calloc(1, sizeof(*r));
    const char *cookie = MHD_lookup_connection_value(c, MHD_COOKIE_KIND, w->http->cookie);
    if (!r)
        return NULL;
    r->web = w;
    r->connection = c;
    const char *bearer = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    if (bearer && strncasecmp(bearer, "Bearer ", 7) == 0)
        cookie = bearer + 7;
    if (cookie && strlen(cookie) < sizeof(r->token))
        snprintf(r->token, sizeof(r->token), "%s", cookie);
    return r;
}

static enum MHD_Result serve_route(struct request *r)
{
    bool post = strcmp(r->route->method, "POST") == 0;
    if (r->too_long)
        return refuse(r, 413, "the body is too long");
    if (post && !is_from_here(r))
        return refuse(r, 403, "the request does not come from this page");
    if (!r->route->open && !request_session(r))
        return refuse(r, 401, "not logged in");
    r->served = true;
    r->route->serve(r);
    if (r->stream)
        return send_stream(r);
    if (r->answered)
        return send_text(r);
    r->suspended = true;
    MHD_suspend_connection(r->connection);
    return MHD_YES;
}

/* ---- slow clients ----
 *
 * The library closes a connection that is silent for IDLE_S. One that sends a byte now and then would keep its place
 * for ever. */

static struct slow_connection *slow_of(struct MHD_Connection *c)
{
    return *(struct slow_connection **)MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
}

static void slow_set(struct MHD_Connection *c, int64_t since_ms)
{
    struct slow_connection *s = slow_of(c);
    if (s)
        s->since_ms = since_ms;
}

static void on_connection(void *cls, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode code)
{
    struct http *h = cls;
    struct slow_connection *s = *context;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        s = *context = calloc(1, sizeof(*s)); /* without memory it has only the limit of silence */
        if (!s)
            return;
        s->fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
        s->since_ms = clock_mono_ms();
        LIST_INSERT_HEAD(&h->connections, s, link);
    } else if (s) {
        LIST_REMOVE(s, link);
        free(s);
        *context = NULL;
    }
}

/* The library closes the connection when it reads the end of the stream. */
static void slow_due(uv_timer_t *timer)
{
    struct http *h = timer->data;
    struct slow_connection *s;
    int64_t now = clock_mono_ms();
    LIST_FOREACH(s, &h->connections, link)
    if (s->since_ms && now - s->since_ms > REQUEST_S * 1000)
        shutdown(s->fd, SHUT_RDWR);
}

static enum MHD_Result count_length(void *cls, enum MHD_ValueKind kind, const char *key, const char *value)
{
    *(int *)cls += strcasecmp(key, "Content-Length") == 0 || strcasecmp(key, "Transfer-Encoding") == 0;
    return MHD_YES;
}

/* The library takes one of several lengths of a body. A proxy in front may take the other one, and then the rest of the
 * body would be a request of another user (RFC 9112, 6.3): the connection ends with this request. */
static bool has_two_lengths(const struct request *r)
{
    int n = 0;
    MHD_get_connection_values(r->connection, MHD_HEADER_KIND, count_length, &n);
    return n > 1;
}

static enum MHD_Result serve_first(struct request *r, const char *path, const char *method)
{
    bool known;
    if (has_two_lengths(r)) {
        r->ends_connection = true;
        return refuse(r, 400, "the request has more than one Content-Length or Transfer-Encoding");
    }
    r->file = file_find(path);
    r->route = route_find(method, path, r->job, &known);
    if (r->route)
        return MHD_YES; /* its body follows */
    if (known)
        return refuse(r, 405, "this address has no such method");
    if (r->file < 0)
        return refuse(r, 404, "there is no such page");
    if (strcmp(method, "GET") && strcmp(method, "HEAD"))
        return refuse(r, 405, "this address has no such method");
    return MHD_YES;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *path, const char *method,
                                  const char *version, const char *body, size_t *n_body, void **con_cls)
{
    struct web *w = cls;
    struct request *r = *con_cls;
    if (!r) {
        r = *con_cls = request_new(w, c);
        return r ? serve_first(r, path, method) : MHD_NO;
    }
    if (*n_body) {
        r->too_long = r->too_long || r->body.len + *n_body > BODY_MAX || buf_append(&r->body, body, *n_body);
        *n_body = 0;
        return MHD_YES;
    }
    slow_set(c, 0);
    if (!r->route)
        return send_file(r);
    return r->served ? send_text(r) : serve_route(r);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **con_cls, enum MHD_RequestTerminationCode code)
{
    struct request *r = *con_cls;
    *con_cls = NULL;
    slow_set(c, clock_mono_ms());
    if (!r)
        return;
    if (r->stream)
        stream_close(r->stream);
    buf_fini(&r->body);
    free(r->text);
    free(r);
}

/* Errors in the input of unknown clients are logged only at a more verbose level. */
static void on_log(void *cls, const char *format, va_list args)
{
    char text[256];
    vsnprintf(text, sizeof(text), format, args);
    text[strcspn(text, "\n")] = '\0';
    log_debug("http text=\"%s\"", text);
}

/* ---- starting and stopping ---- */

union address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static bool address_parse(const char *text, union address *ret)
{
    char host[64];
    const char *colon = strrchr(text, ':');
    if (!colon || (size_t)(colon - text) >= sizeof(host))
        return false;
    bool v6 = text[0] == '[' && colon > text && colon[-1] == ']';
    snprintf(host, sizeof(host), "%.*s", (int)(colon - text) - (v6 ? 2 : 0), text + (v6 ? 1 : 0));
    memset(ret, 0, sizeof(*ret));
    uint16_t port = htons((uint16_t)atoi(colon + 1));
    if (v6) {
        ret->v6.sin6_family = AF_INET6;
        ret->v6.sin6_port = port;
        return inet_pton(AF_INET6, host, &ret->v6.sin6_addr) == 1;
    }
    ret->v4.sin_family = AF_INET;
    ret->v4.sin_port = port;
    return inet_pton(AF_INET, host, &ret->v4.sin_addr) == 1;
}

static bool is_loopback(const union address *a)
{
    return a->any.sa_family == AF_INET ? ntohl(a->v4.sin_addr.s_addr) >> 24 == 127
                                       : IN6_IS_ADDR_LOOPBACK(&a->v6.sin6_addr);
}

static err_t listen_on(struct http *h, const char *text, int *ret, struct why *why)
{
    union address a;
    int on = 1, off = 0;
    if (!address_parse(text, &a))
        return why_set(why, ERR_INVALID, "%s: expected a numeric address and a port, such as 127.0.0.1:7812", text);
    if (!h->web->tls && !is_loopback(&a))
        return why_set(why, ERR_INVALID,
                       "%s is not an address of the loopback interface, and there is no web.certificate: passwords and "
                       "tokens would cross the network in clear",
                       text);
    socklen_t len = a.any.sa_family == AF_INET ? sizeof(a.v4) : sizeof(a.v6);
    int fd = socket(a.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && a.any.sa_family == AF_INET6) /* [::] takes IPv4, too, whatever net.ipv6.bindv6only is */
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) || bind(fd, &a.any, len) ||
        listen(fd, 256) || getsockname(fd, &a.any, &len)) {
        err_t err = why_set(why, err_from_errno(errno), "%s: %s", text, strerror(errno));
        if (fd >= 0)
            close(fd);
        return err;
    }
    unsigned port = ntohs(a.any.sa_family == AF_INET ? a.v4.sin_port : a.v6.sin6_port);
    snprintf(h->url, sizeof(h->url), "http%s://%.*s:%u", h->web->tls ? "s" : "", (int)(strrchr(text, ':') - text), text,
             port);
    snprintf(h->cookie, sizeof(h->cookie), "dtd-%u", port); /* a browser sends cookies to all ports of a host */
    *ret = fd;
    return OK;
}

static err_t read_pem(const char *path, char **ret, struct why *why)
{
    FILE *f = fopen(path, "re");
    char *text = calloc(1, 65536);
    size_t n = f && text ? fread(text, 1, 65535, f) : 0;
    err_t err = n > 0 && n < 65535 ? OK : ERR_INVALID;
    if (err)
        why_set(why, err, "%s: %s", path, f ? "is empty or too long for a PEM file" : strerror(errno));
    if (f)
        fclose(f);
    if (err)
        free(text);
    else
        *ret = text;
    return err;
}

static err_t daemon_start(struct http *h, int fd, struct why *why)
{
    const struct MHD_OptionItem options[] = {
        {MHD_OPTION_EXTERNAL_LOGGER, (intptr_t)on_log, NULL},
        {MHD_OPTION_LISTEN_SOCKET, fd, NULL},
        {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)on_completed, NULL},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)on_connection, h},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, HEADER_BYTES, NULL},
        {MHD_OPTION_CONNECTION_LIMIT, WEB_MAX_CONNECTIONS, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, IDLE_S, NULL},
        {MHD_OPTION_STRICT_FOR_CLIENT, 1, NULL},
        {h->key ? MHD_OPTION_HTTPS_MEM_KEY : MHD_OPTION_END, 0, h->key},
        {MHD_OPTION_HTTPS_MEM_CERT, 0, h->certificate},
        {MHD_OPTION_END, 0, NULL},
    };
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (h->web->tls ? MHD_USE_TLS : 0);
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, h->web, MHD_OPTION_ARRAY, options, MHD_OPTION_END);
    if (h->daemon)
        return OK;
    close(fd);
    return why_set(why, ERR_INVALID, "the HTTP server does not start%s",
                   h->web->tls ? ": check that web.key belongs to web.certificate" : "");
}

static void handle_closed(uv_handle_t *handle)
{
    struct http *h = handle->data;
    if (--h->open_handles)
        return;
    for (int i = 0; i < FILES_MAX; i++)
        free(h->packed[i].gzip);
    free(h->certificate);
    free(h->key);
    free(h);
}

err_t http_start(struct web *w, const struct web_listen *listen, struct why *why)
{
    struct http *h = calloc(1, sizeof(*h));
    int fd = -1;
    if (!h)
        return why_set(why, ERR_NOMEM, "out of memory");
    h->web = w;
    LIST_INIT(&h->connections);
    w->tls = listen->certificate && listen->certificate[0];
    err_t err = w->tls ? read_pem(listen->certificate, &h->certificate, why) : OK;
    if (!err && w->tls)
        err = read_pem(listen->key ? listen->key : "", &h->key, why);
    if (!err)
        err = listen_on(h, listen->address, &fd, why);
    if (!err)
        err = daemon_start(h, fd, why);
    if (err) {
        free(h->certificate);
        free(h->key);
        free(h);
        return err;
    }
    pack_files(h);
    w->http = h;
    uv_poll_init(&w->loop, &h->poll, MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd);
    uv_timer_init(&w->loop, &h->timer);
    uv_timer_init(&w->loop, &h->slow);
    h->poll.data = h->timer.data = h->slow.data = h;
    h->open_handles = 3;
    uv_timer_start(&h->slow, slow_due, SLOW_MS, SLOW_MS);
    uv_poll_start(&h->poll, UV_READABLE, poll_ready);
    uv_timer_start(&h->timer, timer_due, 0, 0);
    return OK;
}

void http_url(const struct web *w, char *ret, size_t size)
{
    snprintf(ret, size, "%s", w->http->url);
}

/* All sessions are closed and their calls have ended, so that no connection is suspended any more. */
void http_stop(struct web *w)
{
    struct http *h = w->http;
    run(h);
    MHD_stop_daemon(h->daemon);
    uv_close((uv_handle_t *)&h->poll, handle_closed);
    uv_close((uv_handle_t *)&h->timer, handle_closed);
    uv_close((uv_handle_t *)&h->slow, handle_closed);
}
