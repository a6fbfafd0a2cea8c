/* All ranks of a job in one process and one thread. Each rank is a machine (machine.h), which runs until a collective
 * or a wait stops it. A collective executes when every member of its group has reached it, a message when both ends
 * have been posted. Nothing is buffered, so a program that would hang without buffers hangs here, and the test reports
 * it.
 *
 * Compared are losses, norms, every element of every gradient that the first update reads, and every parameter after
 * WORLD_STEPS updates with active clipping; box by box with those of one rank, on all replicas. */
#ifndef DTD_TESTS_COMMON_PLAN_WORLD_H
#define DTD_TESTS_COMMON_PLAN_WORLD_H

#include "tests/common/plan/machine.h"

#define WORLD_STEPS 3

/* The job against the same job on one worker, in float64 within the bound of proof mode. */
void world_compare(const struct job_spec *job);
/* Bit for bit, in the job's own numerics: against one worker. */
void world_compare_exact(const struct job_spec *job);
/* An evaluation's loss and a generation's logits, in float64. */
void world_compare_passes(const struct job_spec *job);
/* Bit for bit, two jobs with the same number of workers; elements are compared by their global index. */
void world_compare_two(const struct job_spec *a, const struct job_spec *b);
/* The same of an evaluation's loss and a generation's logits. */
void world_compare_two_passes(const struct job_spec *a, const struct job_spec *b);

#endif
