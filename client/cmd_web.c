/* dtctl web: the address of the web page, with a token that logs its user in. If dtd-web does not run, because the
 * daemon's configuration has no `web.listen`, the command serves the page itself until Ctrl-C, for this user alone. */
#include "client/client.h"
#include "client/commands.h"
#include "client/daemon.h"
#include "client/follow.h"
#include "proto/client.pb-c.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT_DEFAULT 7812

struct web_args {
    struct global *global;
    bool open;
    int64_t port; /* -1: PORT_DEFAULT, or any if that is in use */
    Dtd__WebTokenReply *reply;
};

static const struct argp_option options[] = {
    {"open", 'b', 0, 0, "Open the page in the browser (xdg-open)", 0},
    {"port", 'p', "PORT", 0, "Port of 127.0.0.1 if this command serves the page; default 7812, or any free one", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct web_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 'b':
        a->open = true;
        return 0;
    case 'p':
        if (!arg_number(arg, 65535, &a->port))
            argp_error(state, "--port %s: expected a number from 0 to 65535", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static err_t token_call(struct client *c, void *arg, struct why *why)
{
    struct web_args *a = arg;
    Dtd__Empty q = DTD__EMPTY__INIT;
    return client_call(c, CLIENT_WEB_TOKEN, &q.base, &a->reply, why);
}

/* Browsers have no page at "every address of this machine": the host's name stands for it. */
static void public_url(const Dtd__WebTokenReply *m, char *ret, size_t size)
{
    char host[256] = "";
    const char *port = strrchr(m->address, ':');
    bool any = strncmp(m->address, "0.0.0.0:", 8) == 0 || strncmp(m->address, "[::]:", 5) == 0;
    if (any && gethostname(host, sizeof(host) - 1) == 0)
        snprintf(ret, size, "http%s://%s%s", m->tls ? "s" : "", host, port);
    else
        snprintf(ret, size, "http%s://%s", m->tls ? "s" : "", m->address);
}

static void browser_open(const char *address)
{
    pid_t pid = fork();
    if (pid == 0) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        dup2(null, STDOUT_FILENO);
        dup2(null, STDERR_FILENO);
        execlp("xdg-open", "xdg-open", address, (char *)NULL);
        _exit(127);
    }
    int status;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status))
        fprintf(stderr, "dtctl: xdg-open did not open a browser; open the address yourself\n");
}

/* The address contains the token, which is a password: it goes to standard output alone. */
static int show(const struct web_args *a, const char *url, bool serves)
{
    char address[512];
    snprintf(address, sizeof(address), "%s/#token=%s", url, a->reply->token);
    if (a->global->format != OUT_TEXT) {
        int code = command_json(a->global, json_pack("{s:s, s:s, s:I}", "address", address, "url", url, "expires_ms",
                                                     (json_int_t)a->reply->expires_ms));
        fflush(stdout);
        return code;
    }
    char expires[OUT_NUMBER];
    printf("%s\n", address);
    fflush(stdout);
    fprintf(stderr, "Keep the address secret: until %s it shows your jobs and can cancel them. %s\n",
            out_time(a->reply->expires_ms, expires), serves ? "Ctrl-C ends the page." : "It is a bookmark for a week.");
    if (a->open)
        browser_open(address);
    return EXIT_DONE;
}

/* ---- serving the page ---- */

/* Starts dtd-web and reads its address. ERR_IO: it has ended and has printed the reason. */
static err_t serve_start(const struct web_args *a, int64_t port, bool quiet, char *ret_url, size_t size, pid_t *ret,
                         struct why *why)
{
    char program[PATH_MAX], listen[32];
    int out[2];
    err_t err = daemon_program("dtd-web", program, sizeof(program), why);
    if (err)
        return err;
    snprintf(listen, sizeof(listen), "127.0.0.1:%d", (int)port);
    if (pipe2(out, O_CLOEXEC))
        return why_set(why, err_from_errno(errno), "pipe: %s", strerror(errno));
    pid_t pid = fork();
    if (pid == 0) {
        dup2(out[1], STDOUT_FILENO);
        setenv("DTD_LOG", quiet ? "off" : "warn", 0);
        if (quiet)
            dup2(open("/dev/null", O_WRONLY | O_CLOEXEC), STDERR_FILENO);
        execl(program, "dtd-web", "--child", "--run-dir", a->global->state_dir, "--listen", listen, (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    FILE *f = pid > 0 ? fdopen(out[0], "r") : NULL;
    bool started = f && fgets(ret_url, (int)size, f);
    if (f)
        fclose(f);
    if (!started) {
        if (pid > 0)
            waitpid(pid, NULL, 0);
        return why_set(why, ERR_IO, "dtd-web did not start");
    }
    ret_url[strcspn(ret_url, "\n")] = '\0';
    *ret = pid;
    return OK;
}

static pid_t server;

static void end_server(int number)
{
    kill(server, SIGTERM);
}

static int serve(const struct web_args *a)
{
    char url[128];
    struct why why = {0};
    err_t err = serve_start(a, a->port < 0 ? PORT_DEFAULT : a->port, a->port < 0, url, sizeof(url), &server, &why);
    if (err && a->port < 0)
        err = serve_start(a, 0, false, url, sizeof(url), &server, &why);
    if (err)
        return command_fail(err, &why);
    struct sigaction end = {.sa_handler = end_server};
    sigaction(SIGINT, &end, NULL);
    sigaction(SIGTERM, &end, NULL);
    int status, code = show(a, url, true);
    while (waitpid(server, &status, 0) < 0 && errno == EINTR)
        ;
    return code != EXIT_DONE ? code : WIFEXITED(status) && WEXITSTATUS(status) == 0 ? EXIT_DONE : EXIT_ERROR;
}

int cmd_web(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .doc =
            "Prints the address of the web page: nodes, jobs, curves, logs. The address logs you in. If dtd does not "
            "serve the page (`web.listen` of its configuration), this command serves it on 127.0.0.1 until Ctrl-C."
            "\vExample:\n  dtctl web --open"};
    struct web_args args = {.global = g, .port = -1};
    struct why why = {0};
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_call(g, token_call, &args, &why);
    if (err)
        return command_fail(err, &why);
    char url[512];
    int code;
    if (args.reply->address) {
        public_url(args.reply, url, sizeof(url));
        code = show(&args, url, false);
    } else {
        code = serve(&args);
    }
    client_reply_free(args.reply);
    return code;
}
