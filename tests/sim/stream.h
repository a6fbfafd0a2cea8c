/* Virtual sockets: connected streams and packets between processes, and each computer's listener on control.sock. They
 * are used by the names of the calls that the daemon makes (uv_pipe_open, uv_read_start, uv_write, uv_poll_start,
 * accept4, connect, send, recv, close).
 *
 * Bytes arrive in order. Within a computer they take microseconds, between two of them the delay of the network. While
 * the link is cut or the stream is stalled they wait; after STREAM_LOST_US both ends get an error. When a process
 * exits, its last bytes may not arrive; then the other end gets the end of the stream or a reset. When a computer loses
 * its power, the other end is not notified. */
#ifndef DTD_TESTS_SIM_STREAM_H
#define DTD_TESTS_SIM_STREAM_H

#include "tests/sim/world.h"

#define STREAM_LOST_US (10 * US_PER_S)

/* Whether the process whose event is running gets no descriptor. NULL: it always gets one. */
extern bool (*stream_has_no_descriptor)(void);
/* In libuv.c: how much longer the work of a thread takes than usual. NULL: no longer. */
extern int64_t (*libuv_blocked_us)(void);

struct end;
typedef void (*end_fn)(void *arg, const void *data, size_t len);

void stream_init(void);
/* Returns the descriptors of two connected ends, one for each host. */
void stream_pair(struct host *a, struct host *b, int *ret_a, int *ret_b);
/* A channel of packets between a process, where it is the descriptor CHANNEL_FD, and the world. `receive` gets the
 * packets of the process. */
struct end *stream_channel(struct host *host, end_fn receive, void *arg);
void stream_send(struct end *channel, const void *data, size_t len);
/* The process has ended. Without `has_power` the computer is off. */
void stream_forget(struct host *host, bool has_power);
/* Each affects one random connection of a process on this computer. */
void stream_reset_one(struct host *computer);
void stream_stall_one(struct host *computer, int64_t us);
/* Both ends get a reset, if the descriptor is open. */
void stream_reset(int fd);
/* Returns a descriptor for a tunnel's listener, or for something else that is never connected. */
int stream_place(void);

/* The process at the other end of the stream; NULL: it is closed. */
struct host *stream_other(const uv_stream_t *stream);
/* The two are the ends of one stream. */
bool stream_meets(const uv_stream_t *a, const uv_stream_t *b);

/* For libuv.c's uv_close: the first is called at once, the second before the callback. */
void stream_handle_close(uv_handle_t *handle);
void stream_handle_closed(uv_handle_t *handle);

#endif
