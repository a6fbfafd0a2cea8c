/* Which NVIDIA GPUs the processes of a control group may open. In cgroup v2 the kernel asks a BPF program of the group.
 * It needs CAP_BPF and CAP_NET_ADMIN (or CAP_SYS_ADMIN). */
#ifndef DTD_DAEMON_SUPERVISOR_DEVICE_GUARD_H
#define DTD_DAEMON_SUPERVISOR_DEVICE_GUARD_H

#include <stdint.h>

/* Bit m of `minors`: /dev/nvidiaM may be opened; all others from 0 to 63 may not. Other devices are as they were.
 * Replaces an earlier call for this group, whose folder is `cgroup`. Returns 0 or an errno; EPERM: this process has not
 * the rights. */
int device_guard_set(int cgroup, uint64_t minors);

#endif
