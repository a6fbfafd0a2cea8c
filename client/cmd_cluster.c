/* dtctl cluster: creates and changes a cluster of nodes. Every command prints the complete next command to copy. */
#include "client/backup.h"
#include "client/client.h"
#include "client/commands.h"
#include "client/follow.h"
#include "client/json.h"
#include "client/secret.h"
#include "common/base/clock.h"
#include "common/tunnel/token.h"
#include "proto/client.pb-c.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* After init, join, leave and recover, control starts again and writes the first records of its log. */
#define READY_MS 20000
/* Nodes that start together may load their programs over a network first. */
#define NODES_MS 120000

struct cluster_args {
    struct global *global;
    const char *name, *listen, *advertise, *domain; /* of init and join; NULL: as this node is configured */
    const char *argument;                           /* the name of a node */
    const char *state;                              /* of backup and restore: the state directory; NULL: the default */
    const char *token_file;                         /* of init and token: to write it to; of join: to read it from */
    unsigned uses, hours, nodes;
    bool yes, evict;
    char token[TOKEN_TEXT_MAX];
    int64_t expires_ms;
};

enum {
    KEY_NAME = 256,
    KEY_LISTEN,
    KEY_ADVERTISE,
    KEY_DOMAIN,
    KEY_USES,
    KEY_HOURS,
    KEY_YES,
    KEY_WAIT,
    KEY_TOKEN_FILE,
    KEY_EVICT,
    KEY_STATE
};

static unsigned count_of(struct argp_state *state, const char *option, const char *text)
{
    char *end;
    unsigned long n = strtoul(text, &end, 10);
    if (text[0] < '1' || text[0] > '9' || *end || n > 1000000)
        argp_error(state, "%s %s: expected a number from 1 to 1000000", option, text);
    return (unsigned)n;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct cluster_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case KEY_NAME:
        a->name = arg;
        return 0;
    case KEY_LISTEN:
        a->listen = arg;
        return 0;
    case KEY_ADVERTISE:
        a->advertise = arg;
        return 0;
    case KEY_DOMAIN:
        a->domain = arg;
        return 0;
    case KEY_USES:
        a->uses = count_of(state, "--uses", arg);
        return 0;
    case KEY_HOURS:
        a->hours = count_of(state, "--hours", arg);
        return 0;
    case KEY_TOKEN_FILE:
        a->token_file = arg;
        return 0;
    case KEY_STATE:
        a->state = arg;
        return 0;
    case KEY_WAIT:
        a->nodes = count_of(state, "--wait", arg);
        return 0;
    case KEY_YES:
        a->yes = true;
        return 0;
    case KEY_EVICT:
        a->evict = true;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* For the commands that take one argument. */
static error_t parse_with_argument(int key, char *arg, struct argp_state *state)
{
    struct cluster_args *a = state->input;
    if (key == ARGP_KEY_ARG && !a->argument) {
        a->argument = arg;
        return 0;
    }
    if (key == ARGP_KEY_NO_ARGS)
        argp_usage(state);
    return parse(key, arg, state);
}

/* For join, which took its token as an argument once. */
static error_t parse_join(int key, char *arg, struct argp_state *state)
{
    if (key == ARGP_KEY_ARG)
        argp_error(state, "a token on the command line can be read by every user of this machine: call dtctl cluster "
                          "join without it, which asks for it, or name a file: --token-file FILE");
    return parse(key, arg, state);
}

/* The options of init and join: rows of a table of struct argp_option. */
#define NODE_OPTIONS                                                                                              \
    {"name", KEY_NAME, "NAME", 0, "Name of this node (default: as configured, else the host name)", 0},           \
        {"listen", KEY_LISTEN, "ADDRESS:PORT", 0, "Listen address (default: cluster.listen, else [::]:7811)", 0}, \
        {"advertise", KEY_ADVERTISE, "HOST:PORT", 0, "Address for other nodes (default: the host name)", 0},      \
    {                                                                                                             \
        "domain", KEY_DOMAIN, "NAME", 0, "Failure domain, such as a rack: voters are spread over domains", 0      \
    }

#define TOKEN_OUTPUT                                                                                            \
    {                                                                                                           \
        "token-file", KEY_TOKEN_FILE, "FILE", 0, "Write the token to this new file, which only you can read", 0 \
    }

/* ---- the calls ---- */

/* The leader may have answered the status call, so `self` is taken from our own node's reply. */
static err_t status_call(struct client *c, void *arg, struct why *why)
{
    struct client_cluster *s = arg;
    struct client_node node;
    err_t err = client_node_get(c, &node, why);
    if (err)
        return err;
    err = client_cluster_status(c, s, why);
    if (!err && s->n_node) {
        free(s->self);
        s->self = node.node;
        node.node = NULL;
    }
    client_node_fini(&node);
    return err;
}

static err_t member_call(struct client *c, enum rpc_method_id method, const struct cluster_args *a, struct why *why)
{
    Dtd__ClusterInitRequest q = DTD__CLUSTER_INIT_REQUEST__INIT;
    q.name = (char *)a->name;
    q.listen = (char *)a->listen;
    q.advertise = (char *)a->advertise;
    q.domain = (char *)a->domain;
    q.token = (char *)a->token;
    return client_call(c, method, &q.base, NULL, why);
}

static err_t init_call(struct client *c, void *arg, struct why *why)
{
    return member_call(c, CLIENT_CLUSTER_INIT, arg, why);
}

static err_t join_call(struct client *c, void *arg, struct why *why)
{
    return member_call(c, CLIENT_CLUSTER_JOIN, arg, why);
}

static err_t token_call(struct client *c, void *arg, struct why *why)
{
    struct cluster_args *a = arg;
    Dtd__JoinToken q = DTD__JOIN_TOKEN__INIT, *reply;
    q.has_uses = q.has_hours = true;
    q.uses = a->uses;
    q.hours = a->hours;
    err_t err = client_call(c, CLIENT_CLUSTER_TOKEN, &q.base, &reply, why);
    if (err)
        return err;
    a->expires_ms = reply->expires_ms;
    snprintf(a->token, sizeof(a->token), "%s", reply->token ? reply->token : "");
    if (reply->token)
        explicit_bzero(reply->token, strlen(reply->token));
    client_reply_free(reply);
    return OK;
}

static err_t leave_call(struct client *c, void *arg, struct why *why)
{
    (void)arg;
    Dtd__Empty q = DTD__EMPTY__INIT;
    return client_call(c, CLIENT_CLUSTER_LEAVE, &q.base, NULL, why);
}

static err_t remove_call(struct client *c, void *arg, struct why *why)
{
    const struct cluster_args *a = arg;
    Dtd__ClusterNodeRequest q = DTD__CLUSTER_NODE_REQUEST__INIT;
    q.name = (char *)a->argument;
    q.has_evict = q.evict = a->evict;
    return client_call(c, CLIENT_CLUSTER_REMOVE, &q.base, NULL, why);
}

static err_t recover_call(struct client *c, void *arg, struct why *why)
{
    (void)arg;
    Dtd__Empty q = DTD__EMPTY__INIT;
    return client_call(c, CLIENT_CLUSTER_RECOVER, &q.base, NULL, why);
}

static err_t rotate_call(struct client *c, void *arg, struct why *why)
{
    (void)arg;
    Dtd__Empty q = DTD__EMPTY__INIT;
    return client_call(c, CLIENT_CLUSTER_ROTATE, &q.base, NULL, why);
}

/* Waits until this node is part of a cluster that has a leader, or (`in` false) of no cluster. */
static err_t wait_until(struct global *g, bool in, struct why *why)
{
    int64_t end = clock_mono_ms() + READY_MS;
    struct client_cluster s;
    for (;;) {
        err_t err = follow_call(g, status_call, &s, why);
        bool done = !err && (in ? s.n_node > 0 && s.leader[0] : s.n_node == 0);
        if (!err)
            client_cluster_fini(&s);
        if (done)
            return OK;
        if (clock_mono_ms() > end)
            return why_set(why, ERR_AGAIN,
                           "the daemon did not complete the request within %d s. See: dtctl cluster status",
                           READY_MS / 1000);
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}

/* ---- status ---- */

/* A dtd without a cluster version has version 1. */
static void versions_print(const struct client_cluster *s)
{
    printf("cluster version %u", s->version ? s->version : 1);
    if (s->n_held_back)
        printf("  %u waits until dtd is upgraded on", s->next_version);
    for (int i = 0; i < s->n_held_back; i++)
        printf("%s %s", i ? "," : "", s->held_back[i]);
    printf("\n");
}

static void status_print(const struct client_cluster *s)
{
    static const struct out_column columns[] = {{"NODE", false, 0},     {"STATE", false, 0}, {"ROLE", false, 1},
                                                {"ADDRESS", false, 2},  {"LOG", true, 4},    {"VERSION", false, 3},
                                                {"IDENTITY", false, 5}, {"REASON", false, 0}};
    struct out_table t;
    char why[700];
    out_table_init(&t, columns, 8);
    for (int i = 0; i < s->n_node; i++) {
        const struct client_cluster_node *n = &s->node[i];
        int r = out_table_row(&t);
        out_table_set(&t, r, 0, "%s%s", n->name, strcmp(n->name, s->self) == 0 ? " *" : "");
        out_table_set(&t, r, 1, "%s", n->drained[0] ? "drained" : n->state);
        out_table_set(&t, r, 2, "%s", n->role);
        out_table_set(&t, r, 3, "%s", n->address);
        if (n->log_index)
            out_table_set(&t, r, 4, "%llu", (unsigned long long)n->log_index);
        out_table_set(&t, r, 5, "%s", n->version);
        out_table_set(&t, r, 6, "%s", n->identity);
        snprintf(why, sizeof(why), "%s", n->drained);
        if (n->silent_ms)
            snprintf(why, sizeof(why), "silent for %.1f s%s%s", (double)n->silent_ms / 1000, n->drained[0] ? "; " : "",
                     n->drained);
        if (n->use.warning[0])
            snprintf(why + strlen(why), sizeof(why) - strlen(why), "%s%s", why[0] ? "; " : "", n->use.warning);
        out_table_set(&t, r, 7, "%s", why);
    }
    if (s->n_node)
        out_table_print(&t, stdout, 1);
    out_table_fini(&t);
    if (s->n_node)
        printf("leader %s  term %llu  index %llu  key k%u%s\n", s->leader[0] ? s->leader : "none",
               (unsigned long long)s->log_term, (unsigned long long)s->log_index, s->key,
               s->keys > 1 ? " (a new key is being distributed)" : "");
    char when[OUT_NUMBER];
    if (s->generation > 1)
        printf("cluster %016llx  generation %llu  recovered on %s at %s\n", (unsigned long long)s->id,
               (unsigned long long)s->generation, s->recovered_by[0] ? s->recovered_by : "?",
               out_time(s->recovered_ms, when));
    if (s->n_node)
        versions_print(s);
    if (s->note[0])
        printf("%s\n", s->note);
}

/* Number of nodes that are up; 0 if the cluster has no leader. */
static unsigned nodes_up(const struct client_cluster *s)
{
    unsigned n = 0;
    for (int i = 0; i < s->n_node && s->leader[0]; i++)
        n += strcmp(s->node[i].state, "up") == 0;
    return n;
}

/* Waits until `nodes` nodes are up; the daemon itself may start meanwhile. `nodes` 0: does not wait. */
static err_t status_wait(struct global *g, unsigned nodes, struct client_cluster *ret, struct why *why)
{
    int64_t end = clock_mono_ms() + NODES_MS;
    for (;;) {
        err_t err = follow_call(g, status_call, ret, why);
        unsigned up = err ? 0 : nodes_up(ret);
        bool more = err ? err == ERR_CLOSED || err == ERR_AGAIN || err == ERR_TIMEOUT : up < nodes;
        if (!nodes || !more)
            return err;
        if (!err)
            client_cluster_fini(ret);
        if (clock_mono_ms() > end)
            return why_set(why, ERR_AGAIN, "%u of %u nodes are up after %d s. See: dtctl cluster status", up, nodes,
                           NODES_MS / 1000);
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}

static int cluster_status(struct global *g, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"wait", KEY_WAIT, "N", 0, "Wait until N nodes are up and one is the leader; exit 75 after two minutes", 0},
        {0}};
    static const struct argp argp = {.options = options,
                                     .parser = parse,
                                     .children = global_children,
                                     .doc = "Shows the nodes, voters, leader and version of the cluster, which nodes "
                                            "hold the next version back, and whether the quorum is missing."
                                            "\vExamples:\n  dtctl cluster status -o json\n"
                                            "  dtctl cluster status --wait 3"};
    struct cluster_args args = {.global = g};
    struct client_cluster s;
    struct why why = {0};
    int code = EXIT_DONE;
    command_parse(&argp, argc, argv, &args);
    err_t err = status_wait(g, args.nodes, &s, &why);
    if (err)
        return command_fail(err, &why);
    if (g->format != OUT_TEXT)
        code = command_json(g, json_of_cluster(&s));
    else
        status_print(&s);
    client_cluster_fini(&s);
    return code;
}

/* ---- tokens ---- */

static void token_text(const struct cluster_args *a)
{
    char how[512] = "dtctl cluster join, which asks for this token";
    if (a->token_file)
        snprintf(how, sizeof(how), "dtctl cluster join --token-file FILE, with a copy of %s", a->token_file);
    printf("on the next node, call %s (a secret, valid for %u h and %u node%s)%s\n", how, a->hours, a->uses,
           a->uses == 1 ? "" : "s", a->token_file ? "" : ":");
    if (!a->token_file)
        printf("%s\n", a->token);
}

/* Writes or prints the new token, and forgets it. */
static int token_give(struct global *g, struct cluster_args *a)
{
    struct why why = {0};
    int code = EXIT_DONE;
    err_t err = a->token_file ? secret_write(a->token_file, a->token, &why) : OK;
    if (err)
        code = command_fail(err, &why);
    else if (g->format == OUT_TEXT)
        token_text(a);
    else
        code =
            command_json(g, json_pack("{s:s*, s:s*, s:I, s:i}", "token", a->token_file ? NULL : a->token, "token_file",
                                      a->token_file, "expires_ms", (json_int_t)a->expires_ms, "uses", (int)a->uses));
    explicit_bzero(a->token, sizeof(a->token));
    return code;
}

static int cluster_token(struct global *g, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"uses", KEY_USES, "N", 0, "Number of nodes that may join with it (default 1)", 0},
        {"hours", KEY_HOURS, "H", 0, "Hours until it expires (default 24)", 0},
        TOKEN_OUTPUT,
        {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .doc = "Creates a token with which other nodes join.\vExamples:\n  dtctl cluster token --uses 2\n"
               "  dtctl cluster token --token-file token"};
    struct cluster_args args = {.global = g, .uses = 1, .hours = 24};
    struct why why = {0};
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_call(g, token_call, &args, &why);
    return err ? command_fail(err, &why) : token_give(g, &args);
}

/* ---- init, join ---- */

static int cluster_init(struct global *g, int argc, char **argv)
{
    static const struct argp_option options[] = {NODE_OPTIONS, TOKEN_OUTPUT, {0}};
    static const struct argp argp = {.options = options,
                                     .parser = parse,
                                     .children = global_children,
                                     .doc = "Creates a cluster with this node as its first, and a token for the next "
                                            "node.\vExample:\n  dtctl cluster init --advertise 10.0.0.1:7811"};
    struct cluster_args args = {.global = g, .uses = 1, .hours = 24};
    struct why why = {0};
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_call(g, init_call, &args, &why);
    if (!err)
        err = wait_until(g, true, &why);
    if (!err)
        err = follow_call(g, token_call, &args, &why);
    if (err)
        return command_fail(err, &why);
    if (g->format == OUT_TEXT)
        printf("created a cluster with this node. Show it: dtctl cluster status\n");
    return token_give(g, &args);
}

static int cluster_join(struct global *g, int argc, char **argv)
{
    static const struct argp_option options[] = {
        NODE_OPTIONS,
        {"token-file", KEY_TOKEN_FILE, "FILE", 0, "Read the token from this file (default: standard input)", 0},
        {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse_join,
        .children = global_children,
        .doc = "Joins this node to a cluster, with a token from dtctl cluster token; at a terminal it asks for it. "
               "Records "
               "of earlier jobs of this node are moved aside.\vExamples:\n  dtctl cluster join --name node-2\n"
               "  dtctl cluster join --token-file token"};
    struct cluster_args args = {.global = g};
    struct why why = {0};
    command_parse(&argp, argc, argv, &args);
    err_t err = secret_read(args.token_file, "token", args.token, sizeof(args.token), &why);
    if (!err)
        err = follow_call(g, join_call, &args, &why);
    explicit_bzero(args.token, sizeof(args.token));
    if (!err)
        err = wait_until(g, true, &why);
    if (err)
        return command_fail(err, &why);
    printf("joined the cluster. Show it: dtctl cluster status\n");
    return EXIT_DONE;
}

/* ---- leaving and repair ---- */

static int run_simple(struct global *g, int argc, char **argv, const struct argp *argp,
                      err_t (*call)(struct client *, void *, struct why *), struct cluster_args *args)
{
    struct why why = {0};
    command_parse(argp, argc, argv, args);
    err_t err = follow_call(g, call, args, &why);
    return err ? command_fail(err, &why) : EXIT_DONE;
}

static int cluster_leave(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {.parser = parse,
                                     .children = global_children,
                                     .doc =
                                         "Removes this node from its cluster, after its leadership and vote have moved "
                                         "to another node."
                                         "\vExample:\n  dtctl cluster leave"};
    struct cluster_args args = {.global = g};
    struct why why = {0};
    int code = run_simple(g, argc, argv, &argp, leave_call, &args);
    if (code)
        return code;
    err_t err = wait_until(g, false, &why);
    if (err)
        return command_fail(err, &why);
    printf("this node has left the cluster\n");
    return EXIT_DONE;
}

static int cluster_remove(struct global *g, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"evict", KEY_EVICT, NULL, 0, "Remove the node although it is up, and withdraw all join tokens", 0}, {0}};
    static const struct argp argp = {.options = options,
                                     .parser = parse_with_argument,
                                     .children = global_children,
                                     .args_doc = "NODE",
                                     .doc = "Removes a lost node from the cluster. A node that runs leaves by itself: "
                                            "dtctl cluster leave. One that does not obey is evicted: all others refuse "
                                            "it at once, and its jobs continue elsewhere."
                                            "\vExamples:\n  dtctl cluster remove node-3\n"
                                            "  dtctl cluster remove node-3 --evict"};
    struct cluster_args args = {.global = g};
    int code = run_simple(g, argc, argv, &argp, remove_call, &args);
    if (!code)
        printf("%s %s from the cluster. It has the key, which opens nothing without an identity; replace it: dtctl "
               "cluster rotate\n",
               args.evict ? "evicted" : "removed", args.argument);
    return code;
}

static int cluster_recover(struct global *g, int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"yes", KEY_YES, NULL, 0, "Confirm that the other voters are permanently lost", 0}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .doc =
            "Continues with this node's copy of the log alone, when the majority of the voters is permanently lost. "
            "Records that only the other voters had are lost. The cluster gets a new generation and a new key; nodes "
            "that had copies of the log are no part of it, and must join again.\vExample:\n  dtctl cluster recover "
            "--yes"};
    struct cluster_args args = {.global = g};
    struct why why = {0};
    command_parse(&argp, argc, argv, &args);
    if (!args.yes) {
        why_set(&why, ERR_INVALID,
                "records that only the other voters have will be lost, and these nodes have to join again. If one of "
                "them can be repaired, start it instead. Otherwise add --yes");
        return command_fail(ERR_INVALID, &why);
    }
    err_t err = follow_call(g, recover_call, &args, &why);
    if (!err)
        err = wait_until(g, true, &why);
    if (err)
        return command_fail(err, &why);
    printf(
        "this node is the leader. The nodes that had copies of the log were removed; to take one in: dtctl cluster "
        "leave on it, then dtctl cluster join. The next job's number is 1000 higher, because they may have given the "
        "numbers between\n");
    return EXIT_DONE;
}

#define STATE_OPTION                                                                                                   \
    {                                                                                                                  \
        "state", KEY_STATE, "FOLDER", 0,                                                                               \
            "State directory (default: of the dtd that answers, else of the private dtd; system-wide /var/lib/dtd)", 0 \
    }

static err_t node_call(struct client *c, void *arg, struct why *why)
{
    return client_node_get(c, arg, why);
}

/* A dtd that runs knows its state directory; it need not run. */
static void find_state(struct global *g, struct cluster_args *a, char ret[PATH_MAX])
{
    struct client_node node;
    struct why why = {0};
    struct client *c;
    snprintf(ret, PATH_MAX, "%s", a->state ? a->state : g->private_dir);
    if (a->state || client_open(g->state_dir, &c, &why))
        return;
    if (node_call(c, &node, &why) == OK) {
        snprintf(ret, PATH_MAX, "%s", node.state_dir);
        client_node_fini(&node);
    }
    client_close(c);
}

static int cluster_backup(struct global *g, int argc, char **argv)
{
    static const struct argp_option options[] = {STATE_OPTION, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse_with_argument,
        .children = global_children,
        .args_doc = "FOLDER",
        .doc =
            "Copies the state of this node (jobs, catalog, nodes, keys) into a new folder, also while dtd runs. On a "
            "cluster, make it on a voter.\vExample:\n  dtctl cluster backup /backup/dtd-today"};
    struct cluster_args args = {.global = g};
    struct why why = {0};
    char state[PATH_MAX];
    uint64_t bytes = 0;
    command_parse(&argp, argc, argv, &args);
    find_state(g, &args, state);
    err_t err = backup_make(state, args.argument, &bytes, &why);
    if (err)
        return command_fail(err, &why);
    if (g->format != OUT_TEXT)
        return command_json(
            g, json_pack("{s:s, s:s, s:I}", "folder", args.argument, "state", state, "bytes", (json_int_t)bytes));
    printf("copied %s to %s (%llu bytes). It has the keys of the cluster: keep it as safe as a password\n", state,
           args.argument, (unsigned long long)bytes);
    return EXIT_DONE;
}

static int cluster_restore(struct global *g, int argc, char **argv)
{
    static const struct argp_option options[] = {
        STATE_OPTION,
        {"listen", KEY_LISTEN, "ADDRESS:PORT", 0, "New listen address (default: as before)", 0},
        {"advertise", KEY_ADVERTISE, "HOST:PORT", 0, "New address for other nodes (default: as before)", 0},
        {"yes", KEY_YES, NULL, 0, "Confirm that all other voters are permanently lost", 0},
        {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse_with_argument,
        .children = global_children,
        .args_doc = "FOLDER",
        .doc =
            "Copies a backup into an empty state directory, for which no dtd runs. When dtd is started, it continues "
            "alone, as after dtctl cluster recover: other nodes that had copies of the log must join again."
            "\vExample:\n  dtctl cluster restore /backup/dtd-today --yes"};
    struct cluster_args args = {.global = g};
    struct why why = {0};
    char state[PATH_MAX];
    command_parse(&argp, argc, argv, &args);
    if (!args.yes) {
        why_set(&why, ERR_INVALID,
                "what was recorded after the backup will be lost, and other nodes have to join again. While a voter of "
                "the cluster is left, start it, or see dtctl cluster recover. Otherwise add --yes");
        return command_fail(ERR_INVALID, &why);
    }
    find_state(g, &args, state);
    const struct backup_restore with = {.listen = args.listen, .advertise = args.advertise};
    err_t err = backup_restore(args.argument, state, &with, &why);
    if (err)
        return command_fail(err, &why);
    printf("restored %s. Start dtd: dtctl up, or systemctl start dtd\n", state);
    return EXIT_DONE;
}

static int cluster_rotate(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .children = global_children,
        .doc = "Distributes a new key to the cluster. The old key stays valid until every node has the new one. A lost "
               "node delays this until it comes back or is removed; a node that comes back later must join again."
               "\vExample:\n  dtctl cluster rotate"};
    struct cluster_args args = {.global = g};
    int code = run_simple(g, argc, argv, &argp, rotate_call, &args);
    if (!code)
        printf("distributing a new key to all nodes. Show the progress: dtctl cluster status\n");
    return code;
}

static const struct command subs[] = {
    {"init", "create a cluster with this node as its first", cluster_init},
    {"token", "create a token with which other nodes join", cluster_token},
    {"join", "join this node to a cluster", cluster_join},
    {"status", "show nodes, voters, leader and quorum", cluster_status},
    {"leave", "remove this node from its cluster", cluster_leave},
    {"remove", "remove a lost node from the cluster", cluster_remove},
    {"rotate", "replace the key of the cluster", cluster_rotate},
    {"backup", "copy the state of this node into a folder", cluster_backup},
    {"restore", "copy a backup into an empty state directory", cluster_restore},
    {"recover", "continue alone when the majority is permanently lost", cluster_recover},
};

int cmd_cluster(struct global *g, int argc, char **argv)
{
    return command_group(subs, sizeof(subs) / sizeof(subs[0]), argv[0], g, argc, argv);
}
