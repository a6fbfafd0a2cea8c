/* Replies of dtd-control as the plain structs of client.h. The caller frees a result with the struct's _fini or _free
 * function. ERR_NOMEM: nothing is returned. */
#ifndef DTD_CLIENT_CONVERT_H
#define DTD_CLIENT_CONVERT_H

#include "client/client.h"
#include "proto/client.pb-c.h"

NODISCARD err_t convert_job(const Dtd__JobStatus *s, struct client_job *ret);
NODISCARD err_t convert_jobs(const Dtd__JobList *list, struct client_job **ret, int *ret_n);
NODISCARD err_t convert_checkpoints(const Dtd__CheckpointList *list, struct client_checkpoint **ret, int *ret_n);
/* ERR_CORRUPT: its columns have different numbers of ranks. Freed by usage_sample_fini. */
NODISCARD err_t convert_usage(const Dtd__UsageSample *m, struct usage_sample *ret);
NODISCARD err_t convert_node(const Dtd__NodeReply *n, struct client_node *ret);
NODISCARD err_t convert_cluster(const Dtd__ClusterReport *m, struct client_cluster *ret);

#endif
