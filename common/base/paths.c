/* See paths.h. A state directory that would make a socket's address too long is refused here, where the sentence can
 * name it, and not at the first bind or connect deep inside. */
#include "common/base/paths.h"

#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *home_dir(void)
{
    const char *home = getenv("HOME");
    if (home && *home)
        return home;
    const struct passwd *pw = getpwuid(getuid());
    return pw && pw->pw_dir ? pw->pw_dir : "/";
}

static int write_default(char *ret, size_t size)
{
    const char *dir = getenv("DTD_DIR"), *xdg = getenv("XDG_STATE_HOME");
    if (dir && *dir)
        return snprintf(ret, size, "%s", dir);
    if (xdg && *xdg == '/')
        return snprintf(ret, size, "%s/dtd", xdg);
    return snprintf(ret, size, "%s/.local/state/dtd", home_dir());
}

err_t path_state_dir(const char *given, char *ret, size_t size, struct why *why)
{
    char raw[PATH_MAX], cwd[PATH_MAX] = "", full[2 * PATH_MAX];
    int n = given && *given ? snprintf(raw, sizeof(raw), "%s", given) : write_default(raw, sizeof(raw));
    if (n < 0 || (size_t)n >= sizeof(raw))
        return why_set(why, ERR_LIMIT, "the state directory's name is too long");
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
