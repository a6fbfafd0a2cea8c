/* The configuration of the log, and streams between voters. libraft accepts one change at a time. The change ends when
 * it is committed, when the leadership is lost, or, for a new voter that does not catch up, with an error. libraft
 * 0.22.1 keeps its record of a change that raft_assign has refused late; it is cleared here, or the next change would
 * be refused as a second one. */
#include "daemon/control/log/internal.h"

#include "common/base/log.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- addresses, streams ---- */

const char *log_address(const struct log *log, uint64_t id, char ret[LOG_ADDRESS_MAX])
{
    const struct raft_configuration *conf = &log->raft.configuration;
    for (unsigned i = 0; log_has_raft(log) && i < conf->n; i++)
        if (conf->servers[i].id == id)
            return conf->servers[i].address;
    snprintf(ret, LOG_ADDRESS_MAX, id == LOG_FIRST_ID ? "node-%" PRIu64 : "voter-%" PRIu64, id);
    return ret;
}

err_t log_accept(struct log *log, uint64_t from, uint64_t to, int fd)
{
    char address[LOG_ADDRESS_MAX];
    if (to != log->config.id || !from || from == to)
        return ERR_STALE;
    if (!log_has_raft(log))
        return ERR_AGAIN;
    return log_transport_accept(&log->transport, from, log_address(log, from, address), fd);
}

/* ---- the configuration ---- */

int log_members(const struct log *log, struct log_member ret[LOG_MAX_MEMBERS])
{
    static const enum log_role roles[] = {
        [RAFT_STANDBY] = LOG_STANDBY, [RAFT_VOTER] = LOG_VOTER, [RAFT_SPARE] = LOG_SPARE};
    const struct raft_configuration *conf = &log->raft.configuration;
    int n = 0;
    for (unsigned i = 0; log_has_raft(log) && i < conf->n && n < LOG_MAX_MEMBERS; i++) {
        raft_index match = 0;
        if (raft_match_index(&log->raft, conf->servers[i].id, &match))
            match = 0;
        ret[n++] = (struct log_member){conf->servers[i].id, roles[conf->servers[i].role], match};
    }
    return n;
}

void log_change_end(struct log *log, err_t err)
{
    struct log_change *c = &log->change;
    if (!c->is_under_way)
        return;
    c->is_under_way = false;
    if (c->cb)
        c->cb(c->arg, err);
}

static void handle_changed(struct raft_change *req, int status)
{
    log_change_end(req->data, log_err_from_raft(status));
}

/* libraft reports only that the transfer is over, not its result. */
static void handle_transferred(struct raft_transfer *req)
{
    struct log *log = req->data;
    const char *address;
    raft_id leader = 0;
    if (log_has_raft(log))
        raft_leader(&log->raft, &leader, &address);
    bool is_done = leader && leader != log->config.id && (!log->change.to || leader == log->change.to);
    log_change_end(log, is_done ? OK : ERR_TIMEOUT);
}

static err_t begin_change(struct log *log, log_change_callback cb, void *arg)
{
    if (!log_has_raft(log) || !log->leads)
        return ERR_AGAIN;
    if (log->change.is_under_way)
        return ERR_BUSY;
    log->change = (struct log_change){.is_under_way = true, .cb = cb, .arg = arg};
    log->change.change.data = log->change.transfer.data = log;
    return OK;
}

static err_t change_begun(struct log *log, int status, const char *what, uint64_t id)
{
    if (!status) {
        log_info("voters: %s id=%" PRIu64, what, id);
        return OK;
    }
    log->change.is_under_way = false;
    if (log->raft.legacy.change == &log->change.change)
        log->raft.legacy.change = NULL;
    return log_err_from_raft(status);
}

err_t log_add(struct log *log, uint64_t id, log_change_callback cb, void *arg)
{
    char address[LOG_ADDRESS_MAX];
    if (log->raft.configuration.n >= LOG_MAX_MEMBERS)
        return ERR_LIMIT;
    err_t err = begin_change(log, cb, arg);
    if (err)
        return err;
    int status = raft_add(&log->raft, &log->change.change, id, log_address(log, id, address), handle_changed);
    return change_begun(log, status, "added", id);
}

err_t log_assign(struct log *log, uint64_t id, enum log_role role, log_change_callback cb, void *arg)
{
    static const int roles[] = {[LOG_SPARE] = RAFT_SPARE, [LOG_STANDBY] = RAFT_STANDBY, [LOG_VOTER] = RAFT_VOTER};
    static const char *const names[] = {"spare", "standby", "voter"};
    err_t err = begin_change(log, cb, arg);
    if (err)
        return err;
    return change_begun(log, raft_assign(&log->raft, &log->change.change, id, roles[role], handle_changed), names[role],
                        id);
}

err_t log_remove(struct log *log, uint64_t id, log_change_callback cb, void *arg)
{
    err_t err = begin_change(log, cb, arg);
    if (err)
        return err;
    return change_begun(log, raft_remove(&log->raft, &log->change.change, id, handle_changed), "removed", id);
}

err_t log_transfer(struct log *log, uint64_t id, log_change_callback cb, void *arg)
{
    err_t err = begin_change(log, cb, arg);
    if (err)
        return err;
    log->change.to = id;
    return change_begun(log, raft_transfer(&log->raft, &log->change.transfer, id, handle_transferred),
                        "leadership transfer", id);
}

/* ---- old copies ---- */

struct log_mark log_opened(const struct log *log)
{
    return log_has_raft(log) ? log->opened : (struct log_mark){0};
}

bool log_judge(struct log *log, const struct log_mark *shown)
{
    return witness_judge(&log->witness, shown);
}

bool log_is_old_copy(const struct log *log, uint64_t id)
{
    return witness_is_old(&log->witness, id);
}

int log_marks(const struct log *log, struct log_mark ret[LOG_MAX_MEMBERS])
{
    const struct raft_configuration *conf = &log->raft.configuration;
    int n = 0;
    for (unsigned i = 0; log_has_raft(log) && i < conf->n && n < LOG_MAX_MEMBERS; i++) {
        const struct log_mark *m = witness_find(&log->witness, conf->servers[i].id);
        if (conf->servers[i].id == log->config.id && log->opened.process)
            ret[n++] =
                (struct log_mark){log->config.id, log->opened.process, log->raft.current_term, log->raft.last_stored};
        else if (m && m->process)
            ret[n++] = *m;
    }
    return n;
}

void log_learn(struct log *log, const struct log_mark *marks, int n)
{
    for (int i = 0; i < n; i++)
        if (marks[i].id != log->config.id)
            witness_note(&log->witness, &marks[i]);
}
