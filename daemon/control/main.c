/* dtd-control: reads arguments and configuration, then runs the event loop. */
#include "daemon/control/control.h"
#include "daemon/control/slurm/slurm.h"

#include "common/base/confine.h"
#include "common/base/log.h"

#include <argp.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

struct arguments {
    const char *config, *state_dir;
    bool print, system, slurm;
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    struct arguments *a = state->input;
    switch (key) {
    case 'c':
        a->config = arg;
        return 0;
    case 's':
        a->state_dir = arg;
        return 0;
    case 'S':
        a->system = true;
        return 0;
    case 'P':
        a->system = true;
        a->print = true;
        return 0;
    case 'p':
        a->print = true;
        return 0;
    case 'L':
        a->slurm = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Writes to descriptor 3 (CHANNEL_FD) if the supervisor opened it, else to standard output. */
static int print_lines(const char *const *lines, int n)
{
    for (int i = 0; i < n; i++)
        if (dprintf(CHANNEL_FD, "%s\n", lines[i]) < 0)
            printf("%s\n", lines[i]);
    return 0;
}

/* An empty line means the same as no configuration file. */
static int print_places(const struct node_conf *conf, bool system)
{
    const char *web = !conf->web.listen[0] ? "" : conf->web.user[0] ? conf->web.user : "nobody";
    const char *places[] = {conf->state_dir, conf->run_dir, conf->user, web},
               *defaults[] = {PATH_SYSTEM_STATE_DIR, PATH_SYSTEM_RUN_DIR, "dtd", ""};
    for (int i = 0; i < 4; i++)
        places[i] = system && !places[i][0] ? defaults[i] : places[i];
    return print_lines(places, 4);
}

static const char *environment(const char *name)
{
    return getenv(name);
}

static int print_slurm(void)
{
    struct slurm_state state;
    struct why why = {""};
    err_t err = slurm_make(environment, &state, &why);
    if (!err)
        return print_lines((const char *[]){state.dir, "", "", "", state.conf}, 5);
    fprintf(stderr, "dtd: %s\n", why.text);
    return 2;
}

/* The probe writes probe.json into the state directory later, so that is readable as a whole. */
static err_t confine_control(const struct control *n, struct why *why)
{
    static const char *const names[] = {"raft", "metrics", "cluster"};
    char paths[3][PATH_MAX];
    struct confine_files files = {.readable = {n->dir, n->config, n->conf.cluster.key_file}};
    for (int i = 0; i < 3; i++) {
        if (snprintf(paths[i], sizeof(paths[i]), "%s/%s", n->dir, names[i]) >= (int)sizeof(paths[i]))
            return why_set(why, ERR_LIMIT, "the path of the state directory is too long");
        files.writable[i] = paths[i];
    }
    return confine(&files, why);
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"config", 'c', "FILE", 0, "Configuration of this node", 0},
        {"state-dir", 's', "DIR", 0, "Folder of the state", 0},
        {"system", 'S', 0, 0, "Serve all users of this machine", 0},
        {"print-places", 'p', 0, 0,
         "Check the configuration, print its state_dir, run_dir and user, and that of dtd-web if it is to run, and "
         "exit",
         0},
        {"print-system", 'P', 0, 0, "The same, with the defaults of a system-wide dtd", 0},
        {"print-slurm", 'L', 0, 0,
         "Write a configuration for Slurm's allocation, print the same and its file name, and exit", 0},
        {0},
    };
    static const struct argp argp = {options, parse_option, NULL, "Started by dtd, not by hand.", NULL, NULL, NULL};
    static struct control node;
    struct arguments a = {0};
    struct why why = {""};
    argp_program_version = "dtd-control " DTD_VERSION;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    if (a.slurm)
        return print_slurm();
    node.system = a.system;
    node.config = a.config;
    err_t err = node_conf_read(a.config, &node.conf, &why);
    if (!err && a.print)
        return print_places(&node.conf, a.system);
    if (!err)
        err = path_state_dir(a.state_dir, node.dir, sizeof(node.dir), &why);
    if (!err) {
        log_init("dtd-control");
        log_level_set(node.conf.log.level);
        signal(SIGPIPE, SIG_IGN);
        if (node.system)
            err = confine_control(&node, &why);
    }
    if (!err) {
        err = control_start(&node, &why);
    }
    if (!err) {
        err = log_watch_start(&node.local, &node.loop);
        why_set(&why, err, "the thread that watches the disk: %s", err_text(err));
    }
    if (err) {
        fprintf(stderr, "dtd-control: %s\n", why.text);
        return 2;
    }
    log_info("started version=%s pid=%d dir=%s", DTD_VERSION, getpid(), node.dir);
    uv_run(&node.loop, UV_RUN_DEFAULT);
    return 0;
}
