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

#define STORES_NAME_MAX 64
#define STORES_PER_USER 32
#define STORES_MAX_BYTES (128u << 20) /* all memory that the clients of one may occupy */

struct cluster;
struct relay;
struct store_server;

struct stores_entry {
    LIST_ENTRY(stores_entry) link;
    struct stores *stores;
    uint32_t uid; /* whose: with the name, which store it is */
    char name[STORES_NAME_MAX + 1];
    char holder[NODE_NAME_MAX + 1]; /* the node that has it; "": this one */
    struct store_server *server;    /* one of the two */
    struct relay *relay;
};

/* A stream from another node that came before the store of its epoch. */
struct stores_parked {
    LIST_ENTRY(stores_parked) link;
    char argument[STORES_NAME_MAX + 16];
    int fd;
    int64_t due_ms;
};

struct stores {
    uv_loop_t *loop;
    struct cluster *cluster; /* brings streams to other nodes */
    bool system;             /* dtd serves all users of the machine */
    LIST_HEAD(, stores_entry) open;
    LIST_HEAD(, stores_parked) parked;
    int n_parked;
};

/* Letters, digits, points, dashes and underscores. */
bool stores_name_is_legal(const char *name);
/* The port here of this user's store; what is there is not opened twice. `holder` NULL: it lives here. One that led
 * somewhere else is closed. ERR_LIMIT: the user has STORES_PER_USER here. */
NODISCARD err_t stores_open(struct stores *s, uint32_t uid, const char *name, const char *holder, uint16_t *ret_port,
                            struct why *why);
/* The same for the store of a job's epoch; those of its earlier epochs are closed. */
NODISCARD err_t stores_open_epoch(struct stores *s, uint32_t uid, uint64_t job, uint64_t epoch, const char *holder,
                                  uint16_t *ret_port);
/* NULL: none. */
struct stores_entry *stores_find(struct stores *s, uint32_t uid, const char *name);
/* With all its connections, where it is here. */
void stores_close(struct stores *s, uint32_t uid, const char *name);
/* Those of a job's epochs, "JOB/EPOCH", but `except`; NULL: all. No user can name one. */
void stores_close_job(struct stores *s, uint64_t job, const char *except);
/* A stream from another node that has looked who calls; one that comes before its epoch's
 * store waits a little for it. `argument` names the store as stores_open's dialling does.
 * Takes the descriptor. */
void stores_take(struct stores *s, const char *argument, int fd);
/* Now and then: who waits for a store that does not come is closed. */
void stores_tick(struct stores *s);

#endif
