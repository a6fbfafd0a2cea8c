/* Messages about command lines of dtctl run that are usual with other launchers but do not work, or do not do what the
 * user means. */
#ifndef DTD_CLIENT_RUN_HINTS_H
#define DTD_CLIENT_RUN_HINTS_H

/* EXIT_REFUSED, after a message, if the program is a script that cannot be executed; else EXIT_DONE. Prints a note if
 * the program is another launcher. `command`: n words, at least one. */
int run_hints_check(char **command, int n);

#endif
