#include "worker/staged.h"

#include "common/base/log.h"
#include "common/data/stage.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* If dtd-io has exited since, another file may be there. */
static int copy_open(const struct link_stage *s)
{
    struct stat st;
    int fd = open(s->path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && (fstat(fd, &st) || st.st_dev != s->device || st.st_ino != s->inode)) {
        close(fd);
        errno = ENOENT;
        return -1;
    }
    return fd;
}

static err_t use(const struct link_stage *s, int fd, struct data_set *set, struct why *why)
{
    for (int i = 0; i < s->n_sets; i++)
        if (strcmp(s->sets[i].hash, data_name(set)) == 0)
            return stage_use(set, fd, s->sets[i].offset, why);
    return why_set(why, ERR_PROTO, "dtd-io has not staged the set %s", data_name(set));
}

err_t staged_use(struct link *l, struct link_stage *ask, struct data_set *const *sets, int n, struct why *why)
{
    err_t err = link_stage(l, ask, why);
    int fd = !err && ask->path[0] ? copy_open(ask) : -1;
    if (!err && ask->note.text[0])
        log_at(ask->path[0] ? LOG_INFO : LOG_WARN, "%s", ask->note.text);
    if (!err && ask->path[0] && fd < 0)
        log_warn("data.stage: the data is read in place: the copy cannot be opened: %s: %s", ask->path,
                 strerror(errno));
    for (int i = 0; fd >= 0 && !err && i < n; i++)
        err = sets[i] ? use(ask, fd, sets[i], why) : OK;
    if (fd >= 0)
        close(fd);
    link_stage_fini(ask);
    return err;
}
