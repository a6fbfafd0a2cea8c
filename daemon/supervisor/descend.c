/* One look at /proc is not atomic: a process may fork behind it. Its child is then a descendant of a killed process,
 * hence an orphan with the same mark, which the next look finds. */
#include "daemon/supervisor/descend.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define ENVIRON_MAX (256 << 10) /* bytes that are searched; the mark is among the first variables of most processes */

int descend_start(bool *ret_sole)
{
    siginfo_t info;
    bool none = waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD;
    *ret_sole = none && getpid() != 1;
    return prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) ? errno : 0;
}

void descend_mark(uint64_t job, int slot, char ret[DESCEND_MARK_BYTES])
{
    snprintf(ret, DESCEND_MARK_BYTES, DESCEND_VARIABLE "=%d/%" PRIu64 "/%d", (int)getpid(), job, slot);
}

/* Reads a file of /proc/PID as text. Returns its length; 0: it cannot be read. */
static size_t read_of(pid_t pid, const char *name, char *ret, size_t size)
{
    char path[64];
    size_t len = 0;
    ssize_t n = 1;
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (; fd >= 0 && n > 0 && len<size - 1; len += n> 0 ? (size_t)n : 0)
        n = read(fd, ret + len, size - 1 - len);
    if (fd >= 0)
        close(fd);
    ret[len] = '\0';
    return len;
}

/* Reads "PID (NAME) STATE PARENT ..". The name may contain any characters. */
static bool read_stat(pid_t pid, struct descend_process *ret)
{
    char text[512], state = 0;
    int parent = 0;
    const char *end = read_of(pid, "stat", text, sizeof(text)) ? strrchr(text, ')') : NULL;
    if (!end || sscanf(end + 1, " %c %d", &state, &parent) != 2)
        return false;
    *ret = (struct descend_process){.pid = pid, .parent = parent, .is_zombie = state == 'Z' || state == 'X'};
    return true;
}

static bool list_add(struct descend_list *l, const struct descend_process *p)
{
    if (l->n == l->room) {
        int room = l->room ? 2 * l->room : 256;
        struct descend_process *more = realloc(l->p, (size_t)room * sizeof(*more));
        if (!more)
            return false;
        l->p = more;
        l->room = room;
    }
    l->p[l->n++] = *p;
    return true;
}

static int by_pid(const void *a, const void *b)
{
    pid_t x = ((const struct descend_process *)a)->pid, y = ((const struct descend_process *)b)->pid;
    return (x > y) - (x < y);
}

bool descend_look(struct descend_list *l)
{
    struct descend_process p;
    DIR *proc = opendir("/proc");
    bool ok = proc != NULL;
    l->n = 0;
    for (const struct dirent *e; ok && (e = readdir(proc));)
        if (isdigit((unsigned char)e->d_name[0]) && read_stat(atoi(e->d_name), &p))
            ok = list_add(l, &p);
    if (proc)
        closedir(proc);
    if (ok && l->n)
        qsort(l->p, (size_t)l->n, sizeof(*l->p), by_pid);
    return ok;
}

enum mark { MARK_NONE, MARK_SAME, MARK_OTHER };

/* The environment of another user's process cannot be read: MARK_NONE. */
static enum mark mark_of(pid_t pid, const char *mark)
{
    static char text[ENVIRON_MAX];
    size_t len = read_of(pid, "environ", text, sizeof(text)), key = strcspn(mark, "=") + 1;
    for (const char *p = text; p < text + len; p += strlen(p) + 1)
        if (strncmp(p, mark, key) == 0)
            return strcmp(p, mark) == 0 ? MARK_SAME : MARK_OTHER;
    return MARK_NONE;
}

static bool is_of_user(pid_t pid, uid_t uid)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof(path), "/proc/%d", (int)pid);
    return stat(path, &st) == 0 && st.st_uid == uid;
}

static bool is_root_of_tree(const struct descend *x, const struct descend_process *p)
{
    if (p->parent != getpid() || p->is_zombie || x->is_own(x->owner, p->pid))
        return false;
    enum mark m = mark_of(p->pid, x->mark);
    return m == MARK_SAME || (m == MARK_NONE && x->alone && is_of_user(p->pid, x->uid));
}

static bool parent_is_chosen(const struct descend_list *l, const struct descend_process *p)
{
    const struct descend_process key = {.pid = p->parent};
    const struct descend_process *parent = bsearch(&key, l->p, (size_t)l->n, sizeof(*l->p), by_pid);
    return parent && parent->chosen;
}

static void choose(const struct descend *x, struct descend_list *l)
{
    bool grew = true;
    for (int i = 0; i < l->n; i++)
        l->p[i].chosen = is_root_of_tree(x, &l->p[i]);
    while (grew) { /* once per generation */
        grew = false;
        for (int i = 0; i < l->n; i++)
            if (!l->p[i].chosen && parent_is_chosen(l, &l->p[i]))
                grew = l->p[i].chosen = true;
    }
}

int descend_kill(const struct descend *x, struct descend_list *l)
{
    int n = 0;
    choose(x, l);
    for (int i = 0; i < l->n; i++)
        if (l->p[i].chosen && !l->p[i].is_zombie) {
            kill(l->p[i].pid, SIGKILL);
            n++;
        }
    return n;
}
