/* A comm_store for ranks that are processes of one test: a table in memory that they inherit. */
#ifndef DTD_TESTS_WORKER_MEMORY_STORE_H
#define DTD_TESTS_WORKER_MEMORY_STORE_H

#include "worker/comm/comm.h"

struct word_store;

/* Before the fork. Freed with the process. */
struct word_store *word_store_new(void);
/* As the ranks of an epoch see it. */
struct word_view {
    struct comm_store store;
    struct word_store *words;
    uint64_t epoch;
};
const struct comm_store *word_view_init(struct word_view *v, struct word_store *words, uint64_t epoch);

#endif
