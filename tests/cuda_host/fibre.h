/* A fibre: a stack and where it stopped. It runs when somebody switches to it and stops when it switches away; it never
 * returns. All fibres of a group run on one system thread at a time. The address sanitizer is told of each switch. */
#ifndef DTD_TESTS_CUDA_HOST_FIBRE_H
#define DTD_TESTS_CUDA_HOST_FIBRE_H

#include <stddef.h>

struct fibre {
    void *sp;     /* where it stopped */
    void *bottom; /* of its stack; a page that nobody may touch lies below */
    size_t bytes;
    void *fake; /* the sanitizer's */
};

/* A stack that begins in `entry`, which must not return. */
void fibre_init(struct fibre *f, size_t bytes, void (*entry)(void));
void fibre_fini(struct fibre *f);
/* The calling thread's own stack as a fibre. */
void fibre_init_self(struct fibre *f);
void fibre_switch(struct fibre *from, struct fibre *to);
/* The first thing that an entry does; `from` is who switched to it. */
void fibre_entered(struct fibre *self);

#endif
