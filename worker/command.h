/* For a job whose worker is a program of the user: this process executes it (docs/use/pytorch.md). */
#ifndef DTD_WORKER_COMMAND_H
#define DTD_WORKER_COMMAND_H

/* argv: the program, which is looked up in PATH, and its arguments, terminated by NULL. Environment, umask, limits and
 * signals become those of the variables CALLER_SETTINGS and CALLER_ENV (common/base/caller.h), if they are set. Returns
 * only if the program cannot be executed, after printing the reason: the exit status, 127 if the program was not found,
 * else 126. */
int command_become(char *const *argv);

#endif
