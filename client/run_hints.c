/* A script without an interpreter is refused here, because its workers would only exit with 127. A launcher inside is
 * legal, since it may have a purpose, so there is only a note. */
#include "client/run_hints.h"

#include "client/commands.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- scripts without an interpreter ---- */

static const char *interpreter_of(const char *path)
{
    static const char *const table[][2] = {{".py", "python3"}, {".sh", "bash"}};
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(dot, table[i][0]) == 0)
            return table[i][1];
    return NULL;
}

static bool is_in_path(const char *program)
{
    char file[PATH_MAX];
    const char *path = getenv("PATH");
    while (path && *path) {
        int len = (int)strcspn(path, ":");
        if ((size_t)snprintf(file, sizeof(file), "%.*s/%s", len, path, program) < sizeof(file) && !access(file, X_OK))
            return true;
        path += len + (path[len] == ':');
    }
    return false;
}

static int script_check(const char *program)
{
    struct stat st;
    const char *interpreter = interpreter_of(program);
    bool path = strchr(program, '/');
    if (!interpreter || stat(program, &st) || !S_ISREG(st.st_mode))
        return EXIT_DONE; /* it may exist on the nodes of the workers */
    if (path ? !access(program, X_OK) : is_in_path(program))
        return EXIT_DONE;
    return command_complain(EXIT_REFUSED, "%s is %s. Give its interpreter: dtctl run -- %s %s", program,
                            path ? "not executable" : "a script, and no program of that name is in PATH", interpreter,
                            program);
}

/* ---- launchers ---- */

struct launcher {
    const char *program, *word; /* word: an argument that must follow; NULL: any */
    const char *name;
};

static const struct launcher launchers[] = {
    {"torchrun", NULL, "torchrun"},
    {"accelerate", "launch", "accelerate launch"},
    {"deepspeed", NULL, "deepspeed"},
    {"-m", "torch.distributed.run", "torchrun"},
    {"-m", "torch.distributed.launch", "torch.distributed.launch"},
    {"-m", "accelerate.commands.launch", "accelerate launch"},
};

static const char *launcher_of(char **command, int n)
{
    const char *slash = strrchr(command[0], '/'), *program = slash ? slash + 1 : command[0];
    bool python = strncmp(program, "python", 6) == 0;
    for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
        const struct launcher *l = &launchers[i];
        bool module = l->program[0] == '-';
        if (module ? !python : strcmp(program, l->program) != 0)
            continue;
        int at = 1;
        while (module && at < n && command[at][0] == '-' && strcmp(command[at], "-m") != 0)
            at++; /* options of python */
        if (module && (at >= n || strcmp(command[at++], "-m") != 0))
            continue;
        if (!l->word || (at < n && strcmp(command[at], l->word) == 0))
            return l->name;
    }
    return NULL;
}

int run_hints_check(char **command, int n)
{
    const char *launcher = launcher_of(command, n);
    if (launcher)
        fprintf(stderr,
                "dtctl: note: %s starts workers of its own in each worker of this job. dtctl run replaces it; the "
                "script alone is enough: dtctl run --workers-per-node K -- python3 SCRIPT\n",
                launcher);
    return script_check(command[0]);
}
