/* Planted bugs. A simulation that never fails proves nothing, so DTD_SIM_BUG=N makes the program wrong in one place,
 * and the checks must find it within some seeds (sim.bug_* of ctest). The daemon's sources contain none of this: a bug
 * is planted in a stand-in, or by the linker's --wrap between two functions of the daemon or of libraft (bugs.c). */
#ifndef DTD_TESTS_SIM_BUGS_H
#define DTD_TESTS_SIM_BUGS_H

#include <stdbool.h>

/* X(NAME, the defect) */
#define BUG_LIST(X)                                                                  \
    X(ACK_BEFORE_DURABLE, "an append is acknowledged before it is on the disk")      \
    X(VOTE_NOT_STORED, "a voter forgets its vote when it restarts")                  \
    X(TERM_NOT_STORED, "a voter forgets its term when it restarts")                  \
    X(TAIL_STAYS, "a replaced tail of the log stays on the disk")                    \
    X(SNAPSHOT_LOST, "entries are dropped behind a snapshot that was not written")   \
    X(APPLIED_BEFORE_COMMITTED, "a proposal is applied when it is made")             \
    X(ANSWERED_TWICE, "a proposal is answered twice")                                \
    X(NEVER_ANSWERED, "a proposal whose leader loses the lead is never answered")    \
    X(LOST_LEAD_IS_OK, "a proposal whose leader loses the lead is answered as done") \
    X(LEADS_BEFORE_BARRIER, "a new leader considers itself up to date at once")      \
    X(REQUEST_ID_IGNORED, "a repeated request is done again")                        \
    X(REQUEST_ID_NOT_SAVED, "request ids are not in the snapshots")                  \
    X(ANSWER_OF_ANOTHER, "a repeated request gets the answer of the last one")       \
    X(CLOCK_IN_APPLY, "apply reads the host's clock")                                \
    X(RESTORE_ADDS, "a restored snapshot counts one job too many")                   \
    X(APPLY_SKIPS, "one host does not apply one record in a hundred")                \
    X(EPOCH_GOES_BACK, "an epoch below the newest is accepted")                      \
    X(ENDED_TWICE, "a job that has ended ends again")                                \
    X(REFUSED_AND_DONE, "a proposal is refused after it was accepted")               \
    X(DISK_WIPED, "a voter restarts with an empty disk under its old id")            \
    X(LAST_ENTRY_LOST, "a start does not read the last entry")                       \
    X(NOT_FIXED, "libraft is used unchanged, without libraft_fixes.c")               \
    X(SNAPSHOT_BETWEEN_CHANGES, "a snapshot is taken between two changes of the voters")

/* Bugs of control as a whole: tests/sim/control/defects.c. */
#define CONTROL_BUG_LIST(X)                                                            \
    X(EPOCH_NOT_FENCED, "an epoch is begun before its record is committed")            \
    X(OLD_EPOCH_STARTED, "ranks are started in the epoch before the newest")           \
    X(LEAD_KEPT, "a node that has lost the lead still makes decisions")                \
    X(REQUEST_FORGOTTEN, "a job's request id is not in the log")                       \
    X(CANCEL_FORGOTTEN, "a request to cancel a job is lost with the leader")           \
    X(CANCEL_NOT_LOGGED, "a cancel is answered before it is in the log")               \
    X(SLOTS_LEAKED, "a job that ends keeps its slots at a node that is lost")          \
    X(SLOTS_TWICE, "slots are allocated even if other jobs have them")                 \
    X(DRAINED_USED, "a drained node is used")                                          \
    X(INCIDENT_FORGOTTEN, "an incident is not logged")                                 \
    X(END_FORGOTTEN, "the end of a job is not logged")                                 \
    X(KILL_NOT_SENT, "a process at another node is not killed")                        \
    X(READY_IS_DONE, "a rank that is ready counts as done")                            \
    X(END_NOT_FORWARDED, "a follower does not forward the end of a process")           \
    X(NO_SUCCESSOR_MADE, "the leader of two nodes stops without a successor")          \
    X(VOTER_GOES, "a stopped voter leaves while a majority needs it")                  \
    X(LOSS_IGNORED, "a lost node without jobs is not declared lost")                   \
    X(OLD_LEADER_TAKEN, "a former voter keeps following the previous leader")          \
    X(KILL_NOT_REPEATED, "a kill lost with its connection is not sent again")          \
    X(EPOCH_TAKEN_FOR_ENDED, "a new leader reports that running epochs have ended")    \
    X(FEATURE_EARLY, "a kind of record is used before all nodes have it")              \
    X(UNREAD_KILLED, "an older leader kills the workers of a job that it cannot read") \
    X(CLOCK_IS_DATE, "the clock of the cluster follows the wall clock")                \
    X(ANY_IDENTITY, "a node admits any program with the cluster's key")                \
    X(WORKERS_KEPT, "a node that was removed keeps its workers")                       \
    X(GENERATION_IGNORED, "nodes of two generations of a cluster speak to each other") \
    X(NUMBERS_REPEAT, "a recovery gives numbers that the lost voters may have given")  \
    X(IDENTITY_KEPT, "a node that joins again has its former identity")                \
    X(DAMAGE_READ, "checksums of files are not compared")                              \
    X(ACCEPT_GIVEN_UP, "after a lack of descriptors no connection is accepted")

/* Bugs of a log whose disk fails. */
#define DISK_BUG_LIST(X)                                                       \
    X(FAILED_WRITE_IGNORED, "the log does not notice that a write has failed") \
    X(WAITING_IGNORED, "the log does not notice that a write waits")           \
    X(FAILED_VOTE_GIVEN, "a vote is given that could not be stored")           \
    X(FAILED_SNAPSHOT_TAKEN, "a snapshot that could not be stored counts as stored")

enum bug_kind {
    BUG_NONE,
#define X(name, text) BUG_##name,
    BUG_LIST(X) N_LOG_BUGS = BUG_SNAPSHOT_BETWEEN_CHANGES,
    CONTROL_BUG_LIST(X) N_CONTROL_BUGS = BUG_ACCEPT_GIVEN_UP,
    DISK_BUG_LIST(X)
#undef X
        N_BUGS
};

extern enum bug_kind bug_planted;
static inline bool bug(enum bug_kind kind)
{
    return bug_planted == kind;
}
const char *bug_text(enum bug_kind kind);
const char *bug_name(enum bug_kind kind);
/* Of a name or a number; N_BUGS: there is none. */
enum bug_kind bug_find(const char *text);

#endif
