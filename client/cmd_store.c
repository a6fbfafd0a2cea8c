/* dtctl store: c10d stores for PyTorch processes that dtd does not start (docs/use/c10d-store.md). */
#include "client/client.h"
#include "client/commands.h"
#include "client/follow.h"
#include "proto/client.pb-c.h"

#include <stdio.h>
#include <string.h>

struct store_args {
    struct global *global;
    const char *name;
    int port;
    Dtd__StoreReport *report;
};

static error_t parse_name(int key, char *arg, struct argp_state *state)
{
    struct store_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 'n':
    case ARGP_KEY_ARG:
        if (a->name)
            argp_error(state, "one store at a time");
        a->name = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->name)
            argp_error(state, "which store? Give its name");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static error_t parse_none(int key, char *arg, struct argp_state *state)
{
    struct store_args *a = state->input;
    if (key != ARGP_KEY_INIT)
        return ARGP_ERR_UNKNOWN;
    state->child_inputs[0] = a->global;
    return 0;
}

/* ---- open ---- */

static err_t open_call(struct client *c, void *arg, struct why *why)
{
    struct store_args *a = arg;
    Dtd__StoreRequest q = DTD__STORE_REQUEST__INIT;
    Dtd__StoreReply *reply;
    q.name = (char *)a->name;
    err_t err = client_call(c, CLIENT_STORE_OPEN, &q.base, &reply, why);
    if (err)
        return err;
    a->port = (int)reply->port;
    client_reply_free(reply);
    return OK;
}

static int store_open(struct global *g, int argc, char **argv)
{
    static const struct argp_option options[] = {{"name", 'n', "NAME", 0, "Name of the store", 0}, {0}};
    static const struct argp argp = {
        .options = options,
        .parser = parse_name,
        .children = global_children,
        .args_doc = "NAME",
        .doc =
            "Opens your c10d store of that name, or finds it if it is open, and prints its port on 127.0.0.1 of this "
            "node. All nodes of a cluster share the store. It exists until it is closed or the daemon of its node "
            "exits."
            "\vExample:\n  port=$(dtctl store open --name run-7 -o json | jq .port)\n"
            "  TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend=c10d \\\n"
            "    --rdzv-endpoint=127.0.0.1:$port --rdzv-conf=is_host=0 train.py"};
    struct store_args args = {.global = g};
    struct why why = {0};
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_call(g, open_call, &args, &why);
    if (err)
        return command_fail(err, &why);
    if (g->format != OUT_TEXT)
        return command_json(g, json_pack("{s:i}", "port", args.port));
    printf("store %s at 127.0.0.1:%d\n", args.name, args.port);
    return EXIT_DONE;
}

/* ---- close ---- */

static err_t close_call(struct client *c, void *arg, struct why *why)
{
    struct store_args *a = arg;
    Dtd__StoreRequest q = DTD__STORE_REQUEST__INIT;
    q.name = (char *)a->name;
    return client_call(c, CLIENT_STORE_CLOSE, &q.base, NULL, why);
}

static int store_close(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {.parser = parse_name,
                                     .children = global_children,
                                     .args_doc = "NAME",
                                     .doc = "Closes your store of that name and all its connections, on every node."
                                            "\vExample:\n  dtctl store close run-7"};
    struct store_args args = {.global = g};
    struct why why = {0};
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_call(g, close_call, &args, &why);
    if (err)
        return command_fail(err, &why);
    if (g->format != OUT_TEXT)
        return command_json(g, json_pack("{s:s}", "closed", args.name));
    printf("store %s is closed\n", args.name);
    return EXIT_DONE;
}

/* ---- ls ---- */

static err_t list_call(struct client *c, void *arg, struct why *why)
{
    struct store_args *a = arg;
    Dtd__Empty q = DTD__EMPTY__INIT;
    return client_call(c, CLIENT_STORE_LIST, &q.base, &a->report, why);
}

static const char *user_of(const Dtd__StoreItem *item)
{
    return item->user ? item->user : "";
}

static json_t *stores_json(const Dtd__StoreReport *r)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < r->n_store; i++)
        json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "name", r->store[i]->name, "node", r->store[i]->node,
                                              "user", user_of(r->store[i])));
    return list;
}

static void stores_print(const Dtd__StoreReport *r)
{
    static const struct out_column columns[] = {{"NAME", false, 0}, {"NODE", false, 0}, {"USER", false, 0}};
    struct out_table t;
    out_table_init(&t, columns, 3);
    for (size_t i = 0; i < r->n_store; i++) {
        int row = out_table_row(&t);
        out_table_set(&t, row, 0, "%s", r->store[i]->name);
        out_table_set(&t, row, 1, "%s", r->store[i]->node);
        out_table_set(&t, row, 2, "%s", user_of(r->store[i]));
    }
    if (r->n_store)
        out_table_print(&t, stdout, -1);
    else
        puts("no open stores. Open one: dtctl store open --name NAME");
    out_table_fini(&t);
}

static int store_ls(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse_none,
        .children = global_children,
        .doc = "Lists the open stores and their nodes. To print the port on this node: dtctl store open NAME."
               "\vExample:\n  dtctl store ls"};
    struct store_args args = {.global = g};
    struct why why = {0};
    int code = EXIT_DONE;
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_call(g, list_call, &args, &why);
    if (err)
        return command_fail(err, &why);
    if (g->format != OUT_TEXT)
        code = command_json(g, stores_json(args.report));
    else
        stores_print(args.report);
    client_reply_free(args.report);
    return code;
}

static const struct command subs[] = {
    {"open", "open a store, or print the port of an open one", store_open},
    {"ls", "list the open stores", store_ls},
    {"close", "close a store", store_close},
};

int cmd_store(struct global *g, int argc, char **argv)
{
    return command_group(subs, sizeof(subs) / sizeof(subs[0]), argv[0], g, argc, argv);
}
