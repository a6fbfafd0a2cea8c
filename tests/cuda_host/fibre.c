/* The switch saves only the registers that a callee must preserve by the calling convention. A kernel switches at every
 * barrier and shuffle, hundreds of thousands of times, and ucontext would make a system call each time. */
#include "tests/cuda_host/fibre.h"

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__)
#define FIBRE_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FIBRE_ASAN 1
#endif
#endif
#ifdef FIBRE_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

void fibre_jump(void **from, void *to);

#if defined(__x86_64__)
#define FIBRE_WORDS 7 /* six registers and the return address */
__asm__(".text\n"
        ".globl fibre_jump\n"
        ".hidden fibre_jump\n"
        ".type fibre_jump, @function\n"
        "fibre_jump:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size fibre_jump, . - fibre_jump\n");

/* Prepares the stack as if `entry` had just been called: it is 16-aligned before the call, and the return address is 0.
 */
static void *first_frame(uint8_t *top, void (*entry)(void))
{
    uintptr_t *sp = (uintptr_t *)(void *)top;
    *--sp = 0;
    *--sp = (uintptr_t)entry;
    sp -= FIBRE_WORDS - 1;
    memset(sp, 0, (FIBRE_WORDS - 1) * sizeof(*sp));
    return sp;
}
#elif defined(__aarch64__)
#define FIBRE_WORDS 20 /* x19 .. x30, d8 .. d15 */
__asm__(".text\n"
        ".globl fibre_jump\n"
        ".hidden fibre_jump\n"
        ".type fibre_jump, %function\n"
        "fibre_jump:\n"
        "    sub sp, sp, #160\n"
        "    stp x19, x20, [sp, #0]\n"
        "    stp x21, x22, [sp, #16]\n"
        "    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n"
        "    stp x27, x28, [sp, #64]\n"
        "    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n"
        "    stp d10, d11, [sp, #112]\n"
        "    stp d12, d13, [sp, #128]\n"
        "    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n"
        "    str x9, [x0]\n"
        "    mov sp, x1\n"
        "    ldp x19, x20, [sp, #0]\n"
        "    ldp x21, x22, [sp, #16]\n"
        "    ldp x23, x24, [sp, #32]\n"
        "    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n"
        "    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n"
        "    ldp d10, d11, [sp, #112]\n"
        "    ldp d12, d13, [sp, #128]\n"
        "    ldp d14, d15, [sp, #144]\n"
        "    add sp, sp, #160\n"
        "    ret\n"
        ".size fibre_jump, . - fibre_jump\n");

static void *first_frame(uint8_t *top, void (*entry)(void))
{
    uintptr_t *sp = (uintptr_t *)(void *)top - FIBRE_WORDS;
    memset(sp, 0, FIBRE_WORDS * sizeof(*sp));
    sp[11] = (uintptr_t)entry; /* x30 */
    return sp;
}
#else
#error "fibres support only x86-64 and aarch64"
#endif

void fibre_init(struct fibre *f, size_t bytes, void (*entry)(void))
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    bytes = (bytes + page - 1) / page * page;
    uint8_t *p = mmap(NULL, bytes + page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (p == MAP_FAILED || mprotect(p, page, PROT_NONE)) {
        perror("the stack of a fibre");
        abort();
    }
    *f = (struct fibre){.bottom = p + page, .bytes = bytes};
    f->sp = first_frame(p + page + bytes, entry);
}

void fibre_fini(struct fibre *f)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    munmap((uint8_t *)f->bottom - page, f->bytes + page);
}

void fibre_init_self(struct fibre *f)
{
    static __thread struct fibre own; /* finding the main thread's stack requires reading /proc/self/maps */
    pthread_attr_t attr;
    if (!own.bottom && pthread_getattr_np(pthread_self(), &attr) == 0) {
        pthread_attr_getstack(&attr, &own.bottom, &own.bytes);
        pthread_attr_destroy(&attr);
    }
    *f = own;
}

void fibre_switch(struct fibre *from, struct fibre *to)
{
#ifdef FIBRE_ASAN
    __sanitizer_start_switch_fiber(&from->fake, to->bottom, to->bytes);
#endif
    fibre_jump(&from->sp, to->sp);
#ifdef FIBRE_ASAN
    __sanitizer_finish_switch_fiber(from->fake, NULL, NULL);
#endif
}

void fibre_entered(struct fibre *self)
{
#ifdef FIBRE_ASAN
    __sanitizer_finish_switch_fiber(self->fake, NULL, NULL);
#else
    (void)self;
#endif
}
