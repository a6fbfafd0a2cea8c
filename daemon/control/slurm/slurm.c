/* Values from the environment are input of a user: they have bounds, and an error names the variable. */
#include "daemon/control/slurm/slurm.h"

#include "common/base/hostlist.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Default port of a job: FIRST_PORT + job % JOBS_APART * PORT_STEP, so that jobs that run at once rarely collide. */
#define FIRST_PORT 20000
#define PORT_STEP 4
#define JOBS_APART 10000
#define LAST_PORT 65535

/* ---- numbers ---- */

static err_t read_number(slurm_env *env, const char *name, uint64_t max, uint64_t *ret, struct why *why)
{
    const char *text = env(name);
    char *end;
    if (!text)
        return why_set(why, ERR_INVALID,
                       "%s is not set: start dtd --slurm with srun, once per node: srun --ntasks-per-node=1 "
                       "--kill-on-bad-exit=0 dtd --slurm (as deploy/slurm/dtd.sbatch does)",
                       name);
    errno = 0;
    uint64_t n = strtoull(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end || errno || n > max)
        return why_set(why, ERR_INVALID, "%s is \"%.32s\", not a number up to %" PRIu64, name, text, max);
    *ret = n;
    return OK;
}

static err_t read_number_or(slurm_env *env, const char *name, uint64_t max, uint64_t otherwise, uint64_t *ret,
                            struct why *why)
{
    *ret = otherwise;
    return env(name) ? read_number(env, name, max, ret, why) : OK;
}

/* ---- the step ---- */

/* A second dtd on a node would fail later with a less clear error: the first one uses the port. */
static err_t check_once_per_node(slurm_env *env, struct why *why)
{
    uint64_t local;
    const char *tasks = env("SLURM_STEP_TASKS_PER_NODE");
    err_t err = read_number_or(env, "SLURM_LOCALID", 1u << 20, 0, &local, why);
    if (err)
        return err;
    bool one = !tasks || (tasks[0] == '1' && (!tasks[1] || tasks[1] == '('));
    if (one && local == 0)
        return OK;
    return why_set(why, ERR_INVALID,
                   "srun starts %.32s tasks per node; start dtd once per node: srun --ntasks-per-node=1",
                   tasks ? tasks : "several");
}

static err_t read_nodes(slurm_env *env, struct slurm *s, struct why *why)
{
    const char *list = env("SLURM_STEP_NODELIST");
    uint64_t node = 0;
    if (!list)
        list = env("SLURM_JOB_NODELIST");
    if (!list)
        return why_set(why, ERR_INVALID, "SLURM_STEP_NODELIST is not set: start dtd --slurm with srun");
    err_t err = hostlist_expand(list, &s->names, &s->nodes, why);
    if (err)
        return err;
    err = read_number(env, "SLURM_NODEID", (uint64_t)s->nodes - 1, &node, why);
    s->node = (int)node;
    return err;
}

static err_t read_port(slurm_env *env, struct slurm *s, struct why *why)
{
    uint64_t port;
    uint64_t otherwise = FIRST_PORT + s->job % JOBS_APART * PORT_STEP;
    err_t err = read_number_or(env, "DTD_SLURM_PORT", LAST_PORT, otherwise, &port, why);
    if (!err && (port < 1024 || port + (uint64_t)s->nodes - 1 > LAST_PORT))
        err = why_set(why, ERR_INVALID,
                      "ports %" PRIu64 " to %" PRIu64 " are not all between 1024 and %d; set DTD_SLURM_PORT to the "
                      "first of %d free ones",
                      port, port + (uint64_t)s->nodes - 1, LAST_PORT, s->nodes);
    s->port = (int)port;
    return err;
}

err_t slurm_read(slurm_env *env, struct slurm *ret, struct why *why)
{
    struct slurm s = {0};
    uint64_t restart, cpus;
    err_t err = read_number(env, "SLURM_JOB_ID", UINT64_MAX / 2, &s.job, why);
    if (!err)
        err = read_number_or(env, "SLURM_RESTART_COUNT", UINT32_MAX, 0, &restart, why);
    if (!err)
        err = read_number_or(env, "SLURM_CPUS_ON_NODE", 4096, 0, &cpus, why);
    if (!err)
        err = check_once_per_node(env, why);
    if (!err)
        err = read_nodes(env, &s, why);
    if (!err)
        err = read_port(env, &s, why);
    if (err) {
        slurm_fini(&s);
        return err;
    }
    s.restart = (unsigned)restart;
    s.cpus = (int)cpus;
    *ret = s;
    return OK;
}

void slurm_fini(struct slurm *s)
{
    free(s->names);
    s->names = NULL;
}

/* ---- state directory, configuration ---- */

err_t slurm_state_dir(const struct slurm *s, slurm_env *env, unsigned uid, char *ret, size_t size, struct why *why)
{
    const char *dir = env("DTD_DIR"), *tmp = env("TMPDIR");
    char user[32] = "/";
    if (!dir || !*dir) {
        dir = tmp && *tmp == '/' ? tmp : "/tmp";
        snprintf(user, sizeof(user), "/dtd-%u-", uid);
    }
    if (dir[0] != '/' || strpbrk(dir, "\"\\\n"))
        return why_set(why, ERR_INVALID,
                       "the directory \"%.200s\" for dtd's state is not an absolute path, or contains a quote, "
                       "backslash or newline",
                       dir);
    int n = snprintf(ret, size, "%s%s%" PRIu64 ".%u/%d", dir, user, s->job, s->restart, s->node);
    if (n < 0 || (size_t)n >= size)
        return why_set(why, ERR_LIMIT,
                       "the name of the directory %.200s is too long for dtd's state; set a shorter DTD_DIR", dir);
    return OK;
}

static err_t append_text(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static err_t append_text(struct buf *b, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return n < 0 || (size_t)n >= sizeof(text) ? ERR_LIMIT : buf_append(b, text, (size_t)n);
}

err_t slurm_conf(const struct slurm *s, const char *key_file, struct buf *ret)
{
    err_t err = append_text(ret, "name: \"%s\"\n", s->names[s->node]);
    if (!err && s->cpus)
        err = append_text(ret, "slots: %d\n", s->cpus);
    if (!err)
        err = append_text(ret, "cluster:\n  listen: \"[::]:%d\"\n  advertise: \"%s:%d\"\n", s->port + s->node,
                          s->names[s->node], s->port + s->node);
    if (!err)
        err =
            append_text(ret, "  key_file: \"%s\"\n  first: %s\n  peers: [", key_file, s->node == 0 ? "true" : "false");
    for (int i = 0; i < s->nodes && !err; i++)
        err = append_text(ret, "%s\"%s:%d\"", i ? ", " : "", s->names[i], s->port + i);
    return err ? err : append_text(ret, "]\n");
}
