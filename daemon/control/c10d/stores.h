/* The c10d stores of this node (daemon/store): those that live here, and ports that lead to one on another node, both
 * for one user. A store lives in control because a port on another node ends in a tunnel, which is control's; because
 * its library never blocks the loop; and because it needs no more watching than control has. It ends with control: its
 * clients cannot come back, whoever held it.
 *
 * Which node has the store of a name is decided by the node that leads (store_names.h). Loop thread; owned by the node.
 */
#ifndef DTD_DAEMON_CONTROL_C10D_STORES_H
#define DTD_DAEMON_CONTROL_C10D_STORES_H

#include "common/base/err.h"
#include "daemon/control/state/record.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <uv.h>

#define C10D_NAME_MAX 64
#define C10D_PER_USER 32
#define C10D_MAX_BYTES (128u << 20) /* all memory that the clients of one may occupy */

struct cluster;
struct relay;
struct store_server;

struct c10d_endpoint {
    LIST_ENTRY(c10d_endpoint) link;
    struct c10d_registry *c10d;
    uint32_t uid; /* whose: with the name, which store it is */
    char name[C10D_NAME_MAX + 1];
    char holder[NODE_NAME_MAX + 1]; /* the node that has it; "": this one */
    struct store_server *server;    /* one of the two */
    struct relay *relay;
};

/* A stream from another node that came before the store of its epoch. */
struct c10d_parked {
    LIST_ENTRY(c10d_parked) link;
    char argument[C10D_NAME_MAX + 16];
    int fd;
    int64_t due_ms;
};

struct c10d_registry {
    uv_loop_t *loop;
    struct cluster *cluster; /* brings streams to other nodes */
    bool system;             /* dtd serves all users of the machine */
    LIST_HEAD(, c10d_endpoint) open;
    LIST_HEAD(, c10d_parked) parked;
    int n_parked;
};

/* Letters, digits, points, dashes and underscores. */
bool c10d_name_is_legal(const char *name);
/* The port here of this user's store; what is there is not opened twice. `holder` NULL: it lives here. One that led
 * somewhere else is closed. ERR_LIMIT: the user has C10D_PER_USER here. */
NODISCARD err_t c10d_open(struct c10d_registry *s, uint32_t uid, const char *name, const char *holder,
                          uint16_t *ret_port, struct why *why);
/* The same for the store of a job's epoch; those of its earlier epochs are closed. */
NODISCARD err_t c10d_open_epoch(struct c10d_registry *s, uint32_t uid, uint64_t job, uint64_t epoch, const char *holder,
                                uint16_t *ret_port);
/* NULL: none. */
struct c10d_endpoint *c10d_find(struct c10d_registry *s, uint32_t uid, const char *name);
/* With all its connections, where it is here. */
void c10d_close(struct c10d_registry *s, uint32_t uid, const char *name);
/* Those of a job's epochs, "JOB/EPOCH", but `except`; NULL: all. No user can name one. */
void c10d_close_job(struct c10d_registry *s, uint64_t job, const char *except);
/* A stream from another node that has looked who calls; one that comes before its epoch's
 * store waits a little for it. `argument` names the store as c10d_open's dialling does.
 * Takes the descriptor. */
void c10d_take(struct c10d_registry *s, const char *argument, int fd);
/* Now and then: who waits for a store that does not come is closed. */
void c10d_tick(struct c10d_registry *s);

#endif
