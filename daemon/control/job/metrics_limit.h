/* Limits the disk space of metrics on the node that leads: disk.metrics_mib for each job, and users.metrics_mib for all
 * jobs of a user of a system-wide dtd. A file above the limit is thinned out (metrics_thin.h) by a thread of the pool,
 * one file at a time; of a user whose jobs have too much together, the largest one. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_JOB_METRICS_LIMIT_H
#define DTD_DAEMON_CONTROL_JOB_METRICS_LIMIT_H

struct jobs;

/* Begins to thin out a file if one is too large and no other is being thinned out. Call it about once a second. */
void metrics_limit_tick(struct jobs *jobs);

#endif
