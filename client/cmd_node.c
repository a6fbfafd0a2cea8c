/* dtctl node, dtctl version: what runs here. */
#include "client/client.h"
#include "client/commands.h"
#include "client/daemon.h"
#include "client/follow.h"
#include "client/json.h"

struct args {
    struct global *global;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;
    if (key != ARGP_KEY_INIT)
        return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = a->global;
    return 0;
}

static err_t node_call(struct client *c, void *arg, struct why *why)
{
    return client_node_get(c, arg, why);
}

static void print_gpus(const struct client_node *node)
{
    if (node->gpus < 0)
        printf("  GPUs       not known yet\n");
    else if (node->gpus == 0)
        printf("  GPUs       none: %s\n", node->gpu_missing);
    else
        printf("  GPUs       %d of %d free  %s\n", node->gpus_free, node->gpus, node->gpu_model);
}

static void node_print(const struct client_node *node)
{
    printf("node %s  dtd %s  %d slots  log: %s, term %llu, index %llu\n", node->node, node->version, node->slots,
           node->raft_state, (unsigned long long)node->raft_term, (unsigned long long)node->raft_index);
    printf("  State      %s\n  Processes  supervisor %d  control %d", node->state_dir, node->supervisor_pid,
           node->control_pid);
    for (int i = 0; i < node->n_io; i++)
        printf("  io %d", node->io_pid[i]);
    putchar('\n');
    print_gpus(node);
    if (node->warning[0])
        printf("  %sWarning    %s%s\n", out_color(stdout, OUT_RED), node->warning, out_color(stdout, OUT_PLAIN));
}

int cmd_node(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .children = global_children,
        .doc = "Shows the daemon of this machine: version, processes, slots for workers, GPUs, the "
               "state of its log, warnings.\vExample:\n  dtctl node -o json"};
    struct args args = {.global = g};
    struct client_node node;
    struct why why = {0};
    int code = EXIT_DONE;
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_call(g, node_call, &node, &why);
    if (err)
        return command_fail(err, &why);
    if (g->format != OUT_TEXT)
        code = command_json(g, json_of_node(&node));
    else
        node_print(&node);
    client_node_fini(&node);
    return code;
}

int cmd_version(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {.parser = parse,
                                     .children = global_children,
                                     .doc = "Prints the version of dtctl, and that of the daemon when one runs."
                                            "\vExample:\n  dtctl version"};
    struct args args = {.global = g};
    struct client_node node = {0};
    struct why why;
    int code = EXIT_DONE;
    pid_t holder;
    command_parse(&argp, argc, argv, &args);
    bool up = daemon_running(g->state_dir, &holder) && follow_call(g, node_call, &node, &why) == OK;
    if (g->format != OUT_TEXT)
        code = command_json(g, json_pack("{s:s, s:s*}", "dtctl", DTD_VERSION, "dtd", up ? node.version : NULL));
    else if (up)
        printf("dtctl %s\ndtd   %s\n", DTD_VERSION, node.version);
    else
        printf("dtctl %s\nno dtd is running (state in %s)\n", DTD_VERSION, g->state_dir);
    client_node_fini(&node);
    return code;
}
