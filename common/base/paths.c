/* See paths.h. Sockets and locks of a dtd are of one host. On a home that several hosts share, they would seem to be
 * there on each of them, so the default place must be local. A state directory that would make a socket's address too
 * long is refused here, where the sentence can name it, and not at the first bind or connect deep inside. */
#include "common/base/paths.h"

#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static const char *home_dir(void)
{
    const char *home = getenv("HOME");
    if (home && *home)
        return home;
    const struct passwd *pw = getpwuid(getuid());
    return pw && pw->pw_dir ? pw->pw_dir : "/";
}

/* ---- file systems ---- */

/* File systems that several hosts may have mounted. Constants of linux/magic.h, and for those that are not in the
 * kernel of their own modules. FUSE stands for many, some local; a local place is right for those too. */
static const struct {
    long type;
    const char *name;
} shared[] = {{0x6969, "nfs"},         {0x0bd00bd0, "lustre"}, {0x47504653, "gpfs"},  {0x19830326, "beegfs"},
              {0x00c36400, "ceph"},    {0x65735546, "fuse"},   {0xff534d42, "cifs"},  {0xfe534d42, "smb2"},
              {0x517b, "smb"},         {0x5346414f, "afs"},    {0x6b414653, "afs"},   {0x01021997, "9p"},
              {0x73757245, "coda"},    {0x01161970, "gfs2"},   {0x7461636f, "ocfs2"}, {0xaad7aaea, "panfs"},
              {0x20030528, "orangefs"}};

const char *path_shared_fs_name(long type)
{
    for (size_t i = 0; i < sizeof(shared) / sizeof(*shared); i++)
        if ((shared[i].type & 0xffffffff) == (type & 0xffffffff)) /* 32 bits are signed on some architectures */
            return shared[i].name;
    return NULL;
}

const char *path_shared_fs(const char *path)
{
    char at[PATH_MAX];
    struct statfs fs;
    snprintf(at, sizeof(at), "%s", path);
    while (statfs(at, &fs)) {
        char *slash = strrchr(at, '/');
        if (!slash || !slash[1])
            return NULL;
        slash[slash == at] = '\0';
    }
    return path_shared_fs_name((long)fs.f_type);
}

/* ---- the default place ---- */

static int write_home_place(char *ret, size_t size)
{
    const char *xdg = getenv("XDG_STATE_HOME");
    if (xdg && *xdg == '/')
        return snprintf(ret, size, "%s/dtd", xdg);
    return snprintf(ret, size, "%s/.local/state/dtd", home_dir());
}

/* Folders for all users that are not emptied when a session ends, as $XDG_RUNTIME_DIR is. /var/tmp survives a reboot;
 * a machine without a disk may have only the others. */
static const char *const local_folders[] = {"/var/tmp", "/tmp", "/dev/shm"};

static int write_local_place(char *ret, size_t size)
{
    for (size_t i = 0; i < sizeof(local_folders) / sizeof(*local_folders); i++)
        if (access(local_folders[i], W_OK | X_OK) == 0 && !path_shared_fs(local_folders[i]))
            return snprintf(ret, size, "%s/dtd-%u", local_folders[i], (unsigned)geteuid());
    ret[0] = '\0';
    return 0;
}

/* Any user may create entries in /var/tmp, so the folder must be ours before a client trusts the socket in it. After
 * mkdir or the check no other user can replace it, because /var/tmp is sticky. */
static err_t own_folder(const char *path, struct why *why)
{
    struct stat st;
    if (mkdir(path, 0700) == 0)
        return OK;
    if (errno != EEXIST || lstat(path, &st))
        return why_set(why, err_from_errno(errno), "state directory %s: %s; set DTD_DIR to a local folder", path,
                       strerror(errno));
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 077))
        return why_set(why, ERR_DENIED,
                       "state directory %s: it must be a folder of user %u with mode 0700, and is not. Remove it, or "
                       "set DTD_DIR to another local folder",
                       path, (unsigned)geteuid());
    return OK;
}

static err_t write_default(char *ret, size_t size, struct why *why)
{
    const char *dir = getenv("DTD_DIR"), *fs;
    int n = dir && *dir ? snprintf(ret, size, "%s", dir) : write_home_place(ret, size);
    if (n < 0 || (size_t)n >= size)
        return why_set(why, ERR_LIMIT, "the state directory's name is too long");
    if ((dir && *dir) || !(fs = path_shared_fs(ret)))
        return OK;
    if (!write_local_place(ret, size))
        return why_set(why, ERR_INVALID,
                       "your home is on %s, and neither /var/tmp, /tmp nor /dev/shm is a local folder for the state of "
                       "dtd; set DTD_DIR to a local folder",
                       fs);
    return own_folder(ret, why);
}

bool path_state_dir_note(const char *dir, char *ret, size_t size)
{
    char local[PATH_MAX], home[PATH_MAX], raft[PATH_MAX + 8];
    const char *fs = path_shared_fs(dir);
    if (fs) {
        snprintf(ret, size,
                 "%s is on %s, which other hosts may share; only this host can use this dtd. A local DTD_DIR is faster",
                 dir, fs);
        return true;
    }
    write_local_place(local, sizeof(local));
    write_home_place(home, sizeof(home));
    fs = strcmp(dir, local) == 0 ? path_shared_fs(home) : NULL;
    if (!fs)
        return false;
    snprintf(raft, sizeof(raft), "%s/raft", home);
    bool earlier = access(raft, F_OK) == 0;
    snprintf(ret, size,
             "the state is in a local folder of this host, because %s is on %s, which other hosts may share%s%s%s",
             home, fs, earlier ? "; it has the jobs of an earlier dtd, which DTD_DIR=" : "", earlier ? home : "",
             earlier ? " selects" : "");
    return true;
}

err_t path_state_dir(const char *given, char *ret, size_t size, struct why *why)
{
    char raw[PATH_MAX], cwd[PATH_MAX] = "", full[2 * PATH_MAX];
    bool is_given = given && *given;
    err_t err = is_given ? OK : write_default(raw, sizeof(raw), why);
    if (is_given && (size_t)snprintf(raw, sizeof(raw), "%s", given) >= sizeof(raw))
        err = why_set(why, ERR_LIMIT, "the state directory's name is too long");
    if (err)
        return err;
    if (raw[0] != '/' && !getcwd(cwd, sizeof(cwd)))
        return why_set(why, err_from_errno(errno), "working directory: %s", strerror(errno));
    snprintf(full, sizeof(full), "%s%s%s", cwd, raw[0] == '/' ? "" : "/", raw);
    size_t len = strlen(full);
    while (len > 1 && full[len - 1] == '/')
        full[--len] = '\0';
    if (len > PATH_STATE_DIR_MAX || len >= size)
        return why_set(
            why, ERR_LIMIT,
            "state directory %s: its name has %zu bytes and the sockets in it allow %d; choose a shorter one "
            "(DTD_DIR, --state-dir or state_dir)",
            full, len, PATH_STATE_DIR_MAX);
    memcpy(ret, full, len + 1);
    return OK;
}

const char *path_sysfs(void)
{
    const char *dir = getenv("DTD_SYSFS");
    return dir && *dir ? dir : "/sys";
}
