/* A namespace exists as long as a descriptor of it is open. `ip` gets the other namespace by its name in /proc. */
#include "tests/parity/links.h"

#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static int space[2];

const char *links_address(int node)
{
    return node ? "10.231.78.2" : "10.231.78.1";
}

bool links_enter(int node)
{
    return setns(space[node], CLONE_NEWNET) == 0;
}

static int here(void)
{
    return open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC);
}

static bool run(const char *command)
{
    int status = system(command); /* consists only of this file's strings and numbers */
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static bool make_pair(void)
{
    char command[160];
    snprintf(command, sizeof(command), "ip link add dtd1 type veth peer name dtd0 netns /proc/%d/fd/%d 2>/dev/null",
             (int)getpid(), space[0]);
    return run(command);
}

static bool make_end(int node)
{
    char command[160];
    snprintf(command, sizeof(command), "ip addr add %s/24 dev dtd%d && ip link set dtd%d up && ip link set lo up",
             links_address(node), node, node);
    return links_enter(node) && run(command);
}

/* Creates both namespaces and returns the thread to its own. */
static bool make_namespaces(void)
{
    const int home = here();
    bool good = home >= 0;
    for (int i = 0; i < 2 && good; i++) {
        good = unshare(CLONE_NEWNET) == 0;
        space[i] = good ? here() : -1;
        good = space[i] >= 0;
    }
    good = good && make_pair() && make_end(0) && make_end(1);
    if (home >= 0 && setns(home, CLONE_NEWNET) == 0)
        close(home);
    return good;
}

bool links_make(void)
{
    static enum { UNKNOWN, MADE, REFUSED } is;
    if (is == UNKNOWN) {
        is = make_namespaces() ? MADE : REFUSED;
        if (is == REFUSED)
            printf("no cell runs over two network namespaces: they need root, the program ip and a kernel with "
                   "namespaces\n");
    }
    return is == MADE;
}
