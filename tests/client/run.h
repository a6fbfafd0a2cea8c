/* Runs the real dtctl of this build as a user would. */
#ifndef DTD_TESTS_CLIENT_RUN_H
#define DTD_TESTS_CLIENT_RUN_H

struct run_result {
    int code; /* exit status, or 128 + signal */
    char out[65536], err[65536];
};

/* `line` is a shell command in which "dtctl" is the program under test. State and cache lie below test_tmpdir(). */
void run_shell(struct run_result *ret, const char *line);
/* Fails, and prints both outputs, unless the exit code is the expected one. */
void run_expect(struct run_result *ret, int code, const char *line);
/* Fails unless `text` stands in `where` (out or err of a run). */
void expect_text(const char *where, const char *text);
/* A file of that content below test_tmpdir(). */
void run_write(const char *name, const char *text);

#endif
