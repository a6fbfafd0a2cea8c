/* Planted bugs, which prove that the checker and the comparisons can fail. tests/common/plan builds this folder once
 * more with DTD_MUTANTS. In that build the environment variable DTD_MUTANT=NAME makes MUTANT(NAME) true, so that the
 * compiler has one bug, and the checker or a comparison must find it (test_mutants.c). In every other build MUTANT is
 * the constant false. */
#ifndef DTD_COMMON_PLAN_MUTANT_H
#define DTD_COMMON_PLAN_MUTANT_H

#include <stdbool.h>

/* X(NAME, the bug) */
#define MUTANT_LIST(X)                                                                                    \
    X(ONE_AHEAD_TOO_MANY, "a rank runs a slot ahead whose message the next rank expects later")           \
    X(ZEROED_AHEAD, "slots that run ahead zero the losses of the step before")                            \
    X(KEPT_WITHOUT_MOMENTS, "an update with an assumed factor keeps only parameters")                     \
    X(RESTORED_WITHOUT_MOMENTS, "moments are not restored after a wrong clip factor")                     \
    X(NEVER_RESTORED, "nothing is restored after a wrong clip factor")                                    \
    X(PIECE_BEGINS_EARLY, "a piece begins a grain early")                                                 \
    X(NORM_COUNTS_REPLICAS, "every replica counts its squares in the norm")                               \
    X(NORM_COUNTS_STAGES, "both stages of a tied head count its squares")                                 \
    X(SQUARES_IN_ONE_PLACE, "ranks with different boxes write their squares to the same blocks")          \
    X(KV_HEAD_OF_THE_NEIGHBOUR, "a rank holds its neighbour's key-value head")                            \
    X(LOSS_SCALED_BY_SHARE, "gradients are means over the rank's own samples")                            \
    X(LOSSES_OF_REPLICAS, "losses are summed over data ranks only")                                       \
    X(TREE_WITHOUT_RING, "canonical gradients miss the other parts of the sequence")                      \
    X(RUN_WITHOUT_RING, "gradients miss the other parts of the sequence")                                 \
    X(PIECES_WITHOUT_REPLICAS, "gradients of pieces miss the other replicas")                             \
    X(TP_SHARES_LEFT, "shares over tp are not summed")                                                    \
    X(TP_SHARES_TWICE, "shares over tp are summed twice")                                                 \
    X(WHOLE_SUMMED, "a gradient that is whole on every tp rank is summed over tp")                        \
    X(TIED_LEFT, "a tied head and its embedding keep their own gradients")                                \
    X(NORM_WITHOUT_STAGES, "the norm covers one stage")                                                   \
    X(NORM_WITHOUT_SHARDS, "the norm covers one shard")                                                   \
    X(GRADIENT_OF_THE_FIRST_PIECE, "every rank updates with the first rows' gradient")                    \
    X(UPDATED_TWICE, "a parameter is updated twice")                                                      \
    X(SCATTER_NEVER_ADDS, "a microbatch's scatter overwrites those before it")                            \
    X(SCATTER_ALWAYS_ADDS, "the first scatter adds to the step before")                                   \
    X(GATHER_LEFT_OUT, "a unit uses the parameters from before the update")                               \
    X(GATHER_LATE, "a unit is gathered after its first use")                                              \
    X(SCATTER_EARLY, "a unit is scattered before its gradient is complete")                               \
    X(BIAS_BY_ALL, "every tp rank adds the bias to its share")                                            \
    X(POSITIONS_BY_ALL, "every tp rank adds the positions to its share")                                  \
    X(LOSS_BY_ALL, "every tp rank counts the loss")                                                       \
    X(ROWS_OF_THE_FIRST, "dropout uses the first rank's tokens")                                          \
    X(COLUMNS_OF_THE_FIRST, "dropout uses the first rank's columns")                                      \
    X(SHARE_NOT_SUMMED, "the share of a matmul is used as the whole result")                              \
    X(VOCABULARY_OFF_BY_ONE, "a rank's part of the vocabulary begins a row late")                         \
    X(COLUMN_OF_THE_WHOLE, "keys are read at their column in the whole matrix")                           \
    X(NORM_SHARES_UNMARKED, "a norm's gradient from own tokens is not marked as a share")                 \
    X(HEAD_NORM_UNMARKED, "the gradient of a norm from some of the heads is not marked as a share")       \
    X(FIRST_HEAD_NORMED, "a norm of heads covers as many rows as there are tokens")                       \
    X(SQUARES_BY_ALL, "every rank that holds a key-value head counts its squares")                        \
    X(SQUARES_NOT_SUMMED, "a norm of all columns uses the squares of its own columns")                    \
    X(DOTS_BY_ALL, "every rank that holds a key-value head subtracts the dot product of a row")           \
    X(KV_SHARES_UNMARKED, "a key-value head's gradient from some query heads is not marked as a share")   \
    X(SHARE_OVERWRITTEN, "the second consumer's share overwrites the first's")                            \
    X(WEIGHTS_FORGOTTEN, "the second half of a split backward omits a matmul")                            \
    X(TOKENS_BACKWARDS, "own tokens go round the ring backwards")                                         \
    X(ROWS_OF_THE_NEXT, "a matmul writes a member's rows at the next member's offset")                    \
    X(AUX_OF_THE_FIRST, "the GELU's saved input of every member is written at the first member's offset") \
    X(LAST_TOKENS_LEFT, "the matmul of the tokens that arrive last is omitted")                           \
    X(COLUMNS_SUMMED_TWICE, "some columns of a share are summed twice and others not at all")             \
    X(BIAS_OF_THE_FIRST_COLUMNS, "every column block adds the bias of the first")                         \
    X(LAST_COLUMNS_LEFT, "the last column block of a sum is not copied to the result")                    \
    X(RING_BACKWARDS, "keys go round the ring backwards")                                                 \
    X(FUTURE_SEEN, "queries attend to keys of a later piece")                                             \
    X(DIAGONAL_UNMASKED, "queries attend to later keys of their own piece")                               \
    X(WINDOW_CUT, "a piece whose last key alone is in the window is left out")                            \
    X(KEYS_MISPLACED, "a window counts from the first position of the sequence")                          \
    X(PART_NOT_JOINED, "the attention to a piece of keys is not joined")                                  \
    X(NOT_HOME, "the gradient of keys stops one step before its owner")                                   \
    X(MICROBATCH_OVERWRITES, "a later microbatch overwrites the gradient of a weight")                    \
    X(ONE_INSTANCE_FOR_ALL, "microbatches in flight share their activations")                             \
    X(SENT_TO_ITSELF_LATER, "a stage sends its input in place of its output")                             \
    X(LANDING_SHARED, "two received values share a buffer")                                               \
    X(SENT_OVER_A_SEND, "a send overwrites the buffer of a send in flight")                               \
    X(KEPT_INPUT, "a value for another stage of the rank is the stage's input")                           \
    X(CHUNKS_FROM_THE_STEP_BEFORE, "a gradient of two stages of a rank adds to that of the step before")  \
    X(CHUNKS_OVERWRITE, "a stage overwrites the gradient of another stage of its rank")                   \
    X(WAIT_LEFT_OUT, "an op does not wait for another stream")                                            \
    X(LIFE_ONE_SHORT, "a buffer's bytes are reused one op early")                                         \
    X(ROWS_TAKEN_FOR_DENSE, "the loss treats padded rows as dense")                                       \
    X(DENSE_ROWS_SUMMED, "a weight's gradient treats padded rows as dense")                               \
    X(ROOM_OF_DENSE_ROWS, "a matrix with padded rows has the size of a dense one")                        \
    X(COLUMNS_BETWEEN_ROWS, "the loss includes the padding between rows")                                 \
    X(SETS_NOT_SUMMED, "the auxiliary loss counts a rank's own tokens only")                              \
    X(SETS_OF_OWN_TOKENS, "the auxiliary loss counts are not summed over tp")                             \
    X(ROUTES_COUNTED_BY_ALL, "every tp rank counts the tokens of its router")                             \
    X(EXPERTS_UNMARKED, "the experts' gradients from own tokens are not marked as shares")                \
    X(NORM_WITHOUT_EXPERTS, "the norm covers the experts of one rank")                                    \
    X(EXPERTS_SUMMED_AS_DENSE, "experts' gradients are summed over the ranks of expert parallelism too")  \
    X(EXPERTS_SUMMED_OVER_THE_AXIS, "experts' gradients are summed over ranks that have others")          \
    X(EXPERTS_NOT_SUMMED, "experts' gradients are not summed over the ranks that have the same ones")     \
    X(EMPTY_TURN_LEFT_OUT, "a rank without a microbatch does not compute its experts' rows")              \
    X(OTHER_TOKENS_SENT, "every tp rank sends the first rank's tokens to experts")                        \
    X(ROWS_TURNED_AROUND, "experts multiply rows in the inverse of their order")                          \
    X(NOT_RETURNED, "the outputs of experts are not sent back")                                           \
    X(NOT_GIVEN_BACK, "the gradients of borrowed experts are not given back")                             \
    X(BORROWED_FROM_ANOTHER, "rows of borrowed experts are multiplied with another matrix")               \
    X(ROWS_NOT_ARRANGED, "rows sorted by expert are sent as if sorted by rank")                           \
    X(GRADIENTS_NOT_WEIGHED, "gradients of rows that a rank takes from all tokens miss their weights")    \
    X(ROUND_LEFT_OUT, "the last round of experts' rows is not computed")                                  \
    X(ROUND_OF_ANOTHER, "a round's rows return to the home rows of the first one")                        \
    X(ROUND_TOO_SMALL, "a round has one row less than its part of the rows that may come")                \
    X(ROUNDS_OVERWRITE, "a round overwrites the gradient of an expert")                                   \
    X(ARRIVED_TOO_SMALL, "a buffer has room for one row less than may arrive")                            \
    X(WEIGHTS_LEFT_OUT, "a token's experts are added without their weights")                              \
    X(WEIGHTS_TWICE, "the gradients of a token's rows are weighed a second time")                         \
    X(SAMPLES_OF_THE_FIRST, "a router counts the samples of the first rank's tokens")                     \
    X(AUX_BY_ALL, "every rank of tp and cp counts the value of the auxiliary loss")                       \
    X(CHOSEN_WITHOUT_BIASES, "a router chooses experts without their biases")                             \
    X(COUNTS_WITHOUT_TP, "numbers of tokens of experts are not summed over tp")                           \
    X(COUNTS_OF_THE_LAST, "numbers of tokens of experts are those of the last microbatch")                \
    X(COUNTS_OF_THE_FIRST, "the biases of every router follow the first router's numbers")                \
    X(COUNTS_NOT_KEPT, "the auxiliary loss of the batch never gets the numbers of a step")                \
    X(CHOICES_NOT_SUMMED, "an expert's capacity holds for a rank's part of a sample")                     \
    X(DROPPED_BY_POSITION, "experts keep the first choices, whatever their weights")                      \
    X(TOKENS_OF_THE_FIRST_KEPT, "choices are dropped as if they were of other tokens")                    \
    X(DROPS_COUNTED_BY_ALL, "every tp rank counts the choices that are dropped")                          \
    X(NOTHING_DROPPED, "experts compute the rows of dropped choices too")                                 \
    X(BIASES_MOVED_TWICE, "the biases of a router are moved twice")

#define X(name, what) MUTANT_##name,
enum mutant { MUTANT_LIST(X) MUTANT_COUNT };
#undef X

bool mutant_is(enum mutant m); /* only in the build with DTD_MUTANTS */
#ifdef DTD_MUTANTS
#define MUTANT(name) mutant_is(MUTANT_##name)
#else
#define MUTANT(name) false
#endif

#endif
