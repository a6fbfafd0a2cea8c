/* Adapter between proto/log.proto and struct record. Encoding fills a message that borrows the record's strings. A
 * decoded record keeps the unpacked message as its memory. Decoding checks what the type of a field does not express:
 * known values of enumerations, lengths, signs. Records from the own disk and from other nodes are both untrusted. */
#include "daemon/control/state/record.h"

#include "common/rpc/alloc.h"
#include "common/rpc/field_codec.h"
#include "daemon/control/state/features.h"
#include "proto/log.pb-c.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The memory of a decoded record, to which its pointers refer. */
struct memory {
    struct rpc_alloc alloc;
    Dtd__Record *message;
    struct state_member *members;
};

bool record_has_key(const uint8_t public_key[NODE_KEY_BYTES])
{
    static const uint8_t none[NODE_KEY_BYTES];
    return memcmp(public_key, none, NODE_KEY_BYTES) != 0;
}

/* ---- encoding ---- */

static err_t pack(const ProtobufCMessage *message, struct buf *ret)
{
    size_t bytes = protobuf_c_message_get_packed_size(message);
    if (bytes > RECORD_MAX_BYTES)
        return ERR_LIMIT;
    err_t err = buf_reserve(ret, bytes);
    if (!err)
        ret->len += protobuf_c_message_pack(message, ret->data + ret->len);
    return err;
}

static err_t encode_submitted(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    Dtd__RecordSubmitted s = DTD__RECORD_SUBMITTED__INIT;
    s.spec_yaml = (char *)r->submitted.spec;
    s.has_parent = r->submitted.parent != 0;
    s.parent = r->submitted.parent;
    s.uid = r->submitted.uid;
    m->kind_case = DTD__RECORD__KIND_SUBMITTED;
    m->submitted = &s;
    return pack(&m->base, ret);
}

static err_t encode_desired(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    Dtd__RecordDesired d = DTD__RECORD_DESIRED__INIT;
    d.job = r->job;
    d.desired = r->desired.desired;
    m->kind_case = DTD__RECORD__KIND_DESIRED;
    m->desired = &d;
    return pack(&m->base, ret);
}

static err_t encode_ended(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    Dtd__RecordEnded e = DTD__RECORD_ENDED__INIT;
    e.job = r->job;
    e.end = r->ended.end;
    e.reason = (char *)r->ended.reason;
    m->kind_case = DTD__RECORD__KIND_ENDED;
    m->ended = &e;
    return pack(&m->base, ret);
}

/* A kind of its own would stop nodes of older versions; they refuse a second end of a job without harm. */
static err_t encode_job_removed(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    Dtd__RecordEnded e = DTD__RECORD_ENDED__INIT;
    e.job = r->job;
    e.end = END_CANCELED;
    e.has_removed = e.removed = true;
    m->kind_case = DTD__RECORD__KIND_ENDED;
    m->ended = &e;
    return pack(&m->base, ret);
}

static err_t encode_epoch(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    if (r->epoch.n_members < 0 || r->epoch.n_members > RECORD_MAX_MEMBERS)
        return ERR_LIMIT;
    size_t n = (size_t)r->epoch.n_members;
    Dtd__LogMember *members = calloc(n + 1, sizeof(*members));
    Dtd__LogMember **list = calloc(n + 1, sizeof(Dtd__LogMember *));
    err_t err = members && list ? OK : ERR_NOMEM;
    for (size_t i = 0; !err && i < n; i++) {
        dtd__log_member__init(&members[i]);
        members[i].node = (char *)r->epoch.members[i].node;
        members[i].slot = r->epoch.members[i].slot;
        list[i] = &members[i];
    }
    if (!err) {
        Dtd__RecordEpoch e = DTD__RECORD_EPOCH__INIT;
        e.job = r->job;
        e.epoch = r->epoch.epoch;
        e.n_member = n;
        e.member = list;
        e.resume_step = r->epoch.resume_step;
        e.restarts = r->epoch.restarts;
        e.layout = (char *)r->epoch.layout;
        e.layout_why = (char *)r->epoch.layout_why;
        m->kind_case = DTD__RECORD__KIND_EPOCH;
        m->epoch = &e;
        err = pack(&m->base, ret);
    }
    free(list);
    free(members);
    return err;
}

static err_t encode_checkpoint(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    Dtd__RecordCheckpoint c = DTD__RECORD_CHECKPOINT__INIT;
    c.job = r->job;
    c.step = r->checkpoint.step;
    c.epoch = r->checkpoint.epoch;
    c.path = (char *)r->checkpoint.path;
    c.bytes = r->checkpoint.bytes;
    c.committed_ms = r->checkpoint.committed_ms;
    c.has_loss = !isnan(r->checkpoint.loss);
    c.loss = r->checkpoint.loss;
    m->kind_case = DTD__RECORD__KIND_CHECKPOINT;
    m->checkpoint = &c;
    return pack(&m->base, ret);
}

static err_t encode_removed(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    Dtd__RecordCheckpointRemoved c = DTD__RECORD_CHECKPOINT_REMOVED__INIT;
    c.job = r->job;
    c.step = r->removed.step;
    m->kind_case = DTD__RECORD__KIND_CHECKPOINT_REMOVED;
    m->checkpoint_removed = &c;
    return pack(&m->base, ret);
}

static err_t encode_incident(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    Dtd__RecordIncident i = DTD__RECORD_INCIDENT__INIT;
    i.job = r->job;
    m->kind_case = DTD__RECORD__KIND_INCIDENT;
    m->incident = &i;
    err_t err = fields_encode(&incident_fields, &r->incident, FIELDS_FOR_DAEMONS, &i.base);
    err = err ? err : pack(&m->base, ret);
    fields_encoded_fini(&i.base);
    return err;
}

static err_t encode_node(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    Dtd__RecordNode x = DTD__RECORD_NODE__INIT;
    x.name = (char *)r->node.name;
    x.address = (char *)r->node.address;
    x.domain = r->node.domain[0] ? (char *)r->node.domain : NULL;
    x.instance = (ProtobufCBinaryData){NODE_INSTANCE_BYTES, (uint8_t *)r->node.instance};
    x.has_token = r->node.token != 0;
    x.token = r->node.token;
    x.has_newest = r->node.newest > 1;
    x.newest = r->node.newest;
    x.has_public_key = record_has_key(r->node.public_key);
    x.public_key = (ProtobufCBinaryData){NODE_KEY_BYTES, (uint8_t *)r->node.public_key};
    m->kind_case = DTD__RECORD__KIND_NODE;
    m->node = &x;
    return pack(&m->base, ret);
}

static err_t encode_node_left(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    Dtd__RecordNodeLeft x = DTD__RECORD_NODE_LEFT__INIT;
    x.name = (char *)r->node_left.name;
    x.how = (char *)r->node_left.how;
    m->kind_case = DTD__RECORD__KIND_NODE_LEFT;
    m->node_left = &x;
    return pack(&m->base, ret);
}

static err_t encode_node_admin(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    Dtd__RecordNodeAdmin x = DTD__RECORD_NODE_ADMIN__INIT;
    x.name = (char *)r->node_admin.name;
    x.drained = (char *)r->node_admin.drained;
    m->kind_case = DTD__RECORD__KIND_NODE_ADMIN;
    m->node_admin = &x;
    return pack(&m->base, ret);
}

static err_t encode_token(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    Dtd__RecordToken x = DTD__RECORD_TOKEN__INIT;
    x.id = r->token.id;
    x.has_secret = x.has_expires_ms = x.has_uses = r->token.uses != 0;
    x.secret = (ProtobufCBinaryData){TOKEN_SECRET_LENGTH, (uint8_t *)r->token.secret};
    x.expires_ms = r->token.expires_ms;
    x.has_until_ms = r->token.until_ms != 0;
    x.until_ms = r->token.until_ms;
    x.uses = r->token.uses;
    m->kind_case = DTD__RECORD__KIND_TOKEN;
    m->token = &x;
    return pack(&m->base, ret);
}

static err_t encode_key(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    Dtd__RecordKey x = DTD__RECORD_KEY__INIT;
    x.version = r->key.version;
    x.step = r->key.step;
    x.has_secret = r->key.step == KEY_ADDED;
    x.secret = (ProtobufCBinaryData){KEY_SECRET_LENGTH, (uint8_t *)r->key.secret};
    m->kind_case = DTD__RECORD__KIND_KEY;
    m->key = &x;
    return pack(&m->base, ret);
}

static err_t encode_lineage(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    Dtd__RecordLineage x = DTD__RECORD_LINEAGE__INIT;
    Dtd__RecordKey key = DTD__RECORD_KEY__INIT;
    x.id = r->lineage.id;
    x.generation = r->lineage.generation;
    x.by = r->lineage.by[0] ? (char *)r->lineage.by : NULL;
    x.has_uid = r->lineage.by[0] != '\0';
    x.uid = r->lineage.uid;
    x.n_gone = (size_t)r->lineage.n_gone;
    x.gone = (uint64_t *)r->lineage.gone;
    key.version = r->lineage.key;
    key.step = KEY_ADDED;
    key.has_secret = true;
    key.secret = (ProtobufCBinaryData){KEY_SECRET_LENGTH, (uint8_t *)r->lineage.secret};
    x.key = r->lineage.key ? &key : NULL;
    m->kind_case = DTD__RECORD__KIND_LINEAGE;
    m->lineage = &x;
    return pack(&m->base, ret);
}

static err_t encode_cluster_version(const struct record *r, Dtd__Record *m, struct buf *ret)
{
    Dtd__RecordClusterVersion x = DTD__RECORD_CLUSTER_VERSION__INIT;
    x.version = r->cluster_version.version;
    x.next_node = r->cluster_version.next_node;
    m->kind_case = DTD__RECORD__KIND_CLUSTER_VERSION;
    m->cluster_version = &x;
    return pack(&m->base, ret);
}

static err_t (*const encoders[])(const struct record *r, Dtd__Record *m, struct buf *ret) = {
    [RECORD_SUBMITTED] = encode_submitted,
    [RECORD_DESIRED] = encode_desired,
    [RECORD_ENDED] = encode_ended,
    [RECORD_EPOCH] = encode_epoch,
    [RECORD_CHECKPOINT] = encode_checkpoint,
    [RECORD_CHECKPOINT_REMOVED] = encode_removed,
    [RECORD_INCIDENT] = encode_incident,
    [RECORD_NODE] = encode_node,
    [RECORD_NODE_LEFT] = encode_node_left,
    [RECORD_NODE_ADMIN] = encode_node_admin,
    [RECORD_TOKEN] = encode_token,
    [RECORD_KEY] = encode_key,
    [RECORD_JOB_REMOVED] = encode_job_removed,
    [RECORD_LINEAGE] = encode_lineage,
    [RECORD_CLUSTER_VERSION] = encode_cluster_version,
};
#define N_KINDS (sizeof(encoders) / sizeof(encoders[0]))

/* Records contain values that processes of users supply. A committed record that cannot be decoded would stop
 * dtd-control on every node, again after each start. Therefore each record is decoded before it is proposed. */
static err_t read_back(const struct buf *bytes, size_t from)
{
    struct record r;
    err_t err = record_decode(bytes->data + from, bytes->len - from, &r);
    if (!err)
        record_fini(&r);
    return err == ERR_CORRUPT ? ERR_INVALID : err;
}

err_t record_encode(const struct record *record, struct buf *ret)
{
    const size_t from = ret->len;
    if ((size_t)record->kind >= N_KINDS || !encoders[record->kind])
        return ERR_INVALID;
    Dtd__Record m = DTD__RECORD__INIT;
    m.version = feature_of_record(record);
    m.wall_ms = record->wall_ms;
    m.has_clock_ms = record->clock_ms != 0;
    m.clock_ms = record->clock_ms;
    m.has_request_id = record->has_request;
    m.request_id.data = (uint8_t *)record->request_id;
    m.request_id.len = REQUEST_ID_BYTES;
    err_t err = encoders[record->kind](record, &m, ret);
    err = err ? err : read_back(ret, from);
    if (err)
        ret->len = from;
    return err;
}

/* ---- decoding ---- */

static err_t decode_submitted(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    (void)mem;
    r->kind = RECORD_SUBMITTED;
    r->submitted.spec = m->submitted->spec_yaml;
    r->submitted.parent = m->submitted->has_parent ? m->submitted->parent : 0;
    r->submitted.uid = m->submitted->uid;
    return OK;
}

static err_t decode_desired(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    (void)mem;
    r->kind = RECORD_DESIRED;
    r->job = m->desired->job;
    r->desired.desired = (enum state_desired)m->desired->desired;
    return m->desired->desired >= DESIRED_RUN && m->desired->desired <= DESIRED_SAVED ? OK : ERR_CORRUPT;
}

static err_t decode_ended(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    (void)mem;
    r->kind = m->ended->has_removed && m->ended->removed ? RECORD_JOB_REMOVED : RECORD_ENDED;
    r->job = m->ended->job;
    r->ended.end = (enum state_end)m->ended->end;
    r->ended.reason = m->ended->reason;
    return m->ended->end >= END_DONE && m->ended->end <= END_CANCELED ? OK : ERR_CORRUPT;
}

static err_t decode_epoch(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    const Dtd__RecordEpoch *e = m->epoch;
    if (!e->epoch || e->n_member > RECORD_MAX_MEMBERS || e->resume_step < 0 || e->restarts < 0)
        return ERR_CORRUPT;
    mem->members = calloc(e->n_member + 1, sizeof(*mem->members));
    if (!mem->members)
        return ERR_NOMEM;
    for (size_t i = 0; i < e->n_member; i++)
        mem->members[i] = (struct state_member){.node = e->member[i]->node, .slot = e->member[i]->slot};
    r->kind = RECORD_EPOCH;
    r->job = e->job;
    r->epoch.epoch = e->epoch;
    r->epoch.members = mem->members;
    r->epoch.n_members = (int)e->n_member;
    r->epoch.resume_step = e->resume_step;
    r->epoch.restarts = e->restarts;
    r->epoch.layout = e->layout;
    r->epoch.layout_why = e->layout_why;
    return OK;
}

static err_t decode_checkpoint(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    (void)mem;
    const Dtd__RecordCheckpoint *c = m->checkpoint;
    r->kind = RECORD_CHECKPOINT;
    r->job = c->job;
    r->checkpoint = (struct state_checkpoint){
        .step = c->step,
        .epoch = c->epoch,
        .path = c->path,
        .bytes = c->bytes,
        .committed_ms = c->committed_ms,
        .loss = c->has_loss ? c->loss : NAN,
    };
    return c->step >= 0 && c->bytes >= 0 ? OK : ERR_CORRUPT;
}

static err_t decode_removed(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    (void)mem;
    r->kind = RECORD_CHECKPOINT_REMOVED;
    r->job = m->checkpoint_removed->job;
    r->removed.step = m->checkpoint_removed->step;
    return OK;
}

static err_t decode_incident(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    (void)mem;
    r->kind = RECORD_INCIDENT;
    r->job = m->incident->job;
    fields_decode(&incident_fields, &m->incident->base, &r->incident);
    return OK;
}

static bool fits(const char *text, size_t max)
{
    return strnlen(text, max + 1) <= max;
}

static err_t decode_node(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    (void)mem;
    const Dtd__RecordNode *x = m->node;
    if (!x->name[0] || !fits(x->name, NODE_NAME_MAX) || !fits(x->address, NODE_TEXT_MAX) ||
        (x->domain && !fits(x->domain, NODE_TEXT_MAX)) || x->instance.len != NODE_INSTANCE_BYTES ||
        (x->has_public_key && x->public_key.len != NODE_KEY_BYTES))
        return ERR_CORRUPT;
    r->kind = RECORD_NODE;
    r->node.name = x->name;
    r->node.address = x->address;
    r->node.domain = x->domain ? x->domain : "";
    memcpy(r->node.instance, x->instance.data, NODE_INSTANCE_BYTES);
    r->node.token = x->has_token ? x->token : 0;
    r->node.newest = x->has_newest && x->newest ? x->newest : 1;
    if (x->has_public_key)
        memcpy(r->node.public_key, x->public_key.data, NODE_KEY_BYTES);
    return OK;
}

static err_t decode_node_left(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    (void)mem;
    r->kind = RECORD_NODE_LEFT;
    r->node_left.name = m->node_left->name;
    r->node_left.how = m->node_left->how;
    return OK;
}

static err_t decode_node_admin(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    (void)mem;
    r->kind = RECORD_NODE_ADMIN;
    r->node_admin.name = m->node_admin->name;
    r->node_admin.drained = m->node_admin->drained;
    return !r->node_admin.drained || fits(r->node_admin.drained, NODE_REASON_MAX) ? OK : ERR_CORRUPT;
}

static err_t decode_token(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    (void)mem;
    const Dtd__RecordToken *x = m->token;
    bool is_back = !x->has_secret && !x->has_uses;
    if (!x->id ||
        (!is_back && (!x->has_secret || x->secret.len != TOKEN_SECRET_LENGTH || !x->has_expires_ms || !x->uses)))
        return ERR_CORRUPT;
    r->kind = RECORD_TOKEN;
    r->token.id = x->id;
    r->token.expires_ms = x->expires_ms;
    r->token.until_ms = x->until_ms;
    r->token.uses = is_back ? 0 : x->uses;
    if (!is_back)
        memcpy(r->token.secret, x->secret.data, TOKEN_SECRET_LENGTH);
    return OK;
}

static err_t decode_key(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    (void)mem;
    const Dtd__RecordKey *x = m->key;
    if (!x->version || x->step < KEY_ADDED || x->step > KEY_DROPPED ||
        (x->step == KEY_ADDED && (!x->has_secret || x->secret.len != KEY_SECRET_LENGTH)))
        return ERR_CORRUPT;
    r->kind = RECORD_KEY;
    r->key.version = x->version;
    r->key.step = (enum state_key_step)x->step;
    if (x->step == KEY_ADDED)
        memcpy(r->key.secret, x->secret.data, KEY_SECRET_LENGTH);
    return OK;
}

static err_t decode_lineage(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    (void)mem;
    const Dtd__RecordLineage *x = m->lineage;
    const Dtd__RecordKey *key = x->key;
    if (!x->id || !x->generation || (x->by && !fits(x->by, NODE_NAME_MAX)) || x->n_gone > INT_MAX ||
        (key && (!key->version || !key->has_secret || key->secret.len != KEY_SECRET_LENGTH)))
        return ERR_CORRUPT;
    r->kind = RECORD_LINEAGE;
    r->lineage.id = x->id;
    r->lineage.generation = x->generation;
    r->lineage.by = x->by ? x->by : "";
    r->lineage.uid = x->uid;
    r->lineage.gone = x->gone;
    r->lineage.n_gone = (int)x->n_gone;
    r->lineage.key = key ? key->version : 0;
    if (key)
        memcpy(r->lineage.secret, key->secret.data, KEY_SECRET_LENGTH);
    return OK;
}

static err_t decode_cluster_version(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    (void)mem;
    r->kind = RECORD_CLUSTER_VERSION;
    r->cluster_version.version = m->cluster_version->version;
    r->cluster_version.next_node = m->cluster_version->next_node;
    return m->cluster_version->version > features_newest() ? ERR_UNSUPPORTED
           : m->cluster_version->version < 2               ? ERR_CORRUPT
                                                           : OK;
}

static const struct {
    Dtd__Record__KindCase kind;
    err_t (*decode)(const Dtd__Record *m, struct memory *mem, struct record *r);
} decoders[] = {
    {DTD__RECORD__KIND_SUBMITTED, decode_submitted},   {DTD__RECORD__KIND_DESIRED, decode_desired},
    {DTD__RECORD__KIND_ENDED, decode_ended},           {DTD__RECORD__KIND_EPOCH, decode_epoch},
    {DTD__RECORD__KIND_CHECKPOINT, decode_checkpoint}, {DTD__RECORD__KIND_CHECKPOINT_REMOVED, decode_removed},
    {DTD__RECORD__KIND_INCIDENT, decode_incident},     {DTD__RECORD__KIND_NODE, decode_node},
    {DTD__RECORD__KIND_NODE_LEFT, decode_node_left},   {DTD__RECORD__KIND_NODE_ADMIN, decode_node_admin},
    {DTD__RECORD__KIND_TOKEN, decode_token},           {DTD__RECORD__KIND_KEY, decode_key},
    {DTD__RECORD__KIND_LINEAGE, decode_lineage},       {DTD__RECORD__KIND_CLUSTER_VERSION, decode_cluster_version},
};

static err_t decode_kind(const Dtd__Record *m, struct memory *mem, struct record *r)
{
    for (size_t i = 0; i < sizeof(decoders) / sizeof(decoders[0]); i++)
        if (decoders[i].kind == m->kind_case)
            return decoders[i].decode(m, mem, r);
    return ERR_CORRUPT; /* this dtd has all kinds of records of its cluster versions */
}

static err_t decode_message(struct memory *mem, struct record *r)
{
    const Dtd__Record *m = mem->message;
    if (m->version > features_newest())
        return ERR_UNSUPPORTED;
    if (!m->version || m->clock_ms < 0 || (m->has_request_id && m->request_id.len != REQUEST_ID_BYTES))
        return ERR_CORRUPT;
    *r = (struct record){
        .wall_ms = m->wall_ms, .clock_ms = m->clock_ms, .has_request = m->has_request_id, .memory = mem};
    if (m->has_request_id)
        memcpy(r->request_id, m->request_id.data, REQUEST_ID_BYTES);
    return decode_kind(m, mem, r);
}

err_t record_decode(const void *data, size_t len, struct record *ret)
{
    if (len > RECORD_MAX_BYTES)
        return ERR_CORRUPT;
    struct memory *mem = calloc(1, sizeof(*mem));
    if (!mem)
        return ERR_NOMEM;
    struct record r = {.memory = mem};
    rpc_alloc_init(&mem->alloc, len);
    mem->message = dtd__record__unpack(&mem->alloc.base, len, data);
    err_t err = mem->message ? decode_message(mem, &r) : rpc_alloc_error(&mem->alloc);
    if (err)
        record_fini(&r);
    else
        *ret = r;
    return err;
}

void record_fini(struct record *record)
{
    struct memory *mem = record->memory;
    if (mem) {
        dtd__record__free_unpacked(mem->message, &mem->alloc.base);
        free(mem->members);
        free(mem);
    }
    *record = (struct record){0};
}
