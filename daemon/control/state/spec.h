/* The text of a job file in one copy, which the state, its snapshots and the job share. It never changes, so any thread
 * may read it; references are taken and given back on the loop's thread. */
#ifndef DTD_DAEMON_CONTROL_STATE_SPEC_H
#define DTD_DAEMON_CONTROL_STATE_SPEC_H

/* A copy of `text` with one reference; NULL: no memory. */
const char *spec_new(const char *text);
/* Returns `spec`. */
const char *spec_ref(const char *spec);
void spec_unref(const char *spec); /* NULL too */

#endif
