/* Declarations that the files of worker/link share. Both threads access the fields below `mu`, and only with it held;
 * the other fields belong to the loop thread. */
#ifndef DTD_WORKER_LINK_INTERNAL_H
#define DTD_WORKER_LINK_INTERNAL_H

#include "common/rpc/field_codec.h"
#include "common/rpc/link.h"
#include "proto/io.pb-c.h"
#include "proto/worker.pb-c.h"
#include "worker/link/link.h"

#include <pthread.h>
#include <stdatomic.h>
#include <uv.h>

#define REPORTS_IN_FLIGHT 32
#define REPORTS_MAX 100000 /* with so many reports queued, the oldest metric is dropped for each new one */

struct report {
    struct report *next;
    struct link *link;
    Dtd__WorkerReport msg;
    Dtd__Metric metric_msg; /* borrows from `metric` */
    struct metric metric;
    Dtd__Usage usage_msg;       /* borrows nothing */
    double part_ms[LOAD_PARTS]; /* of `msg`, if it has any */
    bool sent;
};

struct report_list {
    struct report *first, **last;
    int n;
};

enum save_state { SAVE_QUEUED, SAVE_SENT, SAVE_WRITTEN, SAVE_COMMITTED, SAVE_FAILED };

/* A Save call, which may be repeated. */
struct save {
    struct save *next;
    struct link *link;
    Dtd__SaveRequest *msg;
    enum save_state state;
    bool sent, holds_arena; /* holds_arena: the arena still has the bytes of this save; true only for the newest */
    err_t err;
    struct why why;
};

struct pending_load {
    Dtd__LoadRequest *msg;
    struct link_load *job;
    bool sent, done;
    err_t err;
    struct why *why;
};

struct pending_stage {
    Dtd__StageRequest msg;
    struct link_stage *job;
    bool sent, done;
    err_t err;
    struct why *why;
};

struct link {
    char job[32];
    int slot;
    struct ticket ticket;
    pthread_t thread;
    uv_loop_t loop;
    uv_async_t wake;
    uv_timer_t orphan;
    struct rpc_link *control, *io;
    bool control_ready, io_ready, closing;
    bool control_refused, io_refused; /* a refusal has been logged; repeated ones are logged at debug level */
    int reports_in_flight;

    pthread_mutex_t mu;
    pthread_cond_t changed;
    _Atomic int cancel;
    bool quit, stop_thread, running, ended;
    uint64_t epoch; /* epoch that was joined and not yet left with an IDLE report; 0: none */
    int rank;
    struct link_epoch next; /* epoch 0: none */
    enum link_stop_kind stop;
    uint64_t stop_epoch;         /* epoch to which `stop` applies */
    struct link_profile profile; /* the newest request; steps 0: none */
    uint64_t profile_epoch;      /* epoch to which it applies */
    int64_t orphan_ms;
    struct comm *comm;
    struct report_list reports;
    int64_t usage_ms; /* until then no usage is reported, because a control of an older version has refused it */
    /* A copy of the last READY, DONE or FAILED report of this epoch, which is sent again after each Hello. */
    struct report *state_report;
    struct save *saves; /* newest first */
    struct pending_load *load;
    struct pending_stage *stage;
    struct store_op *store_ops; /* in order of creation */
    int puts_in_flight;
    struct comm_store store;
};

/* control.c; loop thread */
void control_up(void *owner, struct rpc_conn *conn);
void control_down(void *owner, err_t err);
void control_flush(struct link *l);
/* any thread, under mu */
void control_drop_usage(struct link *l); /* that has not been sent */
void control_push(struct link *l, struct report *r);
struct report *report_new(struct link *l, Dtd__WorkerReport__Kind kind, uint64_t epoch, const char *text);
/* The first n <= LOAD_PARTS durations go with the report. */
void report_parts(struct report *r, const double *part_ms, size_t n);
void report_free(struct report *r);
void control_push_profiled(struct link *l, uint64_t id, const char *text);
void control_cancel(struct link *l);

/* io.c; loop thread */
void io_up(void *owner, struct rpc_conn *conn);
void io_down(void *owner, err_t err);
void io_flush(struct link *l);
void io_abandon(struct link *l); /* under mu: no save may be repeated, the arena belongs to a new epoch */
void io_forget(struct link *l);  /* frees all saves */

/* store.c */
void link_store_init(struct link *l);
void link_store_up(struct link *l); /* loop thread: connected to control, which may have restarted */
void link_store_flush(struct link *l);
void link_store_forget(struct link *l); /* under mu: drops all operations, because a new epoch begins */

/* message.c */
Dtd__SaveRequest *message_save_new(const struct link *l, const struct link_save *s);
void message_save_free(Dtd__SaveRequest *m);
Dtd__LoadRequest *message_load_new(const struct link_load *load);
void message_load_free(Dtd__LoadRequest *m);

#endif
