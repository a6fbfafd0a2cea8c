/* Authentication of the peer: the handshake, the greetings, and the owner's descriptor after both succeed.
 *
 * The two ends must have different names. Otherwise an attacker could reflect a connection to its sender, which would
 * then authenticate itself to itself, because both ends have the same key.
 *
 * Each side verifies the other's signature, and asks the owner of its host about the identity, before it opens the
 * tunnel. A peer that is refused gets no byte but the answer. */
#include "common/tunnel/internal.h"
#include "common/tunnel/lineage.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static err_t make_pair(struct tunnel *t, int *ret_fd)
{
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds))
        return err_from_errno(errno);
    int status = uv_poll_init(t->host->config.loop, &t->pair_poll, fds[0]);
    if (status < 0) {
        close(fds[0]);
        close(fds[1]);
        return err_from_errno(-status);
    }
    t->pair_poll.data = t;
    t->open_handles++;
    t->pair_fd = fds[0];
    *ret_fd = fds[1];
    return OK;
}

static void opened(struct tunnel *t)
{
    tunnel_move(t, T_OPEN);
    uv_timer_stop(&t->timer);
    listener_forget(t);
    t->counted = true;
    t->host->stats.tunnels++;
    t->host->stats.opened++;
}

/* ---- greetings ---- */

/* Adds our identity and its signature for this connection. */
static err_t sign_greeting(const struct tunnel *t, struct greeting *g)
{
    const struct identity *own = t->host->config.identity.own;
    uint8_t input[TLS_PROOF_INPUT];
    err_t err = tls_proof_input(t, t->role, input);
    memcpy(g->public_key, own->public_key, IDENTITY_BYTES);
    return err ? err : identity_sign(own, input, sizeof(input), g->proof);
}

static void append_lineage(const struct tunnel *t, char argument[TUNNEL_ARGUMENT_MAX + 1])
{
    const struct tunnel_host_config *c = &t->host->config;
    struct tunnel_lineage own = {.id = 0};
    if (c->kin.own)
        c->kin.own(c->keys.owner, &own);
    lineage_append(&own, argument);
}

static const uint8_t verdict_statuses[] = {[TUNNEL_OF_KIN] = GREETING_OK,
                                           [TUNNEL_FOREIGN] = GREETING_FOREIGN,
                                           [TUNNEL_SUPERSEDED] = GREETING_SUPERSEDED,
                                           [TUNNEL_FORGETFUL] = GREETING_FORGETFUL};

/* The status for a peer of this lineage. */
static uint8_t judge_lineage(const struct tunnel *t, bool answers)
{
    const struct tunnel_host_config *c = &t->host->config;
    return c->kin.judge ? verdict_statuses[c->kin.judge(c->keys.owner, &t->peer, answers)] : GREETING_OK;
}

static void tell_refused(const struct tunnel *t, const struct greeting *g, const struct tunnel_lineage *its)
{
    const struct tunnel_host_config *c = &t->host->config;
    for (enum tunnel_kinship v = TUNNEL_FOREIGN; c->kin.refused && v <= TUNNEL_FORGETFUL; v++)
        if (g->status == verdict_statuses[v])
            c->kin.refused(c->keys.owner, g->name, v, its);
}

static bool send_greeting(struct tunnel *t, uint8_t status, enum tunnel_purpose purpose, const char *argument)
{
    struct greeting g = {.version = tls_greeting_version(t), .status = status, .purpose = purpose};
    uint8_t bytes[GREETING_MAX_BYTES];
    size_t n;
    strcpy(g.name, t->host->name);
    strcpy(g.argument, argument);
    append_lineage(t, g.argument);
    if (g.version == 2 && sign_greeting(t, &g))
        return false;
    ERR_clear_error();
    return SSL_write_ex(t->ssl, bytes, greeting_encode(&g, bytes), &n) == 1;
}

/* ERR_AGAIN: the greeting is not complete. Reads no byte after the greeting. */
static err_t read_greeting(struct tunnel *t, struct greeting *ret, struct why *why)
{
    for (;;) {
        bool has_header = t->greeting_len >= GREETING_HEADER_BYTES;
        size_t want = has_header ? greeting_length(t->greeting) : GREETING_HEADER_BYTES, n;
        if (has_header && !want)
            return why_set(why, ERR_PROTO, "its greeting is not a greeting of dtd");
        if (t->greeting_len == want)
            return greeting_decode(t->greeting, want, ret, why);
        ERR_clear_error();
        if (!SSL_read_ex(t->ssl, t->greeting + t->greeting_len, want - t->greeting_len, &n)) {
            int alert, error = SSL_get_error(t->ssl, 0);
            if (error == SSL_ERROR_WANT_READ && !t->wire_ended)
                return ERR_AGAIN;
            if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_ZERO_RETURN)
                return why_set(why, ERR_CLOSED, "it closed the connection before its greeting was complete");
            return why_set(why, ERR_PROTO, "TLS failed: %s", tls_reason(&alert));
        }
        t->greeting_len += n;
    }
}

/* Verifies the signature of the other end. */
static bool is_signed(const struct tunnel *t, const struct greeting *g)
{
    uint8_t input[TLS_PROOF_INPUT];
    enum tunnel_role other = t->role == ROLE_ACCEPT ? ROLE_CONNECT : ROLE_ACCEPT;
    return !tls_proof_input(t, other, input) && identity_verify(g->public_key, input, sizeof(input), g->proof);
}

/* Completes t->peer from a greeting that has passed the other checks, and asks the owner about it. */
static uint8_t check_identity(struct tunnel *t, const struct greeting *g)
{
    static const uint8_t statuses[] = {[TUNNEL_ADMIT] = GREETING_OK,
                                       [TUNNEL_STRANGER] = GREETING_STRANGER,
                                       [TUNNEL_OTHER] = GREETING_OTHER,
                                       [TUNNEL_REMOVED] = GREETING_REMOVED,
                                       [TUNNEL_NEEDS_TOKEN] = GREETING_NEEDS_TOKEN};
    const struct tunnel_identity *identity = &t->host->config.identity;
    if (g->version == 2 && !is_signed(t, g))
        return GREETING_PROOF;
    t->peer.is_proven = g->version == 2;
    memcpy(t->peer.public_key, g->public_key, IDENTITY_BYTES);
    strcpy(t->peer.name, g->name);
    t->peer.purpose = g->purpose;
    return identity->admit ? statuses[identity->admit(identity->owner, &t->peer, t->role == ROLE_ACCEPT)] : GREETING_OK;
}

/* Returns the status (enum greeting_status) for the answer. */
static uint8_t verify_greeting(struct tunnel *t, const struct greeting *g)
{
    bool by_token = t->peer.key.kind == TUNNEL_KEY_JOIN;
    if (g->version != tls_greeting_version(t))
        return GREETING_VERSION_UNKNOWN;
    if (!by_token && strcmp(g->name, t->peer.name) != 0)
        return GREETING_NAME;
    if (strcmp(g->name, t->host->name) == 0)
        return GREETING_SELF;
    return by_token && g->purpose != TUNNEL_JOIN ? GREETING_PURPOSE : check_identity(t, g);
}

/* The reason for the log, with the name and the identity that the peer has claimed. */
static void describe_refusal(const struct greeting *g, uint8_t status, struct why *ret)
{
    char print[IDENTITY_FINGERPRINT_MAX] = "none";
    if (g->version == 2)
        identity_fingerprint(g->public_key, print);
    snprintf(ret->text, sizeof(ret->text), "%s (name %s, identity %s)", greeting_status_text(status), g->name, print);
}

static void refuse_greeting(struct tunnel *t, const struct greeting *g, uint8_t status)
{
    struct why why;
    describe_refusal(g, status, &why);
    t->host->stats.refused++;
    host_log_refusal(t->host, t->peer.address, why.text);
    t->up_ended = t->owner_gone = true; /* the tunnel has no owner yet */
    if (send_greeting(t, status, g->purpose, ""))
        tunnel_linger(t);
    else
        tunnel_cut(t);
}

static void greeting_received(struct tunnel *t, struct greeting *g)
{
    struct tunnel_listener *l = t->listener;
    uint8_t status = verify_greeting(t, g), kin = GREETING_OK;
    int fd = -1;
    strcpy(t->peer.name, g->name);
    lineage_take(g->argument, &t->peer.lineage);
    strcpy(t->peer.argument, g->argument);
    t->peer.purpose = g->purpose;
    if (status == GREETING_OK || status == GREETING_STRANGER || status == GREETING_REMOVED)
        kin = judge_lineage(t, false); /* a node that was lost in a recovery learns that, too */
    status = kin ? kin : status;
    if (status == GREETING_OK && make_pair(t, &fd))
        status = GREETING_FULL;
    if (status != GREETING_OK) {
        refuse_greeting(t, g, status);
        return;
    }
    if (!send_greeting(t, GREETING_OK, g->purpose, "")) {
        close(fd);
        tunnel_fail(t, ERR_INTERNAL, "the answer to the greeting could not be sent");
        return;
    }
    opened(t);
    l->cb(l->owner, &t->peer, fd);
}

/* OK: the answer is from the expected node. */
static err_t answer_error(struct tunnel *t, const struct greeting *g, struct why *why)
{
    const struct tunnel_request *r = t->request;
    bool is_of_version = g->version == tls_greeting_version(t);
    uint8_t status = is_of_version ? check_identity(t, g) : GREETING_VERSION_UNKNOWN;
    if (status == GREETING_OK)
        tell_refused(t, g, &t->peer.lineage);
    if (g->status == GREETING_REMOVED && status == GREETING_OK)
        return why_set(why, ERR_STALE, "node %s at %s: %s", g->name, r->address_text, greeting_status_text(g->status));
    if (g->status != GREETING_OK || !is_of_version)
        why_set(why, 0, "node %s at %s refuses: %s", g->name, r->address_text,
                greeting_status_text(g->status ? g->status : GREETING_VERSION_UNKNOWN));
    else if (status != GREETING_OK)
        why_set(why, 0, "node %s at %s is refused: %s", g->name, r->address_text, greeting_status_text(status));
    else if (strcmp(g->name, t->host->name) == 0)
        why_set(why, 0, "the node at %s has the same name as this node, %s: names must differ", r->address_text,
                g->name);
    else if (r->expected[0] && strcmp(g->name, r->expected) != 0)
        why_set(why, 0, "the node at %s is %s, not %s: does another node use the address now?", r->address_text,
                g->name, r->expected);
    else if (g->purpose != r->purpose)
        why_set(why, 0, "node %s at %s answered for another purpose", g->name, r->address_text);
    else
        return OK;
    return ERR_DENIED;
}

static void answer_received(struct tunnel *t, struct greeting *g)
{
    struct tunnel_request *r = t->request;
    struct why why;
    int fd = -1;
    lineage_take(g->argument, &t->peer.lineage);
    err_t err = answer_error(t, g, &why);
    if (err) {
        tunnel_fail(t, err, "%s", why.text);
        return;
    }
    strcpy(t->peer.name, g->name);
    strcpy(t->peer.argument, r->argument);
    t->peer.purpose = r->purpose;
    if (judge_lineage(t, true) != GREETING_OK) {
        tunnel_fail(t, ERR_DENIED, "node %s at %s is of an earlier generation of this cluster, or of another cluster",
                    g->name, r->address_text);
        return;
    }
    err = make_pair(t, &fd);
    if (err) {
        tunnel_fail(t, err, "no socket pair: %s", err_text(err));
        return;
    }
    opened(t);
    t->request = NULL;
    request_finish(r, OK, "", &t->peer, fd);
}

static void run_greeting(struct tunnel *t)
{
    struct greeting g = {.version = 0};
    struct why why = {""};
    err_t err = read_greeting(t, &g, &why);
    if (err == ERR_AGAIN)
        return;
    if (err)
        tunnel_fail(t, err, "%s", why.text);
    else if (t->role == ROLE_ACCEPT)
        greeting_received(t, &g);
    else
        answer_received(t, &g);
}

/* ---- the handshake ---- */

/* Checks that the bytes so far begin a TLS record with one complete ClientHello of a plausible size. */
static bool plausible(const struct tunnel *t)
{
    static const uint8_t want[HELLO_FIRST_BYTES] = {22, 3, 0, 0, 0, 1, 0, 0, 0};
    static const bool fixed[HELLO_FIRST_BYTES] = {1, 1, 0, 0, 0, 1, 1, 0, 0};
    const uint8_t *f = t->first;
    size_t have = t->hello_bytes < HELLO_FIRST_BYTES ? t->hello_bytes : HELLO_FIRST_BYTES;
    for (size_t i = 0; i < have; i++)
        if (fixed[i] && f[i] != want[i])
            return false;
    unsigned record = (unsigned)f[3] << 8 | f[4], hello = (unsigned)f[7] << 8 | f[8];
    if (have < HELLO_FIRST_BYTES)
        return true;
    return record <= TUNNEL_CLIENT_HELLO_BYTES && hello + 4 == record;
}

static void handshake_failed(struct tunnel *t, int error)
{
    int alert;
    const char *reason = tls_reason(&alert);
    bool closed = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_SYSCALL;
    if (t->refusal && t->role == ROLE_ACCEPT)
        tunnel_fail(t, ERR_DENIED, "%s", t->refusal);
    else if (t->refusal)
        tunnel_fail(t, ERR_NOTFOUND, "%s", t->refusal);
    else if (closed)
        tunnel_fail(
            t, ERR_CLOSED,
            "it closed the connection during the TLS handshake: it is not a dtd, or it has too many connections");
    else if (t->role == ROLE_ACCEPT)
        tunnel_fail(t, ERR_DENIED, "TLS failed: %s", reason);
    else if (alert >= 0)
        tunnel_fail(t, ERR_DENIED,
                    "it does not accept our key: the key is of another cluster or was dropped, or the join token was "
                    "used up or withdrawn (%s)",
                    reason);
    else
        tunnel_fail(t, ERR_PROTO, "the program that answers there is not a dtd with our key (%s)", reason);
}

static void handshake_done(struct tunnel *t)
{
    /* OpenSSL calls the use of a PSK a reused session. Without it the peer has used a certificate. */
    if (!SSL_session_reused(t->ssl)) {
        tunnel_fail(t, ERR_DENIED, "it did not prove that it has the key");
        return;
    }
    tunnel_move(t, T_GREETING);
    if (t->role == ROLE_CONNECT && !send_greeting(t, 0, t->request->purpose, t->request->argument))
        tunnel_fail(t, ERR_INTERNAL, "the greeting could not be sent");
}

static void run_handshake(struct tunnel *t)
{
    if (t->role == ROLE_ACCEPT && !plausible(t)) {
        tunnel_fail(t, ERR_PROTO, "its first bytes are not a TLS ClientHello");
        return;
    }
    bool wait = t->role == ROLE_ACCEPT && t->hello_bytes < HELLO_FIRST_BYTES;
    ERR_clear_error();
    int r = wait ? -1 : SSL_do_handshake(t->ssl);
    int error = wait ? SSL_ERROR_WANT_READ : SSL_get_error(t->ssl, r);
    if (r == 1)
        handshake_done(t);
    else if (error != SSL_ERROR_WANT_READ || t->wire_ended)
        handshake_failed(t, error);
}

void hello_run(struct tunnel *t)
{
    if (t->state == T_HANDSHAKE)
        run_handshake(t);
    if (t->state == T_GREETING)
        run_greeting(t);
}
