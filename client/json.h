/* The plain structs of client.h as JSON: keys are the field names of proto/client.proto, absent where they have no
 * value. */
#ifndef DTD_CLIENT_JSON_H
#define DTD_CLIENT_JSON_H

#include "client/client.h"
#include "common/ckpt/ckpt.h"

#include <jansson.h>

/* A new reference, or NULL when out of memory. */
json_t *json_of_metric(const struct client_metric *m);
json_t *json_of_job(const struct client_job *job);
/* An array; `only`: its one incident of this number, counted from 1; 0: all. */
json_t *json_of_incidents(const struct client_job *job, int only);
json_t *json_of_node(const struct client_node *node);
json_t *json_of_cluster(const struct client_cluster *c);
json_t *json_of_scalar(const struct ckpt_scalar *s);

/* Text that may not be UTF-8 (a log line, a file's name): what is not becomes U+FFFD. */
json_t *json_of_text(const char *text, size_t len);

#endif
