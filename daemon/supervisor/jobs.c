/* What a job owns on the node by descriptor. The supervisor makes these once, before the first process of the job, and
 * gives the same ones to every successor, so that an arena survives the worker that filled it and the io that reads it.
 */
#include "daemon/supervisor/supervisor.h"

#include "common/base/file.h"
#include "common/base/log.h"
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

/* Also of a half-made entry: closing -1 does nothing. */
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

int sv_listen(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof(a.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    unlink(path);
    if (bind(fd, (const struct sockaddr *)&a, sizeof(a)) == 0 && chmod(path, 0600) == 0 && listen(fd, 256) == 0)
        return fd;
    int e = errno;
    close(fd);
    errno = e;
    return -1;
}

/* Descriptors of a fresh entry; on failure the caller closes what is there. */
static int job_make(const struct supervisor *s, struct sv_job *j)
{
    char path[PATH_MAX];
    job_path(s, j->id, "", path, sizeof(path));
    err_t err = file_make_dirs(path, 0700);
    if (err)
        return err == ERR_NOSPACE ? ENOSPC : EIO;
    job_path(s, j->id, "io.sock", path, sizeof(path));
    j->listener = sv_listen(path);
    j->segment = memfd_create("dtd-segment", MFD_CLOEXEC);
    if (j->listener < 0 || j->segment < 0)
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

int sv_job_need(struct supervisor *s, uint64_t id, int slots, struct sv_job **ret)
{
    struct sv_job *j = sv_job_find(s, id);
    if (!j) {
        for (int i = 0; i < SV_MAX_JOBS && !j; i++)
            j = s->jobs[i].id ? NULL : &s->jobs[i];
        if (!j)
            return EMFILE;
        *j = (struct sv_job){.id = id, .slots = slots, .listener = -1, .segment = -1};
        memset(j->arena, -1, sizeof(j->arena));
        int e = job_make(s, j);
        if (e) {
            job_close(j);
            return e;
        }
    }
    if (j->slots != slots)
        return EINVAL;
    *ret = j;
    return 0;
}

void sv_job_release(struct supervisor *s, const struct channel_msg *m)
{
    uint64_t id = m->job;
    struct sv_job *j = sv_job_find(s, id);
    if (!j)
        return;
    for (int i = 0; i < SV_MAX_CHILDREN; i++)
        if (s->children[i].job == id && s->children[i].state == CHANNEL_RUNNING) {
            log_warn("not released, it has children job=%" PRIu64, id);
            return;
        }
    char path[PATH_MAX];
    job_path(s, id, "io.sock", path, sizeof(path));
    unlink(path);
    job_close(j);
    log_info("released job=%" PRIu64, id);
}

int sv_ticket(const struct supervisor *s, const struct sv_job *j, const uint8_t token[CHANNEL_TOKEN_BYTES])
{
    struct ticket t = {.slots = j->slots};
    memcpy(t.token, token, CHANNEL_TOKEN_BYTES);
    memcpy(t.io_token, j->io_token, sizeof(t.io_token));
    snprintf(t.control, sizeof(t.control), "%s/control.sock", s->dir);
    job_path(s, j->id, "io.sock", t.io, sizeof(t.io));
    int fd = -1;
    if (ticket_make(&t, &fd)) {
        errno = EIO;
        return -1;
    }
    return fd;
}

int sv_log_open(const struct supervisor *s, const char *name)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", s->dir, name);
    int fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        return fd;
    log_warn("no log file path=%s error=%s", path, strerror(errno));
    return open("/dev/null", O_WRONLY | O_CLOEXEC);
}
