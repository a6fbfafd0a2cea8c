/* Which rank of a pipeline holds which stage. A rank's stages are its chunks, numbered from the nearest to the input.
 *
 *   loop   stage by stage, round the ranks: chunk c of rank r is stage c * ranks + r
 *   v      back and forth: the same for even chunks, and chunk c of rank r is stage (c + 1) * ranks - 1 - r for odd
 *          ones. With two chunks the last rank holds the two middle stages, and rank 0 the first and the last one
 *
 *   3 ranks, 2 chunks   loop  0 3 | 1 4 | 2 5      v  0 5 | 1 4 | 2 3
 *
 * No other file computes with this placement. Pure. */
#ifndef DTD_COMMON_PLAN_PLACEMENT_H
#define DTD_COMMON_PLAN_PLACEMENT_H

enum pipe_placement { PLACE_LOOP, PLACE_V };

/* The rank of a row of stages, or the place in its row of a rank: both directions are one function. */
static inline int placement_turn(enum pipe_placement placement, int ranks, int chunk, int at)
{
    return placement == PLACE_V && chunk % 2 ? ranks - 1 - at : at;
}

static inline int placement_stage(enum pipe_placement placement, int ranks, int rank, int chunk)
{
    return chunk * ranks + placement_turn(placement, ranks, chunk, rank);
}

static inline int placement_chunk(int ranks, int stage)
{
    return stage / ranks;
}

static inline int placement_rank(enum pipe_placement placement, int ranks, int stage)
{
    return placement_turn(placement, ranks, placement_chunk(ranks, stage), stage % ranks);
}

#endif
