/* The number of worker processes that compute on this node's cores, for the workers themselves.
 *
 * The threads of one worker wait for each other thousands of times a second, and spin while they wait. If workers of
 * several jobs have more threads than there are cores, a thread waits for one that does not run, and a job takes many
 * times as long. So the number is in a file that each worker maps, and a worker uses no more threads than its share of
 * the cores. Control stores the number; workers only read it. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_SHARING_H
#define DTD_DAEMON_CONTROL_LOCAL_SHARING_H

#include "common/base/paths.h"

#include <stdatomic.h>
#include <stdint.h>

#define SHARING_FILE "workers" /* in the state directory: a u32 in the machine's byte order */

struct sharing {
    char path[PATH_STATE_DIR_MAX + sizeof("/" SHARING_FILE)];
    _Atomic uint32_t *workers; /* NULL: the file could not be made, and workers use all cores that they are bound to */
};

void sharing_init(struct sharing *s, const char *dir);
void sharing_set(struct sharing *s, uint32_t workers);

#endif
