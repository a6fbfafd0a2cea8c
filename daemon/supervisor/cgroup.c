/* The tree has two levels below dtd-RANDOM because a process is ended alone, while memory is shared by all processes of
 * a job: its limit is on the upper level, and the kernel's count of kills, which shows whose process it was, on the
 * lower. The kernel allows controllers only where no process is on the same level, hence the group `daemon`. */
#include "daemon/supervisor/cgroup.h"

#include "common/base/log.h"
#include "daemon/supervisor/device_guard.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#define NAME_MAX_BYTES 64
#define TEXT_MAX (64 << 10)   /* /proc/self/mountinfo of a machine with hundreds of mounts */
#define DEFAULT_WEIGHT 100    /* cpu.weight of a group by default */
#define DAEMON_WEIGHT "1000"  /* ten workers': control needs little, but at once, also beside a job that forks */
#define MAX_WEIGHT 10000      /* the kernel's limit */
#define CPU_PERIOD_US 100000  /* the kernel's default */
#define STALE_TRIES 100       /* 10 ms each, for processes of a previous supervisor to end */
#define DELEGATED_XATTR_MAX 8 /* the value is "1" */

static const struct {
    enum cgroup_controller bit;
    const char *name;
} controllers[] = {{CGROUP_MEMORY, "memory"}, {CGROUP_CPU, "cpu"}, {CGROUP_PIDS, "pids"}};
#define N_CONTROLLERS (sizeof(controllers) / sizeof(controllers[0]))

bool cgroup_exists(const struct cgroup_tree *t)
{
    return t->dir >= 0;
}

/* ---- files ---- */

/* Writes an existing file. Returns 0 or an errno. */
static int put(int dir, const char *name, const char *text)
{
    int fd = openat(dir, name, O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno;
    ssize_t n = write(fd, text, strlen(text));
    int e = n < 0 ? errno : 0;
    close(fd);
    return e;
}

/* Reads a file as text. False: it cannot be read. */
static bool get(int dir, const char *name, char *ret, size_t size)
{
    int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
    size_t len = 0;
    ssize_t n = fd < 0 ? -1 : 1;
    while (n > 0 && len < size - 1) {
        n = read(fd, ret + len, size - 1 - len);
        len += n > 0 ? (size_t)n : 0;
    }
    ret[len] = '\0';
    if (fd >= 0)
        close(fd);
    return n >= 0;
}

static int folder(int dir, const char *name)
{
    return openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
}

static void job_name(uint64_t job, char ret[NAME_MAX_BYTES])
{
    snprintf(ret, NAME_MAX_BYTES, "job-%" PRIu64, job);
}

static void process_name(uint64_t job, int slot, char ret[NAME_MAX_BYTES])
{
    if (slot == CHANNEL_SLOT_IO)
        snprintf(ret, NAME_MAX_BYTES, "job-%" PRIu64 "/io", job);
    else
        snprintf(ret, NAME_MAX_BYTES, "job-%" PRIu64 "/rank-%d", job, slot);
}

/* ---- the group of this process ---- */

/* Finds the cgroup2 mount. A line is "ID PARENT DEVICE ROOT POINT OPTIONS .. - cgroup2 SOURCE OPTIONS". */
static bool mount_find(const char *mounts, char root[PATH_MAX], char point[PATH_MAX])
{
    char line[3 * PATH_MAX];
    for (const char *p = mounts; *p; p += strcspn(p, "\n"), p += *p == '\n') {
        size_t len = strcspn(p, "\n");
        len = len < sizeof(line) ? len : sizeof(line) - 1;
        memcpy(line, p, len);
        line[len] = '\0';
        if (strstr(line, " - cgroup2 ") && sscanf(line, "%*s %*s %*s %4095s %4095s", root, point) == 2)
            return true;
    }
    return false;
}

bool cgroup_own_path(const char *mounts, const char *own, char *ret, size_t size)
{
    char root[PATH_MAX], point[PATH_MAX], path[PATH_MAX];
    const char *line = strncmp(own, "0::", 3) == 0 ? own : strstr(own, "\n0::");
    if (!line || !mount_find(mounts, root, point) || sscanf(strstr(line, "0::"), "0::%4095[^\n]", path) != 1)
        return false;
    size_t skip = strcmp(root, "/") == 0 ? 0 : strlen(root);
    if (strncmp(path, root, skip) != 0 || strstr(path, "/.."))
        return false;
    int n = snprintf(ret, size, "%s%s", point, strcmp(path + skip, "/") == 0 ? "" : path + skip);
    return n > 0 && (size_t)n < size;
}

static bool own_path(char *ret, size_t size)
{
    static char mounts[TEXT_MAX], own[TEXT_MAX];
    return get(AT_FDCWD, "/proc/self/mountinfo", mounts, sizeof(mounts)) &&
           get(AT_FDCWD, "/proc/self/cgroup", own, sizeof(own)) && cgroup_own_path(mounts, own, ret, size);
}

static bool has_mark(const char *path, const char *name)
{
    char value[DELEGATED_XATTR_MAX];
    return getxattr(path, name, value, sizeof(value)) == 1 && value[0] == '1';
}

/* Root may write in every group, also in those that systemd manages. */
static bool is_delegated(const char *path, bool system)
{
    struct stat st;
    if (system || has_mark(path, "user.delegate") || has_mark(path, "trusted.delegate"))
        return true;
    return getuid() != 0 && stat(path, &st) == 0 && st.st_uid == getuid();
}

/* ---- killing and removing ---- */

static bool group_kill(int parent, const char *name);

/* Kills the processes one by one, for kernels before 5.14. The caller repeats it, because they may fork meanwhile. */
static void kill_each(int dir)
{
    char text[TEXT_MAX];
    int again = dup(dir);
    DIR *list = again < 0 ? NULL : fdopendir(again);
    for (const struct dirent *e; list && (e = readdir(list));)
        if (e->d_type == DT_DIR && e->d_name[0] != '.')
            (void)group_kill(dir, e->d_name);
    if (list)
        closedir(list);
    if (!get(dir, "cgroup.procs", text, sizeof(text)))
        return;
    for (char *p = text; *p; p += strcspn(p, "\n"), p += *p == '\n')
        if (atoi(p) > 0)
            kill(atoi(p), SIGKILL);
}

static bool is_empty(int dir)
{
    char text[256];
    return get(dir, "cgroup.events", text, sizeof(text)) && strstr(text, "populated 0");
}

/* Kills all processes of a group and of those below it. Returns true when nothing runs there any more. */
static bool group_kill(int parent, const char *name)
{
    int dir = folder(parent, name);
    if (dir < 0)
        return errno == ENOENT;
    if (!is_empty(dir) && put(dir, "cgroup.kill", "1") == ENOENT)
        kill_each(dir);
    bool empty = is_empty(dir);
    close(dir);
    return empty;
}

/* Removes a group and those below it. False: a process is in one of them. */
static bool group_remove(int parent, const char *name)
{
    int dir = folder(parent, name);
    DIR *list = dir < 0 ? NULL : fdopendir(dir);
    for (const struct dirent *e; list && (e = readdir(list));)
        if (e->d_type == DT_DIR && e->d_name[0] != '.')
            (void)group_remove(dir, e->d_name);
    if (list)
        closedir(list);
    return unlinkat(parent, name, AT_REMOVEDIR) == 0 || errno == ENOENT;
}

static void pause_10_ms(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

/* What the previous supervisor left behind when it was killed. Its groups have a random name, so that the path cannot
 * be that of another dtd. */
static void stale_remove(const struct cgroup_tree *t)
{
    char path[PATH_MAX];
    if (!get(AT_FDCWD, t->record, path, sizeof(path)) || !strstr(path, "/dtd-") || path[0] != '/')
        return;
    for (int i = 0; i < STALE_TRIES && !group_kill(AT_FDCWD, path); i++)
        pause_10_ms();
    if (!group_remove(AT_FDCWD, path))
        log_warn("control group of an earlier dtd not removed path=%s error=%s", path, strerror(errno));
    (void)unlink(t->record);
}

/* ---- start and stop ---- */

static void missing_add(struct cgroup_tree *t, const char *text)
{
    size_t n = strlen(t->missing);
    snprintf(t->missing + n, sizeof(t->missing) - n, "%s%s", n ? ", " : "", text);
}

/* Turns the controllers on for the groups of jobs. `own` has them only if it has no processes besides this one. */
static void controllers_enable(struct cgroup_tree *t, int own)
{
    char word[32];
    for (size_t i = 0; i < N_CONTROLLERS; i++) {
        snprintf(word, sizeof(word), "+%s", controllers[i].name);
        int e = put(own, "cgroup.subtree_control", word);
        e = e ? e : put(t->dir, "cgroup.subtree_control", word);
        if (!e)
            t->controllers |= controllers[i].bit;
        else
            missing_add(t, controllers[i].name);
        log_debug("controller name=%s error=%s", controllers[i].name, e ? strerror(e) : "none");
    }
}

static bool record_write(const struct cgroup_tree *t)
{
    int fd = open(t->record, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool ok = fd >= 0 && write(fd, t->path, strlen(t->path)) == (ssize_t)strlen(t->path);
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Returns 0 or an errno. */
static int tree_make(struct cgroup_tree *t, const char *own)
{
    uint64_t random;
    char name[NAME_MAX_BYTES];
    if (getrandom(&random, sizeof(random), 0) != sizeof(random))
        return EIO;
    snprintf(name, sizeof(name), "/dtd-%016" PRIx64, random);
    int n = snprintf(t->path, sizeof(t->path), "%s%s", own, name);
    if (n < 0 || (size_t)n >= sizeof(t->path))
        return ENAMETOOLONG;
    if (mkdir(t->path, 0755))
        return errno;
    t->dir = folder(AT_FDCWD, t->path);
    int e = t->dir < 0 || !record_write(t) || mkdirat(t->dir, "daemon", 0755) ? errno : 0;
    return e ? e : put(t->dir, "daemon/cgroup.procs", "0");
}

void cgroup_start(struct cgroup_tree *t, bool system, const char *state_dir)
{
    char path[PATH_MAX];
    *t = (struct cgroup_tree){.dir = -1};
    snprintf(t->record, sizeof(t->record), "%s/cgroup", state_dir);
    stale_remove(t);
    if (!own_path(path, sizeof(path))) {
        missing_add(t, "this machine has no cgroup v2");
    } else if (!is_delegated(path, system)) {
        missing_add(t, "the control group of dtd is not delegated to it");
    } else {
        int e = tree_make(t, path), own = folder(AT_FDCWD, path);
        if (e) {
            missing_add(t, strerror(e));
            cgroup_stop(t);
        } else {
            controllers_enable(t, own);
            (void)put(t->dir, "daemon/cpu.weight", DAEMON_WEIGHT); /* absent without the controller */
        }
        close(own); /* -1 has no effect */
    }
    if (cgroup_exists(t))
        log_info("control groups path=%s missing_controllers=\"%s\"", t->path, t->missing);
    else
        log_info("no control groups: processes of jobs are found by their parents, and have no limits why=\"%s\"",
                 t->missing);
}

/* This process has to leave `daemon`; it may return to the group above only when that has no controllers. */
static void leave(const struct cgroup_tree *t)
{
    char word[32];
    int own = folder(t->dir, "..");
    const int dirs[] = {t->dir, own};
    for (size_t k = 0; k < 2; k++)
        for (size_t i = 0; i < N_CONTROLLERS; i++) {
            snprintf(word, sizeof(word), "-%s", controllers[i].name);
            if (t->controllers & controllers[i].bit)
                (void)put(dirs[k], "cgroup.subtree_control", word);
        }
    (void)put(own, "cgroup.procs", "0");
    close(own);
}

void cgroup_stop(struct cgroup_tree *t)
{
    char name[NAME_MAX_BYTES];
    if (!cgroup_exists(t))
        return;
    int again = dup(t->dir);
    DIR *list = again < 0 ? NULL : fdopendir(again);
    for (const struct dirent *e; list && (e = readdir(list));)
        if (strncmp(e->d_name, "job-", 4) == 0) {
            snprintf(name, sizeof(name), "%.60s", e->d_name);
            for (int i = 0; i < STALE_TRIES && !group_kill(t->dir, name); i++)
                pause_10_ms();
            (void)group_remove(t->dir, name);
        }
    if (list)
        closedir(list);
    leave(t);
    if (group_remove(AT_FDCWD, t->path))
        (void)unlink(t->record);
    close(t->dir);
    t->dir = -1;
    t->controllers = 0;
}

/* ---- jobs ---- */

static int set_memory(int dir, int64_t bytes)
{
    char text[32];
    snprintf(text, sizeof(text), bytes ? "%" PRId64 : "max", bytes);
    int e = put(dir, "memory.max", text);
    if (!e && bytes) /* a job that swaps would make its neighbours wait for the disk; absent without swap */
        (void)put(dir, "memory.swap.max", "0");
    return e;
}

static int set_cpu(int dir, const struct channel_limits *x)
{
    char text[64];
    int weight = x->workers * DEFAULT_WEIGHT;
    snprintf(text, sizeof(text), "%d", weight < 1 ? 1 : weight > MAX_WEIGHT ? MAX_WEIGHT : weight);
    int e = put(dir, "cpu.weight", text);
    if (x->cores)
        snprintf(text, sizeof(text), "%" PRId64 " %d", (int64_t)x->cores * CPU_PERIOD_US, CPU_PERIOD_US);
    else
        snprintf(text, sizeof(text), "max %d", CPU_PERIOD_US);
    return e ? e : put(dir, "cpu.max", text);
}

static int set_pids(int dir, int processes)
{
    char text[32];
    snprintf(text, sizeof(text), processes ? "%d" : "max", processes);
    return put(dir, "pids.max", text);
}

static bool lacks(const struct cgroup_tree *t, enum cgroup_controller c)
{
    return !(t->controllers & c);
}

static int limits_set(const struct cgroup_tree *t, int dir, const struct channel_limits *x)
{
    int e = 0;
    if (!lacks(t, CGROUP_MEMORY))
        e = set_memory(dir, x->memory_bytes);
    if (!e && !lacks(t, CGROUP_CPU))
        e = set_cpu(dir, x);
    if (!e && !lacks(t, CGROUP_PIDS))
        e = set_pids(dir, x->processes);
    return e;
}

/* The kernel's count for the groups of processes needs the controller there, too. */
static int job_make(const struct cgroup_tree *t, const char *name)
{
    if (mkdirat(t->dir, name, 0755))
        return errno == EEXIST ? 0 : errno;
    int dir = folder(t->dir, name);
    int e = dir < 0 ? errno : lacks(t, CGROUP_MEMORY) ? 0 : put(dir, "cgroup.subtree_control", "+memory");
    close(dir);
    return e;
}

int cgroup_job(const struct cgroup_tree *t, uint64_t job, const struct channel_limits *limits)
{
    char name[NAME_MAX_BYTES];
    bool memory = limits->memory_bytes && limits->memory_required && lacks(t, CGROUP_MEMORY);
    if (memory || (limits->cores && lacks(t, CGROUP_CPU)))
        return EOPNOTSUPP;
    if (!cgroup_exists(t))
        return 0;
    job_name(job, name);
    int e = job_make(t, name), dir = e ? -1 : folder(t->dir, name);
    e = e ? e : dir < 0 ? errno : limits_set(t, dir, limits);
    close(dir); /* -1 has no effect */
    return e;
}

int cgroup_process(const struct cgroup_tree *t, uint64_t job, int slot, int *ret)
{
    char name[NAME_MAX_BYTES], procs[NAME_MAX_BYTES + 16];
    *ret = 0;
    if (!cgroup_exists(t))
        return 0;
    process_name(job, slot, name);
    (void)group_remove(t->dir, name); /* with its counts */
    snprintf(procs, sizeof(procs), "%s/cgroup.procs", name);
    if (mkdirat(t->dir, name, 0755) && errno != EEXIST) /* a report of dtd-io may still be written there */
        return errno;
    int fd = openat(t->dir, procs, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return errno;
    *ret = fd;
    return 0;
}

int cgroup_job_guard(const struct cgroup_tree *t, uint64_t job, uint64_t gpu_minors)
{
    char name[NAME_MAX_BYTES];
    if (!cgroup_exists(t))
        return 0;
    job_name(job, name);
    int dir = folder(t->dir, name);
    int e = dir < 0 ? errno : device_guard_set(dir, gpu_minors);
    close(dir); /* -1 has no effect */
    return e;
}

bool cgroup_process_kill(const struct cgroup_tree *t, uint64_t job, int slot)
{
    char name[NAME_MAX_BYTES];
    process_name(job, slot, name);
    return !cgroup_exists(t) || group_kill(t->dir, name);
}

void cgroup_process_remove(const struct cgroup_tree *t, uint64_t job, int slot)
{
    char name[NAME_MAX_BYTES];
    process_name(job, slot, name);
    if (cgroup_exists(t))
        (void)group_remove(t->dir, name);
}

bool cgroup_job_remove(const struct cgroup_tree *t, uint64_t job)
{
    char name[NAME_MAX_BYTES];
    job_name(job, name);
    return group_remove(t->dir, name);
}

/* ---- counts ---- */

/* The number behind `key` in a group's memory.events; 0: not known. */
static int64_t count_of(const struct cgroup_tree *t, const char *group, const char *key)
{
    char path[NAME_MAX_BYTES + 16], text[1024], line[32];
    snprintf(path, sizeof(path), "%s/memory.events", group);
    if (lacks(t, CGROUP_MEMORY) || !get(t->dir, path, text, sizeof(text)))
        return 0;
    snprintf(line, sizeof(line), "\n%s ", key);
    const char *at = strstr(text, line);
    return at ? strtoll(at + strlen(line), NULL, 10) : 0;
}

int64_t cgroup_job_oom(const struct cgroup_tree *t, uint64_t job)
{
    char name[NAME_MAX_BYTES];
    job_name(job, name);
    return count_of(t, name, "oom");
}

int64_t cgroup_process_oom(const struct cgroup_tree *t, uint64_t job, int slot)
{
    char name[NAME_MAX_BYTES];
    process_name(job, slot, name);
    return count_of(t, name, "oom_kill");
}
