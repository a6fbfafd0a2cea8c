/* Two users of the machine, for tests that run as root: ALICE uses dtd, MALLORY attacks it. */
#ifndef DTD_TESTS_ATTACK_USERS_H
#define DTD_TESTS_ATTACK_USERS_H

#include "tests/lib/test.h"

#include <sys/types.h>

#define ALICE "daemon" /* two users that every Debian system has */
#define MALLORY "games"

/* Skips the test if it does not run as root, or the machine lacks one of the users or the user nobody. */
void users_require(void);
/* Starts a process of the user that runs `fn` and exits with the value it returns. The kernel kills it when the test
 * exits. */
pid_t users_begin(const char *user, int (*fn)(void *arg), void *arg);
/* The same, and waits for it; returns the value. */
int users_run(const char *user, int (*fn)(void *arg), void *arg);
/* Kills a process of users_begin and waits for its end. */
void users_end(pid_t pid);
/* Makes a folder in the test's folder that belongs to the user. */
void users_make_folder(const char *name, const char *owner, mode_t mode);

#endif
