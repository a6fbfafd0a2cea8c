/* Users of this machine, and becoming one. Lookups ask the system's name service and may block. */
#ifndef DTD_COMMON_BASE_USER_H
#define DTD_COMMON_BASE_USER_H

#include "common/base/err.h"

#include <stdint.h>
#include <sys/types.h>

#define USER_NAME_MAX 256
#define USER_HOME_MAX 1024

struct user {
    uid_t uid;
    gid_t gid;
    char name[USER_NAME_MAX];
    char home[USER_HOME_MAX];
};

/* ERR_NOTFOUND when the machine has none such. */
NODISCARD err_t user_by_name(const char *name, struct user *ret, struct why *why);
NODISCARD err_t user_by_uid(uid_t uid, struct user *ret, struct why *why);
/* Makes this process the user's, with the user's groups and no way back; HOME, USER and LOGNAME follow. Returns 0, or
 * -1 with errno; then the process is half changed and must end. Clears PR_SET_PDEATHSIG. */
NODISCARD int user_become(const struct user *u);
/* Files are looked up and made as the user until the call with 0: nothing is opened that the user could not open. */
void user_files_as(uid_t uid);

#endif
