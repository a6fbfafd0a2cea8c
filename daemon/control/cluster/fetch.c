/* Follower: fetches the view from a node that the leader has named.
 *
 *   (the leader names a source) -> tunnel to it -> View -> digest -> heartbeat with the digest
 *     -> the leader confirms it: the view is taken, and the changes since are made
 *     -> it does not: the view is dropped
 *
 * The source may have a view that is some changes old. It may also be a node that makes up a view, and then the leader
 * does not know the digest. After an error nothing is repeated here: the leader sends the view, or names another node.
 */
#include "daemon/control/cluster/internal.h"

#include "common/base/log.h"
#include "daemon/control/cluster/rpc.h"

#include <string.h>
#include <unistd.h>

#define VIEW_MS 5000 /* for the answer: the source may serve others, too */

static void end_fetch(struct cluster *c)
{
    struct cluster_fetch *f = &c->fetch;
    if (f->conn) {
        rpc_conn_set_data(f->conn, NULL);
        rpc_conn_close(f->conn);
    }
    f->conn = NULL;
    f->source.name[0] = '\0';
}

static void on_view(void *arg, err_t err, const void *view, size_t len)
{
    struct cluster *c = arg;
    struct cluster_fetch *f = &c->fetch;
    if (!f->conn)
        return;
    if (!err && !c->leads)
        err = buf_append(&f->view, view, len);
    if (!err)
        err = cluster_view_digest(f->view.data, f->view.len, f->digest);
    if (err) {
        log_debug("the view is not fetched from a node node=%s error=%s", f->source.name, err_text(err));
        cluster_fetch_drop(c);
    }
    end_fetch(c);
}

static void conn_closed(void *owner, struct rpc_conn *conn)
{
    struct cluster *c = rpc_conn_data(conn);
    (void)owner;
    if (c && c->fetch.conn == conn) { /* on_view has been called */
        c->fetch.conn = NULL;
        end_fetch(c);
    }
}

static void connected(void *owner, err_t err, const char *why, const struct tunnel_peer *peer, int fd)
{
    struct cluster *c = owner;
    struct cluster_fetch *f = &c->fetch;
    const struct rpc_conn_config config = {.loop = c->loop,
                                           .methods = c->methods,
                                           .n_methods = RPC_METHOD_COUNT,
                                           .owner = c->methods_owner,
                                           .on_close = conn_closed};
    (void)peer;
    f->request = NULL;
    if (!err && (c->closing || c->leads)) {
        close(fd);
        err = ERR_CANCELED;
    }
    if (!err)
        err = rpc_conn_open(&config, fd, 0, &f->conn);
    if (!err) {
        rpc_conn_set_data(f->conn, c);
        err = rpc_cluster_view(f->conn, VIEW_MS, on_view, c);
    }
    if (!err)
        return;
    log_debug("the view is not fetched from a node node=%s error=%s why=\"%s\"", f->source.name, err_text(err),
              why ? why : "");
    end_fetch(c);
}

void cluster_fetch_begin(struct cluster *c, const char *address, const struct cluster_introduced *source)
{
    struct cluster_fetch *f = &c->fetch;
    struct why why = {""};
    if (f->request || f->conn || f->view.len || c->closing)
        return;
    f->source = *source;
    const struct tunnel_connect_config config = {.address = address,
                                                 .key = cluster_key(c),
                                                 .expected = source->name,
                                                 .purpose = TUNNEL_RPC,
                                                 .deadline_ms = CALL_MS};
    if (tunnel_connect(c->host, &config, connected, c, &f->request, &why)) {
        log_debug("the view is not fetched from a node node=%s why=\"%s\"", source->name, why.text);
        f->request = NULL;
        end_fetch(c);
    }
}

const uint8_t *cluster_fetch_offer(struct cluster *c)
{
    c->fetch.is_offered = c->fetch.view.len != 0;
    return c->fetch.is_offered ? c->fetch.digest : NULL;
}

void cluster_fetch_drop(struct cluster *c)
{
    struct cluster_fetch *f = &c->fetch;
    if (f->view.data)
        explicit_bzero(f->view.data, f->view.len); /* it has keys */
    buf_fini(&f->view);
    f->is_offered = false;
}

void cluster_fetch_answered(struct cluster *c, bool is_known)
{
    struct cluster_fetch *f = &c->fetch;
    if (!f->is_offered)
        return;
    if (is_known)
        cluster_view_set(c, f->view.data, f->view.len);
    cluster_fetch_drop(c);
}
