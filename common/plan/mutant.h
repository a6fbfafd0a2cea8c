/* Planted bugs. A proof that never fails proves nothing, so tests/common/plan builds this folder once more with
 * DTD_MUTANTS: there the environment variable DTD_MUTANT=NAME makes MUTANT(NAME) true and the compiler wrong in one
 * place, and checker or comparison must say so (test_mutants.c). In every other build MUTANT is the constant false. */
#ifndef DTD_COMMON_PLAN_MUTANT_H
#define DTD_COMMON_PLAN_MUTANT_H

#include <stdbool.h>

/* X(NAME, what it does wrong) */
#define MUTANT_LIST(X)                                                                              \
    X(PIECE_BEGINS_EARLY, "a piece begins a grain early")                                           \
    X(NORM_COUNTS_REPLICAS, "every replica counts its squares in the norm")                         \
    X(NORM_COUNTS_STAGES, "both stages of a tied head count its squares")                           \
    X(SQUARES_IN_ONE_PLACE, "ranks of different boxes put their squares in the same blocks")        \
    X(KV_HEAD_OF_THE_NEIGHBOUR, "a rank holds the key-value head that its neighbour needs")         \
    X(LOSS_SCALED_BY_SHARE, "gradients are means over the rank's own samples")                      \
    X(LOSSES_OF_REPLICAS, "losses are summed over replicas only")                                   \
    X(TREE_WITHOUT_RING, "canonical gradients miss the other parts of the sequence")                \
    X(RUN_WITHOUT_RING, "gradients miss the other parts of the sequence")                           \
    X(PIECES_WITHOUT_REPLICAS, "gradients of pieces miss the other replicas")                       \
    X(TP_SHARES_LEFT, "shares over tp are never summed")                                            \
    X(TP_SHARES_TWICE, "shares over tp are summed twice")                                           \
    X(WHOLE_SUMMED, "what every tp rank has whole is summed over tp")                               \
    X(TIED_LEFT, "a tied head and its embedding keep their own gradients")                          \
    X(NORM_WITHOUT_STAGES, "the norm is of one stage")                                              \
    X(NORM_WITHOUT_SHARDS, "the norm is of one shard")                                              \
    X(GRADIENT_OF_THE_FIRST_PIECE, "every rank updates with the first rows' gradient")              \
    X(UPDATED_TWICE, "a parameter is updated twice")                                                \
    X(SCATTER_NEVER_ADDS, "a microbatch's scatter overwrites those before it")                      \
    X(SCATTER_ALWAYS_ADDS, "the first scatter adds to the step before")                             \
    X(GATHER_LEFT_OUT, "a unit computes with the parameters before the update")                     \
    X(GATHER_LATE, "a unit is gathered behind its first use")                                       \
    X(SCATTER_EARLY, "a unit is scattered before its gradient is complete")                         \
    X(BIAS_BY_ALL, "every tp rank adds the bias to its share")                                      \
    X(POSITIONS_BY_ALL, "every tp rank adds the positions to its share")                            \
    X(LOSS_BY_ALL, "every tp rank counts the loss")                                                 \
    X(ROWS_OF_THE_FIRST, "dropout takes the first rank's tokens for its own")                       \
    X(COLUMNS_OF_THE_FIRST, "dropout takes the first rank's columns for its own")                   \
    X(SHARE_NOT_SUMMED, "a product's share goes on as if it were the whole")                        \
    X(VOCABULARY_OFF_BY_ONE, "a rank's part of the vocabulary begins a row late")                   \
    X(COLUMN_OF_THE_WHOLE, "keys are read where the whole matrix has them")                         \
    X(NORM_SHARES_UNMARKED, "a norm's gradient from own tokens passes for the whole")               \
    X(KV_SHARES_UNMARKED, "a key-value head's gradient from some query heads passes for the whole") \
    X(SHARE_OVERWRITTEN, "the second consumer's share takes the place of the first's")              \
    X(WEIGHTS_FORGOTTEN, "the second half of a split backward leaves a product out")                \
    X(TOKENS_BACKWARDS, "own tokens travel the wrong way round")                                    \
    X(ROWS_OF_THE_NEXT, "a product puts a member's rows where the next one's belong")               \
    X(AUX_OF_THE_FIRST, "what a GELU keeps of every member lies where the first one's belongs")     \
    X(LAST_TOKENS_LEFT, "the product of the tokens that come last is left out")                     \
    X(COLUMNS_SUMMED_TWICE, "some columns of a share are summed twice and others never")            \
    X(BIAS_OF_THE_FIRST_COLUMNS, "every part of the columns adds the bias of the first")            \
    X(LAST_COLUMNS_LEFT, "the last columns of a sum are never put to the others")                   \
    X(RING_BACKWARDS, "keys travel the wrong way round")                                            \
    X(FUTURE_SEEN, "queries see the keys of a later piece")                                         \
    X(DIAGONAL_UNMASKED, "queries see later keys of their own piece")                               \
    X(PART_NOT_JOINED, "a piece of keys is attended to and forgotten")                              \
    X(NOT_HOME, "the gradient of keys stops one step from home")                                    \
    X(MICROBATCH_OVERWRITES, "a later microbatch overwrites the gradient of a product")             \
    X(ONE_INSTANCE_FOR_ALL, "microbatches in flight share their activations")                       \
    X(SENT_TO_ITSELF_LATER, "a stage sends what it received")                                       \
    X(LANDING_SHARED, "two received values land in one place")                                      \
    X(SENT_OVER_A_SEND, "a value is sent from where the one before it still lies")                  \
    X(WAIT_LEFT_OUT, "an op does not wait for another stream")                                      \
    X(LIFE_ONE_SHORT, "a buffer's bytes are given away one op early")                               \
    X(ROWS_TAKEN_FOR_DENSE, "the loss takes rows that stand apart for dense ones")                  \
    X(DENSE_ROWS_SUMMED, "a weight's gradient takes rows that stand apart for dense ones")          \
    X(ROOM_OF_DENSE_ROWS, "a matrix whose rows stand apart has the room of a dense one")            \
    X(COLUMNS_BETWEEN_ROWS, "the loss counts what stands between rows")

#define X(name, what) MUTANT_##name,
enum mutant { MUTANT_LIST(X) MUTANT_COUNT };
#undef X

bool mutant_is(enum mutant m); /* of the test alone */
#ifdef DTD_MUTANTS
#define MUTANT(name) mutant_is(MUTANT_##name)
#else
#define MUTANT(name) false
#endif

#endif
