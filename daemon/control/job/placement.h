/* Assigns the workers of a job to nodes. A pure function: equal nodes and requirements give equal assignments.
 *
 * All or nothing: a job gets slots for a legal number of workers, or it waits. Ranks are assigned in the order of the
 * nodes, so that ranks which differ only in the innermost axes of the mesh (tensor, then context, then expert
 * parallelism) share a node. The largest of these groups that fits inside nodes is kept whole.
 *
 * One node is preferred to several, the fullest node with enough capacity to emptier ones, and a node that the job
 * already uses to any other. */
#ifndef DTD_DAEMON_CONTROL_JOB_PLACEMENT_H
#define DTD_DAEMON_CONTROL_JOB_PLACEMENT_H

#include <stdbool.h>
#include <stddef.h>

#define PLACEMENT_GROUPS 3
#define PLACEMENT_MAX_NODES 1024  /* size of arrays on the stack; further nodes are ignored */
#define PLACEMENT_MAX_WORKERS 256 /* of one job on one node */

struct placement_node {
    const char *name;
    int slots, used;  /* all; those of other jobs */
    int gpus, busy;   /* usable ones; those of other jobs. gpus -1: not reported yet */
    int mine;         /* workers of the job that run there now: their slots count as free */
    const char *out;  /* why no process may start there ("is drained (disk)", "is lost"); NULL: available */
    const char *sick; /* GPUs that are not used, and why ("GPU 0 is not used: .."); NULL or "": none */
};

struct placement_want {
    int max, min, unit;          /* workers: max, else fewer by whole units, but at least min */
    int per_gpu;                 /* workers that share a GPU; 0: they compute on CPUs */
    int per_node;                /* exact number on each node; 0: any */
    int group[PLACEMENT_GROUPS]; /* sizes of the groups of ranks to keep on one node, largest first; 0: none */
};

enum placement_answer {
    PLACEMENT_FITS,
    PLACEMENT_WAITS, /* it fits once other jobs have left or nodes are back */
    PLACEMENT_NEVER, /* it would not fit on these nodes even if they were empty */
};

/* PLACEMENT_FITS: ret_node[rank], for rank below *ret_workers, is an index into `nodes`; ascending. ret_node has space
 * for `max` ranks. */
enum placement_answer placement_find(const struct placement_node *nodes, int n, const struct placement_want *want,
                                     int *ret_node, int *ret_workers);
/* The largest number of workers (max, or fewer by whole units) that would fit if all nodes were available and empty; 0:
 * not even one unit. */
int placement_most(const struct placement_node *nodes, int n, const struct placement_want *want);
/* For a job that can never fit: "need 8 slots, but n1 has 4, n2 has 2". */
void placement_all(const struct placement_node *nodes, int n, const struct placement_want *want, char *ret,
                   size_t size);
/* "8 slots: n1 has 2 of 4 free, n2 has none of 4 free, n3 is drained (disk)". For GPUs it also names the unhealthy
 * ones. */
void placement_lack(const struct placement_node *nodes, int n, const struct placement_want *want, char *ret,
                    size_t size);

#endif
