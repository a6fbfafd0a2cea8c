/* The program is assembled here, because it has ten instructions and libbpf would be a library in a process with root's
 * rights. It denies nothing but GPUs: the driver's other devices (nvidiactl is 195:255, nvidia-uvm has a major number
 * of its own) are shared by all jobs. Files that are open already stay open, so it is set before a job's first process.
 */
#include "daemon/supervisor/device_guard.h"

#include <errno.h>
#include <linux/bpf.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NVIDIA_MAJOR 195 /* Documentation/admin-guide/devices.txt of Linux; minor 0 and up: the GPUs */
#define LAST_GPU 63      /* GPUS_MAX of control */
#define N_INSNS 11
#define ALLOW_AT 9

/* r1: struct bpf_cgroup_dev_ctx. Returns 1 in r0 to allow. */
static void assemble(uint64_t minors, struct bpf_insn p[N_INSNS])
{
    const int major = offsetof(struct bpf_cgroup_dev_ctx, major), minor = offsetof(struct bpf_cgroup_dev_ctx, minor);
    const struct bpf_insn insns[N_INSNS] = {
        {.code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 1, .off = (int16_t)major},
        {.code = BPF_JMP | BPF_JNE | BPF_K, .dst_reg = 2, .off = ALLOW_AT - 2, .imm = NVIDIA_MAJOR},
        {.code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 1, .off = (int16_t)minor},
        {.code = BPF_JMP | BPF_JGT | BPF_K, .dst_reg = 2, .off = ALLOW_AT - 4, .imm = LAST_GPU},
        {.code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 0, .imm = (int32_t)minors}, /* takes two entries */
        {.imm = (int32_t)(minors >> 32)},
        {.code = BPF_ALU64 | BPF_RSH | BPF_X, .dst_reg = 0, .src_reg = 2},
        {.code = BPF_ALU64 | BPF_AND | BPF_K, .dst_reg = 0, .imm = 1},
        {.code = BPF_JMP | BPF_EXIT},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 1},
        {.code = BPF_JMP | BPF_EXIT},
    };
    memcpy(p, insns, sizeof(insns));
}

static int bpf(enum bpf_cmd cmd, union bpf_attr *attr)
{
    return (int)syscall(SYS_bpf, cmd, attr, sizeof(*attr));
}

static int program_load(uint64_t minors)
{
    struct bpf_insn insns[N_INSNS];
    union bpf_attr attr;
    assemble(minors, insns);
    memset(&attr, 0, sizeof(attr)); /* the kernel wants unused bytes to be 0, those between fields too */
    attr.prog_type = BPF_PROG_TYPE_CGROUP_DEVICE;
    attr.insns = (uintptr_t)insns;
    attr.insn_cnt = N_INSNS;
    attr.license = (uintptr_t) "Apache-2.0"; /* the program calls no function of the kernel */
    return bpf(BPF_PROG_LOAD, &attr);
}

int device_guard_set(int cgroup, uint64_t minors)
{
    union bpf_attr attr;
    int program = program_load(minors);
    if (program < 0)
        return errno;
    memset(&attr, 0, sizeof(attr));
    attr.target_fd = (uint32_t)cgroup;
    attr.attach_bpf_fd = (uint32_t)program;
    attr.attach_type = BPF_CGROUP_DEVICE;
    int e = bpf(BPF_PROG_ATTACH, &attr) ? errno : 0;
    close(program); /* the group keeps it */
    return e;
}
