/* Preloaded: while the file $SLOW_FILE exists, the worker of slot $SLOW_SLOT computes slowly: whenever its main thread
 * has used 5 ms of a processor, it sleeps for 50 ms, so that it is slow on a busy machine, too. Waiting for peers uses
 * no processor, so it takes no longer. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SLICE_NS 5000000
#define SLEEP_NS 50000000

static void sleep_a_while(int sig)
{
    const struct timespec slice = {0, SLEEP_NS};
    const char *file = getenv("SLOW_FILE");
    (void)sig;
    if (file && access(file, F_OK) == 0)
        nanosleep(&slice, NULL);
}

/* dt-worker has its slot after the option --slot. */
static int is_slow(void)
{
    char args[4096];
    FILE *f = fopen("/proc/self/cmdline", "r");
    const size_t n = f ? fread(args, 1, sizeof(args) - 1, f) : 0;
    const char *slot = getenv("SLOW_SLOT"), *end = args + n;
    if (f)
        fclose(f);
    args[n] = '\0';
    if (!slot || !strstr(args, "dt-worker"))
        return 0;
    for (const char *arg = args; arg < end; arg += strlen(arg) + 1) {
        const char *value = arg + strlen(arg) + 1;
        if (strcmp(arg, "--slot") == 0 && value < end && strcmp(value, slot) == 0)
            return 1;
        if (strncmp(arg, "--slot=", 7) == 0 && strcmp(arg + 7, slot) == 0)
            return 1;
    }
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const struct itimerspec every = {{0, SLICE_NS}, {0, SLICE_NS}};
    static char stack[65536];
    const stack_t other = {.ss_sp = stack, .ss_size = sizeof(stack)};
    struct sigaction action = {.sa_handler = sleep_a_while, .sa_flags = SA_RESTART | SA_ONSTACK};
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGVTALRM};
    timer_t timer;
    if (!is_slow())
        return;
    event._sigev_un._tid = getpid();
    sigaltstack(&other, NULL); /* oneDNN's matrix products may use the stack pointer for other data */
    sigaction(SIGVTALRM, &action, NULL);
    if (timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer) || timer_settime(timer, 0, &every, NULL))
        abort();
}
