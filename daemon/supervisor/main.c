/* dtd: arguments, the lock on the state directory, the loop.
 *
 *   serving --SIGTERM--> stopping --END or exit of control, or 20 s--> ending --3 s--> killing --all reaped--> ended
 *
 * stopping: control makes the jobs save and exit; ending: the remaining processes receive SIGTERM; killing: they
 * receive SIGKILL. A second SIGTERM enters killing immediately. */
#include "daemon/supervisor/supervisor.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/holder.h"
#include "common/base/log.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The sum is below TimeoutStopSec of deploy/systemd/dtd.service, so that systemd does not kill the supervisor first. */
#define STOP_MS 20000 /* for the jobs to finish their step and save */
#define END_MS 3000   /* from SIGTERM to SIGKILL: what needs longer has had STOP_MS */
#define KILL_MS 5000  /* for SIGKILL to take effect, also on a process that waits for a disk or a GPU */

/* ---- init ---- */

static err_t take_signals(struct supervisor *s, struct why *why)
{
    sigset_t set;
    sigemptyset(&set);
    const int signals[] = {SIGCHLD, SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++)
        sigaddset(&set, signals[i]);
    sigprocmask(SIG_BLOCK, &set, NULL);
    s->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return s->signals < 0 ? why_set(why, err_from_errno(errno), "signalfd: %s", strerror(errno)) : OK;
}

/* Creates the folders that control cannot create: control may write only inside its own folders. */
static err_t make_folders(const struct supervisor *s, struct why *why)
{
    static const char *const own[] = {"raft", "metrics", "cluster"};
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/jobs", s->dir);
    err_t err = file_make_dirs(path, 0711);
    for (size_t i = 0; i < sizeof(own) / sizeof(*own) && !err; i++) {
        snprintf(path, sizeof(path), "%s/%s", s->dir, own[i]);
        err = file_make_dirs(path, 0700);
        if (!err && lchown(path, s->service.uid, s->service.gid))
            err = err_from_errno(errno);
    }
    if (err)
        return why_set(why, err, "%s: %s", path, strerror(errno));
    err = file_make_dirs(s->run, 0755);
    return err ? why_set(why, err, "%s: %s", s->run, strerror(errno)) : OK;
}

err_t sv_init(struct supervisor *s, struct why *why)
{
    char path[PATH_MAX];
    err_t err = holder_take_lock(s->dir, s->system ? 0711 : 0700, &s->lock, why);
    if (err)
        return err;
    err = take_signals(s, why);
    if (!err && s->system)
        err = make_folders(s, why);
    if (err)
        return err;
    snprintf(path, sizeof(path), "%s/control.sock", s->run);
    s->listener = sv_listen(path, s->system ? 0666 : 0600);
    if (s->listener < 0)
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    /* The supervisor holds a descriptor for every arena and socket of every job. */
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    return sv_contain_start(s, why);
}

/* ---- the loop ---- */

static void phase_move(struct supervisor *s, enum sv_phase to, int64_t ms)
{
    static const char *const names[] = {"serving", "stopping", "ending", "killing", "ended"};
    log_info("supervisor from=%s to=%s", names[s->phase], names[to]);
    s->phase = to;
    s->deadline_ms = clock_mono_ms() + ms;
}

static bool any_process_runs(const struct supervisor *s)
{
    bool any = s->control > 0 || s->web > 0;
    for (int i = 0; i < SV_MAX_CHILDREN && !any; i++)
        any = s->children[i].job && s->children[i].state == CHANNEL_RUNNING;
    return any;
}

/* Changes the phase after a deadline or the exit of the last process. */
static void tick(struct supervisor *s)
{
    int64_t now = clock_mono_ms();
    if (s->phase == SV_SERVING && s->control < 0 && now >= s->control_restart.retry_ms)
        sv_control_start(s);
    if (s->phase == SV_SERVING && s->has_web && s->web < 0 && now >= s->web_restart.retry_ms)
        sv_web_start(s);
    sv_service_tick(s);
    sv_contain_tick(s);
    if (s->phase == SV_STOPPING && (s->control < 0 || now >= s->deadline_ms)) {
        phase_move(s, SV_ENDING, END_MS);
        sv_children_signal(s, SIGTERM);
    }
    if (s->phase == SV_ENDING && now >= s->deadline_ms) {
        phase_move(s, SV_KILLING, KILL_MS);
        sv_children_signal(s, SIGKILL);
    }
    if (s->phase >= SV_ENDING && (!any_process_runs(s) || (s->phase == SV_KILLING && now >= s->deadline_ms)))
        phase_move(s, SV_ENDED, 0);
}

static int wait_ms(const struct supervisor *s)
{
    int64_t until = s->phase != SV_SERVING ? s->deadline_ms
                    : s->control < 0       ? s->control_restart.retry_ms
                    : s->hang_ms           ? s->heartbeat_deadline_ms
                                           : -1;
    bool web_waits = s->phase == SV_SERVING && s->has_web && s->web < 0;
    if (web_waits && (until < 0 || s->web_restart.retry_ms < until))
        until = s->web_restart.retry_ms;
    if (s->next_kill_ms && (until < 0 || s->next_kill_ms < until))
        until = s->next_kill_ms;
    if (s->next_look_ms && (until < 0 || s->next_look_ms < until))
        until = s->next_look_ms;
    if (until < 0)
        return -1;
    int64_t ms = until - clock_mono_ms();
    return ms < 0 ? 0 : ms > 60000 ? 60000 : (int)ms;
}

static void on_stop(struct supervisor *s)
{
    if (s->phase == SV_SERVING) {
        phase_move(s, SV_STOPPING, STOP_MS);
        sv_service_stop(s);
        s->shutdown_due = true;
    } else if (s->phase < SV_KILLING) {
        phase_move(s, SV_KILLING, KILL_MS);
        sv_children_signal(s, SIGKILL);
    }
}

static void read_signals(struct supervisor *s)
{
    struct signalfd_siginfo info;
    while (read(s->signals, &info, sizeof(info)) == sizeof(info))
        if (info.ssi_signo == SIGHUP && s->system)
            sv_service_reload(s);
        else if (info.ssi_signo != SIGCHLD)
            on_stop(s);
    sv_reap(s);
}

int sv_run(struct supervisor *s)
{
    while (tick(s), s->phase != SV_ENDED) {
        short more = s->channel < 0 || sv_channel_flush(s) ? 0 : POLLOUT;
        struct pollfd fds[] = {{.fd = s->signals, .events = POLLIN}, {.fd = s->channel, .events = POLLIN | more}};
        if (poll(fds, 2, wait_ms(s)) < 0 && errno != EINTR) {
            log_error("poll error=%s", strerror(errno));
            return 1;
        }
        if (fds[0].revents)
            read_signals(s);
        if (fds[1].revents & (POLLIN | POLLHUP | POLLERR))
            sv_channel_read(s);
    }
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/control.sock", s->run);
    unlink(path);
    cgroup_stop(&s->groups);
    return 0;
}

/* ---- arguments ---- */

struct dtd_arguments {
    const char *given[128]; /* value by option letter; NULL: the option was not given */
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
    const char **given = ((struct dtd_arguments *)state->input)->given;
    if (key == ARGP_KEY_END && given['L'] && (given['c'] || given['s'] || given['S']))
        argp_error(state, "--slurm creates its own configuration and state directory: give no other option with it");
    if (key <= 0 || key >= 128)
        return ARGP_ERR_UNKNOWN;
    given[key] = arg ? arg : "";
    return 0;
}

/* Only control reads the configuration and, under Slurm, creates it. This runs `dtd-control WHAT`, which prints lines:
 * the state directory, the folder of the socket, the user, the user of dtd-web if that is to run, and, under Slurm, the
 * configuration file. If it fails, it prints the reason to standard error. */
static err_t places_read(const struct supervisor *s, const char *what, char *ret, size_t size, struct why *why)
{
    int fd[2], status = 0;
    if (pipe2(fd, O_CLOEXEC))
        return why_set(why, err_from_errno(errno), "pipe: %s", strerror(errno));
    const char *argv[] = {"dtd-control", what, s->config ? "--config" : NULL, s->config, NULL};
    struct exec x = {.argv = argv, .log = -1, .fds = &fd[1], .n_fds = 1};
    pid_t pid = sv_exec(s, &x);
    close(fd[1]);
    size_t len = 0;
    for (ssize_t n = 1; n > 0 && len<size - 1; len += n> 0 ? (size_t)n : 0)
        n = read(fd[0], ret + len, size - 1 - len);
    ret[len] = '\0';
    close(fd[0]);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status))
        return why_set(why, ERR_INVALID, "invalid configuration: %s", s->config ? s->config : "(defaults)");
    return OK;
}

/* Determines the user of control and the folder of its socket. */
static err_t start_system(struct supervisor *s, const char *run, const char *user, struct why *why)
{
    if (geteuid() != 0)
        return why_set(why, ERR_INVALID,
                       "dtd --system must be started by root (systemctl start dtd). For a private dtd run: dtctl up");
    umask(022);
    err_t err = path_state_dir(run, s->run, sizeof(s->run), why);
    if (!err)
        err = user_by_name(user, &s->service, why);
    if (!err && s->service.uid == 0)
        err = why_set(why, ERR_INVALID, "user: %s is root, but dtd-control must not be; choose another user", user);
    return err == ERR_NOTFOUND ? why_prefix(why, ERR_INVALID, "user (create it with `systemd-sysusers`)") : err;
}

/* dtd-web serves unknown hosts, so it must have no rights by its user. */
static err_t find_web_user(struct supervisor *s, const char *name, struct why *why)
{
    err_t err = user_by_name(name, &s->web_user, why);
    if (!err && (s->web_user.uid == 0 || s->web_user.uid == s->service.uid))
        return why_set(why, ERR_INVALID, "web.user: %s is root or the user of dtd-control; choose another user", name);
    return err == ERR_NOTFOUND ? why_prefix(why, ERR_INVALID, "web.user") : err;
}

static err_t start(struct supervisor *s, const struct dtd_arguments *a, struct why *why)
{
    static char places[4 * PATH_MAX];
    char *rest = places;
    err_t err = OK;
    ssize_t n = readlink("/proc/self/exe", s->bin, sizeof(s->bin) - 1);
    if (n <= 0)
        return why_set(why, err_from_errno(errno), "/proc/self/exe: %s", strerror(errno));
    s->bin[n] = '\0';
    *strrchr(s->bin, '/') = '\0';
    const char *config = a->given['c'], *slurm = a->given['L'];
    s->config = config ? realpath(config, NULL) : NULL;
    if (config && !s->config)
        return why_set(why, ERR_INVALID, "%s: %s", config, strerror(errno));
    if (config || s->system || slurm) {
        const char *what = slurm ? "--print-slurm" : s->system ? "--print-system" : "--print-places";
        err = places_read(s, what, places, sizeof(places), why);
        if (err)
            return slurm ? why_set(why, err, "not started; see the message above") : err;
    }
    const char *state = strsep(&rest, "\n"), *run = rest ? strsep(&rest, "\n") : "",
               *user = rest ? strsep(&rest, "\n") : "", *web = rest ? strsep(&rest, "\n") : NULL;
    s->has_web = web && web[0];
    if (slurm)
        s->config = rest ? strsep(&rest, "\n") : NULL;
    err = path_state_dir(a->given['s'] ? a->given['s'] : state, s->dir, sizeof(s->dir), why);
    memcpy(s->run, s->dir, sizeof(s->run));
    if (!err && s->system)
        err = start_system(s, run, user, why);
    if (!err && s->system && s->has_web)
        err = find_web_user(s, web, why);
    return err ? err : sv_init(s, why);
}

/* The state of a dtd under Slurm is of no use after its Slurm step has ended. */
static void leave_slurm(struct supervisor *s)
{
    if (!getenv("DTD_SLURM_KEEP") && file_remove_tree(s->dir))
        log_warn("state not removed path=%s", s->dir);
    *strrchr(s->dir, '/') = '\0';
    (void)rmdir(s->dir); /* fails if the states of other nodes are still in it */
}

int main(int argc, char **argv)
{
    static struct supervisor s = {.lock = -1, .listener = -1, .signals = -1, .channel = -1, .control = -1, .web = -1};
    static const struct argp_option options[] = {
        {"config", 'c', "FILE", 0, "Configuration of this node", 0},
        {"state-dir", 's', "DIR", 0,
         "State directory (default: from FILE, else $DTD_DIR, else ~/.local/state/dtd if that is local, else "
         "/var/tmp/dtd-UID)",
         0},
        {"system", 'S', 0, 0, "Serve all users of this machine and run each job as its user (as root, by systemd)", 0},
        {"slurm", 'L', 0, 0, "Join the nodes of the surrounding Slurm step (srun --ntasks-per-node=1)", 0},
        {0},
    };
    static const struct argp argp = {options, parse_option, NULL, "Serves this node in the foreground.",
                                     NULL,    NULL,         NULL};
    struct dtd_arguments a = {0};
    struct why why = {""};
    argp_program_version = "dtd " DTD_VERSION;
    log_init("dtd");
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    s.system = a.given['S'];
    sv_service_start(&s);
    err_t err = start(&s, &a, &why);
    if (err) {
        fprintf(stderr, "dtd: %s\n", why.text);
        return err == ERR_INVALID || err == ERR_LIMIT ? 2 : 1;
    }
    log_info("serving version=%s pid=%d state_dir=%s", DTD_VERSION, getpid(), s.dir);
    int code = sv_run(&s);
    if (a.given['L'])
        leave_slurm(&s);
    return code;
}
