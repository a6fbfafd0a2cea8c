/* Destructors of the plain structs of client.h. They are apart from client.c, so that tests and printers can create and
 * free these structs without a connection and without protobuf. */
#include "client/client.h"

#include <stdlib.h>
#include <string.h>

void client_job_fini(struct client_job *job)
{
    for (int i = 0; i < job->n_worker; i++) {
        free(job->worker[i].state);
        free(job->worker[i].node);
    }
    for (int i = 0; i < job->n_incident; i++)
        fields_fini(&incident_fields, &job->incident[i]);
    fields_fini(&incident_fields, &job->start);
    for (int i = 0; i < job->n_straggler; i++) {
        free(job->straggler[i].node);
        free(job->straggler[i].text);
    }
    free(job->straggler);
    free(job->worker);
    free(job->incident);
    free(job->job);
    free(job->name);
    free(job->state);
    free(job->reason);
    free(job->layout_why);
    free(job->checkpoint_dir);
    free(job->checkpoint_error);
    free(job->parent);
    free(job->spec_yaml);
    free(job->user);
    memset(job, 0, sizeof(*job));
}

void client_jobs_free(struct client_job *jobs, int n)
{
    for (int i = 0; i < n; i++)
        client_job_fini(&jobs[i]);
    free(jobs);
}

void client_checkpoints_free(struct client_checkpoint *list, int n)
{
    for (int i = 0; i < n; i++) {
        free(list[i].job);
        free(list[i].path);
    }
    free(list);
}

void client_load_free(struct node_load *load)
{
    for (int i = 0; load && i < load->n_gpu; i++)
        fields_fini(&gpu_load_fields, &load->gpu[i]);
    free(load);
}

void client_node_fini(struct client_node *node)
{
    client_load_free(node->load);
    free(node->version);
    free(node->node);
    free(node->state_dir);
    free(node->raft_state);
    free(node->warning);
    free(node->io_pid);
    free(node->gpu_model);
    free(node->gpu_missing);
    free(node->drained);
    free(node->use.warning);
    for (int i = 0; i < node->n_numa_node; i++) {
        free(node->numa_node[i].cores);
        free(node->numa_node[i].gpu);
    }
    free(node->numa_node);
    memset(node, 0, sizeof(*node));
}

bool client_job_ended(const struct client_job *job)
{
    static const char *const ended[] = {"done", "failed", "canceled"};
    for (size_t i = 0; i < sizeof(ended) / sizeof(ended[0]); i++)
        if (strcmp(job->state, ended[i]) == 0)
            return true;
    return false;
}

static void cluster_node_fini(struct client_cluster_node *n)
{
    client_load_free(n->load);
    char *const texts[] = {n->name,    n->address, n->state,    n->role,       n->domain,
                           n->drained, n->version, n->identity, n->use.warning};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        free(texts[i]);
}

void client_cluster_fini(struct client_cluster *c)
{
    for (int i = 0; i < c->n_node; i++)
        cluster_node_fini(&c->node[i]);
    for (int i = 0; i < c->n_held_back; i++)
        free(c->held_back[i]);
    free(c->held_back);
    free(c->node);
    free(c->self);
    free(c->leader);
    free(c->note);
    free(c->recovered_by);
    *c = (struct client_cluster){0};
}
