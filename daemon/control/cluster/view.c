/* The view (nodes, tokens, keys) is the cluster's part of the replicated state. Voters have that state anyway but may
 * be behind, so every node but the leader uses the view that the leader sent last, in reply to a heartbeat that carried
 * the hash of the follower's view.
 *
 * The leader encodes the view once per tick at most, however many records have changed it, and keeps the last few
 * changes. A follower whose view is one of the last few gets these changes. Any other one, and a follower of a version
 * that does not announce that it understands changes, gets the whole view. With n nodes, that is n bytes for each of n
 * nodes: spread.c limits how much of it the leader sends.
 *
 * A thread of a pool writes the view's file, so the file may be behind. This matters only for keys: the leader
 * withdraws the old key when all nodes have reported the hash of a view with the new one. So a follower reports a view
 * with other keys only after it is in the file. */
#include "daemon/control/cluster/internal.h"

#include "common/base/hash.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

#define SAVE_KEY UINT64_MAX /* the tasks of the pool have users' numbers */

static uint64_t hash_of(const struct buf *bytes)
{
    struct hash h;
    hash_init(&h);
    hash_add(&h, bytes->data, bytes->len);
    return hash_end(&h);
}

err_t cluster_view_digest(const void *data, size_t len, uint8_t ret[CLUSTER_DIGEST_BYTES])
{
    return EVP_Digest(data, len, ret, NULL, EVP_sha256(), NULL) ? OK : ERR_NOMEM;
}

/* Without a digest, no node can take this view from another one than the leader. */
static void set_digest(struct cluster *c)
{
    if (cluster_view_digest(c->view_bytes.data, c->view_bytes.len, c->view_digest))
        memset(c->view_digest, 0, sizeof(c->view_digest));
}

/* ---- the file ---- */

/* One write of the file. */
struct view_save {
    struct pool_task task; /* the first member */
    struct cluster *cluster;
    struct buf bytes;
    uint64_t hash;
    err_t err;
};

static void free_save(struct view_save *s)
{
    if (s && s->bytes.data)
        explicit_bzero(s->bytes.data, s->bytes.len);
    if (s)
        buf_fini(&s->bytes);
    free(s);
}

static void run_save(struct pool_task *task)
{
    struct view_save *s = (struct view_save *)task;
    s->err = cluster_view_write(s->cluster->view_path, s->bytes.data, s->bytes.len);
}

static void save_failed(struct cluster *c, err_t err)
{
    if (!c->view_due)
        log_warn("the view of the cluster cannot be saved, and is tried again path=%s error=%s", c->view_path,
                 err_text(err));
    c->view_due = true;
}

static void save_done(struct pool_task *task)
{
    struct view_save *s = (struct view_save *)task;
    struct cluster *c = s->cluster;
    c->view_saving = false;
    if (s->err) {
        save_failed(c, s->err);
    } else {
        c->view_due = false;
        c->view_saved = s->hash;
        c->keys_unsaved = c->keys_unsaved && c->view_saved != c->view_hash;
        cluster_view_save(c); /* it may have changed meanwhile */
    }
    free_save(s);
}

void cluster_view_save(struct cluster *c)
{
    if (c->view_saving || c->closing || !c->view_hash || c->view_hash == c->view_saved)
        return;
    struct view_save *s = calloc(1, sizeof(*s));
    err_t err = s ? buf_append(&s->bytes, c->view_bytes.data, c->view_bytes.len) : ERR_NOMEM;
    if (!err) {
        s->task.run = run_save;
        s->task.done = save_done;
        s->cluster = c;
        s->hash = c->view_hash;
        err = pool_add(c->saves, &s->task, SAVE_KEY);
    }
    c->view_saving = !err;
    if (err) {
        free_save(s);
        save_failed(c, err);
    }
}

void cluster_view_save_again(struct cluster *c)
{
    if (c->view_due)
        cluster_view_save(c);
}

err_t cluster_view_load(struct cluster *c, struct why *why)
{
    struct buf bytes = {0};
    err_t err = cluster_view_read(c->view_path, &bytes);
    if (!err)
        err = state_restore(c->view, bytes.data, bytes.len);
    if (err == ERR_UNSUPPORTED) {
        buf_fini(&bytes);
        return why_set(why, err,
                       "%s: the cluster has a newer version than this dtd, whose newest is %" PRIu32
                       ". Install the version of the other nodes (docs/operate/upgrade.md)",
                       c->view_path, features_newest());
    }
    if (err && err != ERR_NOTFOUND) {
        buf_fini(&bytes);
        /* Without a key nothing can be asked for. */
        return why_set(why, err,
                       c->conf->cluster.key_file[0]
                           ? "%s: %s. Remove the file; the node gets it again from any other node that it can reach"
                           : "%s: %s. The file has the keys of the cluster. If it cannot be restored: remove the node "
                             "from the cluster (dtctl cluster remove, on another node), then its state directory, and "
                             "join again",
                       c->view_path, err_text(err));
    }
    c->view_bytes = bytes;
    c->view_saved = c->view_hash = err ? 0 : hash_of(&bytes);
    return OK;
}

/* ---- the leader's changes ---- */

static void drop_steps(struct cluster *c, int n)
{
    for (int i = 0; i < n; i++)
        buf_fini(&c->steps[i].bytes);
    c->n_steps -= n;
    memmove(c->steps, c->steps + n, (size_t)c->n_steps * sizeof(c->steps[0]));
}

/* Adds the change from the view before to `bytes`, and makes it on c->view, which is the view before. After an error
 * all followers get the whole view. */
static void add_step(struct cluster *c, const struct buf *bytes)
{
    struct cluster_step step = {.from = c->view_hash};
    memcpy(step.digest, c->view_digest, sizeof(step.digest));
    err_t err = state_cluster_change(c->view, c->replica->state, &step.bytes);
    if (!err)
        err = state_cluster_merge(c->view, step.bytes.data, step.bytes.len);
    if (!err) {
        drop_steps(c, c->n_steps == CLUSTER_STEPS);
        c->steps[c->n_steps++] = step;
        return;
    }
    buf_fini(&step.bytes);
    drop_steps(c, c->n_steps);
    log_warn("a change of the cluster's view is sent as the whole view error=%s", err_text(err));
    if (state_restore(c->view, bytes->data, bytes->len))
        log_error("the view of the cluster cannot be taken from the state");
}

void cluster_view_make(struct cluster *c)
{
    struct buf bytes = {0};
    uint64_t changes = state_cluster(c->replica->state)->changes;
    if (changes == c->view_changes && c->view_bytes.len)
        return;
    if (state_cluster_snapshot(c->replica->state, &bytes)) {
        buf_fini(&bytes);
        return;
    }
    c->view_changes = changes;
    uint64_t hash = hash_of(&bytes);
    if (hash == c->view_hash) {
        buf_fini(&bytes);
        set_digest(c); /* the view may be that of a follower until now */
        return;
    }
    add_step(c, &bytes);
    buf_fini(&c->view_bytes);
    c->view_bytes = bytes;
    c->view_hash = hash;
    set_digest(c);
    cluster_view_save(c);
    c->recheck_due = true; /* not now: a node that was removed gets the report of it first */
}

/* The newest step from this view; n_steps: there is none. */
static int step_from(const struct cluster *c, uint64_t has)
{
    for (int i = c->n_steps - 1; i >= 0 && has; i--)
        if (c->steps[i].from == has)
            return i;
    return c->n_steps;
}

void cluster_view_news(const struct cluster *c, uint64_t has, bool understands, struct cluster_news *ret)
{
    size_t bytes = 0;
    if (has == c->view_hash)
        return;
    for (int i = understands ? step_from(c, has) : c->n_steps; i < c->n_steps; i++) {
        bytes += c->steps[i].bytes.len;
        ret->changes[ret->n_changes++] = &c->steps[i].bytes;
    }
    ret->hash = c->view_hash;
    if (ret->n_changes && bytes < c->view_bytes.len)
        return;
    ret->n_changes = 0;
    ret->view = &c->view_bytes;
}

size_t cluster_view_lag(const struct cluster *c, uint64_t has)
{
    size_t bytes = 0;
    int at = step_from(c, has);
    if (has == c->view_hash)
        return 0;
    for (int i = at; i < c->n_steps; i++)
        bytes += c->steps[i].bytes.len;
    return at < c->n_steps ? bytes : SIZE_MAX;
}

bool cluster_view_is_known(const struct cluster *c, const uint8_t digest[CLUSTER_DIGEST_BYTES], uint64_t *ret_hash)
{
    if (memcmp(digest, c->view_digest, CLUSTER_DIGEST_BYTES) == 0) {
        *ret_hash = c->view_hash;
        return true;
    }
    for (int i = c->n_steps - 1; i >= 0; i--)
        if (memcmp(digest, c->steps[i].digest, CLUSTER_DIGEST_BYTES) == 0) {
            *ret_hash = c->steps[i].from;
            return true;
        }
    return false;
}

const struct buf *cluster_view_bytes(const struct cluster *c)
{
    return c->is_member && c->view_bytes.len ? &c->view_bytes : NULL;
}

uint64_t cluster_view_hash(const struct cluster *c)
{
    return c->view_hash;
}

/* ---- a follower's view ---- */

/* The keys of the view, without nodes. */
static struct state_cluster keys_of(const struct state *view)
{
    struct state_cluster ret = *state_cluster(view);
    ret.nodes = NULL;
    ret.n_nodes = 0;
    return ret;
}

static bool have_same_keys(const struct state_cluster *a, const struct state_cluster *b)
{
    bool is_same = a->n_keys == b->n_keys && a->key_used == b->key_used;
    for (int i = 0; is_same && i < a->n_keys; i++)
        is_same = a->keys[i].version == b->keys[i].version;
    return is_same;
}

/* c->view is new, and `bytes` are its encoding, which the cluster takes over. */
static void take_view(struct cluster *c, const struct state_cluster *before, const struct buf *bytes)
{
    c->keys_unsaved = c->keys_unsaved || !have_same_keys(before, state_cluster(c->view));
    drop_steps(c, c->n_steps);
    buf_fini(&c->view_bytes);
    c->view_bytes = *bytes;
    c->view_hash = hash_of(bytes);
    memset(c->view_digest, 0, sizeof(c->view_digest));
    c->view_changes = 0;
    cluster_view_save(c);
    cluster_recheck(c);
}

void cluster_view_set(struct cluster *c, const void *data, size_t len)
{
    struct buf bytes = {0};
    struct state_cluster before = keys_of(c->view);
    err_t err = buf_append(&bytes, data, len);
    if (!err)
        err = state_restore(c->view, data, len);
    if (err) {
        log_warn("the leader's view of the cluster cannot be read error=%s", err_text(err));
        buf_fini(&bytes);
    } else {
        take_view(c, &before, &bytes);
    }
    explicit_bzero(&before, sizeof(before));
}

void cluster_view_change(struct cluster *c, const struct cluster_bytes *changes, int n, uint64_t hash)
{
    struct buf bytes = {0};
    struct state_cluster before = keys_of(c->view);
    err_t err = OK;
    for (int i = 0; !err && i < n; i++)
        err = state_cluster_merge(c->view, changes[i].data, changes[i].len);
    if (!err)
        err = state_cluster_snapshot(c->view, &bytes);
    if (!err && hash_of(&bytes) == hash) {
        take_view(c, &before, &bytes);
    } else {
        log_debug("the changes of the view do not give the leader's, which is requested error=%s", err_text(err));
        c->view_hash = 0;
        buf_fini(&bytes);
    }
    explicit_bzero(&before, sizeof(before));
}

uint64_t cluster_view_reported(const struct cluster *c)
{
    return c->keys_unsaved && c->view_hash ? c->view_saved : c->view_hash;
}
