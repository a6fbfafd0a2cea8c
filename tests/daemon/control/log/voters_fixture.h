/* Several logs in one process and one loop, joined by socketpairs that can be cut: crashes, partitions, restarts from
 * disk. A model watches all of it: at most one voter leads a term, every machine's history is a prefix of the longest,
 * what was acknowledged is in all of them in the end, each proposal is answered once. */
#ifndef DTD_TESTS_DAEMON_CONTROL_LOG_VOTERS_FIXTURE_H
#define DTD_TESTS_DAEMON_CONTROL_LOG_VOTERS_FIXTURE_H

#include "daemon/control/log/log.h"
#include "tests/lib/test.h"

#include <stdbool.h>
#include <sys/queue.h>

#define VOTERS_MAX 5
#define HISTORY_MAX 40000

struct voters;

struct voter {
    struct voters *all;
    struct log *log; /* NULL: down */
    char dir[400];
    bool ready, closing;
    uint32_t *history; /* numbers in the order of apply */
    int n_history, restores, snapshots, roles;
    int n_open; /* proposals to it without an answer */
};

/* Bytes go from one voter's socket to the other's through us, and when one end closes so does the other. */
struct voter_link {
    LIST_ENTRY(voter_link) entry;
    int from, to, handles;
    bool closing;
    uv_pipe_t ends[2];
};

struct voters {
    uv_loop_t loop;
    struct voter v[VOTERS_MAX + 1]; /* by id, from 1 */
    bool cut[VOTERS_MAX + 1][VOTERS_MAX + 1];
    LIST_HEAD(, voter_link) links;
    uint64_t leader_of_term[4096];
    uint8_t acknowledged[HISTORY_MAX], answered[HISTORY_MAX], proposed[HISTORY_MAX];
    uint32_t next; /* number to propose, from 1 */
    int n_acknowledged, n_canceled, n_open;
    unsigned threshold; /* of snapshots; 0: default */
    uint64_t segment_bytes;
    bool change_done;
    err_t change_err;
};

void voters_open(struct voters *c);
/* Starts the voter on its folder; the first one begins the log, the others wait to be added. */
void voter_start(struct voters *c, int id);
/* Nobody hears of it any more from this moment on; then its log is closed. */
void voter_crash(struct voters *c, int id);
void voters_cut(struct voters *c, int a, int b, bool is_cut); /* both ways */
void voters_isolate(struct voters *c, int id, bool is_cut);
/* Starts 1..n and makes all of them voters. */
void voters_form(struct voters *c, int n);
/* Waits; fails the test after 60 s. */
void voters_wait(struct voters *c, bool (*done)(struct voters *c), const char *what);
void voters_run_ms(struct voters *c, int ms);
int voters_leader(struct voters *c); /* 0: none or several */
void voters_wait_leader(struct voters *c);
/* One change at the leader, until it is made. */
void voters_change(struct voters *c, err_t (*change)(struct voters *c, struct log *log, int id), int id);
err_t change_add(struct voters *c, struct log *log, int id);
err_t change_voter(struct voters *c, struct log *log, int id);
err_t change_spare(struct voters *c, struct log *log, int id);
err_t change_remove(struct voters *c, struct log *log, int id);
err_t change_transfer(struct voters *c, struct log *log, int id);
/* One proposal to the leader; false: there is none that takes it. */
bool voters_propose(struct voters *c, size_t padding);
/* Proposes until `n` more have been acknowledged. */
void voters_write(struct voters *c, int n, size_t padding);
/* All that are up have the same history with everything acknowledged in it; every proposal has its answer. */
void voters_agree(struct voters *c);
void voters_close(struct voters *c);

#endif
