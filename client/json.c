/* Fields without a value are absent, not null, so that `jq '.valid_loss // empty'` and a table agree. A loss that is
 * NAN is null, because it was measured. jansson refuses text that is not UTF-8, but file names and log lines may hold
 * any bytes, so all text goes through json_of_text. */
#include "client/json.h"

#include "client/field_text.h"
#include "client/out.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

json_t *json_of_text(const char *text, size_t len)
{
    static const char replacement[] = {'\xef', '\xbf', '\xbd'};
    json_t *ret = json_stringn(text, len);
    if (ret)
        return ret;
    char *copy = malloc(3 * len + 1);
    size_t n = 0;
    for (size_t i = 0; copy && i < len; i++) {
        if ((unsigned char)text[i] < 0x80) {
            copy[n++] = text[i];
        } else {
            for (size_t k = 0; k < sizeof(replacement); k++)
                copy[n++] = replacement[k];
        }
    }
    ret = copy ? json_stringn(copy, n) : NULL;
    free(copy);
    return ret;
}

static json_t *text_of(const char *text)
{
    return json_of_text(text, strlen(text));
}

/* ---- building objects: a set that fails makes the object NULL, and later sets on NULL do nothing ---- */

static void set_field(json_t **object, const char *key, json_t *value)
{
    if (!*object) {
        json_decref(value);
    } else if (!value || json_object_set_new(*object, key, value)) {
        json_decref(*object);
        *object = NULL;
    }
}

static void set_int(json_t **object, const char *key, int64_t value)
{
    set_field(object, key, json_integer(value));
}

static void set_text(json_t **object, const char *key, const char *value)
{
    if (value[0])
        set_field(object, key, text_of(value));
}

static json_t *json_of_traffic(const struct traffic *t)
{
    char axes[MESH_AXES_NAME];
    json_t *ret = json_object();
    for (int i = 0; i < t->n; i++)
        set_int(&ret, mesh_axes_name(t->axes[i], axes), t->bytes[i]);
    return ret;
}

static json_t *json_of_field(const struct field *f, const void *object)
{
    const struct field_value v = field_get(f, object);
    switch (f->kind) {
    case FIELD_TEXT:
        return text_of(v.text ? v.text : "");
    case FIELD_REAL:
        return out_json_real(v.real);
    case FIELD_BOOL:
        return json_boolean(v.whole);
    case FIELD_INT:
    case FIELD_UINT:
        break;
    }
    return json_integer(v.whole);
}

static json_t *json_of_fields(const struct field_table *t, const void *object)
{
    json_t *ret = json_object();
    for (int i = 0; i < t->n; i++) {
        const struct field *f = &t->field[i];
        if (f->presence == FIELD_REQUIRED || (f->presence == FIELD_OPTIONAL && field_shown(f, object)))
            set_field(&ret, f->name, json_of_field(f, object));
    }
    return ret;
}

json_t *json_of_metric(const struct metric *m)
{
    json_t *ret = json_of_fields(&metric_fields, m);
    if (m->traffic.n)
        set_field(&ret, "bytes", json_of_traffic(&m->traffic));
    return ret;
}

static void set_spread(json_t **o, const char *name, const struct metric_spread *s)
{
    const struct {
        const char *suffix;
        double value;
    } parts[] = {{"min", s->min}, {"max", s->max}, {"mean", s->sum / (double)s->n}};
    char key[64];
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        snprintf(key, sizeof(key), "%s_%s", name, parts[i].suffix);
        set_field(o, key, json_real(parts[i].value));
    }
}

json_t *json_of_point(const struct metric_point *p)
{
    json_t *ret = json_of_metric(&p->last);
    if (p->steps == 1)
        return ret;
    set_int(&ret, "steps", p->steps);
    for (int i = 0; i < metric_fields.n; i++)
        if (p->of[i].n && metric_has_spread(&metric_fields.field[i]))
            set_spread(&ret, metric_fields.field[i].name, &p->of[i]);
    const int64_t finite = p->of[field_find(&metric_fields, "loss") - metric_fields.field].n;
    if (finite < p->steps)
        set_int(&ret, "not_finite", p->steps - finite);
    return ret;
}

json_t *json_of_usage(const struct usage_sample *s)
{
    struct buf line = {0};
    json_t *ret = usage_line_format(s, &line) ? NULL : json_loadb((const char *)line.data, line.len, 0, NULL);
    buf_fini(&line);
    return ret;
}

static json_t *json_of_straggler(const struct client_straggler *k)
{
    json_t *ret = json_object();
    set_int(&ret, "rank", k->rank);
    set_text(&ret, "node", k->node);
    set_field(&ret, "ratio", out_json_real(k->ratio));
    set_int(&ret, "since_ms", k->since_ms);
    set_text(&ret, "text", k->text);
    return ret;
}

static json_t *json_of_worker(const struct client_worker *w)
{
    json_t *ret = json_object();
    set_int(&ret, "rank", w->rank);
    set_int(&ret, "pid", w->pid);
    set_field(&ret, "state", text_of(w->state));
    set_text(&ret, "node", w->node);
    if (w->exit_status >= 0)
        set_int(&ret, "exit_status", w->exit_status);
    if (w->exit_signal >= 0)
        set_int(&ret, "exit_signal", w->exit_signal);
    return ret;
}

static void array_append(json_t **array, json_t *value)
{
    if (!*array) {
        json_decref(value);
    } else if (!value || json_array_append_new(*array, value)) {
        json_decref(*array);
        *array = NULL;
    }
}

json_t *json_of_incidents(const struct client_job *job, int only)
{
    json_t *ret = json_array();
    for (int i = 0; i < job->n_incident; i++)
        if (only == 0 || only == i + 1)
            array_append(&ret, json_of_fields(&incident_fields, &job->incident[i]));
    return ret;
}

static void set_times(json_t **object, const struct client_job *job)
{
    set_int(object, "submitted_ms", job->submitted_ms);
    if (job->started_ms)
        set_int(object, "started_ms", job->started_ms);
    if (job->ended_ms)
        set_int(object, "ended_ms", job->ended_ms);
    set_int(object, "age_ms", job->now_ms - job->submitted_ms);
}

json_t *json_of_job(const struct client_job *job)
{
    json_t *ret = json_object(), *workers = json_array(), *incidents = json_array(), *stragglers = json_array();
    set_field(&ret, "job", text_of(job->job));
    set_field(&ret, "name", text_of(job->name));
    set_field(&ret, "state", text_of(job->state));
    set_text(&ret, "reason", job->reason);
    set_int(&ret, "epoch", (int64_t)job->epoch);
    set_int(&ret, "step", job->step);
    set_int(&ret, "steps", job->steps);
    set_int(&ret, "workers", job->workers);
    if (job->max_workers)
        set_int(&ret, "max_workers", job->max_workers);
    set_text(&ret, "layout_why", job->layout_why);
    set_int(&ret, "restarts", job->restarts);
    set_times(&ret, job);
    if (job->grace_left_ms > 0)
        set_int(&ret, "grace_left_ms", job->grace_left_ms);
    set_text(&ret, "checkpoint_dir", job->checkpoint_dir);
    if (job->checkpoint_step >= 0)
        set_int(&ret, "checkpoint_step", job->checkpoint_step);
    set_text(&ret, "checkpoint_error", job->checkpoint_error);
    if (job->has_last)
        set_field(&ret, "last", json_of_metric(&job->last));
    for (int i = 0; i < job->n_worker; i++)
        array_append(&workers, json_of_worker(&job->worker[i]));
    set_field(&ret, "worker", workers);
    for (int i = 0; i < job->n_straggler; i++)
        array_append(&stragglers, json_of_straggler(&job->straggler[i]));
    if (job->n_straggler)
        set_field(&ret, "straggler", stragglers);
    else
        json_decref(stragglers);
    set_text(&ret, "parent", job->parent);
    set_text(&ret, "user", job->user);
    set_text(&ret, "spec_yaml", job->spec_yaml);
    for (int i = 0; i < job->n_incident; i++)
        array_append(&incidents, json_of_fields(&incident_fields, &job->incident[i]));
    set_field(&ret, "incident", incidents);
    if (job->start.epoch)
        set_field(&ret, "start", json_of_fields(&incident_fields, &job->start));
    return ret;
}

static json_t *json_of_numa_nodes(const struct client_node *node)
{
    json_t *ret = json_array();
    for (int i = 0; i < node->n_numa_node; i++) {
        const struct client_numa_node *numa = &node->numa_node[i];
        json_t *one = json_object(), *gpus = json_array();
        set_int(&one, "number", numa->number);
        set_field(&one, "cores", text_of(numa->cores));
        for (int k = 0; k < numa->n_gpu; k++)
            array_append(&gpus, json_integer(numa->gpu[k]));
        set_field(&one, "gpus", gpus);
        array_append(&ret, one);
    }
    return ret;
}

static json_t *json_of_load(const struct node_load *load)
{
    json_t *ret = json_of_fields(&node_load_fields, load), *gpus = json_array();
    for (int i = 0; i < load->n_gpu; i++)
        array_append(&gpus, json_of_fields(&gpu_load_fields, &load->gpu[i]));
    set_field(&ret, "gpu", gpus);
    return ret;
}

json_t *json_of_node(const struct client_node *node)
{
    json_t *ret = json_object(), *pids = json_array();
    set_field(&ret, "version", text_of(node->version));
    set_field(&ret, "node", text_of(node->node));
    set_int(&ret, "supervisor_pid", node->supervisor_pid);
    set_int(&ret, "control_pid", node->control_pid);
    for (int i = 0; i < node->n_io; i++)
        array_append(&pids, json_integer(node->io_pid[i]));
    set_field(&ret, "io_pid", pids);
    set_field(&ret, "state_dir", text_of(node->state_dir));
    set_int(&ret, "slots", node->slots);
    set_field(&ret, "raft_state", text_of(node->raft_state));
    set_int(&ret, "raft_term", (int64_t)node->raft_term);
    set_int(&ret, "raft_index", (int64_t)node->raft_index);
    set_text(&ret, "warning", node->warning);
    if (node->gpus >= 0) {
        set_int(&ret, "gpus", node->gpus);
        set_int(&ret, "gpus_free", node->gpus_free);
    }
    if (node->gpu_probe_ms)
        set_int(&ret, "gpu_probe_ms", node->gpu_probe_ms);
    set_text(&ret, "gpu_model", node->gpu_model);
    set_text(&ret, "gpu_missing", node->gpu_missing);
    if (node->use.slots_used >= 0)
        set_int(&ret, "slots_used", node->use.slots_used);
    set_text(&ret, "drained", node->drained);
    if (node->n_numa_node)
        set_field(&ret, "numa_nodes", json_of_numa_nodes(node));
    if (node->load)
        set_field(&ret, "load", json_of_load(node->load));
    return ret;
}

json_t *json_of_scalar(const struct ckpt_scalar *s)
{
    switch (s->kind) {
    case CKPT_INT:
        return json_integer(s->i);
    case CKPT_FLOAT:
        return out_json_real(s->f[0]);
    case CKPT_BOOL:
        return json_boolean(s->i != 0);
    case CKPT_STR:
        return text_of(s->s);
    case CKPT_FLOAT_PAIR:
        return json_pack("[o, o]", out_json_real(s->f[0]), out_json_real(s->f[1]));
    case CKPT_NONE:
        return json_null();
    case CKPT_OPAQUE:
        break;
    }
    return json_string("(a Python object that dtd does not read)");
}

json_t *json_of_event(const struct client_event *e)
{
    json_t *o =
        json_pack("{s:I, s:I, s:s}", "id", (json_int_t)e->id, "wall_ms", (json_int_t)e->wall_ms, "type", e->type);
    set_text(&o, "job", e->job);
    set_text(&o, "name", e->name);
    set_text(&o, "node", e->node);
    if (e->epoch)
        set_int(&o, "epoch", (int64_t)e->epoch);
    if (e->step >= 0)
        set_int(&o, "step", e->step);
    set_text(&o, "text", e->text);
    return o;
}

/* ---- the cluster ---- */

static const char *some(const char *text)
{
    return text[0] ? text : NULL;
}

static json_t *json_of_names(char *const *names, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_string(names[i]));
    return list;
}

/* The list "A,B" of a node. */
static json_t *json_of_addresses(const char *list)
{
    json_t *ret = json_array();
    for (size_t n; *list; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        array_append(&ret, json_stringn(list, n));
    }
    return ret;
}

static void set_use(json_t **object, const struct client_node_use *u)
{
    const struct {
        const char *name;
        int value;
    } counts[] = {{"slots", u->slots}, {"slots_used", u->slots_used}, {"gpus", u->gpus}, {"gpus_free", u->gpus_free}};
    for (size_t i = 0; i < sizeof(counts) / sizeof(counts[0]); i++)
        if (counts[i].value >= 0)
            set_int(object, counts[i].name, counts[i].value);
    set_text(object, "warning", u->warning);
}

static json_t *json_of_cluster_node(const struct client_cluster_node *n)
{
    json_t *o = json_pack("{s:s, s:I, s:s%, s:s, s:s*, s:s*, s:s*, s:s*}", "name", n->name, "id", (json_int_t)n->id,
                          "address", n->address, strcspn(n->address, ","), "state", n->state, "role", some(n->role),
                          "domain", some(n->domain), "drained", some(n->drained), "version", some(n->version));
    set_field(&o, "addresses", json_of_addresses(n->address));
    if (o)
        set_use(&o, &n->use);
    if (o && n->identity[0])
        json_object_set_new(o, "identity", json_string(n->identity));
    if (o && n->silent_ms)
        json_object_set_new(o, "silent_ms", json_integer(n->silent_ms));
    if (o && n->load)
        json_object_set_new(o, "load", json_of_load(n->load));
    if (o && n->log_index)
        json_object_set_new(o, "log_index", json_integer((json_int_t)n->log_index));
    if (o && n->newest)
        json_object_set_new(o, "cluster_version", json_integer((json_int_t)n->newest));
    return o;
}

json_t *json_of_cluster(const struct client_cluster *c)
{
    json_t *nodes = json_array();
    for (int i = 0; i < c->n_node; i++)
        json_array_append_new(nodes, json_of_cluster_node(&c->node[i]));
    json_t *o = json_pack("{s:s, s:s*, s:o, s:s*, s:I, s:I, s:i, s:i}", "self", c->self, "leader", some(c->leader),
                          "node", nodes, "note", some(c->note), "log_index", (json_int_t)c->log_index, "log_term",
                          (json_int_t)c->log_term, "key", (int)c->key, "keys", (int)c->keys);
    if (o && c->version)
        json_object_set_new(o, "cluster_version", json_integer((json_int_t)c->version));
    if (o && c->next_version)
        json_object_set_new(o, "next_version", json_integer((json_int_t)c->next_version));
    if (o && c->next_version)
        json_object_set_new(o, "held_back", json_of_names(c->held_back, c->n_held_back));
    char id[17];
    snprintf(id, sizeof(id), "%016" PRIx64, c->id);
    if (o && c->id)
        json_object_set_new(o, "id", json_string(id));
    if (o && c->generation)
        json_object_set_new(o, "generation", json_integer((json_int_t)c->generation));
    if (o && c->recovered_by[0]) {
        json_object_set_new(o, "recovered_ms", json_integer(c->recovered_ms));
        json_object_set_new(o, "recovered_by", json_string(c->recovered_by));
    }
    return o;
}
