/* A fibre: a stack and the point at which it stopped. It runs when another fibre switches to it and stops when it
 * switches away; it never returns. All fibres of a group run on one system thread at a time. Each switch is reported to
 * the address sanitizer. */
#ifndef DTD_TESTS_CUDA_HOST_FIBRE_H
#define DTD_TESTS_CUDA_HOST_FIBRE_H

#include <stddef.h>

struct fibre {
    void *sp;     /* stack pointer at which it stopped */
    void *bottom; /* bottom of its stack; a guard page lies below */
    size_t bytes;
    void *fake; /* the sanitizer's fake stack */
};

/* Creates a stack that starts in `entry`, which must not return. */
void fibre_init(struct fibre *f, size_t bytes, void (*entry)(void));
void fibre_fini(struct fibre *f);
/* Makes a fibre of the calling thread's own stack. */
void fibre_init_self(struct fibre *f);
void fibre_switch(struct fibre *from, struct fibre *to);
/* An entry calls this first; `from` is the fibre that switched to it. */
void fibre_entered(struct fibre *self);

#endif
