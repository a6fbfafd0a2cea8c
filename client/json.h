/* The plain structs of client.h as JSON. Keys are the field names of proto/client.proto; fields without a value are
 * absent. */
#ifndef DTD_CLIENT_JSON_H
#define DTD_CLIENT_JSON_H

#include "client/client.h"
#include "common/ckpt/ckpt.h"

#include <jansson.h>

/* All functions return a new reference, or NULL when out of memory. */
json_t *json_of_metric(const struct metric *m);
/* The metric of the newest step; of a point of several steps also their number (steps), for each metric with values
 * NAME_min, NAME_max and NAME_mean of its finite values, and not_finite: the number of steps whose loss is not finite.
 */
json_t *json_of_point(const struct metric_point *p);
/* As a line of usage.jsonl. */
json_t *json_of_usage(const struct usage_sample *s);
json_t *json_of_job(const struct client_job *job);
/* An array of the job's incidents. `only`: the number of the incident to return, counted from 1; 0: all. */
json_t *json_of_incidents(const struct client_job *job, int only);
json_t *json_of_event(const struct client_event *e);
json_t *json_of_node(const struct client_node *node);
json_t *json_of_cluster(const struct client_cluster *c);
json_t *json_of_scalar(const struct ckpt_scalar *s);

/* A string of text that may be invalid UTF-8 (a log line, a file name): then every byte above 0x7f becomes U+FFFD. */
json_t *json_of_text(const char *text, size_t len);

#endif
