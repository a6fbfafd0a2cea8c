/* See command.h. The supervisor may run as root and therefore starts only programs of dtd. This process runs as the
 * user, in the user's folder and with the user's PATH, so it looks up the program. The program is killed with the
 * supervisor, as this process is.
 *
 * The order: the environment first, because the rest of this process does not depend on it; then the limits, which may
 * print; then umask and signals; then exec. Nothing after the limits needs a descriptor or much memory, which they may
 * forbid. */
#include "worker/command.h"

#include "common/base/caller.h"
#include "common/base/env_file.h"
#include "common/base/exec.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static bool decode_all(char *const *words)
{
    bool good = true;
    for (int i = 0; words[i] && good; i++)
        good = caller_percent_decode(words[i]);
    return good;
}

static int count(char *const *words)
{
    int n = 0;
    while (words[n])
        n++;
    return n;
}

static bool is_among(char *const *words, int n, const char *word)
{
    bool found = false;
    for (int i = 0; i < n && !found; i++)
        found = caller_same_key(words[i], word);
    return found;
}

/* The given variables and those of this process that have other names. NULL: out of memory. */
static char **environment_with_own(char *const *given)
{
    int n = count(given), k = n;
    char **ret = calloc((size_t)n + (size_t)count(environ) + 1, sizeof(*ret));
    for (int i = 0; ret && i < n; i++)
        ret[i] = given[i];
    for (char **e = environ; ret && *e; e++)
        if (!is_among(given, n, *e) && !caller_same_key(CALLER_SETTINGS "=", *e) &&
            !caller_same_key(CALLER_ENV "=", *e))
            ret[k++] = *e;
    return ret;
}

/* Signals that are ignored where dtd was started stay ignored over exec, so every disposition is set. */
static void signals_apply(uint64_t ignored, uint64_t blocked)
{
    sigset_t mask;
    sigemptyset(&mask);
    for (int s = 1; s <= 64; s++) {
        struct sigaction action = {.sa_handler = ignored >> (s - 1) & 1 ? SIG_IGN : SIG_DFL};
        (void)sigaction(s, &action, NULL); /* fails for SIGKILL, SIGSTOP and the two that glibc keeps to itself */
        if (blocked >> (s - 1) & 1)
            sigaddset(&mask, s);
    }
    sigprocmask(SIG_SETMASK, &mask, NULL);
}

static void settings_apply(const struct caller *c)
{
    caller_limits_apply(c);
    if (c->umask >= 0)
        (void)umask((mode_t)c->umask);
    signals_apply(c->ignored, c->blocked);
}

/* Takes over what the command inherits. Returns 0, or the exit status after an error that was printed. */
static int inherit(char *const *argv)
{
    struct caller c;
    const char *settings = getenv(CALLER_SETTINGS), *packed = getenv(CALLER_ENV);
    if (!settings || !packed) /* started by hand */
        return 0;
    if (caller_parse(settings, &c)) {
        fprintf(stderr,
                "dtd: this node does not support a setting of run.caller (%s); install the same version of dtd on "
                "every node\n",
                settings);
        return 126;
    }
    char *text = strdup(packed), **words = text ? caller_unpack(text) : NULL;
    if (words && c.percent && (!decode_all(words) || !decode_all(argv))) {
        fprintf(stderr, "dtd: run.caller has the setting percent, but a %% in the command or in run.caller_env is not "
                        "followed by two hexadecimal digits\n");
        return 126;
    }
    if (words && !c.env)
        words = environment_with_own(words);
    if (!words) {
        fprintf(stderr, "dtd: out of memory\n");
        return 126;
    }
    const char *mark = getenv(EXEC_MARK_VARIABLE); /* before environ is replaced */
    environ = words;
    if (mark && setenv(EXEC_MARK_VARIABLE, mark, 1)) {
        fprintf(stderr, "dtd: out of memory\n");
        return 126;
    }
    settings_apply(&c);
    return 0;
}

/* Adds the variables of the file that ENV_FILE_VARIABLE names. Returns 0, or the exit status after an error. */
static int add_env_file(void)
{
    const char *path = getenv(ENV_FILE_VARIABLE);
    struct env_file f; /* remains, since environ points into it */
    struct why why = {""};
    if (!path || !path[0])
        return 0;
    err_t err = env_file_read(path, &f, &why);
    for (int i = 0; !err && i < f.n; i++)
        if (putenv(f.words[i]))
            err = why_set(&why, ERR_NOMEM, "%s: %s", path, err_text(ERR_NOMEM));
    if (err)
        fprintf(stderr, "dtd: variables of " ENV_FILE_VARIABLE ": %s\n", why.text);
    return err ? 126 : 0;
}

int command_become(char *const *argv)
{
    if (!argv[0]) {
        fprintf(stderr, "dtd: no command was given\n");
        return 126;
    }
    int status = inherit(argv);
    status = status ? status : add_env_file();
    if (status)
        return status;
    const char *path = getenv("PATH");
    execvp(argv[0], argv);
    int e = errno;
    if (e == ENOENT && !strchr(argv[0], '/'))
        fprintf(stderr, "dtd: %s: no such program in PATH, which is %s\n", argv[0], path ? path : "not set");
    else
        fprintf(stderr, "dtd: %s: %s\n", argv[0], strerror(e));
    return e == ENOENT ? 127 : 126;
}
