/* A set appears by one rename of its folder, so a reader sees a complete set or none. */
#include "common/data/cache.h"

#include <dirent.h>
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#define TEMP_PREFIX ".preparing-"

/* Folders that no set is, and when they are removed: a running process writes far more often. */
static const struct {
    const char *prefix;
    time_t stale_seconds;
} leftovers[] = {
    {TEMP_PREFIX, 86400},
    {CACHE_UNFINISHED, 14 * 86400}, /* so that work interrupted before a holiday continues after it */
};

static const char *home(void)
{
    const char *home = getenv("HOME");
    if (home && home[0])
        return home;
    const struct passwd *pw = getpwuid(getuid());
    return pw ? pw->pw_dir : NULL;
}

err_t cache_dir(const char *given, char *ret, size_t size, struct why *why)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *base = home();
    int n;
    if (given && given[0])
        n = snprintf(ret, size, "%s", given);
    else if (xdg && xdg[0] == '/')
        n = snprintf(ret, size, "%s/dtd/data", xdg);
    else if (base)
        n = snprintf(ret, size, "%s/.cache/dtd/data", base);
    else
        return why_set(why, ERR_NOTFOUND, "there is no home folder for the cache of prepared data: set data.cache");
    return (size_t)n < size ? OK : why_set(why, ERR_LIMIT, "the path of the cache of prepared data is too long");
}

bool cache_hash_valid(const char *hash)
{
    return strlen(hash) == CACHE_HASH && strspn(hash, "0123456789abcdef") == CACHE_HASH;
}

err_t cache_join(const char *dir, const char *name, char *ret, size_t size, struct why *why)
{
    int n = snprintf(ret, size, "%s/%s", dir, name);
    return (size_t)n < size ? OK : why_set(why, ERR_LIMIT, "%s/%s: the path is too long", dir, name);
}

err_t cache_temp_new(const char *cache, char *ret, size_t size, struct why *why)
{
    err_t err = cache_join(cache, TEMP_PREFIX "XXXXXX", ret, size, why);
    if (err)
        return err;
    if (mkdtemp(ret) && !chmod(ret, 0755))
        return OK;
    return why_set(why, err_from_errno(errno), "%s: %s", cache, strerror(errno));
}

void cache_remove(const char *dir)
{
    DIR *d = opendir(dir);
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            unlinkat(dirfd(d), e->d_name, 0);
    closedir(d);
    rmdir(dir);
}

/* The present by the clock that dates files of the folder: that of the server where hosts share it. 0: unknown. */
static time_t folder_now(const char *cache)
{
    char path[4096];
    struct stat st;
    time_t ret = 0;
    if (cache_join(cache, ".now-XXXXXX", path, sizeof(path), NULL))
        return 0;
    int fd = mkstemp(path);
    if (fd < 0)
        return 0;
    if (fstat(fd, &st) == 0)
        ret = st.st_mtime;
    unlink(path);
    close(fd);
    return ret;
}

static void remove_stale(const char *cache, const char *name, time_t now, time_t seconds)
{
    char path[4096];
    struct stat st;
    if (cache_join(cache, name, path, sizeof(path), NULL) || lstat(path, &st) || !S_ISDIR(st.st_mode))
        return;
    if (now - st.st_mtime > seconds)
        cache_remove(path);
}

void cache_clean(const char *cache)
{
    const time_t now = folder_now(cache);
    DIR *d = now ? opendir(cache) : NULL;
    if (!d)
        return;
    for (struct dirent *e; (e = readdir(d));)
        for (size_t i = 0; i < sizeof(leftovers) / sizeof(leftovers[0]); i++)
            if (strncmp(e->d_name, leftovers[i].prefix, strlen(leftovers[i].prefix)) == 0)
                remove_stale(cache, e->d_name, now, leftovers[i].stale_seconds);
    closedir(d);
}

static double mib(int64_t bytes)
{
    return (double)bytes / (1 << 20);
}

bool cache_is_tight(const char *cache, int64_t bytes, int64_t files, struct why *ret)
{
    struct statvfs st;
    if (statvfs(cache, &st))
        return false;
    const int64_t free = (int64_t)(st.f_bavail * st.f_frsize);
    const bool counts_files = st.f_files > 0; /* some file systems do not limit them */
    if (bytes > free)
        why_set(ret, OK, "%s: the prepared data will have about %.1f MiB, and %.1f MiB are free there. " CACHE_REMEDY,
                cache, mib(bytes), mib(free));
    else if (counts_files && files > (int64_t)st.f_favail)
        why_set(ret, OK,
                "%s: the prepared data will have about %lld files, and %lld more may be made there. " CACHE_REMEDY,
                cache, (long long)files, (long long)st.f_favail);
    else
        return false;
    return true;
}
