/* Prepares the state directory of dtd --slurm. Every user can write to /tmp, so an existing directory is used only if
 * it belongs to this user alone. Slurm ends all processes of a job before it starts the job again, so a directory of an
 * earlier run belongs to processes that have ended, on a node that was lost. */
#include "daemon/control/slurm/slurm.h"

#include "common/base/cpus.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EARLIER_RUNS 100 /* how many restart counts back directories are looked for */

static err_t make_private(const char *path, struct why *why)
{
    struct stat st;
    if (mkdir(path, 0700) && errno != EEXIST)
        return why_set(why, err_from_errno(errno), "state directory %s: %s", path, strerror(errno));
    if (lstat(path, &st))
        return why_set(why, err_from_errno(errno), "state directory %s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077))
        return OK;
    return why_set(why, ERR_DENIED,
                   "%s exists and is not a directory that belongs to this user alone; remove it, or set DTD_DIR to a "
                   "directory of this user",
                   path);
}

/* Removes the last component. */
static void go_up(char *path)
{
    char *slash = strrchr(path, '/');
    *(slash == path ? slash + 1 : slash) = '\0';
}

/* Creates $DTD_DIR, JOB.RESTART and NODE. */
static err_t make_dirs(const char *dir, struct why *why)
{
    char run_dir[PATH_MAX], base[PATH_MAX];
    snprintf(run_dir, sizeof(run_dir), "%s", dir);
    go_up(run_dir);
    memcpy(base, run_dir, sizeof(base));
    go_up(base);
    err_t err = file_make_dirs(base, 0700);
    if (err)
        return why_set(why, err, "state directory %s: %s", base, strerror(errno));
    err = make_private(run_dir, why);
    return err ? err : make_private(dir, why);
}

static void remove_earlier(const struct slurm *s, slurm_env *env)
{
    struct slurm earlier = *s;
    char dir[PATH_MAX];
    earlier.restart = s->restart > EARLIER_RUNS ? s->restart - EARLIER_RUNS : 0;
    for (; earlier.restart < s->restart; earlier.restart++) {
        if (slurm_state_dir(&earlier, env, geteuid(), dir, sizeof(dir), NULL))
            return;
        go_up(dir);
        err_t err = file_remove_tree(dir);
        if (err)
            log_warn("the state of an earlier run is not removed path=%s error=%s", dir, err_text(err));
    }
}

/* If srun has bound this process to fewer cores than the step has (--cpu-bind), there are fewer slots: one per core. */
static void count_cpus(struct slurm *s)
{
    int usable = cpus_usable(NULL, 0);
    if (usable && s->cpus > usable)
        s->cpus = usable;
}

static err_t write_key(const uint8_t key[SLURM_KEY_BYTES], const char *path, struct why *why)
{
    char text[2 * SLURM_KEY_BYTES + 8] = "k1 ";
    size_t n = strlen(text);
    for (int i = 0; i < SLURM_KEY_BYTES; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%02x", key[i]);
    text[n++] = '\n';
    err_t err = file_replace(path, text, n, 0600);
    explicit_bzero(text, sizeof(text));
    return err ? why_set(why, err, "%s: %s", path, err_text(err)) : OK;
}

static err_t write_conf(const struct slurm *s, const struct slurm_state *state, struct why *why)
{
    struct buf text = {0};
    err_t err = slurm_conf(s, state->key_file, &text);
    if (!err)
        err = file_replace(state->conf, text.data, text.len, 0600);
    buf_fini(&text);
    return err ? why_set(why, err, "%s: %s", state->conf, err_text(err)) : OK;
}

/* Everything that can be refused is checked before anything is created. */
err_t slurm_make(slurm_env *env, struct slurm_state *ret, struct why *why)
{
    struct slurm s;
    struct slurm_state state;
    uint8_t key[SLURM_KEY_BYTES];
    err_t err = slurm_read(env, &s, why);
    if (err)
        return err;
    count_cpus(&s);
    err = slurm_state_dir(&s, env, geteuid(), state.dir, sizeof(state.dir), why);
    if (!err)
        err = slurm_key(env, key, why);
    if (!err)
        err = make_dirs(state.dir, why);
    if (!err) {
        snprintf(state.conf, sizeof(state.conf), "%s/dtd.yaml", state.dir);
        snprintf(state.key_file, sizeof(state.key_file), "%s/key", state.dir);
        err = write_key(key, state.key_file, why);
    }
    if (!err)
        err = write_conf(&s, &state, why);
    if (!err) {
        remove_earlier(&s, env);
        *ret = state;
    }
    explicit_bzero(key, sizeof(key));
    slurm_fini(&s);
    return err;
}
