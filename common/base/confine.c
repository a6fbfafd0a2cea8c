/* Files are restricted by a list of what is allowed. The process cannot open anything else; this includes /home, /tmp
 * and devices.
 *
 * System calls are restricted by a list of what is refused (EPERM): libraries may make calls that we cannot foresee,
 * and a list of allowed calls would break them. The list contains the groups @clock, @debug, @module, @mount,
 * @obsolete, @privileged, @raw-io, @reboot, @resources, @swap and @keyring of systemd.exec(5), and the calls that its
 * settings RestrictNamespaces=, RestrictSUIDSGID=, RestrictRealtime=, RestrictAddressFamilies=, LockPersonality= and
 * MemoryDenyWriteExecute= refuse. */
#include "common/base/confine.h"

#include "common/base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- files ---- */

#define READ (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define WRITE LANDLOCK_ACCESS_FS_WRITE_FILE
/* All rights of Landlock's first version, which are consecutive bits; MAKE_SYM is the last one. */
#define ALL_FIRST ((LANDLOCK_ACCESS_FS_MAKE_SYM << 1) - 1)
/* The rights that a rule for a file, not a folder, may contain; the kernel refuses others with EINVAL. */
#define OF_A_FILE (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_EXECUTE)

/* System files that libraries read. No path here contains data of users. */
static const struct {
    const char *path;
    uint64_t access;
} files[] = {
    {"/usr", READ},
    {"/lib", READ},
    {"/lib64", READ},
    {"/etc", READ},
    {"/proc", READ},
    {"/sys/devices", READ},
    {"/sys/class", READ},
    {"/run/systemd/userdb", READ},
    {"/run/systemd/resolve", READ},
    {"/var/lib/sss", READ},
    {"/dev/null", READ | WRITE},
    {"/dev/urandom", READ},
};

static int ruleset_make(int version, uint64_t *ret_handled)
{
    *ret_handled = ALL_FIRST | (version >= 2 ? LANDLOCK_ACCESS_FS_REFER : 0);
    const struct landlock_ruleset_attr attr = {.handled_access_fs = *ret_handled};
    return (int)syscall(SYS_landlock_create_ruleset, &attr, sizeof(attr), 0);
}

/* True also if there is no such path: it then needs no rule. */
static bool allow_path(int ruleset, const char *path, uint64_t access)
{
    struct stat st;
    int fd = open(path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == EACCES;
    if (fstat(fd, &st) == 0 && !S_ISDIR(st.st_mode))
        access &= OF_A_FILE;
    const struct landlock_path_beneath_attr rule = {.allowed_access = access, .parent_fd = fd};
    bool ok = syscall(SYS_landlock_add_rule, ruleset, LANDLOCK_RULE_PATH_BENEATH, &rule, 0) == 0;
    int e = errno;
    close(fd);
    errno = e;
    return ok;
}

/* A rule applies to a file or folder that exists now. Of a folder in which files appear later, the folder itself gets a
 * rule. */
static bool allow_all(int ruleset, const char *const paths[CONFINE_MAX], uint64_t access)
{
    bool ok = true;
    for (int i = 0; i < CONFINE_MAX && ok; i++)
        ok = !paths[i] || !paths[i][0] || allow_path(ruleset, paths[i], access);
    return ok;
}

static err_t restrict_files(const struct confine_files *needed, struct why *why)
{
    uint64_t handled;
    int version = (int)syscall(SYS_landlock_create_ruleset, NULL, 0, LANDLOCK_CREATE_RULESET_VERSION);
    if (version < 1) {
        log_warn("this kernel has no Landlock: this process can open every file that its user can error=%s",
                 strerror(errno));
        return OK;
    }
    int ruleset = ruleset_make(version, &handled);
    bool ok =
        ruleset >= 0 && allow_all(ruleset, needed->readable, READ) && allow_all(ruleset, needed->writable, handled);
    for (size_t i = 0; ok && i < sizeof(files) / sizeof(*files); i++)
        ok = allow_path(ruleset, files[i].path, files[i].access);
    if (ok)
        ok = syscall(SYS_landlock_restrict_self, ruleset, 0) == 0;
    err_t err = ok ? OK : why_set(why, err_from_errno(errno), "Landlock: %s", strerror(errno));
    if (ruleset >= 0)
        close(ruleset);
    return err;
}

/* ---- system calls ---- */

#if defined(__x86_64__)
#define NATIVE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define NATIVE AUDIT_ARCH_AARCH64
#else
#error "no AUDIT_ARCH_ constant for this machine: add the one of linux/audit.h here"
#endif
#define X32_BIT 0x40000000u /* x86-64: marks a call of the x32 ABI, which has the same numbers a second time */

static const int refused[] = {
    SYS_adjtimex,
    SYS_clock_adjtime,
    SYS_clock_settime,
    SYS_settimeofday,
    SYS_lookup_dcookie,
    SYS_perf_event_open,
    SYS_pidfd_getfd,

    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_delete_module,
    SYS_finit_module,
    SYS_init_module,
    SYS_chroot,
    SYS_fsconfig,
    SYS_fsmount,
    SYS_fsopen,
    SYS_fspick,
    SYS_mount,
    SYS_mount_setattr,
    SYS_move_mount,
    SYS_open_tree,
    SYS_pivot_root,
    SYS_umount2,
    SYS_fchown,
    SYS_fchownat,
    SYS_acct,
    SYS_bpf,
    SYS_capset,
    SYS_fanotify_init,
    SYS_fanotify_mark,
    SYS_nfsservctl,
    SYS_open_by_handle_at,
    SYS_quotactl,
    SYS_quotactl_fd,
    SYS_setdomainname,
    SYS_sethostname,
    SYS_setfsuid,
    SYS_setfsgid,
    SYS_setgroups,
    SYS_setresuid,
    SYS_setresgid,
    SYS_setreuid,
    SYS_setregid,
    SYS_setuid,
    SYS_setgid,
    SYS_vhangup,
    SYS_kexec_load,
    SYS_kexec_file_load,
    SYS_reboot,
    SYS_ioprio_set,
    SYS_mbind,
    SYS_migrate_pages,
    SYS_move_pages,
    SYS_sched_setaffinity,
    SYS_sched_setattr,
    SYS_sched_setparam,
    SYS_sched_setscheduler,
    SYS_set_mempolicy,
    SYS_set_mempolicy_home_node,
    SYS_setpriority,
    SYS_setrlimit,
    SYS_swapon,
    SYS_swapoff,
    SYS_add_key,
    SYS_keyctl,
    SYS_request_key,
    SYS_syslog,
    SYS_unshare,
    SYS_setns,
    SYS_personality,
    SYS_userfaultfd,
    SYS_mknodat,
    SYS_execve,
    SYS_execveat,
#if !defined(__SANITIZE_ADDRESS__) /* the leak sanitizer uses ptrace */
    SYS_ptrace,
#endif
#if defined(__x86_64__)
    SYS_modify_ldt,
    SYS__sysctl,
    SYS_afs_syscall,
    SYS_create_module,
    SYS_get_kernel_syms,
    SYS_getpmsg,
    SYS_putpmsg,
    SYS_query_module,
    SYS_security,
    SYS_sysfs,
    SYS_tuxcall,
    SYS_uselib,
    SYS_ustat,
    SYS_vserver,
    SYS_chown,
    SYS_lchown,
    SYS_ioperm,
    SYS_iopl,
    SYS_mknod,
    SYS_kexec_load,
#endif
};

/* Calls that are refused if an argument has one of these bits. */
static const struct {
    int call, arg;
    uint32_t bits;
} partly[] = {
    {SYS_clone, 0,
     CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET |
         0x80 /* CLONE_NEWTIME */},
    {SYS_mprotect, 2, PROT_EXEC},
    {SYS_pkey_mprotect, 2, PROT_EXEC},
    {SYS_shmat, 2, 0100000 /* SHM_EXEC */},
    {SYS_fchmod, 1, S_ISUID | S_ISGID},
    {SYS_fchmodat, 2, S_ISUID | S_ISGID},
    {SYS_mkdirat, 2, S_ISUID | S_ISGID},
    {SYS_openat, 3, S_ISUID | S_ISGID},
#if defined(__x86_64__)
    {SYS_chmod, 1, S_ISUID | S_ISGID},
    {SYS_mkdir, 1, S_ISUID | S_ISGID},
    {SYS_open, 2, S_ISUID | S_ISGID},
    {SYS_creat, 1, S_ISUID | S_ISGID},
#endif
};

static const uint32_t families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK};

#define FILTER_MAX 512 /* instructions; the lists above need about 300, and `confine` fails if the filter is full */

struct filter {
    struct sock_filter code[FILTER_MAX];
    unsigned short n;
};

#define ERRNO(e) (SECCOMP_RET_ERRNO | (e))

static void filter_add(struct filter *f, uint16_t op, uint8_t yes, uint8_t no, uint32_t k)
{
    if (f->n < FILTER_MAX)
        f->code[f->n++] = (struct sock_filter){op, yes, no, k};
}

static void filter_load(struct filter *f, size_t offset)
{
    filter_add(f, BPF_LD | BPF_W | BPF_ABS, 0, 0, (uint32_t)offset);
}

/* Loads the low half of an argument, which contains all flags; both supported machines are little-endian. */
static void filter_load_arg(struct filter *f, int arg)
{
    filter_load(f, offsetof(struct seccomp_data, args) + 8 * (size_t)arg);
}

static void filter_load_call(struct filter *f)
{
    filter_load(f, offsetof(struct seccomp_data, nr));
}

static void filter_return(struct filter *f, uint32_t action)
{
    filter_add(f, BPF_RET | BPF_K, 0, 0, action);
}

static void refuse_call(struct filter *f, int call, int e)
{
    filter_add(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, (uint32_t)call);
    filter_return(f, ERRNO((uint32_t)e));
}

static void refuse_bits(struct filter *f, int call, int arg, uint32_t bits)
{
    filter_add(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 4, (uint32_t)call);
    filter_load_arg(f, arg);
    filter_add(f, BPF_JMP | BPF_JSET | BPF_K, 0, 1, bits);
    filter_return(f, ERRNO(EPERM));
    filter_load_call(f);
}

/* Refuses mmap of pages that are both writable and executable. */
static void refuse_write_and_run(struct filter *f)
{
    filter_add(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 5, SYS_mmap);
    filter_load_arg(f, 2);
    filter_add(f, BPF_ALU | BPF_AND | BPF_K, 0, 0, PROT_WRITE | PROT_EXEC);
    filter_add(f, BPF_JMP | BPF_JEQ | BPF_K, 0, 1, PROT_WRITE | PROT_EXEC);
    filter_return(f, ERRNO(EPERM));
    filter_load_call(f);
}

static void refuse_other_families(struct filter *f)
{
    const int n = sizeof(families) / sizeof(*families);
    filter_add(f, BPF_JMP | BPF_JEQ | BPF_K, 0, (uint8_t)(n + 3), SYS_socket);
    filter_load_arg(f, 0);
    for (int i = 0; i < n; i++)
        filter_add(f, BPF_JMP | BPF_JEQ | BPF_K, (uint8_t)(n - i), 0, families[i]);
    filter_return(f, ERRNO(EAFNOSUPPORT));
    filter_load_call(f);
}

static void write_filter(struct filter *f)
{
    filter_load(f, offsetof(struct seccomp_data, arch));
    filter_add(f, BPF_JMP | BPF_JEQ | BPF_K, 1, 0, NATIVE);
    filter_return(f, SECCOMP_RET_KILL_PROCESS);
    filter_load_call(f);
    filter_add(f, BPF_JMP | BPF_JGE | BPF_K, 0, 1, X32_BIT);
    filter_return(f, ERRNO(EPERM));
    for (size_t i = 0; i < sizeof(refused) / sizeof(*refused); i++)
        refuse_call(f, refused[i], EPERM);
    for (size_t i = 0; i < sizeof(partly) / sizeof(*partly); i++)
        refuse_bits(f, partly[i].call, partly[i].arg, partly[i].bits);
    refuse_write_and_run(f);
    refuse_other_families(f);
    /* A filter cannot read the flags of clone3, which are in memory; on ENOSYS the C library calls clone instead. */
    refuse_call(f, SYS_clone3, ENOSYS);
    refuse_call(f, SYS_openat2, ENOSYS);
    refuse_call(f, SYS_io_uring_setup, EPERM); /* operations of io_uring do not pass this filter */
    filter_return(f, SECCOMP_RET_ALLOW);
}

err_t confine(const struct confine_files *needed, struct why *why)
{
    static struct filter f;
    umask(077);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return why_set(why, err_from_errno(errno), "no_new_privs: %s", strerror(errno));
    err_t err = restrict_files(needed, why);
    if (err)
        return err;
    f.n = 0;
    write_filter(&f);
    const struct sock_fprog program = {.len = f.n, .filter = f.code};
    if (f.n == FILTER_MAX || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0))
        return why_set(why, ERR_UNSUPPORTED, "seccomp: %s", strerror(errno));
    log_info("confined calls=%zu", sizeof(refused) / sizeof(*refused));
    return OK;
}
