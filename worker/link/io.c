/* The connection to dtd-io. After connecting, the worker sends Hello, then the unfinished saves and the load; it
 * repeats this after every lost connection.
 *
 * A save is repeated as long as the arena still holds its bytes. When a newer snapshot is in the arena, a repeated save
 * would write the new bytes under the old step, so the old save fails instead. */
#include "worker/link/internal.h"

#include "common/base/log.h"
#include "common/rpc/methods.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- saves ---- */

static void save_free(struct save *s)
{
    message_save_free(s->msg);
    free(s);
}

void io_forget(struct link *l)
{
    while (l->saves) {
        struct save *s = l->saves;
        l->saves = s->next;
        save_free(s);
    }
}

void io_abandon(struct link *l)
{
    for (struct save *s = l->saves; s; s = s->next) {
        s->holds_arena = false;
        if (s->state == SAVE_QUEUED) {
            s->state = SAVE_FAILED;
            s->err = ERR_CANCELED;
        }
    }
}

/* Frees finished saves, except the newest, which link_save_wait may still read. */
static void free_finished_saves(struct link *l)
{
    for (struct save **at = l->saves ? &l->saves->next : NULL; at && *at;) {
        struct save *s = *at;
        if (s->sent || (s->state != SAVE_COMMITTED && s->state != SAVE_FAILED)) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        save_free(s);
    }
}

static void save_failed(struct save *s, err_t err, const char *text)
{
    struct link *l = s->link;
    s->state = SAVE_FAILED;
    s->err = err;
    snprintf(s->why.text, sizeof(s->why.text), "%s", text);
    log_warn("save_failed step=%" PRId64 " error=%s text=\"%s\"", s->msg->step, err_name(err), text);
    if (l->epoch != s->msg->epoch)
        return;
    struct report *r = report_new(l, DTD__WORKER_REPORT__KIND__SAVE_FAILED, s->msg->epoch, text);
    if (r) {
        r->msg.has_step = true;
        r->msg.step = s->msg->step;
    }
    control_push(l, r);
}

static void save_lost(struct save *s)
{
    s->sent = false;
    if (s->holds_arena)
        s->state = SAVE_QUEUED;
    else
        save_failed(s, ERR_CLOSED, "dtd-io ended before the checkpoint was complete; the next save replaces it");
}

static void save_apply_event(struct save *s, const Dtd__SaveEvent *e)
{
    if (e->kind == DTD__SAVE_EVENT__KIND__WRITTEN && s->state == SAVE_SENT)
        s->state = SAVE_WRITTEN;
    if (e->kind == DTD__SAVE_EVENT__KIND__COMMITTED)
        s->state = SAVE_COMMITTED;
}

static void on_save_event(void *arg, const struct rpc_result *result)
{
    struct save *s = arg;
    struct link *l = s->link;
    pthread_mutex_lock(&l->mu);
    if (result->reply)
        save_apply_event(s, (const Dtd__SaveEvent *)(const void *)result->reply);
    if (result->last) {
        s->sent = false;
        if (s->state == SAVE_COMMITTED)
            ;
        else if (result->err == ERR_CLOSED)
            save_lost(s);
        else
            save_failed(s, result->err ? result->err : ERR_PROTO,
                        result->err ? result->text : "dtd-io ended the save without a result");
        free_finished_saves(l);
    }
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->mu);
}

static void send_saves(struct link *l, struct rpc_conn *conn)
{
    for (struct save *s = l->saves; s; s = s->next) {
        if (s->sent || s->state != SAVE_QUEUED)
            continue;
        err_t err = rpc_send(conn, IO_SAVE, &s->msg->base, 0, on_save_event, s, NULL);
        if (err) {
            save_failed(s, err, "the save could not be sent to dtd-io");
            pthread_cond_broadcast(&l->changed);
            continue;
        }
        s->sent = true;
        s->state = SAVE_SENT;
    }
}

/* ---- the load ---- */

static void copy_scalars(struct link_load *job, const Dtd__LoadReply *reply)
{
    for (int i = 0; i < job->n_names; i++)
        for (size_t k = 0; k < reply->n_scalar; k++)
            if (strcmp(reply->scalar[k]->fqn, job->names[i]) == 0 && reply->scalar[k]->has_i) {
                job->values[i] = reply->scalar[k]->i;
                job->found[i] = true;
            }
    job->bytes_needed = reply->bytes_needed;
    job->bytes_read = reply->bytes_read;
}

static void on_load_reply(void *arg, const struct rpc_result *result)
{
    struct link *l = arg;
    pthread_mutex_lock(&l->mu);
    struct pending_load *load = l->load;
    if (load && load->sent) {
        load->sent = false;
        if (result->err != ERR_CLOSED) {
            load->done = true;
            load->err = result->err ? why_set(load->why, result->err, "%s", result->text) : OK;
        }
        if (load->done && !load->err && result->reply)
            copy_scalars(load->job, (const Dtd__LoadReply *)(const void *)result->reply);
    }
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->mu);
}

static void send_load(struct link *l, struct rpc_conn *conn)
{
    struct pending_load *load = l->load;
    if (!load || load->sent || load->done)
        return;
    err_t err = rpc_send(conn, IO_LOAD, &load->msg->base, 0, on_load_reply, l, NULL);
    load->sent = !err;
    if (err) {
        load->done = true;
        load->err = why_set(load->why, err, "the load could not be sent to dtd-io: %s", err_text(err));
        pthread_cond_broadcast(&l->changed);
    }
}

/* ---- staged data ---- */

static err_t copy_stage(struct link_stage *job, const Dtd__StageReply *reply)
{
    job->sets = calloc(reply->n_set + 1, sizeof(*job->sets));
    if (!job->sets)
        return ERR_NOMEM;
    snprintf(job->path, sizeof(job->path), "%s", reply->path ? reply->path : "");
    snprintf(job->note.text, sizeof(job->note.text), "%s", reply->note ? reply->note : "");
    job->device = reply->device;
    job->inode = reply->inode;
    job->bytes = reply->bytes;
    job->n_sets = (int)reply->n_set;
    for (int i = 0; i < job->n_sets; i++) {
        snprintf(job->sets[i].hash, sizeof(job->sets[i].hash), "%s", reply->set[i]->hash);
        job->sets[i].offset = reply->set[i]->offset;
    }
    return OK;
}

static void on_stage_reply(void *arg, const struct rpc_result *result)
{
    struct link *l = arg;
    pthread_mutex_lock(&l->mu);
    struct pending_stage *stage = l->stage;
    if (stage && stage->sent) {
        stage->sent = false;
        if (result->err != ERR_CLOSED) {
            stage->done = true;
            stage->err = result->err ? why_set(stage->why, result->err, "%s", result->text) : OK;
        }
        if (stage->done && !stage->err && result->reply)
            stage->err = copy_stage(stage->job, (const Dtd__StageReply *)(const void *)result->reply);
    }
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->mu);
}

static void send_stage(struct link *l, struct rpc_conn *conn)
{
    struct pending_stage *stage = l->stage;
    if (!stage || stage->sent || stage->done)
        return;
    err_t err = rpc_send(conn, IO_STAGE, &stage->msg.base, 0, on_stage_reply, l, NULL);
    stage->sent = !err;
    if (err) {
        stage->done = true;
        stage->err =
            why_set(stage->why, err, "the request for staged data could not be sent to dtd-io: %s", err_text(err));
        pthread_cond_broadcast(&l->changed);
    }
}

/* ---- connected and disconnected ---- */

void io_flush(struct link *l)
{
    struct rpc_conn *conn = rpc_link_conn(l->io);
    if (!l->io_ready || !conn)
        return;
    pthread_mutex_lock(&l->mu);
    send_saves(l, conn);
    send_load(l, conn);
    send_stage(l, conn);
    pthread_mutex_unlock(&l->mu);
}

static void on_hello_reply(void *arg, const struct rpc_result *result)
{
    struct link *l = arg;
    if (result->err) {
        if (result->err != ERR_CLOSED) {
            log_at(l->io_refused ? LOG_DEBUG : LOG_WARN, "io_hello_refused error=%s text=\"%s\"", err_name(result->err),
                   result->text);
            l->io_refused = true;
        }
        rpc_link_reset(l->io);
        return;
    }
    rpc_link_healthy(l->io);
    l->io_ready = true;
    l->io_refused = false;
    io_flush(l);
}

void io_up(void *owner, struct rpc_conn *conn)
{
    struct link *l = owner;
    Dtd__IoHello hello = DTD__IO_HELLO__INIT;
    hello.job = l->job;
    hello.slot = l->slot;
    hello.token = (ProtobufCBinaryData){TICKET_TOKEN_BYTES, l->ticket.io_token};
    if (rpc_send(conn, IO_HELLO, &hello.base, 10000, on_hello_reply, l, NULL))
        rpc_link_reset(l->io);
}

void io_down(void *owner, err_t err)
{
    (void)err;
    struct link *l = owner;
    l->io_ready = false;
}

/* ---- called by the compute thread ---- */

err_t link_save(struct link *l, const struct link_save *s)
{
    struct save *n = calloc(1, sizeof(*n));
    if (!n)
        return ERR_NOMEM;
    pthread_mutex_lock(&l->mu);
    n->link = l;
    n->holds_arena = true;
    n->msg = message_save_new(l, s);
    if (!n->msg) {
        pthread_mutex_unlock(&l->mu);
        free(n);
        return ERR_NOMEM;
    }
    for (struct save *old = l->saves; old; old = old->next)
        old->holds_arena = false;
    n->next = l->saves;
    l->saves = n;
    free_finished_saves(l);
    uv_async_send(&l->wake);
    pthread_mutex_unlock(&l->mu);
    return OK;
}

err_t link_save_wait(struct link *l, bool committed, struct why *why)
{
    err_t err = OK;
    pthread_mutex_lock(&l->mu);
    const struct save *s = l->saves && l->saves->msg->epoch == l->epoch ? l->saves : NULL;
    while (s && !atomic_load(&l->cancel) && (s->state < SAVE_WRITTEN || (committed && s->state == SAVE_WRITTEN)))
        pthread_cond_wait(&l->changed, &l->mu);
    if (s && s->state == SAVE_FAILED)
        err = why_set(why, s->err, "%s", s->why.text);
    else if (s && (s->state < SAVE_WRITTEN || (committed && s->state == SAVE_WRITTEN)))
        err = why_set(why, ERR_CANCELED, "the epoch ended before step-%" PRId64 " was committed", s->msg->step);
    pthread_mutex_unlock(&l->mu);
    return err;
}

err_t link_load(struct link *l, struct link_load *job, struct why *why)
{
    struct pending_load load = {.job = job, .why = why, .msg = message_load_new(job)};
    if (!load.msg)
        return why_set(why, ERR_NOMEM, "out of memory");
    pthread_mutex_lock(&l->mu);
    l->load = &load;
    uv_async_send(&l->wake);
    while (!load.done && !atomic_load(&l->cancel))
        pthread_cond_wait(&l->changed, &l->mu);
    l->load = NULL;
    pthread_mutex_unlock(&l->mu);
    message_load_free(load.msg);
    return load.done ? load.err : why_set(why, ERR_CANCELED, "the epoch ended during the load");
}

err_t link_stage(struct link *l, struct link_stage *job, struct why *why)
{
    struct pending_stage stage = {.msg = DTD__STAGE_REQUEST__INIT, .job = job, .why = why};
    stage.msg.world = job->world;
    stage.msg.need_bytes = job->need_bytes;
    pthread_mutex_lock(&l->mu);
    stage.msg.epoch = l->epoch;
    l->stage = &stage;
    uv_async_send(&l->wake);
    while (!stage.done && !atomic_load(&l->cancel))
        pthread_cond_wait(&l->changed, &l->mu);
    l->stage = NULL;
    pthread_mutex_unlock(&l->mu);
    return stage.done ? stage.err : why_set(why, ERR_CANCELED, "the epoch ended while the data was staged");
}

void link_stage_fini(struct link_stage *stage)
{
    free(stage->sets);
    stage->sets = NULL;
}
