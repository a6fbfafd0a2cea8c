/* A comm_store for ranks that are processes of one test: a table in memory that they inherit. */
#ifndef DTD_TESTS_WORKER_MEMORY_STORE_H
#define DTD_TESTS_WORKER_MEMORY_STORE_H

#include "worker/comm/comm.h"

struct memory_store;

/* Before the fork. Freed with the process. */
struct memory_store *memory_store_new(void);
/* The store of one epoch. */
struct memory_store_view {
    struct comm_store store;
    struct memory_store *table;
    uint64_t epoch;
};
const struct comm_store *memory_store_view_init(struct memory_store_view *v, struct memory_store *store,
                                                uint64_t epoch);

#endif
