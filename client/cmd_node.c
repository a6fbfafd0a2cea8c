/* dtctl node, dtctl version: show the daemon of this machine; drain nodes of the cluster. */
#include "client/client.h"
#include "client/commands.h"
#include "client/daemon.h"
#include "client/follow.h"
#include "client/json.h"

#include <string.h>

struct node_args {
    struct global *global;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct node_args *a = state->input;
    if (key != ARGP_KEY_INIT)
        return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = a->global;
    return 0;
}

static err_t node_call(struct client *c, void *arg, struct why *why)
{
    return client_node_get(c, arg, why);
}

#define SLOW_PROBE_MS 10000 /* from which on control logs a warning, too */

static void print_gpus(FILE *f, const struct client_node *node)
{
    double seconds = (double)node->gpu_probe_ms / 1000;
    if (node->gpus < 0)
        fprintf(f, "  GPUs       unknown: `dt-worker --probe` has run for %.0f s and has not finished", seconds);
    else if (node->gpus == 0)
        fprintf(f, "  GPUs       none: %s", node->gpu_missing);
    else
        fprintf(f, "  GPUs       %d of %d free  %s", node->gpus_free, node->gpus, node->gpu_model);
    if (node->gpus >= 0 && node->gpu_probe_ms >= SLOW_PROBE_MS)
        fprintf(f, "  (the probe took %.0f s)", seconds);
    fputc('\n', f);
}

static void print_numa_nodes(FILE *f, const struct client_node *node)
{
    for (int i = 0; i < node->n_numa_node; i++) {
        const struct client_numa_node *numa = &node->numa_node[i];
        fprintf(f, "  NUMA %-5d cores %s", numa->number, *numa->cores ? numa->cores : "none");
        for (int k = 0; k < numa->n_gpu; k++)
            fprintf(f, "%s %d", k ? "" : "  GPU", numa->gpu[k]);
        fputc('\n', f);
    }
}

static void node_print(FILE *f, const struct client_node *node)
{
    fprintf(f, "node %s  dtd %s  %d slots  log: %s, term %llu, index %llu\n", node->node, node->version, node->slots,
            node->raft_state, (unsigned long long)node->raft_term, (unsigned long long)node->raft_index);
    fprintf(f, "  State      %s\n  Processes  supervisor %d  control %d", node->state_dir, node->supervisor_pid,
            node->control_pid);
    for (int i = 0; i < node->n_io; i++)
        fprintf(f, "  io %d", node->io_pid[i]);
    fputc('\n', f);
    if (node->use.slots_used >= 0)
        fprintf(f, "  Slots      %d of %d in use\n", node->use.slots_used, node->slots);
    print_gpus(f, node);
    print_numa_nodes(f, node);
    if (node->drained[0])
        fprintf(f, "  %sDrained    %s%s\n", out_color(stdout, OUT_YELLOW), node->drained, out_color(stdout, OUT_PLAIN));
    if (node->warning[0])
        fprintf(f, "  %sWarning    %s%s\n", out_color(stdout, OUT_RED), node->warning, out_color(stdout, OUT_PLAIN));
}

static void page_print(const struct client_node *node)
{
    struct out_page page;
    out_page_begin(&page);
    node_print(page.f, node);
    out_page_end(&page, stdout);
}

static int node_show(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .children = global_children,
        .args_doc = "\n[drain|undrain] [NODE]",
        .doc = "Shows the daemon of this machine: version, processes, slots for workers, GPUs, NUMA nodes "
               "with their cores and GPUs where there are several, state of its log, warnings. "
               "`drain NODE --reason TEXT`: jobs save and leave a node of the cluster, no new worker starts there, and "
               "its vote moves to another node if possible. `undrain NODE` ends the drain."
               "\vExamples:\n  dtctl node -o json\n  dtctl node drain node-3 --reason 'replacing memory'\n  dtctl "
               "node undrain node-3"};
    struct node_args args = {.global = g};
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
        page_print(&node);
    client_node_fini(&node);
    return code;
}

/* ---- drain ---- */

struct drain_args {
    struct global *global;
    const char *node, *reason;
    bool undrain;
};

static error_t drain_parse(int key, char *arg, struct argp_state *state)
{
    struct drain_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 'r':
        a->reason = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (a->node)
            argp_error(state, "one node at a time");
        a->node = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->undrain && (!a->reason || !a->reason[0]))
            argp_error(state, "which reason? Give --reason TEXT, which dtctl cluster status shows");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static err_t drain_call(struct client *c, void *arg, struct why *why)
{
    struct drain_args *a = arg;
    struct client_node node;
    char self[300];
    if (!a->node) {
        err_t err = client_node_get(c, &node, why);
        if (err)
            return err;
        snprintf(self, sizeof(self), "%s", node.node);
        client_node_fini(&node);
    }
    return client_node_drain(c, a->node ? a->node : self, a->undrain ? NULL : a->reason, why);
}

static int drain_run(struct global *g, int argc, char **argv, bool undrain)
{
    static const struct argp_option options[] = {
        {"reason", 'r', "TEXT", 0, "Reason that dtctl cluster status shows; required to drain", 0}, {0}};
    static const struct argp argp = {.options = options,
                                     .parser = drain_parse,
                                     .children = global_children,
                                     .args_doc = "[NODE]",
                                     .doc = "Drains a node of the cluster (default: this node), or ends the drain."
                                            "\vExamples:\n  dtctl node drain node-3 --reason 'replacing memory'\n"
                                            "  dtctl node undrain node-3"};
    struct drain_args args = {.global = g, .undrain = undrain};
    struct why why = {0};
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_call(g, drain_call, &args, &why);
    if (err)
        return command_fail(err, &why);
    printf("%s is %s\n", args.node ? args.node : "this node", undrain ? "not drained any more" : "drained");
    return EXIT_DONE;
}

static int node_drain(struct global *g, int argc, char **argv)
{
    return drain_run(g, argc, argv, false);
}

static int node_undrain(struct global *g, int argc, char **argv)
{
    return drain_run(g, argc, argv, true);
}

int cmd_node(struct global *g, int argc, char **argv)
{
    static const struct command subs[] = {{"drain", "move jobs off a node and start no new worker there", node_drain},
                                          {"undrain", "end the drain of a node", node_undrain}};
    return argc > 1 && argv[1][0] != '-'
               ? command_dispatch(subs, sizeof(subs) / sizeof(subs[0]), argv[0], g, argc, argv)
               : node_show(g, argc, argv);
}

int cmd_version(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {.parser = parse,
                                     .children = global_children,
                                     .doc = "Prints the version of dtctl, and that of the daemon if one runs."
                                            "\vExample:\n  dtctl version"};
    struct node_args args = {.global = g};
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
