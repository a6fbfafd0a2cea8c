/* dtctl up, dtctl down: start and stop the private dtd of one user. Both are idempotent. up waits until control
 * answers, down until the lock is free. Every wait has a limit, and the error after it names what was waited for. */
#include "client/client.h"
#include "client/commands.h"
#include "client/daemon.h"

#include "common/base/clock.h"
#include "common/base/paths.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>

#define UP_WAIT_MS 30000 /* dtd answers within a second, unless it reads a long log or runs on a slow disk */
/* After so long an error in the log of dtd-control counts as the reason that it does not answer: it has been started
 * again at least once by then, and an error of one start may be gone in the next. */
#define UP_ERROR_MS 5000
#define UP_CALL_MS 1000    /* the supervisor's socket accepts calls before dtd-control can answer them */
#define DOWN_CALL_MS 5000  /* dtd-control answers before it stops the jobs; SIGTERM does the same without it */
#define DOWN_WAIT_MS 40000 /* jobs save and stop first */
#define TERM_WAIT_MS 30000 /* the supervisor stops its processes after SIGTERM */

struct up_args {
    struct global *global;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct up_args *a = state->input;
    if (key == ARGP_KEY_INIT) {
        state->child_inputs[0] = a->global;
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static void poll_sleep(void)
{
    const struct timespec t = {.tv_nsec = 20 * 1000000};
    nanosleep(&t, NULL);
}

/* A place of the state that the user may not expect. */
static void print_note(const char *state_dir)
{
    char note[1024];
    if (path_state_dir_note(state_dir, note, sizeof(note)))
        fprintf(stderr, "dtctl: %s\n", note);
}

/* ---- up ---- */

static err_t node_get(const char *state_dir, struct client_node *ret, struct why *why)
{
    struct client *c;
    err_t err = client_open(state_dir, &c, why);
    if (err)
        return err;
    client_set_deadline(c, UP_CALL_MS);
    err = client_node_get(c, ret, why);
    client_close(c);
    return err;
}

static void explain_exit(const char *state_dir, int status, struct why *why)
{
    if (WIFSIGNALED(status))
        why_set(why, ERR_IO, "dtd was killed by signal %d (%s). The last lines of %s/dtd.log:", WTERMSIG(status),
                strsignal(WTERMSIG(status)), state_dir);
    else
        why_set(why, ERR_IO, "dtd exited with status %d. The last lines of %s/dtd.log:", WEXITSTATUS(status),
                state_dir);
}

/* True if dtd-control has ended with an error since we began to wait. */
static bool explain_control_error(const char *state_dir, off_t log_from, struct why *why)
{
    char text[800];
    if (!daemon_control_error(state_dir, log_from, text, sizeof(text)))
        return false;
    why_set(why, ERR_IO, "dtd-control does not start: %s. dtd starts it again and again; `dtctl down` ends dtd", text);
    return true;
}

/* Waits until control answers, or the dtd that we started (pid; 0: none) has exited. When two are started at once, one
 * exits because the other holds the lock; then the other one is waited for. */
static err_t up_wait(const char *state_dir, pid_t pid, struct client_node *ret, struct why *why)
{
    int64_t start = clock_mono_ms();
    off_t log_from = daemon_control_log_size(state_dir);
    pid_t holder;
    int status;
    while (node_get(state_dir, ret, why)) {
        if (pid && waitpid(pid, &status, WNOHANG) == pid) {
            pid = 0;
            poll_sleep();
            if (!daemon_running(state_dir, &holder)) {
                explain_exit(state_dir, status, why);
                return ERR_IO;
            }
        }
        int64_t waited = clock_mono_ms() - start;
        if (waited >= UP_ERROR_MS && explain_control_error(state_dir, log_from, why))
            return ERR_IO;
        if (waited >= UP_WAIT_MS) {
            why_set(why, ERR_TIMEOUT,
                    "dtd did not answer within %d s. The last lines of %s/dtd.log:", UP_WAIT_MS / 1000, state_dir);
            return ERR_TIMEOUT;
        }
        poll_sleep();
    }
    return OK;
}

static int print_up(const struct global *g, const struct client_node *node, bool started)
{
    if (g->format != OUT_TEXT)
        return command_json(g, json_pack("{s:b, s:s, s:i, s:i, s:i, s:s}", "started", started, "state_dir",
                                         node->state_dir, "supervisor_pid", node->supervisor_pid, "control_pid",
                                         node->control_pid, "slots", node->slots, "version", node->version));
    printf("dtd %s (pid %d, %d slots, state in %s)\n", started ? "is up" : "is running already", node->supervisor_pid,
           node->slots, node->state_dir);
    if (node->warning[0])
        printf("warning: %s\n", node->warning);
    return EXIT_DONE;
}

int cmd_up(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .children = global_children,
        .doc =
            "Starts a private dtd on this machine and waits until it answers. It serves only you, keeps its state and "
            "its log dtd.log in the state directory, and runs until `dtctl down`. If it is running already, prints "
            "that.\vExamples:\n  dtctl up\n  DTD_DIR=/tmp/my-dtd dtctl up -o json"};
    struct up_args args = {.global = g};
    struct client_node node = {0};
    struct why why = {0};
    pid_t pid = 0, holder;
    command_parse(&argp, argc, argv, &args);
    err_t err = daemon_check_host(g->private_dir, &why);
    bool running = daemon_running(g->private_dir, &holder);
    if (!err && !running)
        err = daemon_start(g->private_dir, &pid, &why);
    if (err)
        return command_fail(err, &why);
    print_note(g->private_dir);
    err = up_wait(g->private_dir, pid, &node, &why);
    if (err) {
        int code = command_fail(err, &why);
        daemon_log_tail(g->private_dir, 10);
        return code;
    }
    /* Another dtd may have taken the lock while ours was starting; then ours has exited. */
    int code = print_up(g, &node, pid && node.supervisor_pid == pid);
    client_node_fini(&node);
    return code;
}

/* ---- down ---- */

static err_t shutdown_request(const char *state_dir, struct why *why)
{
    struct client *c;
    err_t err = client_open(state_dir, &c, why);
    if (err)
        return err;
    client_set_deadline(c, DOWN_CALL_MS);
    err = client_shutdown(c, why);
    client_close(c);
    /* Control may exit before its reply has been sent. */
    return err == ERR_CLOSED ? OK : err;
}

static int print_down(const struct global *g, bool stopped, pid_t pid)
{
    if (!stopped)
        print_note(g->private_dir);
    if (g->format != OUT_TEXT)
        return command_json(g, json_pack("{s:b, s:s, s:i}", "stopped", stopped, "state_dir", g->private_dir,
                                         "supervisor_pid", (int)pid));
    if (stopped)
        printf("dtd is down (was pid %d)\n", (int)pid);
    else
        printf("no dtd is running (state in %s)\n", g->private_dir);
    return EXIT_DONE;
}

/* Sends SIGTERM to the supervisor, after `reason`, and waits. No process gets a signal that is not certainly it. */
static int down_by_signal(struct global *g, const struct holder *h, const char *reason)
{
    struct why why = {0};
    err_t err = holder_signal(h, SIGTERM, &why);
    if (err)
        return command_complain(EXIT_ERROR,
                                "%s. No signal was sent: %s. If dtd runs in a container, run `dtctl down` in it",
                                reason, why.text);
    fprintf(stderr, "dtctl: %s; sent SIGTERM to pid %d\n", reason, (int)h->pid);
    if (daemon_wait_gone(g->private_dir, TERM_WAIT_MS))
        return print_down(g, true, h->pid);
    return command_complain(EXIT_ERROR,
                            "dtd (pid %d) does not exit. See %s/dtd.log; `kill -9 %d` stops it, and its jobs continue "
                            "from their checkpoints after `dtctl up`",
                            (int)h->pid, g->private_dir, (int)h->pid);
}

int cmd_down(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .children = global_children,
        .doc = "Stops all jobs, saving first, then the private dtd, and waits until it has exited. Checkpoints remain, "
               "and `dtctl up` finds the jobs again. In a cluster, jobs leave the node and continue on other nodes. If "
               "no dtd is running, prints that.\vExample:\n  dtctl down"};
    struct up_args args = {.global = g};
    struct why why = {0};
    struct holder h;
    char reason[sizeof(why.text) + 80];
    command_parse(&argp, argc, argv, &args);
    if (!daemon_holder(g->private_dir, &h)) {
        if (strcmp(g->state_dir, g->private_dir) != 0)
            fprintf(stderr, "dtctl: the dtd of %s serves all users; only root can stop it: systemctl stop dtd\n",
                    g->state_dir);
        return print_down(g, false, 0);
    }
    err_t err = daemon_check_host(g->private_dir, &why);
    if (err)
        return command_fail(err, &why);
    err = shutdown_request(g->private_dir, &why);
    if (err == ERR_DENIED)
        return command_fail(err, &why);
    if (err)
        snprintf(reason, sizeof(reason), "dtd-control did not answer the request to stop (%s)", why.text);
    else if (daemon_wait_gone(g->private_dir, DOWN_WAIT_MS))
        return print_down(g, true, h.pid);
    else
        snprintf(reason, sizeof(reason), "dtd is still running after %d s", DOWN_WAIT_MS / 1000);
    return down_by_signal(g, &h, reason);
}
