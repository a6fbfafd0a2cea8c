/* Conversion of protobuf messages to plain structs. Everything is copied, because rpc frees a reply when its callback
 * returns. */
#include "client/convert.h"

#include "common/base/clock.h"
#include "common/rpc/field_codec.h"
#include "common/rpc/node_load_codec.h"

#include <math.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *text_copy(const char *text)
{
    return strdup(text ? text : "");
}

static bool workers_copy(const Dtd__JobStatus *s, struct client_job *ret)
{
    ret->worker = calloc(s->n_worker + 1, sizeof(*ret->worker));
    if (!ret->worker)
        return false;
    for (size_t i = 0; i < s->n_worker; i++) {
        const Dtd__WorkerStatus *w = s->worker[i];
        struct client_worker *to = &ret->worker[ret->n_worker++];
        *to = (struct client_worker){.rank = w->rank,
                                     .pid = w->pid,
                                     .state = text_copy(w->state),
                                     .node = text_copy(w->node ? w->node : ""),
                                     .exit_status = w->has_exit_status ? w->exit_status : -1,
                                     .exit_signal = w->has_exit_signal ? w->exit_signal : -1};
        if (!to->state || !to->node)
            return false;
    }
    return true;
}

static bool incidents_copy(const Dtd__JobStatus *s, struct client_job *ret)
{
    ret->incident = calloc(s->n_incident + 1, sizeof(*ret->incident));
    if (!ret->incident)
        return false;
    for (size_t i = 0; i < s->n_incident; i++) {
        struct incident borrowed;
        fields_decode(&incident_fields, &s->incident[i]->base, &borrowed);
        if (fields_copy(&incident_fields, &borrowed, &ret->incident[ret->n_incident]))
            return false;
        ret->n_incident++;
    }
    if (!s->start)
        return true;
    struct incident borrowed;
    fields_decode(&incident_fields, &s->start->base, &borrowed);
    return fields_copy(&incident_fields, &borrowed, &ret->start) == OK;
}

static bool stragglers_copy(const Dtd__JobStatus *s, struct client_job *ret)
{
    ret->straggler = calloc(s->n_straggler + 1, sizeof(*ret->straggler));
    if (!ret->straggler)
        return false;
    for (size_t i = 0; i < s->n_straggler; i++) {
        const Dtd__Straggler *k = s->straggler[i];
        struct client_straggler *to = &ret->straggler[ret->n_straggler++];
        *to = (struct client_straggler){.rank = k->rank,
                                        .ratio = k->ratio,
                                        .since_ms = k->since_ms,
                                        .node = text_copy(k->node),
                                        .text = text_copy(k->text)};
        if (!to->node || !to->text)
            return false;
    }
    return true;
}

/* The name of a user that control has not looked up yet, because it does not wait for the name service. Jobs of a list
 * often have the same owner, so the last name is kept. */
static const char *user_name(uint32_t uid)
{
    static char last[80];
    static uint32_t last_uid;
    if (last[0] && uid == last_uid)
        return last;
    const struct passwd *pw = getpwuid(uid);
    if (pw)
        snprintf(last, sizeof(last), "%.64s", pw->pw_name);
    else
        snprintf(last, sizeof(last), "uid %u", uid);
    last_uid = uid;
    return last;
}

static bool texts_copy(const Dtd__JobStatus *s, struct client_job *ret)
{
    ret->job = text_copy(s->job);
    ret->name = text_copy(s->name);
    ret->state = text_copy(s->state);
    ret->reason = text_copy(s->reason);
    ret->checkpoint_dir = text_copy(s->checkpoint_dir);
    ret->checkpoint_error = text_copy(s->checkpoint_error);
    ret->parent = text_copy(s->parent);
    ret->spec_yaml = text_copy(s->spec_yaml);
    ret->layout_why = text_copy(s->layout_why);
    ret->user = text_copy(s->user || !s->has_uid ? s->user : user_name(s->uid));
    return ret->job && ret->name && ret->state && ret->reason && ret->checkpoint_dir && ret->checkpoint_error &&
           ret->parent && ret->spec_yaml && ret->layout_why && ret->user;
}

err_t convert_job(const Dtd__JobStatus *s, struct client_job *ret)
{
    struct client_job job = {.epoch = s->epoch,
                             .step = s->step,
                             .steps = s->steps,
                             .workers = s->workers,
                             .max_workers = s->max_workers,
                             .grace_left_ms = s->grace_left_ms,
                             .restarts = s->restarts,
                             .submitted_ms = s->submitted_ms,
                             .started_ms = s->has_started_ms ? s->started_ms : 0,
                             .ended_ms = s->has_ended_ms ? s->ended_ms : 0,
                             .now_ms = s->has_age_ms ? s->submitted_ms + s->age_ms : clock_wall_ms(),
                             .last_age_ms = s->has_last_age_ms ? s->last_age_ms : -1,
                             .saved_age_ms = s->has_saved_age_ms ? s->saved_age_ms : -1,
                             .checkpoint_step = s->has_checkpoint_step ? s->checkpoint_step : -1,
                             .has_last = s->last != NULL};
    if (s->last)
        job.last = metric_decode(s->last);
    job.has_totals = s->totals != NULL;
    if (s->totals)
        totals_decode(s->totals, &job.totals);
    if (!texts_copy(s, &job) || !workers_copy(s, &job) || !incidents_copy(s, &job) || !stragglers_copy(s, &job)) {
        client_job_fini(&job);
        return ERR_NOMEM;
    }
    *ret = job;
    return OK;
}

err_t convert_jobs(const Dtd__JobList *list, struct client_job **ret, int *ret_n)
{
    struct client_job *jobs = calloc(list->n_job + 1, sizeof(*jobs));
    err_t err = jobs ? OK : ERR_NOMEM;
    int n = 0;
    while (!err && n < (int)list->n_job) {
        err = convert_job(list->job[n], &jobs[n]);
        n += !err;
    }
    if (err) {
        client_jobs_free(jobs, n);
        return err;
    }
    *ret = jobs;
    *ret_n = n;
    return OK;
}

/* Columns of a newer version have no place in the sample. */
static err_t take_column(const Dtd__UsageColumn *c, struct usage_sample *ret)
{
    if (c->n_value != (size_t)ret->ranks)
        return ERR_CORRUPT;
    for (int f = 0; f < USAGE_COUNT; f++)
        if (strcmp(usage_fields.field[f].name, c->name) == 0)
            memcpy(usage_at(ret, (enum usage_field)f, 0), c->value, c->n_value * sizeof(*c->value));
    return OK;
}

err_t convert_usage(const Dtd__UsageSample *m, struct usage_sample *ret)
{
    struct usage_sample s = {0};
    err_t err = m->n_node <= USAGE_RANKS_MAX ? usage_sample_init(&s, (int)m->n_node) : ERR_LIMIT;
    for (int r = 0; !err && r < s.ranks; r++)
        err = usage_sample_set_node(&s, r, m->node[r]);
    for (size_t i = 0; !err && i < m->n_column; i++)
        err = take_column(m->column[i], &s);
    if (err) {
        usage_sample_fini(&s);
        return err;
    }
    s.wall_ms = m->wall_ms;
    s.window_ms = m->window_ms;
    s.step = m->step;
    s.epoch = m->epoch;
    *ret = s;
    return OK;
}

err_t convert_checkpoints(const Dtd__CheckpointList *list, struct client_checkpoint **ret, int *ret_n)
{
    struct client_checkpoint *items = calloc(list->n_checkpoint + 1, sizeof(*items));
    bool whole = items;
    int n = 0;
    while (whole && n < (int)list->n_checkpoint) {
        const Dtd__Checkpoint *k = list->checkpoint[n];
        items[n] = (struct client_checkpoint){.job = text_copy(k->job),
                                              .path = text_copy(k->path),
                                              .step = k->step,
                                              .bytes = k->bytes,
                                              .committed_ms = k->committed_ms,
                                              .epoch = k->epoch,
                                              .loss = k->has_loss ? k->loss : NAN};
        whole = items[n].job && items[n].path;
        n++;
    }
    if (!whole) {
        client_checkpoints_free(items, n);
        return ERR_NOMEM;
    }
    *ret = items;
    *ret_n = n;
    return OK;
}

/* *ret: NULL if the message has none. */
static err_t copy_load(const Dtd__NodeLoad *m, struct node_load **ret)
{
    struct node_load borrowed, *copy;
    if (!m)
        return OK;
    if (!(copy = malloc(sizeof(*copy))))
        return ERR_NOMEM;
    node_load_decode(m, &borrowed);
    *copy = borrowed;
    copy->n_gpu = 0;
    for (; copy->n_gpu < borrowed.n_gpu; copy->n_gpu++)
        if (fields_copy(&gpu_load_fields, &borrowed.gpu[copy->n_gpu], &copy->gpu[copy->n_gpu])) {
            client_load_free(copy);
            return ERR_NOMEM;
        }
    *ret = copy;
    return OK;
}

static err_t copy_numa_nodes(const Dtd__NodeReply *n, struct client_node *ret)
{
    ret->numa_node = calloc(n->n_numa_node + 1, sizeof(*ret->numa_node));
    for (size_t i = 0; i < n->n_numa_node && ret->numa_node; i++) {
        const Dtd__NumaNode *from = n->numa_node[i];
        struct client_numa_node *to = &ret->numa_node[ret->n_numa_node++];
        *to = (struct client_numa_node){
            .number = from->number, .cores = text_copy(from->cores), .gpu = calloc(from->n_gpu + 1, sizeof(int))};
        if (!to->cores || !to->gpu)
            return ERR_NOMEM;
        for (size_t k = 0; k < from->n_gpu; k++)
            to->gpu[to->n_gpu++] = from->gpu[k];
    }
    return ret->numa_node ? OK : ERR_NOMEM;
}

static struct client_node_use copy_use(const Dtd__NodeUse *m)
{
    static const Dtd__NodeUse unknown = DTD__NODE_USE__INIT;
    m = m ? m : &unknown;
    return (struct client_node_use){.slots = m->has_slots ? m->slots : -1,
                                    .slots_used = m->has_slots_used ? m->slots_used : -1,
                                    .gpus = m->has_gpus ? m->gpus : -1,
                                    .gpus_free = m->has_gpus_free ? m->gpus_free : -1,
                                    .warning = text_copy(m->warning)};
}

err_t convert_node(const Dtd__NodeReply *n, struct client_node *ret)
{
    struct client_node node = {.version = text_copy(n->version),
                               .node = text_copy(n->node),
                               .state_dir = text_copy(n->state_dir),
                               .raft_state = text_copy(n->raft_state),
                               .warning = text_copy(n->warning),
                               .supervisor_pid = n->supervisor_pid,
                               .control_pid = n->control_pid,
                               .slots = n->slots,
                               .io_pid = calloc(n->n_io_pid + 1, sizeof(int)),
                               .raft_term = n->raft_term,
                               .raft_index = n->raft_index,
                               .gpus = n->has_gpus ? n->gpus : -1,
                               .gpus_free = n->gpus_free,
                               .gpu_probe_ms = n->gpu_probe_ms,
                               .gpu_model = text_copy(n->gpu_model),
                               .gpu_missing = text_copy(n->gpu_missing),
                               .drained = text_copy(n->drained),
                               .use = copy_use(n->use)};
    if (!node.version || !node.node || !node.state_dir || !node.raft_state || !node.warning || !node.io_pid ||
        !node.gpu_model || !node.gpu_missing || !node.drained || !node.use.warning) {
        client_node_fini(&node);
        return ERR_NOMEM;
    }
    for (size_t i = 0; i < n->n_io_pid; i++)
        node.io_pid[node.n_io++] = n->io_pid[i];
    if (copy_numa_nodes(n, &node) || copy_load(n->load, &node.load)) {
        client_node_fini(&node);
        return ERR_NOMEM;
    }
    *ret = node;
    return OK;
}

static err_t copy_cluster_node(const Dtd__ClusterNode *m, struct client_cluster_node *ret)
{
    *ret = (struct client_cluster_node){.name = text_copy(m->name),
                                        .address = text_copy(m->address),
                                        .state = text_copy(m->state),
                                        .role = text_copy(m->role),
                                        .domain = text_copy(m->domain),
                                        .drained = text_copy(m->drained),
                                        .version = text_copy(m->version),
                                        .newest = m->newest,
                                        .identity = text_copy(m->identity),
                                        .id = m->id,
                                        .log_index = m->log_index,
                                        .silent_ms = m->silent_ms,
                                        .use = copy_use(m->use)};
    return ret->name && ret->address && ret->state && ret->role && ret->domain && ret->drained && ret->version &&
                   ret->identity && ret->use.warning
               ? copy_load(m->load, &ret->load)
               : ERR_NOMEM;
}

err_t convert_cluster(const Dtd__ClusterReport *m, struct client_cluster *ret)
{
    struct client_cluster c = {.self = text_copy(m->self),
                               .leader = text_copy(m->leader),
                               .note = text_copy(m->note),
                               .node = calloc(m->n_node + 1, sizeof(*c.node)),
                               .log_index = m->log_index,
                               .log_term = m->log_term,
                               .key = m->key,
                               .keys = m->keys,
                               .id = m->id,
                               .generation = m->generation,
                               .recovered_ms = m->recovered_ms,
                               .recovered_by = text_copy(m->recovered_by),
                               .version = m->cluster_version,
                               .next_version = m->next_version,
                               .held_back = calloc(m->n_held_back + 1, sizeof(char *))};
    err_t err = c.self && c.leader && c.note && c.node && c.held_back && c.recovered_by ? OK : ERR_NOMEM;
    for (size_t i = 0; !err && i < m->n_held_back; i++) {
        c.held_back[i] = text_copy(m->held_back[i]);
        err = c.held_back[i] ? OK : ERR_NOMEM;
        c.n_held_back += !err;
    }
    for (size_t i = 0; !err && i < m->n_node; i++)
        err = copy_cluster_node(m->node[i], &c.node[c.n_node++]);
    if (err)
        client_cluster_fini(&c);
    else
        *ret = c;
    return err;
}
