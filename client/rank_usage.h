/* dtctl metrics --ranks: the usage of each rank, as a table of the newest window or as JSON of all. */
#ifndef DTD_CLIENT_RANK_USAGE_H
#define DTD_CLIENT_RANK_USAGE_H

#include "client/commands.h"

/* Returns the exit status. `follow`: continues with new windows until the job ends. */
int rank_usage_print(struct global *g, const char *job, bool follow);

#endif
