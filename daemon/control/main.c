/* dtd-control: arguments, configuration, the loop. */
#include "daemon/control/node.h"

#include "common/base/file.h"
#include "common/base/log.h"

#include <argp.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_CONFIG_BYTES (1u << 20)

struct arguments {
    const char *config, *state_dir;
    bool print;
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
    case 'p':
        a->print = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static err_t read_config(const char *path, struct node_conf *ret, struct why *why)
{
    struct buf text = {0};
    if (!path)
        return node_conf_default(ret, why);
    err_t err = file_read(path, MAX_CONFIG_BYTES, &text);
    if (err)
        why_set(why, err, "%s: %s", path, err_text(err));
    else
        err = node_conf_parse(path, (const char *)text.data, text.len, ret, why);
    buf_fini(&text);
    return err;
}

/* For the supervisor, on the descriptor that it gave: 3 when there is one, else standard output. */
static int print_state_dir(const struct node_conf *conf)
{
    if (dprintf(CHANNEL_FD, "%s\n", conf->state_dir) < 0)
        printf("%s\n", conf->state_dir);
    return 0;
}

static void set_log_level(const struct node_conf *conf)
{
    static const char *const names[] = {"error", "warn", "info", "debug"};
    setenv("DTD_LOG", names[conf->log.level], 0);
    log_init("dtd-control");
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"config", 'c', "FILE", 0, "Configuration of this node", 0},
        {"state-dir", 's', "DIR", 0, "Where the state lies", 0},
        {"print-state-dir", 'p', 0, 0, "Check the configuration, print its state_dir and end", 0},
        {0},
    };
    static const struct argp argp = {options, parse_option, NULL, "Started by dtd, not by hand.", NULL, NULL, NULL};
    static struct node node;
    struct arguments a = {0};
    struct why why = {""};
    argp_program_version = "dtd-control " DTD_VERSION;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    err_t err = read_config(a.config, &node.conf, &why);
    if (!err && a.print)
        return print_state_dir(&node.conf);
    if (!err)
        err = path_state_dir(a.state_dir, node.dir, sizeof(node.dir), &why);
    if (!err) {
        set_log_level(&node.conf);
        signal(SIGPIPE, SIG_IGN);
        err = node_start(&node, &why);
    }
    if (err) {
        fprintf(stderr, "dtd-control: %s\n", why.text);
        return 2;
    }
    log_info("started version=%s pid=%d dir=%s", DTD_VERSION, getpid(), node.dir);
    uv_run(&node.loop, UV_RUN_DEFAULT);
    return 0;
}
