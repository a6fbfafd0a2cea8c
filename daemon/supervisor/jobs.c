/* The descriptors of a job on this node. The supervisor creates them once, before the first process of the job, and
 * passes the same ones to every later process. Therefore an arena survives both the worker that filled it and the
 * dtd-io that reads it. */
#include "daemon/supervisor/supervisor.h"

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/log_cut.h"
#include "common/base/ticket.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

struct sv_job *sv_job_find(struct supervisor *s, uint64_t id)
{
    for (int i = 0; i < SV_MAX_JOBS; i++)
        if (id && s->jobs[i].id == id)
            return &s->jobs[i];
    return NULL;
}

/* Also works for an entry of which only a part was created: closing -1 does nothing. */
static void job_close(struct sv_job *j)
{
    for (int k = 0; k < j->slots; k++)
        close(j->arena[k]);
    close(j->segment);
    close(j->listener);
    j->id = 0;
}

static void job_path(const struct supervisor *s, uint64_t id, const char *name, char *ret, size_t size)
{
    snprintf(ret, size, "%s/jobs/%" PRIu64 "%s%s", s->dir, id, *name ? "/" : "", name);
}

int sv_listen(const char *path, mode_t mode)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    unlink(path);
    if (bind(fd, (const struct sockaddr *)&a, sizeof(a)) == 0 && chmod(path, mode) == 0 && listen(fd, 256) == 0)
        return fd;
    int e = errno;
    close(fd);
    errno = e;
    return -1;
}

/* Looks up the user of the job's processes. Control sent the uid; the supervisor checks it, because the supervisor is
 * the program that runs processes with it. */
static int job_owner(const struct supervisor *s, uint32_t uid, struct user *ret)
{
    struct why why = {""};
    if (!s->system)
        return 0;
    if (uid == 0)
        why_set(&why, ERR_DENIED, "processes of a job must not run as root");
    else if (user_by_uid(uid, ret, &why) == OK && ret->uid == uid)
        return 0;
    log_error("job refused uid=%u why=\"%s\"", uid, why.text);
    return EPERM;
}

/* Creates the descriptors of a new entry. On failure the caller closes those that exist. */
static int job_make(const struct supervisor *s, struct sv_job *j, const struct channel_msg *m)
{
    char path[PATH_MAX];
    job_path(s, j->id, "", path, sizeof(path));
    if (file_make_dirs(path, s->system ? 0711 : 0700))
        return errno;
    job_path(s, j->id, "io.sock", path, sizeof(path));
    if (m->n_args) /* a command inherits none of them */
        return 0;
    j->listener = sv_listen(path, 0600);
    j->segment = memfd_create("dtd-segment", MFD_CLOEXEC);
    if (j->listener < 0 || j->segment < 0 || (s->system && lchown(path, j->owner.uid, j->owner.gid)))
        return errno;
    if (getrandom(j->io_token, sizeof(j->io_token), 0) != sizeof(j->io_token))
        return EIO;
    for (int k = 0; k < j->slots; k++) {
        j->arena[k] = memfd_create("dtd-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (j->arena[k] < 0)
            return errno;
    }
    return 0;
}

int sv_job_need(struct supervisor *s, const struct channel_msg *m, struct sv_job **ret)
{
    struct sv_job *j = sv_job_find(s, m->job);
    if (!j) {
        for (int i = 0; i < SV_MAX_JOBS && !j; i++)
            j = s->jobs[i].id ? NULL : &s->jobs[i];
        if (!j)
            return EMFILE;
        struct user owner = {.uid = getuid()};
        int e = job_owner(s, m->uid, &owner);
        if (e)
            return e;
        *j = (struct sv_job){.id = m->job, .slots = m->slots, .owner = owner, .listener = -1, .segment = -1};
        memset(j->arena, -1, sizeof(j->arena));
        e = job_make(s, j, m);
        if (e) {
            job_close(j);
            return e;
        }
    }
    if (j->slots != m->slots || (s->system && j->owner.uid != m->uid))
        return EINVAL;
    *ret = j;
    return 0;
}

void sv_job_release(struct supervisor *s, const struct channel_msg *m)
{
    struct sv_job *j = sv_job_find(s, m->job);
    SV_EACH_CHILD (s, c)
        if (c->job == m->job && c->state == CHANNEL_RUNNING) {
            log_warn("job not released job=%" PRIu64 " why=\"it has running processes\"", m->job);
            return;
        }
    char path[PATH_MAX];
    if (j) {
        job_path(s, m->job, "io.sock", path, sizeof(path));
        unlink(path);
        job_close(j);
        sv_contain_release(s, m->job);
        log_info("released job=%" PRIu64, m->job);
    }
    job_path(s, m->job, "", path, sizeof(path));
    if (m->state == 1 && m->job && file_remove_tree(path))
        log_warn("not removed path=%s error=%s", path, strerror(errno));
}

int sv_ticket(const struct supervisor *s, const struct sv_job *j, const uint8_t token[CHANNEL_TOKEN_BYTES])
{
    struct ticket t = {.slots = j->slots};
    memcpy(t.token, token, CHANNEL_TOKEN_BYTES);
    memcpy(t.io_token, j->io_token, sizeof(t.io_token));
    snprintf(t.control, sizeof(t.control), "%s/control.sock", s->run);
    job_path(s, j->id, "io.sock", t.io, sizeof(t.io));
    int fd = -1;
    if (ticket_make(&t, &fd)) {
        errno = EIO;
        return -1;
    }
    return fd;
}

/* An existing file already belongs to `owner`, who may have replaced it by a link: it is opened with the owner's
 * permissions. */
static int open_owned(const struct supervisor *s, const char *path, const struct user *owner)
{
    const int flags = O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC;
    int fd = open(path, flags | O_CREAT | O_EXCL, 0640);
    if (fd >= 0 && fchown(fd, owner->uid, s->service.gid)) {
        close(fd);
        return -1;
    }
    if (fd >= 0 || errno != EEXIST)
        return fd;
    user_files_as(owner->uid);
    fd = open(path, flags);
    int e = errno;
    user_files_as(0);
    errno = e;
    return fd;
}

int sv_log_open(const struct supervisor *s, const char *name, const struct user *owner)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", s->dir, name);
    int fd = s->system ? open_owned(s, path, owner) : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    log_warn("no log file path=%s error=%s", path, strerror(errno));
    return open("/dev/null", O_WRONLY | O_CLOEXEC);
}

void sv_log_cut(struct supervisor *s, const struct channel_msg *m)
{
    char name[40], path[PATH_MAX];
    snprintf(name, sizeof(name), "rank-%d.log", m->slot);
    job_path(s, m->job, name, path, sizeof(path));
    user_files_as(s->system ? m->uid : 0);
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int e = fd < 0 ? errno : log_cut(fd, &(struct log_cut){m->from, m->to});
    user_files_as(0);
    close(fd); /* -1 has no effect */
    if (e && e != s->cut_error)
        log_warn("log not cut path=%s error=%s", path, strerror(e));
    s->cut_error = e;
}
