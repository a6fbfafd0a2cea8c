/* Encoding and decoding of the replicated state. A snapshot is a sequence of Snapshot messages: one per job, one for
 * the request ids, one for the cluster, one for the events. A parser reads concatenated protobuf messages as one
 * message with joined lists, so the writer never needs a tree of the whole state in memory. Each message repeats the
 * required fields version and next_job. Restoring builds a second state and replaces the first one at the end. The
 * contents are untrusted: a damaged snapshot makes the start fail, instead of causing wrong decisions later.
 *
 * A state with many large jobs takes seconds to encode and to decode, and control's loop must not stop for so long. So
 * the loop only freezes the state (jobs are shared with it, the rest is small), and another thread encodes the jobs;
 * the texts of their job files, which are most of the bytes, are not copied. A decoder unpacks one job at a time, so it
 * needs memory for one beside the state. */
#include "daemon/control/state/features.h"
#include "daemon/control/state/internal.h"

#include "common/rpc/alloc.h"
#include "common/rpc/field_codec.h"
#include "daemon/control/state/snapshot_lineage.h"
#include "daemon/control/state/spec.h"
#include "proto/log.pb-c.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SNAPSHOT_VERSION 1
#define BORROWED_BYTES 1024 /* a shorter text is copied, as a piece of its own would cost more */

/* ---- writing ---- */

static err_t pack(Dtd__Snapshot *m, const struct state *s, struct buf *ret)
{
    m->version = SNAPSHOT_VERSION;
    m->next_job = s->next_job;
    size_t bytes = protobuf_c_message_get_packed_size(&m->base);
    err_t err = buf_reserve(ret, bytes);
    if (!err)
        ret->len += protobuf_c_message_pack(&m->base, ret->data + ret->len);
    return err;
}

/* Memory of the messages in one job's lists. */
struct lists {
    Dtd__LogMember *members;
    Dtd__RecordCheckpoint *checkpoints;
    Dtd__RecordIncident *incidents;
    int n_encoded; /* incidents, each of which owns memory */
    void **pointers;
};

static void lists_fini(struct lists *l)
{
    for (int i = 0; i < l->n_encoded; i++)
        fields_encoded_fini(&l->incidents[i].base);
    free(l->members);
    free(l->checkpoints);
    free(l->incidents);
    free(l->pointers);
}

static err_t lists_init(struct lists *l, const struct state_job *job)
{
    size_t n_members = (size_t)job->epoch.n_members + (size_t)job->n_left;
    size_t n = n_members + (size_t)job->n_checkpoints + (size_t)job->n_incidents;
    l->members = calloc(n_members + 1, sizeof(*l->members));
    l->checkpoints = calloc((size_t)job->n_checkpoints + 1, sizeof(*l->checkpoints));
    l->incidents = calloc((size_t)job->n_incidents + 1, sizeof(*l->incidents));
    l->pointers = calloc(n + 1, sizeof(*l->pointers));
    return l->members && l->checkpoints && l->incidents && l->pointers ? OK : ERR_NOMEM;
}

static void put_epoch(const struct state_job *job, struct lists *l, void **pointers, Dtd__RecordEpoch *m)
{
    m->job = job->id;
    m->epoch = job->epoch.epoch;
    m->resume_step = job->epoch.resume_step;
    m->restarts = job->epoch.restarts;
    m->layout = job->epoch.layout;
    m->layout_why = job->epoch.layout_why;
    m->n_member = (size_t)job->epoch.n_members;
    m->member = (Dtd__LogMember **)pointers;
    for (int i = 0; i < job->epoch.n_members; i++) {
        dtd__log_member__init(&l->members[i]);
        l->members[i].node = (char *)job->epoch.members[i].node;
        l->members[i].slot = job->epoch.members[i].slot;
        pointers[i] = &l->members[i];
    }
}

static void put_left(const struct state_job *job, Dtd__LogMember *members, void **pointers, Dtd__SnapshotJob *m)
{
    m->n_left = (size_t)job->n_left;
    m->left = (Dtd__LogMember **)pointers;
    for (int i = 0; i < job->n_left; i++) {
        dtd__log_member__init(&members[i]);
        members[i].node = job->left[i].node;
        members[i].slot = job->left[i].slot;
        members[i].has_rank = true;
        members[i].rank = job->left[i].rank;
        pointers[i] = &members[i];
    }
}

static void put_checkpoints(const struct state_job *job, struct lists *l, void **pointers, Dtd__SnapshotJob *m)
{
    m->n_checkpoint = (size_t)job->n_checkpoints;
    m->checkpoint = (Dtd__RecordCheckpoint **)pointers;
    for (int i = 0; i < job->n_checkpoints; i++) {
        const struct state_checkpoint *c = &job->checkpoints[i];
        Dtd__RecordCheckpoint *p = &l->checkpoints[i];
        dtd__record_checkpoint__init(p);
        p->job = job->id;
        p->step = c->step;
        p->epoch = c->epoch;
        p->path = (char *)c->path;
        p->bytes = c->bytes;
        p->committed_ms = c->committed_ms;
        p->has_loss = !isnan(c->loss);
        p->loss = c->loss;
        pointers[i] = p;
    }
}

static err_t put_incidents(const struct state_job *job, struct lists *l, void **pointers, Dtd__SnapshotJob *m)
{
    err_t err = OK;
    m->n_incident = (size_t)job->n_incidents;
    m->incident = (Dtd__RecordIncident **)pointers;
    for (int i = 0; !err && i < job->n_incidents; i++) {
        Dtd__RecordIncident *p = &l->incidents[l->n_encoded++];
        dtd__record_incident__init(p);
        p->job = job->id;
        err = fields_encode(&incident_fields, &job->incidents[i], FIELDS_FOR_DAEMONS, &p->base);
        pointers[i] = p;
    }
    if (!err && job->start.epoch) {
        m->start = &l->incidents[l->n_encoded++];
        dtd__record_incident__init(m->start);
        m->start->job = job->id;
        err = fields_encode(&incident_fields, &job->start, FIELDS_FOR_DAEMONS, &m->start->base);
    }
    return err;
}

static void put_scalars(const struct state_job *job, Dtd__SnapshotJob *m)
{
    m->id = job->id;
    m->submitted->spec_yaml = (char *)job->spec;
    m->submitted->has_parent = job->parent != 0;
    m->submitted->parent = job->parent;
    m->submitted->uid = job->uid;
    m->submitted_ms = job->submitted_ms;
    m->desired = job->desired;
    m->end = job->end;
    m->reason = job->reason;
    m->has_ended_ms = job->ended_ms != 0;
    m->ended_ms = job->ended_ms;
    m->has_started_ms = job->started_ms != 0;
    m->started_ms = job->started_ms;
    m->has_submitted_clock_ms = job->submitted_clock_ms != 0;
    m->submitted_clock_ms = job->submitted_clock_ms;
    m->has_started_clock_ms = job->started_clock_ms != 0;
    m->started_clock_ms = job->started_clock_ms;
    m->has_incident_clock_ms = job->incident_clock_ms != 0;
    m->incident_clock_ms = job->incident_clock_ms;
}

static err_t write_job(const struct state *s, const struct state_job *job, struct buf *ret)
{
    Dtd__RecordSubmitted submitted = DTD__RECORD_SUBMITTED__INIT;
    Dtd__RecordEpoch epoch = DTD__RECORD_EPOCH__INIT;
    Dtd__SnapshotJob m = DTD__SNAPSHOT_JOB__INIT, *list = &m;
    Dtd__Snapshot snapshot = DTD__SNAPSHOT__INIT;
    struct lists l = {0};
    err_t err = lists_init(&l, job);
    if (!err) {
        m.submitted = &submitted;
        put_scalars(job, &m);
        void **pointers = l.pointers;
        if (job->epoch.epoch) {
            put_epoch(job, &l, pointers, &epoch);
            m.epoch = &epoch;
            m.has_epoch_ms = true;
            m.epoch_ms = job->epoch.wall_ms;
        }
        pointers += job->epoch.n_members;
        put_left(job, l.members + job->epoch.n_members, pointers, &m);
        pointers += job->n_left;
        put_checkpoints(job, &l, pointers, &m);
        err = put_incidents(job, &l, pointers + job->n_checkpoints, &m);
        snapshot.n_job = 1;
        snapshot.job = &list;
        err = err ? err : pack(&snapshot, s, ret);
    }
    lists_fini(&l);
    return err;
}

static err_t write_requests(const struct state *s, struct buf *ret)
{
    size_t n = (size_t)s->n_requests;
    Dtd__Snapshot snapshot = DTD__SNAPSHOT__INIT;
    Dtd__SnapshotRequest *requests = calloc(n + 1, sizeof(*requests));
    Dtd__SnapshotRequest **list = calloc(n + 1, sizeof(Dtd__SnapshotRequest *));
    err_t err = requests && list ? OK : ERR_NOMEM;
    for (size_t i = 0; !err && i < n; i++) {
        dtd__snapshot_request__init(&requests[i]);
        requests[i].id.data = s->requests[i].id;
        requests[i].id.len = REQUEST_ID_BYTES;
        requests[i].wall_ms = s->requests[i].wall_ms;
        requests[i].has_clock_ms = s->requests[i].clock_ms != 0;
        requests[i].clock_ms = s->requests[i].clock_ms;
        requests[i].job = s->requests[i].job;
        requests[i].err = s->requests[i].err;
        list[i] = &requests[i];
    }
    if (!err) {
        snapshot.has_clock_ms = s->clock_ms != 0;
        snapshot.clock_ms = s->clock_ms;
        snapshot.n_request = n;
        snapshot.request = list;
        err = pack(&snapshot, s, ret);
    }
    free(list);
    free(requests);
    return err;
}

/* Memory of the messages in the cluster's lists. */
struct cluster_lists {
    Dtd__SnapshotNode *nodes, **node;
    Dtd__RecordNode *inner;
    Dtd__RecordToken tokens[STATE_MAX_TOKENS], *token[STATE_MAX_TOKENS];
    Dtd__RecordKey keys[STATE_MAX_KEYS], *key[STATE_MAX_KEYS];
    struct state_lineage_message lineage;
};

static void put_nodes(const struct state_node *const *nodes, size_t count, struct cluster_lists *l)
{
    for (size_t i = 0; i < count; i++) {
        const struct state_node *n = nodes[i];
        Dtd__SnapshotNode *m = l->node[i] = &l->nodes[i];
        Dtd__RecordNode *in = &l->inner[i];
        dtd__snapshot_node__init(m);
        dtd__record_node__init(in);
        in->name = n->name;
        in->address = n->address;
        in->domain = n->domain[0] ? n->domain : NULL;
        in->instance = (ProtobufCBinaryData){NODE_INSTANCE_BYTES, (uint8_t *)n->instance};
        in->has_public_key = record_has_key(n->public_key);
        in->public_key = (ProtobufCBinaryData){NODE_KEY_BYTES, (uint8_t *)n->public_key};
        m->node = in;
        m->id = n->id;
        m->joined_ms = n->joined_ms;
        m->drained = n->drained;
        m->has_drained_ms = n->drained != NULL;
        m->drained_ms = n->drained_ms;
    }
}

static void put_secrets(const struct state_cluster *c, struct cluster_lists *l)
{
    for (int i = 0; i < c->n_tokens; i++) {
        Dtd__RecordToken *m = l->token[i] = &l->tokens[i];
        dtd__record_token__init(m);
        m->id = c->tokens[i].id;
        m->has_secret = m->has_expires_ms = m->has_uses = true;
        m->secret = (ProtobufCBinaryData){TOKEN_SECRET_LENGTH, (uint8_t *)c->tokens[i].secret};
        m->expires_ms = c->tokens[i].expires_ms;
        m->has_until_ms = c->tokens[i].until_ms != 0;
        m->until_ms = c->tokens[i].until_ms;
        m->uses = c->tokens[i].uses;
    }
    for (int i = 0; i < c->n_keys; i++) {
        Dtd__RecordKey *m = l->key[i] = &l->keys[i];
        dtd__record_key__init(m);
        m->version = c->keys[i].version;
        m->step = KEY_ADDED;
        m->has_secret = true;
        m->secret = (ProtobufCBinaryData){KEY_SECRET_LENGTH, (uint8_t *)c->keys[i].secret};
    }
}

/* Some of the nodes, and all the rest. */
struct cluster_part {
    const struct state_node *const *nodes;
    size_t n_nodes;
    uint64_t *gone;
    size_t n_gone;
};

static err_t write_part(const struct state *s, const struct cluster_part *part, struct buf *ret)
{
    const struct state_cluster *c = &s->cluster;
    size_t n = part->n_nodes + 1;
    Dtd__Snapshot snapshot = DTD__SNAPSHOT__INIT;
    Dtd__SnapshotCluster m = DTD__SNAPSHOT_CLUSTER__INIT;
    struct cluster_lists *l = calloc(1, sizeof(*l));
    err_t err = l ? OK : ERR_NOMEM;
    if (l) {
        l->nodes = calloc(n, sizeof(*l->nodes));
        l->node = calloc(n, sizeof(*l->node));
        l->inner = calloc(n, sizeof(*l->inner));
        err = l->nodes && l->node && l->inner ? OK : ERR_NOMEM;
    }
    if (!err) {
        put_nodes(part->nodes, part->n_nodes, l);
        put_secrets(c, l);
        m = (Dtd__SnapshotCluster){.base = m.base,
                                   .next_node = c->next_node,
                                   .n_node = part->n_nodes,
                                   .node = l->node,
                                   .n_token = (size_t)c->n_tokens,
                                   .token = l->token,
                                   .n_key = (size_t)c->n_keys,
                                   .key = l->key,
                                   .key_used = c->key_used,
                                   .n_gone = part->n_gone,
                                   .gone = part->gone,
                                   .has_version = c->version != 0,
                                   .version = c->version};
        state_lineage_put(c, &l->lineage, &m);
        snapshot.cluster = &m;
        err = pack(&snapshot, s, ret);
    }
    if (l) {
        free(l->nodes);
        free(l->node);
        free(l->inner);
        free(l);
    }
    return err;
}

err_t state_cluster_excerpt(const struct state *s, const struct state_node *const *nodes, int n, struct buf *ret)
{
    const struct cluster_part part = {.nodes = nodes, .n_nodes = (size_t)n};
    return write_part(s, &part, ret);
}

static err_t write_cluster(const struct state *s, struct buf *ret)
{
    const struct state_cluster *c = &s->cluster;
    const struct state_node **nodes = calloc((size_t)c->n_nodes + 1, sizeof(struct state_node *));
    for (int i = 0; nodes && i < c->n_nodes; i++)
        nodes[i] = &c->nodes[i];
    err_t err = nodes ? state_cluster_excerpt(s, nodes, c->n_nodes, ret) : ERR_NOMEM;
    free(nodes);
    return err;
}

/* ---- a change of the cluster ---- */

static bool is_same_node(const struct state_node *a, const struct state_node *b)
{
    return a->id == b->id && a->joined_ms == b->joined_ms && a->drained_ms == b->drained_ms &&
           memcmp(a->instance, b->instance, NODE_INSTANCE_BYTES) == 0 &&
           memcmp(a->public_key, b->public_key, NODE_KEY_BYTES) == 0 && state_is_same_text(a->address, b->address) &&
           state_is_same_text(a->domain, b->domain) && state_is_same_text(a->drained, b->drained);
}

/* Both lists are in the order of names. A node that was replaced by one of the same name is not among `gone`. */
static void compare_nodes(const struct state_cluster *from, const struct state_cluster *to,
                          const struct state_node **nodes, struct cluster_part *ret)
{
    int at = 0;
    for (int i = 0; i < to->n_nodes; i++) {
        const struct state_node *x = &to->nodes[i];
        while (at < from->n_nodes && strcmp(from->nodes[at].name, x->name) < 0)
            ret->gone[ret->n_gone++] = from->nodes[at++].id;
        bool was_there = at < from->n_nodes && strcmp(from->nodes[at].name, x->name) == 0;
        if (!was_there || !is_same_node(&from->nodes[at], x))
            nodes[ret->n_nodes++] = x;
        at += was_there;
    }
    while (at < from->n_nodes)
        ret->gone[ret->n_gone++] = from->nodes[at++].id;
}

err_t state_cluster_change(const struct state *from, const struct state *to, struct buf *ret)
{
    const struct state_node **nodes = calloc((size_t)to->cluster.n_nodes + 1, sizeof(struct state_node *));
    struct cluster_part part = {.nodes = nodes, .gone = calloc((size_t)from->cluster.n_nodes + 1, sizeof(*part.gone))};
    err_t err = nodes && part.gone ? OK : ERR_NOMEM;
    if (!err) {
        compare_nodes(&from->cluster, &to->cluster, nodes, &part);
        err = write_part(to, &part, ret);
    }
    free(nodes);
    free(part.gone);
    return err;
}

static err_t write_events(const struct state *s, struct buf *ret)
{
    size_t n = (size_t)s->n_events;
    Dtd__Snapshot snapshot = DTD__SNAPSHOT__INIT;
    Dtd__SnapshotEvent *events = calloc(n + 1, sizeof(*events)), **list = calloc(n + 1, sizeof(*list));
    err_t err = events && list ? OK : ERR_NOMEM;
    for (size_t i = 0; !err && i < n; i++) {
        const struct state_event *e = s->events[i];
        dtd__snapshot_event__init(&events[i]);
        events[i].id = e->id;
        events[i].wall_ms = e->wall_ms;
        events[i].has_clock_ms = e->clock_ms != 0;
        events[i].clock_ms = e->clock_ms;
        events[i].kind = (uint32_t)e->kind;
        events[i].job = e->job;
        events[i].uid = e->uid;
        events[i].epoch = e->epoch;
        events[i].step = e->step;
        events[i].node = (char *)e->node;
        events[i].text = (char *)e->text;
        list[i] = &events[i];
    }
    if (!err) {
        snapshot.n_event = n;
        snapshot.event = list;
        snapshot.has_next_event = true;
        snapshot.next_event = s->next_event;
        err = pack(&snapshot, s, ret);
    }
    free(list);
    free(events);
    return err;
}

err_t state_cluster_snapshot(const struct state *s, struct buf *ret)
{
    return write_cluster(s, ret);
}

/* Is there anything that a single machine without a cluster does not have? */
static bool has_cluster(const struct state *s)
{
    const struct state_cluster *c = &s->cluster;
    return c->next_node > 1 || c->n_keys || c->version || c->lineage.generation;
}

/* ---- a frozen state ---- */

struct state_frozen {
    struct state part;          /* jobs and request ids; the rest is empty */
    struct buf cluster, events; /* encoded, since they are small and change in place */
};

err_t state_freeze(const struct state *s, struct state_frozen **ret)
{
    struct state_frozen *f = calloc(1, sizeof(*f));
    if (!f)
        return ERR_NOMEM;
    f->part.next_job = s->next_job;
    f->part.next_event = s->next_event;
    f->part.clock_ms = s->clock_ms;
    for (int i = 0; i < s->n_jobs; i++) {
        f->part.jobs[i] = s->jobs[i];
        s->jobs[i]->refs++;
    }
    f->part.n_jobs = s->n_jobs;
    f->part.requests = malloc(((size_t)s->n_requests + 1) * sizeof(*s->requests));
    err_t err = f->part.requests ? OK : ERR_NOMEM;
    if (!err && s->n_requests)
        memcpy(f->part.requests, s->requests, (size_t)s->n_requests * sizeof(*s->requests));
    f->part.n_requests = err ? 0 : s->n_requests;
    if (!err && has_cluster(s))
        err = write_cluster(s, &f->cluster);
    if (!err && s->next_event > 1)
        err = write_events(s, &f->events);
    if (err)
        state_thaw(f);
    else
        *ret = f;
    return err;
}

void state_thaw(struct state_frozen *f)
{
    if (!f)
        return;
    state_clear(&f->part);
    buf_fini(&f->cluster);
    buf_fini(&f->events);
    free(f);
}

/* Where `text` is in the encoded message, of which it is almost the beginning. Bytes that are equal to it will do. */
static const uint8_t *find_text(const struct buf *message, const char *text, size_t len)
{
    return len >= BORROWED_BYTES ? memmem(message->data, message->len, text, len) : NULL;
}

static err_t write_job_pieces(const struct state *s, const struct state_job *job, struct buf *scratch,
                              struct pieces *ret)
{
    size_t len = strlen(job->spec);
    scratch->len = 0;
    err_t err = write_job(s, job, scratch);
    const uint8_t *text = err ? NULL : find_text(scratch, job->spec, len);
    if (err || !text)
        return err ? err : pieces_copy(ret, scratch->data, scratch->len);
    err = pieces_copy(ret, scratch->data, (size_t)(text - scratch->data));
    err = err ? err : pieces_borrow(ret, job->spec, len);
    return err ? err : pieces_copy(ret, text + len, (size_t)(scratch->data + scratch->len - text) - len);
}

err_t state_frozen_write(const struct state_frozen *f, struct pieces *ret)
{
    struct buf scratch = {0};
    err_t err = write_requests(&f->part, &scratch);
    err = err ? err : pieces_copy(ret, scratch.data, scratch.len);
    err = err ? err : pieces_borrow(ret, f->cluster.data, f->cluster.len);
    for (int i = 0; !err && i < f->part.n_jobs; i++)
        err = write_job_pieces(&f->part, f->part.jobs[i], &scratch, ret);
    err = err ? err : pieces_borrow(ret, f->events.data, f->events.len);
    buf_fini(&scratch);
    return err;
}

err_t state_snapshot(const struct state *s, struct buf *ret)
{
    struct state_frozen *f;
    struct pieces p = {0};
    size_t start = ret->len;
    err_t err = state_freeze(s, &f);
    if (err)
        return err;
    err = state_frozen_write(f, &p);
    for (size_t i = 0; !err && i < p.n; i++)
        err = buf_append(ret, p.at[i].data, p.at[i].len);
    if (err)
        ret->len = start;
    pieces_fini(&p);
    state_thaw(f);
    return err;
}

/* ---- reading ---- */

static err_t copy(const char *text, char **ret)
{
    *ret = text ? strdup(text) : NULL;
    return text && !*ret ? ERR_NOMEM : OK;
}

static err_t read_epoch(const Dtd__SnapshotJob *m, struct state_job *job)
{
    const Dtd__RecordEpoch *e = m->epoch;
    if (!e)
        return OK;
    if (!e->epoch || e->n_member > RECORD_MAX_MEMBERS)
        return ERR_CORRUPT;
    struct state_member *members = calloc(e->n_member + 1, sizeof(*members));
    if (!members)
        return ERR_NOMEM;
    struct record r = {.kind = RECORD_EPOCH, .wall_ms = m->epoch_ms};
    for (size_t i = 0; i < e->n_member; i++)
        members[i] = (struct state_member){.node = e->member[i]->node, .slot = e->member[i]->slot};
    r.epoch.epoch = e->epoch;
    r.epoch.members = members;
    r.epoch.n_members = (int)e->n_member;
    r.epoch.resume_step = e->resume_step;
    r.epoch.restarts = e->restarts;
    r.epoch.layout = e->layout;
    r.epoch.layout_why = e->layout_why;
    err_t err = state_epoch_copy(&r, &job->epoch);
    free(members);
    return err;
}

static err_t read_left(const Dtd__SnapshotJob *m, struct state_job *job)
{
    if (m->n_left > STATE_MAX_LEFT)
        return ERR_CORRUPT;
    job->left = calloc(m->n_left + 1, sizeof(*job->left));
    err_t err = job->left ? OK : ERR_NOMEM;
    for (size_t i = 0; !err && i < m->n_left; i++) {
        struct state_left *left = &job->left[job->n_left++];
        left->slot = m->left[i]->slot;
        left->rank = m->left[i]->rank;
        err = copy(m->left[i]->node, &left->node);
    }
    return err;
}

static err_t read_checkpoints(const Dtd__SnapshotJob *m, struct state_job *job)
{
    if (m->n_checkpoint > STATE_MAX_CHECKPOINTS)
        return ERR_CORRUPT;
    err_t err = OK;
    for (size_t i = 0; !err && i < m->n_checkpoint; i++) {
        const Dtd__RecordCheckpoint *c = m->checkpoint[i];
        char *path = NULL;
        if (i && c->step <= m->checkpoint[i - 1]->step)
            return ERR_CORRUPT;
        err = state_checkpoint_reserve(job);
        if (!err)
            err = copy(c->path, &path);
        if (!err)
            job->checkpoints[job->n_checkpoints++] = (struct state_checkpoint){
                .step = c->step,
                .epoch = c->epoch,
                .path = path,
                .bytes = c->bytes,
                .committed_ms = c->committed_ms,
                .loss = c->has_loss ? c->loss : NAN,
            };
    }
    return err;
}

static err_t read_incidents(const Dtd__SnapshotJob *m, struct state_job *job)
{
    if (m->n_incident > STATE_MAX_INCIDENTS)
        return ERR_CORRUPT;
    err_t err = OK;
    for (size_t k = 0; !err && k < m->n_incident; k++) {
        struct incident borrowed;
        fields_decode(&incident_fields, &m->incident[k]->base, &borrowed);
        err = state_incident_reserve(job);
        err = err ? err : fields_copy(&incident_fields, &borrowed, &job->incidents[job->n_incidents]);
        job->n_incidents += !err;
    }
    return err;
}

static err_t read_start(const Dtd__SnapshotJob *m, struct state_job *job)
{
    struct incident borrowed;
    if (!m->start)
        return OK;
    fields_decode(&incident_fields, &m->start->base, &borrowed);
    return fields_copy(&incident_fields, &borrowed, &job->start);
}

static err_t read_job(const Dtd__SnapshotJob *m, struct state_job *job)
{
    if (m->end < END_NONE || m->end > END_CANCELED || m->desired < DESIRED_RUN || m->desired > DESIRED_SAVED)
        return ERR_CORRUPT;
    job->id = m->id;
    job->parent = m->submitted->parent;
    job->uid = m->submitted->uid;
    job->submitted_ms = m->submitted_ms;
    job->started_ms = m->started_ms;
    job->ended_ms = m->ended_ms;
    job->submitted_clock_ms = m->submitted_clock_ms;
    job->started_clock_ms = m->started_clock_ms;
    job->incident_clock_ms = m->incident_clock_ms;
    job->desired = (enum state_desired)m->desired;
    job->end = (enum state_end)m->end;
    job->spec = spec_new(m->submitted->spec_yaml);
    err_t err = job->spec ? copy(m->reason, &job->reason) : ERR_NOMEM;
    if (!err)
        err = read_epoch(m, job);
    if (!err)
        err = read_left(m, job);
    if (!err)
        err = read_checkpoints(m, job);
    if (!err)
        err = read_incidents(m, job);
    if (!err)
        err = read_start(m, job);
    return err;
}

static err_t read_next_job(const Dtd__SnapshotJob *m, struct state *s)
{
    uint64_t last = s->n_jobs ? s->jobs[s->n_jobs - 1]->id : 0;
    if (s->n_jobs == STATE_MAX_JOBS || m->id >= s->next_job || m->id <= last)
        return ERR_CORRUPT;
    struct state_job *job = calloc(1, sizeof(*job));
    if (!job)
        return ERR_NOMEM;
    job->refs = 1;
    s->jobs[s->n_jobs++] = job;
    return read_job(m, job);
}

static err_t read_requests(const Dtd__Snapshot *m, struct state *s)
{
    if (m->n_request > STATE_MAX_REQUESTS)
        return ERR_CORRUPT;
    for (size_t i = 0; i < m->n_request; i++) {
        const Dtd__SnapshotRequest *q = m->request[i];
        if (q->id.len != REQUEST_ID_BYTES)
            return ERR_CORRUPT;
        err_t err = state_request_reserve(s);
        if (err)
            return err;
        struct state_request *to = &s->requests[s->n_requests++];
        *to = (struct state_request){.wall_ms = q->wall_ms, .clock_ms = q->clock_ms, .job = q->job, .err = q->err};
        memcpy(to->id, q->id.data, REQUEST_ID_BYTES);
    }
    return OK;
}

static err_t read_node(const Dtd__SnapshotNode *m, const struct state_node *before, struct state_node *ret)
{
    const Dtd__RecordNode *in = m->node;
    *ret = (struct state_node){.id = m->id, .joined_ms = m->joined_ms, .drained_ms = m->drained_ms};
    if (!m->id || !in->name[0] || in->instance.len != NODE_INSTANCE_BYTES || strlen(in->name) > NODE_NAME_MAX ||
        (before && strcmp(before->name, in->name) >= 0) || (in->has_public_key && in->public_key.len != NODE_KEY_BYTES))
        return ERR_CORRUPT;
    memcpy(ret->instance, in->instance.data, NODE_INSTANCE_BYTES);
    if (in->has_public_key)
        memcpy(ret->public_key, in->public_key.data, NODE_KEY_BYTES);
    err_t err = copy(in->name, &ret->name);
    if (!err)
        err = copy(in->address, &ret->address);
    if (!err)
        err = copy(in->domain ? in->domain : "", &ret->domain);
    if (!err)
        err = copy(m->drained, &ret->drained);
    return err;
}

static err_t read_secrets(const Dtd__SnapshotCluster *m, struct state_cluster *c)
{
    if (m->n_token > STATE_MAX_TOKENS || m->n_key > STATE_MAX_KEYS)
        return ERR_CORRUPT;
    for (size_t i = 0; i < m->n_token; i++) {
        const Dtd__RecordToken *t = m->token[i];
        if (!t->id || t->secret.len != TOKEN_SECRET_LENGTH)
            return ERR_CORRUPT;
        c->tokens[i] =
            (struct state_token){.id = t->id, .expires_ms = t->expires_ms, .until_ms = t->until_ms, .uses = t->uses};
        memcpy(c->tokens[i].secret, t->secret.data, TOKEN_SECRET_LENGTH);
        c->n_tokens++;
    }
    for (size_t i = 0; i < m->n_key; i++) {
        const Dtd__RecordKey *k = m->key[i];
        if (!k->version || k->secret.len != KEY_SECRET_LENGTH || (i && k->version <= m->key[i - 1]->version))
            return ERR_CORRUPT;
        c->keys[i].version = k->version;
        memcpy(c->keys[i].secret, k->secret.data, KEY_SECRET_LENGTH);
        c->n_keys++;
    }
    c->key_used = m->key_used;
    return state_lineage_get(m, c);
}

static err_t read_cluster(const Dtd__Snapshot *m, struct state *s)
{
    const Dtd__SnapshotCluster *from = m->cluster;
    struct state_cluster *c = &s->cluster;
    err_t err = OK;
    if (!from)
        return OK;
    if (!from->next_node || from->n_node > STATE_MAX_NODES)
        return ERR_CORRUPT;
    if (from->has_version && from->version > features_newest())
        return ERR_UNSUPPORTED;
    c->version = from->has_version ? from->version : 0;
    c->next_node = from->next_node;
    for (size_t i = 0; !err && i < from->n_node; i++) {
        err = from->node[i]->id < c->next_node ? state_node_reserve(c) : ERR_CORRUPT;
        if (!err)
            err = read_node(from->node[i], i ? &c->nodes[i - 1] : NULL, &c->nodes[c->n_nodes++]);
    }
    return err ? err : read_secrets(from, c);
}

/* The nodes of a change, in `ret`, which has room for them. */
static err_t read_changed(const Dtd__SnapshotCluster *m, struct state_node *ret, int *ret_n)
{
    err_t err = OK;
    for (size_t i = 0; !err && i < m->n_node; i++) {
        err = m->node[i]->id < m->next_node ? OK : ERR_CORRUPT;
        if (!err)
            err = read_node(m->node[i], i ? &ret[i - 1] : NULL, &ret[(*ret_n)++]);
    }
    return err;
}

/* As many as state_node_reserve assumes. */
static size_t node_capacity(size_t n)
{
    size_t ret = 4;
    while (ret < n)
        ret *= 2;
    return ret;
}

/* Moves the nodes that stay and the changed ones to `ret`, which has room for all; frees the others. `gone` is in the
 * order of the names of `old`. */
static int merge_nodes(struct state_cluster *old, const Dtd__SnapshotCluster *m, const struct state_node *changed,
                       int n_changed, struct state_node *ret)
{
    int at = 0, n = 0;
    size_t gone = 0;
    for (int i = 0; i < old->n_nodes; i++) {
        struct state_node *x = &old->nodes[i];
        while (at < n_changed && strcmp(changed[at].name, x->name) < 0)
            ret[n++] = changed[at++];
        bool is_replaced = at < n_changed && strcmp(changed[at].name, x->name) == 0;
        bool is_gone = gone < m->n_gone && m->gone[gone] == x->id;
        gone += is_gone;
        if (is_replaced)
            ret[n++] = changed[at++];
        else if (!is_gone)
            ret[n++] = *x;
        if (is_replaced || is_gone)
            state_node_fini(x);
    }
    while (at < n_changed)
        ret[n++] = changed[at++];
    return n;
}

static err_t merge_cluster(const Dtd__Snapshot *m, struct state *s)
{
    const Dtd__SnapshotCluster *from = m->cluster;
    struct state_cluster *c = &s->cluster, *fresh = calloc(1, sizeof(*fresh));
    size_t most = (size_t)c->n_nodes + from->n_node;
    struct state_node *changed = calloc(from->n_node + 1, sizeof(*changed));
    struct state_node *nodes = calloc(node_capacity(most), sizeof(*nodes));
    int n_changed = 0;
    err_t err = fresh && changed && nodes ? OK : ERR_NOMEM;
    if (!err && (!from->next_node || from->n_node > STATE_MAX_NODES))
        err = ERR_CORRUPT;
    if (!err && from->has_version && from->version > features_newest())
        err = ERR_UNSUPPORTED;
    if (!err)
        err = read_secrets(from, fresh);
    if (!err)
        err = read_changed(from, changed, &n_changed);
    if (err) {
        for (int i = 0; i < n_changed; i++)
            state_node_fini(&changed[i]);
        free(nodes);
    } else {
        for (int i = 0; i < n_changed; i++)
            changed[i].changed = c->changes + 1;
        fresh->n_nodes = merge_nodes(c, from, changed, n_changed, nodes);
        fresh->nodes = nodes;
        fresh->next_node = from->next_node;
        fresh->version = from->has_version ? from->version : 0;
        fresh->changes = c->changes + 1;
        free(c->nodes);
        *c = *fresh;
        s->next_job = m->next_job;
    }
    if (fresh)
        explicit_bzero(fresh, sizeof(*fresh));
    free(fresh);
    free(changed);
    return err;
}

err_t state_cluster_merge(struct state *s, const void *data, size_t len)
{
    struct rpc_alloc alloc;
    rpc_alloc_init(&alloc, len);
    Dtd__Snapshot *m = dtd__snapshot__unpack(&alloc.base, len, data);
    err_t err = !m                              ? rpc_alloc_error(&alloc)
                : !m->cluster || !m->next_job   ? ERR_CORRUPT
                : m->version > SNAPSHOT_VERSION ? ERR_UNSUPPORTED
                                                : merge_cluster(m, s);
    if (m)
        dtd__snapshot__free_unpacked(m, &alloc.base);
    return err;
}

/* A version without events wrote a snapshot without them. */
static err_t read_events(const Dtd__Snapshot *m, struct state *s)
{
    if (m->n_event > STATE_MAX_EVENTS || (m->has_next_event && !m->next_event))
        return ERR_CORRUPT;
    s->next_event = m->has_next_event ? m->next_event : 1;
    for (size_t i = 0; i < m->n_event; i++) {
        const Dtd__SnapshotEvent *e = m->event[i];
        if (e->id >= s->next_event || (i && e->id <= m->event[i - 1]->id) || strlen(e->text) > STATE_EVENT_TEXT)
            return ERR_CORRUPT;
        struct state_event *copy = state_event_copy(&(struct state_event){.id = e->id,
                                                                          .wall_ms = e->wall_ms,
                                                                          .clock_ms = e->clock_ms,
                                                                          .kind = (enum event_kind)e->kind,
                                                                          .job = e->job,
                                                                          .uid = e->uid,
                                                                          .epoch = e->epoch,
                                                                          .step = e->step,
                                                                          .node = e->node,
                                                                          .text = e->text});
        if (!copy)
            return ERR_NOMEM;
        s->events[s->n_events++] = copy;
    }
    return OK;
}

/* One field of a message on the wire. */
struct wire_field {
    const uint8_t *data; /* with its tag */
    size_t len;
    const uint8_t *body; /* of one with a length */
    size_t body_len;
    uint64_t number;
};

/* Stores a varint; returns its length, 0: it is not one. */
static size_t read_varint(const uint8_t *data, size_t len, uint64_t *ret)
{
    uint64_t value = 0;
    for (size_t i = 0; i < len && i < 10; i++) {
        value |= (uint64_t)(data[i] & 0x7f) << (7 * i);
        if (data[i] < 0x80) {
            *ret = value;
            return i + 1;
        }
    }
    return 0;
}

/* Returns the length of a field's value behind its tag at `from`; 0: there is none. */
static size_t value_length(struct wire_field *f, unsigned wire_type, size_t from, size_t len)
{
    uint64_t n = 0;
    size_t head = wire_type == 5 ? 4 : wire_type == 1 ? 8 : read_varint(f->data + from, len - from, &n);
    if (!head || head > len - from || wire_type == 3 || wire_type == 4 || wire_type > 5)
        return 0;
    if (wire_type != 2)
        return head;
    if (n > len - from - head)
        return 0;
    f->body = f->data + from + head;
    f->body_len = n;
    return head + n;
}

/* The field at the beginning of `data`. False: there is no whole one. */
static bool read_field(const uint8_t *data, size_t len, struct wire_field *ret)
{
    uint64_t tag;
    struct wire_field f = {.data = data};
    size_t head = read_varint(data, len, &tag);
    size_t value = head ? value_length(&f, tag & 7, head, len) : 0;
    f.number = head ? tag >> 3 : 0;
    f.len = head + value;
    *ret = f;
    return value > 0;
}

static bool is_job(const struct wire_field *f)
{
    return f->number == 3 && f->body; /* Snapshot.job */
}

/* Appends all fields but the jobs. */
static err_t collect_rest(const uint8_t *data, size_t len, struct buf *ret)
{
    struct wire_field f;
    err_t err = OK;
    for (size_t at = 0; !err && at < len; at += f.len) {
        if (!read_field(data + at, len - at, &f))
            return ERR_CORRUPT;
        if (!is_job(&f))
            err = buf_append(ret, f.data, f.len);
    }
    return err;
}

static err_t read_job_field(const struct wire_field *f, struct state *s)
{
    struct rpc_alloc alloc;
    rpc_alloc_init(&alloc, f->body_len);
    Dtd__SnapshotJob *m = dtd__snapshot_job__unpack(&alloc.base, f->body_len, f->body);
    if (!m)
        return rpc_alloc_error(&alloc);
    err_t err = read_next_job(m, s);
    dtd__snapshot_job__free_unpacked(m, &alloc.base);
    return err;
}

static err_t read_jobs(const uint8_t *data, size_t len, struct state *s)
{
    struct wire_field f;
    err_t err = OK;
    for (size_t at = 0; !err && at < len; at += f.len) {
        if (!read_field(data + at, len - at, &f))
            return ERR_CORRUPT;
        if (is_job(&f))
            err = read_job_field(&f, s);
    }
    return err;
}

static err_t read_rest(const Dtd__Snapshot *m, struct state *s)
{
    if (m->version > SNAPSHOT_VERSION)
        return ERR_UNSUPPORTED;
    if (!m->version || !m->next_job || m->clock_ms < 0)
        return ERR_CORRUPT;
    s->next_job = m->next_job;
    s->clock_ms = m->clock_ms;
    err_t err = read_requests(m, s);
    if (!err)
        err = read_cluster(m, s);
    if (!err)
        err = read_events(m, s);
    return err;
}

static err_t read_all(const void *data, size_t len, struct state *s)
{
    struct buf rest = {0};
    struct rpc_alloc alloc;
    err_t err = collect_rest(data, len, &rest);
    rpc_alloc_init(&alloc, rest.len);
    Dtd__Snapshot *m = err ? NULL : dtd__snapshot__unpack(&alloc.base, rest.len, rest.data);
    if (!err)
        err = m ? read_rest(m, s) : rpc_alloc_error(&alloc);
    if (m)
        dtd__snapshot__free_unpacked(m, &alloc.base);
    buf_fini(&rest);
    return err ? err : read_jobs(data, len, s);
}

err_t state_read(const void *data, size_t len, struct state **ret)
{
    struct state *fresh;
    err_t err = state_new(&fresh);
    if (err)
        return err;
    err = read_all(data, len, fresh);
    if (err)
        state_free(fresh);
    else
        *ret = fresh;
    return err;
}

void state_adopt(struct state *s, struct state *fresh)
{
    fresh->cluster.changes = s->cluster.changes + 1;
    for (int i = 0; i < fresh->cluster.n_nodes; i++)
        fresh->cluster.nodes[i].changed = fresh->cluster.changes;
    state_clear(s);
    *s = *fresh;
    *fresh = (struct state){0};
    state_free(fresh);
}

err_t state_restore(struct state *s, const void *data, size_t len)
{
    struct state *fresh;
    err_t err = state_read(data, len, &fresh);
    if (!err)
        state_adopt(s, fresh);
    return err;
}
