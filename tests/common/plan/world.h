/* All ranks of a job in one process and one thread: each is a machine (machine.h) that runs until a collective or a
 * wait stops it; a collective happens when every member of its group stands before it, a message when both ends are
 * posted. Nothing is buffered, so what would hang without buffers hangs here and is said.
 *
 * What is compared is what a job is about: losses, norms, every element of every gradient that the first update reads,
 * and every parameter after WORLD_STEPS updates with clipping active; box by box against one rank's, replicas included.
 */
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
/* Bit for bit, two jobs with the same number of workers, elements compared by their global place. */
void world_compare_two(const struct job_spec *a, const struct job_spec *b);
/* The same of an evaluation's loss and a generation's logits. */
void world_compare_two_passes(const struct job_spec *a, const struct job_spec *b);

#endif
