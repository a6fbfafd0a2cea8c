/* Assigns the workers of a job to nodes. A pure function: equal nodes and requirements give equal assignments.
 *
 * All or nothing: a job has room for a legal number of workers, or it waits. Ranks stand in the order of the nodes, so
 * that neighbours in the mesh (tensor, then context, then expert parallelism: the innermost axes) are neighbours on the
 * machine: the largest of their groups that can stay whole inside nodes does. One node before many, the fullest that
 * has room before emptier ones, and a node that the job is on already before any other. */
#ifndef DTD_DAEMON_CONTROL_JOB_PLACEMENT_H
#define DTD_DAEMON_CONTROL_JOB_PLACEMENT_H

#include <stdbool.h>
#include <stddef.h>

#define PLACEMENT_GROUPS 3
#define PLACEMENT_MAX_NODES 1024  /* further nodes are ignored */
#define PLACEMENT_MAX_WORKERS 256 /* of one job on one node */

struct placement_node {
    const char *name;
    int slots, used;  /* by other jobs */
    int gpus, busy;   /* those that can be used, and of these what other jobs have; gpus -1: not known yet */
    int mine;         /* the job's workers there now: counted as free */
    const char *out;  /* why nothing starts there now ("is drained (disk)", "is lost"); NULL: it may */
    const char *sick; /* GPUs that it cannot have, and why ("GPU 0 is not used: .."); NULL or "": none */
};

struct placement_want {
    int max, min, unit;          /* workers: max, else less by whole units, never below min */
    int per_gpu;                 /* workers that share a GPU; 0: they compute on processors */
    int per_node;                /* exactly so many on each node; 0: as they fit */
    int group[PLACEMENT_GROUPS]; /* sizes of groups of neighbours, largest first; 0: none */
};

enum placement_answer {
    PLACEMENT_FITS,
    PLACEMENT_WAITS, /* it fits once other jobs have left or nodes are back */
    PLACEMENT_NEVER, /* it would not fit on these nodes even if they were empty */
};

/* PLACEMENT_FITS: ret_node[rank] is an index into `nodes` for the *ret_workers first of `max`; ascending. */
enum placement_answer placement_find(const struct placement_node *nodes, int n, const struct placement_want *want,
                                     int *ret_node, int *ret_workers);
/* The most workers (max, less whole units) that these nodes could have, were they empty and there; 0: not even one
 * unit. */
int placement_most(const struct placement_node *nodes, int n, const struct placement_want *want);
/* What there is, for one who asks for more: "takes 8 slots, and n1 has 4, n2 has 2". */
void placement_all(const struct placement_node *nodes, int n, const struct placement_want *want, char *ret,
                   size_t size);
/* "8 slots: n1 has 2 of 4 free, n2 has none of 4, n3 is drained (disk)"; of GPUs also those that are sick. */
void placement_lack(const struct placement_node *nodes, int n, const struct placement_want *want, char *ret,
                    size_t size);

#endif
