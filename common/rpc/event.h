/* Kinds of events of the cluster, as `dtctl events` lists them. The number is in the replicated log and in snapshots;
 * the name is on the wire, in JSON and in `dtctl events --type`. Neither is ever changed or reused. A new kind is a row
 * here and the code that makes it (daemon/control/state/events.c, or jobs_event_record). */
#ifndef DTD_COMMON_RPC_EVENT_H
#define DTD_COMMON_RPC_EVENT_H

#include <stddef.h>
#include <string.h>

/* X(number, kind, name): first those of jobs, then those of nodes. */
// clang-format off
#define EVENT_KINDS(X) \
    X(1,  SUBMITTED,         "submitted") \
    X(2,  STARTED,           "started") /* the first epoch */ \
    X(3,  EPOCH,             "epoch") /* a later one */ \
    X(4,  RUNNING,           "running") /* the first step of the job, or the first after a failure, is complete */ \
    X(5,  FAILURE,           "failure") /* an epoch ended */ \
    X(6,  WARNING,           "warning") /* an incident that ended no epoch */ \
    X(7,  CHECKPOINT,        "checkpoint") \
    X(8,  CHECKPOINT_FAILED, "checkpoint-failed") \
    X(9,  STRAGGLER,         "straggler") \
    X(10, STRAGGLER_GONE,    "straggler-gone") \
    X(11, CANCEL,            "cancel") /* a user's request */ \
    X(12, ENDED,             "ended") \
    X(13, REMOVED,           "removed") /* from the list, by a user */ \
    X(32, NODE_JOINED,       "joined") \
    X(33, NODE_LEFT,         "left") \
    X(34, NODE_LOST,         "lost") \
    X(35, NODE_BACK,         "back") \
    X(36, NODE_DRAINED,      "drained") \
    X(37, NODE_UNDRAINED,    "undrained")
// clang-format on

#define EVENT_KIND(number, kind, name) EVENT_##kind = (number),
enum event_kind { EVENT_NONE = 0, EVENT_KINDS(EVENT_KIND) };

/* "event" for a number of a newer version. */
static inline const char *event_kind_name(unsigned kind)
{
#define EVENT_CASE(number, kind, name) \
    case (number):                     \
        return name;
    switch (kind) {
        EVENT_KINDS(EVENT_CASE)
    }
    return "event";
}

static inline enum event_kind event_kind_find(const char *text)
{
#define EVENT_NAMED(number, kind, name) {number, name},
    static const struct {
        enum event_kind kind;
        const char *name;
    } kinds[] = {EVENT_KINDS(EVENT_NAMED)};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(kinds[i].name, text) == 0)
            return kinds[i].kind;
    return EVENT_NONE;
}

#endif
