/* A snapshot that is sent to another voter is a mapping of its file. raft_uv copies the whole file into memory, once
 * for each voter that gets it at a time: beside the state that is as much again. Owned by the log, loop thread; libraft
 * frees a mapping like memory, in any thread. */
#ifndef DTD_DAEMON_CONTROL_LOG_SNAPSHOT_FILE_H
#define DTD_DAEMON_CONTROL_LOG_SNAPSHOT_FILE_H

#include <raft.h>
#include <stdint.h>

/* Replaces raft_uv's snapshot_get, and libraft's free. Called after raft_uv_init, before the others that install
 * methods: those call this one. */
void log_snapshot_file_install(struct raft_io *io);
/* Takes the pages that the kernel has sent out of this process's memory. Called after each turn of the loop. */
void log_snapshot_file_trim(uint64_t now_ms);

#endif
