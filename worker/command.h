/* A job's worker that is a command of its user's: this process becomes it (docs/use/pytorch.md). */
#ifndef DTD_WORKER_COMMAND_H
#define DTD_WORKER_COMMAND_H

/* `argv`, ended by NULL: the program, looked for in PATH, and its arguments. Returns only when it cannot be started,
 * after saying why: the exit status, 127 where there is no such program, else 126. */
int command_become(char *const *argv);

#endif
