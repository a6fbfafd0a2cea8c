/* confine_facts [NUMBER...]: applies control's confinement to itself and then tries operations that must be refused.
 * For each refused operation it prints the setting of a systemd unit that would refuse it, too.
 * tests/systemd/exposure.sh builds a unit from these settings and rates it with systemd-analyze, so the rating rests
 * only on tested facts. The NUMBERs are system calls that must be refused for every user. The program fails if a
 * setting is missing.
 *
 * Started as root, it becomes the user nobody first, so that an attempt that succeeds does no harm. Only the NUMBERs
 * are tried as root, because the kernel refuses most of them to ordinary users anyway. Files are tried in folders that
 * all users may write to. */
#include "common/base/confine.h"
#include "common/base/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NOBODY 65534

static char base[64], state[96];

static bool denied(long r, int e)
{
    return r == -1 && errno == e;
}

/* Landlock refuses with EACCES even if the file's mode is 0777. */
static bool cannot_write(const char *dir)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/dtd-confine-facts", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        unlink(path);
    return denied(fd, EACCES);
}

static bool cannot_list(const char *dir)
{
    DIR *d = opendir(dir);
    return !d && (errno == EACCES || errno == ENOENT);
}

static bool cannot_open(const char *path, int flags)
{
    return denied(open(path, flags | O_CLOEXEC), EACCES);
}

static bool status_has(const char *line)
{
    char text[8192];
    FILE *f = fopen("/proc/self/status", "r");
    size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;
    if (f)
        fclose(f);
    text[n] = '\0';
    return strstr(text, line) != NULL;
}

/* ---- the facts ---- */

static bool another_user(void)
{
    return getuid() != 0 && geteuid() != 0;
}

static bool no_new_privileges(void)
{
    return prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1;
}

static bool no_capabilities(void)
{
    return status_has("CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n") &&
           (status_has("CapBnd:\t0000000000000000") || no_new_privileges());
}

static bool no_ambient(void)
{
    return status_has("CapAmb:\t0000000000000000");
}

static bool system_is_read_only(void)
{
    char open_to_all[128];
    snprintf(open_to_all, sizeof(open_to_all), "%s/open", base);
    return cannot_write(open_to_all) && cannot_write("/var/tmp") && cannot_write("/dev/shm") &&
           cannot_write("/run/lock");
}

static bool homes_are_not_there(void)
{
    char home[128];
    snprintf(home, sizeof(home), "%s/open", base); /* mode 0777: only Landlock can refuse access */
    return cannot_list("/home") && cannot_list("/root") && cannot_list("/run/user") && cannot_list(home);
}

static bool no_tmp(void)
{
    return cannot_list("/tmp") && cannot_write("/tmp") && cannot_list("/var/tmp");
}

static bool no_devices(void)
{
    char node[128];
    snprintf(node, sizeof(node), "%s/raft/node", state);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    return null >= 0 && cannot_open("/dev/full", O_RDONLY) && cannot_open("/dev/zero", O_RDONLY) &&
           cannot_list("/dev") && denied(mknod(node, S_IFCHR | 0600, 0x103), EPERM);
}

static bool no_tunables(void)
{
    return cannot_open("/proc/self/oom_score_adj", O_WRONLY) && cannot_open("/proc/sys/kernel/ns_last_pid", O_WRONLY) &&
           cannot_open("/proc/self/timerslack_ns", O_WRONLY);
}

static bool no_modules(void)
{
    return denied(syscall(SYS_init_module, NULL, 0, ""), EPERM) &&
           denied(syscall(SYS_finit_module, -1, "", 0), EPERM) && denied(syscall(SYS_delete_module, "", 0), EPERM);
}

static bool no_kernel_log(void)
{
    return denied(syscall(SYS_syslog, 10, NULL, 0), EPERM) && cannot_open("/dev/kmsg", O_RDONLY);
}

static bool no_control_groups(void)
{
    return cannot_list("/sys/fs/cgroup");
}

static bool no_clock(void)
{
    const struct timespec t = {0};
    return denied(syscall(SYS_clock_settime, CLOCK_REALTIME, &t), EPERM) &&
           denied(syscall(SYS_settimeofday, NULL, NULL), EPERM) && denied(syscall(SYS_adjtimex, NULL), EPERM) &&
           (cannot_open("/dev/rtc0", O_RDONLY) || errno == ENOENT);
}

static bool no_host_name(void)
{
    return denied(syscall(SYS_sethostname, NULL, 0), EPERM) && denied(syscall(SYS_setdomainname, NULL, 0), EPERM);
}

static bool no_namespaces(void)
{
    const int kinds[] = {CLONE_NEWNS,  CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC,
                         CLONE_NEWPID, CLONE_NEWUSER,   CLONE_NEWNET};
    bool ok = denied(syscall(SYS_unshare, 0), EPERM) && denied(syscall(SYS_setns, -1, 0), EPERM) &&
              denied(syscall(SYS_clone3, NULL, 0), ENOSYS);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        ok = ok && denied(syscall(SYS_clone, kinds[i] | SIGCHLD, NULL, NULL, NULL, NULL), EPERM);
    return ok;
}

static bool no_realtime(void)
{
    const struct sched_param p = {0};
    return denied(syscall(SYS_sched_setscheduler, 0, SCHED_OTHER, &p), EPERM) &&
           denied(syscall(SYS_sched_setattr, 0, NULL, 0), EPERM);
}

static bool no_set_uid_files(void)
{
    char path[128], dir[128];
    snprintf(path, sizeof(path), "%s/raft/file", state);
    snprintf(dir, sizeof(dir), "%s/raft/dir", state);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && denied(fchmod(fd, 04700), EPERM) && denied(chmod(path, 02700), EPERM) &&
              denied(mkdir(dir, 02700), EPERM) && denied(open(dir, O_WRONLY | O_CREAT, 04700), EPERM) &&
              fchmod(fd, 0600) == 0;
    unlink(path);
    return ok;
}

static bool four_families(void)
{
    const int others[] = {AF_PACKET, AF_ALG, AF_VSOCK, AF_BLUETOOTH, AF_CAN, AF_KEY, AF_TIPC, AF_XDP};
    const int used[] = {AF_UNIX, AF_INET, AF_NETLINK};
    bool ok = true;
    for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++)
        ok = ok && denied(socket(others[i], SOCK_DGRAM, 0), EAFNOSUPPORT);
    for (size_t i = 0; i < sizeof(used) / sizeof(*used); i++)
        ok = ok && socket(used[i], i == 2 ? SOCK_RAW : SOCK_STREAM, 0) >= 0;
    return ok;
}

static bool no_personality(void)
{
    return denied(personality(PER_LINUX32), EPERM);
}

static bool no_written_code(void)
{
    long page = sysconf(_SC_PAGESIZE);
    void *p = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *q = mmap(NULL, (size_t)page, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bool refused = q == MAP_FAILED && errno == EPERM;
    return p != MAP_FAILED && refused && denied(mprotect(p, (size_t)page, PROT_READ | PROT_EXEC), EPERM);
}

/* A 32-bit system call (int 0x80), which has other numbers, kills the process. */
static bool only_native_calls(void)
{
#if defined(__x86_64__)
    int status = 0;
    pid_t pid = fork();
    if (pid == 0) {
        long r = 20; /* getpid in the 32-bit table */
        __asm__ volatile("int $0x80" : "+a"(r)::"memory");
        _exit(0);
    }
    return waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS &&
           denied(syscall(0x40000000 + SYS_getpid), EPERM);
#else
    return true;
#endif
}

static bool private_umask(void)
{
    mode_t mask = umask(077);
    return mask == 077;
}

static const struct {
    const char *line;
    bool (*holds)(void);
} facts[] = {
    {"User=dtd", another_user},
    {"NoNewPrivileges=yes", no_new_privileges},
    {"CapabilityBoundingSet=", no_capabilities},
    {"AmbientCapabilities=", no_ambient},
    {"ProtectSystem=strict", system_is_read_only},
    {"ProtectHome=yes", homes_are_not_there},
    {"PrivateTmp=yes", no_tmp},
    {"PrivateDevices=yes", no_devices},
    {"ProtectKernelTunables=yes", no_tunables},
    {"ProtectKernelModules=yes", no_modules},
    {"ProtectKernelLogs=yes", no_kernel_log},
    {"ProtectControlGroups=yes", no_control_groups},
    {"ProtectClock=yes", no_clock},
    {"ProtectHostname=yes", no_host_name},
    {"RestrictNamespaces=yes", no_namespaces},
    {"RestrictRealtime=yes", no_realtime},
    {"RestrictSUIDSGID=yes", no_set_uid_files},
    {"RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK", four_families},
    {"LockPersonality=yes", no_personality},
    {"MemoryDenyWriteExecute=yes", no_written_code},
    {"SystemCallArchitectures=native", only_native_calls},
    {"UMask=0077", private_umask},
};

static void make(const char *name)
{
    char path[192];
    snprintf(path, sizeof(path), "%s/%s", base, name);
    if (mkdir(path, 0777) || chmod(path, 0777)) {
        perror(path);
        exit(2);
    }
}

static void confine_or_end(void)
{
    struct why why = {""};
    char raft[128];
    snprintf(raft, sizeof(raft), "%s/raft", state);
    if (confine(&(struct confine_files){{state}, {raft}}, &why) == OK)
        return;
    fprintf(stderr, "%s\n", why.text);
    _exit(2);
}

/* Tries a call in a process that only the confinement restricts. A call that this kernel does not have counts as
 * refused. */
static int try_numbers(int n, char **numbers)
{
    int status, missing = 0;
    pid_t pid = fork();
    if (pid == 0) {
        confine_or_end();
        for (int i = 0; i < n; i++)
            if (!denied(syscall(atol(numbers[i]), -1L, -1L, -1L, -1L, -1L, -1L), EPERM) && errno != ENOSYS) {
                fprintf(stderr, "system call %s is not refused: %s\n", numbers[i], strerror(errno));
                missing++;
            }
        _exit(missing != 0);
    }
    return waitpid(pid, &status, 0) == pid && status == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    int missing = 0;
    log_init("confine_facts");
    snprintf(base, sizeof(base), "/tmp/dtd-confine-XXXXXX");
    if (!mkdtemp(base) || chmod(base, 0755))
        return 2;
    snprintf(state, sizeof(state), "%s/state", base);
    make("open");
    make("state");
    make("state/raft");
    make("state/jobs");
    if (argc > 1)
        missing += try_numbers(argc - 1, argv + 1);
    if (geteuid() == 0 &&
        (setgroups(0, NULL) || setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY)))
        return 2;
    int status;
    pid_t pid = fork(); /* the parent remains unconfined, so that it can remove the folder */
    if (pid == 0) {
        confine_or_end();
        for (size_t i = 0; i < sizeof(facts) / sizeof(*facts); i++) {
            errno = 0;
            if (facts[i].holds())
                puts(facts[i].line);
            else
                missing += fprintf(stderr, "does not hold: %s (%s)\n", facts[i].line, strerror(errno)) > 0;
        }
        fflush(stdout);
        _exit(missing != 0);
    }
    missing += waitpid(pid, &status, 0) != pid || status != 0;
    fprintf(stderr, "%s\n", base); /* the caller removes the folder, which may belong to root */
    return missing != 0;
}
