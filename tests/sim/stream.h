/* Virtual sockets: connected streams and packets between processes, and each computer's listener on control.sock. Below
 * the calls that the daemon makes (uv_pipe_open, uv_read_start, uv_write, uv_poll_start, accept4, connect, send, recv,
 * close), by their names.
 *
 * What was written arrives in order. On a computer it takes microseconds, between two of them what the network takes;
 * while the link is cut or the stream is stalled it waits, and after LOST_US of that both ends are told that the
 * connection is lost. When a process dies, what it wrote last may not arrive; then the other end sees the end of the
 * stream or a reset. When a computer loses its power the other end sees nothing. */
#ifndef DTD_TESTS_SIM_STREAM_H
#define DTD_TESTS_SIM_STREAM_H

#include "tests/sim/world.h"

#define STREAM_LOST_US (10 * US_PER_S)

struct end;
typedef void (*end_fn)(void *arg, const void *data, size_t len);

void stream_init(void);
/* Descriptors of two connected ends, each to be used by its host. */
void stream_pair(struct host *a, struct host *b, int *ret_a, int *ret_b);
/* Packets between a process, where it is descriptor `fd`, and the world: what the process says is heard by `hear`. */
struct end *stream_channel(struct host *host, end_fn hear, void *arg);
void stream_say(struct end *channel, const void *data, size_t len);
/* The process has died; the computer has no power any more. */
void stream_forget(struct host *host, bool has_power);
/* One connection, drawn: of a process on this computer. */
void stream_reset_one(struct host *computer);
void stream_stall_one(struct host *computer, int64_t us);
/* A tunnel's listener or another place that only stands for itself. */
int stream_place(void);

/* For libuv.c's uv_close: at once, and before the callback. */
void stream_handle_close(uv_handle_t *handle);
void stream_handle_closed(uv_handle_t *handle);

#endif
