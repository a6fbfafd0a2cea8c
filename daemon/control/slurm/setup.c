/* What dtd --slurm needs before it can serve. /tmp is everybody's: a folder that is there already is entered only when
 * it is ours alone. Slurm ends all of a job's processes before it starts the job again, so an earlier life that lies
 * here is a dead one's, whose node was lost. */
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

#define EARLIER_LIVES 100 /* that are looked for */

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
                   "%s is there already and is not a folder that is ours alone; remove it, or set DTD_DIR to a folder "
                   "of yours",
                   path);
}

/* Cuts the last name off. */
static void go_up(char *path)
{
    char *slash = strrchr(path, '/');
    *(slash == path ? slash + 1 : slash) = '\0';
}

/* $DTD_DIR, JOB.RESTART, NODE. */
static err_t make_dirs(const char *dir, struct why *why)
{
    char life[PATH_MAX], base[PATH_MAX];
    snprintf(life, sizeof(life), "%s", dir);
    go_up(life);
    memcpy(base, life, sizeof(base));
    go_up(base);
    err_t err = file_make_dirs(base, 0700);
    if (err)
        return why_set(why, err, "state directory %s: %s", base, strerror(errno));
    err = make_private(life, why);
    return err ? err : make_private(dir, why);
}

static void remove_earlier(const struct slurm *s, slurm_env *env)
{
    struct slurm earlier = *s;
    char dir[PATH_MAX];
    earlier.restart = s->restart > EARLIER_LIVES ? s->restart - EARLIER_LIVES : 0;
    for (; earlier.restart < s->restart; earlier.restart++) {
        if (slurm_state_dir(&earlier, env, geteuid(), dir, sizeof(dir), NULL))
            return;
        go_up(dir);
        err_t err = file_remove_tree(dir);
        if (err)
            log_warn("an earlier life's state stays path=%s error=%s", dir, err_text(err));
    }
}

/* Bound to fewer cores than the step has (srun --cpu-bind), a worker a core is fewer workers. */
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

/* Nothing is made before all that can be refused has been. */
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
