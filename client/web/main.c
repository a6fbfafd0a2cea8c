/* dtd-web: options and the loop. `dtctl web` starts it for one user in the foreground, and the supervisor for all users
 * of a node if the configuration has web.listen. */
#include "client/web/web.h"

#include "common/base/confine.h"
#include "common/base/log.h"
#include "common/base/output.h"
#include "common/base/paths.h"
#include "common/conf/node.h"

#include <argp.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct options {
    const char *dir, *config, *listen;
    bool child;
};

static const struct argp_option option_list[] = {
    {"run-dir", 'd', "DIR", 0, "Folder of control.sock", 0},
    {"config", 'c', "FILE", 0, "Configuration of dtd, whose section `web` is used", 0},
    {"listen", 'l', "ADDRESS:PORT", 0, "Listen here instead; port 0: any free port", 0},
    {"child", 'C', 0, OPTION_HIDDEN, "End with the parent, and print the address to standard output", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct options *o = state->input;
    switch (key) {
    case 'd':
        o->dir = arg;
        return 0;
    case 'c':
        o->config = arg;
        return 0;
    case 'l':
        o->listen = arg;
        return 0;
    case 'C':
        o->child = true;
        return 0;
    case ARGP_KEY_END:
        if (!o->dir)
            argp_error(state, "--run-dir is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp parser = {option_list,
                                   parse,
                                   NULL,
                                   "Serves dtd's web page. `dtctl web` starts it, or dtd if its configuration has "
                                   "`web.listen`.",
                                   NULL,
                                   NULL,
                                   NULL};

/* ---- ending ---- */

struct signals {
    struct web *web;
    uv_signal_t term, interrupt;
};

static void all_closed(struct web *w)
{
    http_stop(w);
}

void web_part_closed(struct web *w)
{
    if (--w->live == 0 && w->all_closed)
        w->all_closed(w);
}

/* All sessions are closed first, so that no request waits for dtd-control any more. */
static void on_signal(uv_signal_t *signal, int number)
{
    struct signals *s = signal->data;
    uv_close((uv_handle_t *)&s->term, NULL);
    uv_close((uv_handle_t *)&s->interrupt, NULL);
    s->web->all_closed = all_closed;
    s->web->live++; /* until all closes have been started */
    plans_stop(s->web);
    session_close_all(s->web);
    web_part_closed(s->web);
}

static void watch_signals(struct signals *s)
{
    uv_signal_init(&s->web->loop, &s->term);
    uv_signal_init(&s->web->loop, &s->interrupt);
    s->term.data = s->interrupt.data = s;
    uv_signal_start(&s->term, on_signal, SIGTERM);
    uv_signal_start(&s->interrupt, on_signal, SIGINT);
}

static err_t serve(struct web *w, const struct web_listen *listen, bool child, struct why *why)
{
    struct signals signals = {.web = w};
    if (uv_loop_init(&w->loop))
        return why_set(why, ERR_NOMEM, "out of memory");
    err_t err = http_start(w, listen, why);
    if (!err)
        err = confine(&(struct confine_files){0}, why); /* the socket listens, and the certificate is read */
    if (err)
        return err;
    char url[128];
    http_url(w, url, sizeof(url));
    log_info("serving address=%s", url);
    if (child) {
        printf("%s\n", url);
        fflush(stdout);
    }
    watch_signals(&signals);
    uv_run(&w->loop, UV_RUN_DEFAULT); /* until a signal, and what it closes */
    (void)uv_loop_close(&w->loop);
    return OK;
}

int main(int argc, char **argv)
{
    struct options o = {0};
    struct node_conf conf;
    struct why why = {0};
    char control[PATH_MAX];
    argp_parse(&parser, argc, argv, 0, NULL, &o);
    log_init("dtd-web");
    signal(SIGPIPE, SIG_IGN);
    if (o.child && (prctl(PR_SET_PDEATHSIG, SIGTERM) || getppid() == 1))
        return 1;
    err_t err = node_conf_read(o.config, &conf, &why);
    if (!err) {
        struct web w = {.control = control};
        const struct web_listen listen = {.address = o.listen ? o.listen : conf.web.listen,
                                          .certificate = o.listen ? NULL : conf.web.certificate,
                                          .key = conf.web.key};
        LIST_INIT(&w.sessions);
        LIST_INIT(&w.plans);
        snprintf(control, sizeof(control), "%s/control.sock", o.dir);
        err = serve(&w, &listen, o.child, &why);
        node_conf_fini(&conf);
    }
    if (err)
        log_error("%s", why.text);
    return err ? 1 : 0;
}
