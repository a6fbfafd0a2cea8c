/* See user.h. */
#include "common/base/user.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <unistd.h>

static err_t user_copy(const struct passwd *pw, struct user *ret, struct why *why)
{
    *ret = (struct user){.uid = pw->pw_uid, .gid = pw->pw_gid};
    int name = snprintf(ret->name, sizeof(ret->name), "%s", pw->pw_name);
    int home = snprintf(ret->home, sizeof(ret->home), "%s", pw->pw_dir ? pw->pw_dir : "/");
    if ((size_t)name >= sizeof(ret->name) || (size_t)home >= sizeof(ret->home))
        return why_set(why, ERR_LIMIT, "user %.64s: name or home is too long", pw->pw_name);
    return OK;
}

err_t user_by_name(const char *name, struct user *ret, struct why *why)
{
    errno = 0;
    const struct passwd *pw = getpwnam(name);
    if (!pw)
        return why_set(why, ERR_NOTFOUND, "there is no user %.64s%s%s", name, errno ? ": " : "",
                       errno ? strerror(errno) : "");
    return user_copy(pw, ret, why);
}

err_t user_by_uid(uid_t uid, struct user *ret, struct why *why)
{
    errno = 0;
    const struct passwd *pw = getpwuid(uid);
    if (!pw)
        return why_set(why, ERR_NOTFOUND, "there is no user with uid %u%s%s", (unsigned)uid, errno ? ": " : "",
                       errno ? strerror(errno) : "");
    return user_copy(pw, ret, why);
}

int user_become(const struct user *u)
{
    if (setenv("HOME", u->home, 1) || setenv("USER", u->name, 1) || setenv("LOGNAME", u->name, 1) ||
        initgroups(u->name, u->gid) || setresgid(u->gid, u->gid, u->gid) || setresuid(u->uid, u->uid, u->uid))
        return -1;
    if (u->uid != 0 && setuid(0) == 0) { /* regaining root must be impossible */
        errno = EPERM;
        return -1;
    }
    return 0;
}

void user_files_as(uid_t uid)
{
    (void)setfsuid(uid);
}
