/* A lock lets one thread at a time load modules. Modules stay loaded, because a module's library (CUDA's runtime) does
 * not survive unloading. A failure is not cached, so the user can remove the cause and retry in the same process. */
#include "common/base/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MODULES_MAX 8
#define PLACES 3

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    char file[64];
    void *handle;
} loaded[MODULES_MAX];
static int n_loaded;

/* Writes the program's own folder to `ret`; false if the operating system does not report it. */
static bool own_folder(char *ret, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", ret, size - 1);
    if (n <= 0)
        return false;
    ret[n] = 0;
    char *slash = strrchr(ret, '/');
    if (!slash)
        return false;
    *slash = 0;
    return true;
}

/* Full paths to try, in order; returns how many. */
static int places_of(const char *file, char places[PLACES][PATH_MAX])
{
    const char *named = getenv("DTD_MODULE_DIR");
    char own[PATH_MAX / 2];
    int n = 0;
    if (named && named[0])
        snprintf(places[n++], PATH_MAX, "%s/%s", named, file);
    if (!own_folder(own, sizeof(own)))
        return n;
    snprintf(places[n++], PATH_MAX, "%s/%s", own, file);
    snprintf(places[n++], PATH_MAX, "%s/../lib/dtd/%s", own, file);
    return n;
}

/* Adds the loader's own message, which begins with the path unless something else is missing. */
static void note_failure(char *text, size_t size, const char *path)
{
    const char *words = dlerror();
    size_t used = strlen(text);
    words = words ? words : "the loader gives no reason";
    bool has_path = strncmp(words, path, strlen(path)) == 0;
    snprintf(text + used, size - used, "%s%.300s%s%.300s", used ? "; " : "", has_path ? "" : path, has_path ? "" : ": ",
             words);
}

static err_t module_open(const char *file, void **ret, struct why *why)
{
    char places[PLACES][PATH_MAX], tried[sizeof(why->text) * 3 / 4] = "";
    int n = places_of(file, places);
    for (int i = 0; i < n; i++) {
        *ret = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
        if (*ret)
            return OK;
        note_failure(tried, sizeof(tried), places[i]);
    }
    return why_set(why, ERR_UNSUPPORTED, "the module %s cannot be loaded: %s", file, n ? tried : "no folder to search");
}

static err_t module_find(const char *file, void **ret, struct why *why)
{
    for (int i = 0; i < n_loaded; i++)
        if (strcmp(loaded[i].file, file) == 0) {
            *ret = loaded[i].handle;
            return OK;
        }
    if (n_loaded == MODULES_MAX || strlen(file) >= sizeof(loaded[0].file))
        return why_set(why, ERR_LIMIT, "the module %s exceeds the limit of modules, or its name is too long", file);
    err_t err = module_open(file, ret, why);
    if (err != OK)
        return err;
    snprintf(loaded[n_loaded].file, sizeof(loaded[0].file), "%s", file);
    loaded[n_loaded++].handle = *ret;
    return OK;
}

err_t module_load(const char *file, const char *symbol, void **ret, struct why *why)
{
    void *handle = NULL, *address = NULL;
    pthread_mutex_lock(&lock);
    err_t err = module_find(file, &handle, why);
    if (err == OK && !(address = dlsym(handle, symbol)))
        err = why_set(why, ERR_UNSUPPORTED, "the module %s is not a module of dtd: it has no symbol %s", file, symbol);
    pthread_mutex_unlock(&lock);
    if (err == OK)
        *ret = address;
    return err;
}
