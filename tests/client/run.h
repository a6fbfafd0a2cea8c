/* Runs the real dtctl of this build as a user would. */
#ifndef DTD_TESTS_CLIENT_RUN_H
#define DTD_TESTS_CLIENT_RUN_H

struct run_result {
    int code; /* exit status, or 128 + signal */
    char out[65536], err[65536];
};

/* Runs a shell command in which "dtctl" is the program under test. State and cache are below test_tmpdir(). */
void run_shell(struct run_result *ret, const char *line);
/* The same; fails and prints both outputs unless the exit code is `code`. */
void run_expect(struct run_result *ret, int code, const char *line);
/* Fails unless `where` (out or err of a run) contains `text`. */
void expect_text(const char *where, const char *text);
/* Writes a file of that content below test_tmpdir(). */
void run_write(const char *name, const char *text);

#endif
