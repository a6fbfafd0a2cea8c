/* User lookup, and switching to a user. Lookups use the system's name service and may block. */
#ifndef DTD_COMMON_BASE_USER_H
#define DTD_COMMON_BASE_USER_H

#include "common/base/err.h"

#include <stdint.h>
#include <sys/types.h>

#define USER_NAME_MAX 256  /* bytes; useradd allows 32, directory services more */
#define USER_HOME_MAX 1024 /* bytes of the home folder's path */

struct user {
    uid_t uid;
    gid_t gid;
    char name[USER_NAME_MAX];
    char home[USER_HOME_MAX];
};

/* ERR_NOTFOUND: there is no such user. */
NODISCARD err_t user_by_name(const char *name, struct user *ret, struct why *why);
NODISCARD err_t user_by_uid(uid_t uid, struct user *ret, struct why *why);
/* Switches this process to the user and the user's groups, irrevocably, and sets HOME, USER and LOGNAME. Returns 0, or
 * -1 with errno; then the process may be partly changed and must exit. Clears PR_SET_PDEATHSIG. */
NODISCARD int user_become(const struct user *u);
/* Until the call with 0, file access has the user's rights, so this process opens nothing that the user could not open.
 */
void user_files_as(uid_t uid);

#endif
