/* A checkpoint in memory that forked ranks share: whole tensors by name, read and written as boxes. */
#ifndef DTD_TESTS_PARITY_STORE_H
#define DTD_TESTS_PARITY_STORE_H

#include "worker/step/snapshot.h"

struct store;

/* Allocates memory for every parameter, moment and step of the graph. */
struct store *store_new(const struct graph *g, enum dtype dtype);
void store_free(struct store *s);
/* Writes the pieces of the snapshot from the arena. */
void store_write(struct store *s, const struct snapshot *snapshot, const void *arena);
/* Fills the arena with the pieces from `first` to end - 1. */
void store_read(const struct store *s, const struct snapshot *snapshot, void *arena, int first, int end);
/* Counts elements that no piece, or more than one, has written. */
int64_t store_bad_elements(const struct store *s);
/* Counts the elements of which two stores of one graph and type have other bits; the name of the first one is in
 * `name`, of SNAPSHOT_NAME_MAX bytes. */
int64_t store_differences(const struct store *a, const struct store *b, char *name);
int64_t *store_scalars(struct store *s); /* step, position */

#endif
