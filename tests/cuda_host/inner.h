/* The interface between grid.c and the two implementations of a block (block.c: fibres; threads.c: system threads). */
#ifndef DTD_TESTS_CUDA_HOST_INNER_H
#define DTD_TESTS_CUDA_HOST_INNER_H

#include "tests/cuda_host/block.h"

/* Runs one block to its end; `backwards` reverses the order of its threads. */
void host_block_run(const struct cuda_host_launch *l, uint3 block, void *shared, bool backwards);

/* The built-in variables of thread `index` of a block. */
struct cuda_host_thread host_thread_of(const struct cuda_host_launch *l, uint3 block, int index, void *shared);

#endif
