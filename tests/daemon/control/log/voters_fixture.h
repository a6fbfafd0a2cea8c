/* Several logs in one process and one loop, connected by socketpairs that can be cut: crashes, partitions, restarts
 * from disk. A model checks all of them: at most one voter leads in a term, every machine's history is a prefix of the
 * longest one, acknowledged records are in all histories at the end, and each proposal is answered once. */
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
    struct log *log; /* NULL: stopped */
    char dir[400];
    bool ready, closing;
    uint32_t *history; /* numbers in the order of apply */
    int n_history, restores, snapshots, roles;
    int n_open; /* its proposals that have no answer yet */
};

/* Copies bytes between the sockets of two voters; when one end is closed, the other is closed, too. */
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
/* Starts the voter on its folder. Voter 1 creates the log, the others wait to be added. */
void voter_start(struct voters *c, int id);
/* From this moment the other voters receive nothing from it; then its log is closed. */
void voter_crash(struct voters *c, int id);
void voters_cut(struct voters *c, int a, int b, bool is_cut); /* in both directions */
void voters_isolate(struct voters *c, int id, bool is_cut);
/* Starts 1..n and makes each of them a voter. */
void voters_form(struct voters *c, int n);
/* Waits; fails the test after 60 s. */
void voters_wait(struct voters *c, bool (*done)(struct voters *c), const char *what);
void voters_run_ms(struct voters *c, int ms);
int voters_leader(struct voters *c); /* 0: none or several */
void voters_wait_leader(struct voters *c);
/* Repeats a change at the leader until it is committed. */
void voters_change(struct voters *c, err_t (*change)(struct voters *c, struct log *log, int id), int id);
err_t change_add(struct voters *c, struct log *log, int id);
err_t change_voter(struct voters *c, struct log *log, int id);
err_t change_spare(struct voters *c, struct log *log, int id);
err_t change_remove(struct voters *c, struct log *log, int id);
err_t change_transfer(struct voters *c, struct log *log, int id);
/* Makes one proposal to the leader; false: no leader takes it. */
bool voters_propose(struct voters *c, size_t padding);
/* Proposes until `n` more have been acknowledged. */
void voters_write(struct voters *c, int n, size_t padding);
/* Checks that all running voters have the same history, that it contains every acknowledged record, and that every
 * proposal has an answer. */
void voters_agree(struct voters *c);
void voters_close(struct voters *c);

#endif
