/* The oracle for daemon/store/table: a simple, slow c10d store of arrays that are searched from the beginning. */
#ifndef DTD_TESTS_DAEMON_STORE_ORACLE_H
#define DTD_TESTS_DAEMON_STORE_ORACLE_H

#include <stdbool.h>
#include <stdint.h>

#define ORACLE_KEYS 6
#define ORACLE_WAITERS 5
#define ORACLE_TEXT 64
#define ORACLE_ITEMS 64
#define ORACLE_MISSES 8

struct oracle {
    bool present[ORACLE_KEYS];
    char value[ORACLE_KEYS][ORACLE_TEXT];
    char items[ORACLE_KEYS][ORACLE_ITEMS][ORACLE_TEXT];
    int n_items[ORACLE_KEYS];
    struct oracle_waiter {
        bool waiting;
        int64_t since; /* an increasing sequence number */
        int misses[ORACLE_MISSES], n_misses;
        bool at_barrier;
        int64_t world;
        int owes; /* key + 1 */
    } waiters[ORACLE_WAITERS];
    int64_t now;
    int woken[64], n_woken; /* in order; the reader empties it */
};

bool oracle_has(const struct oracle *o, int key);
void oracle_set(struct oracle *o, int key, const char *value);
void oracle_append(struct oracle *o, int key, const char *tail);
const char *oracle_compare_set(struct oracle *o, int key, const char *expected, const char *desired);
bool oracle_add(struct oracle *o, int key, int64_t delta, int64_t *ret);
bool oracle_delete(struct oracle *o, int key);
void oracle_push(struct oracle *o, int key, const char *item);
int oracle_pop(struct oracle *o, int key, int waiter, char *ret);       /* returns the length before */
bool oracle_wait(struct oracle *o, int waiter, const int *keys, int n); /* true: there is nothing to wait for */
bool oracle_barrier(struct oracle *o, int key, int64_t world, int waiter,
                    bool *ret_ready); /* false: the value is not a number */
void oracle_cancel(struct oracle *o, int waiter);

#endif
