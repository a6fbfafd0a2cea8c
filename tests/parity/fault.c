/* The test's implementation of worker/step/fault.h. DTD_FAULTS names a table of one layout as `parity_faults` prints
 * it. A counter file next to the table, shared by all workers, has the number of rows done. Row k happens in step FIRST
 * + k or later, so that each row has a step of its own, and the state after it is used for computing before the next
 * row. A process that finds its row increments the counter and kills itself, so no row happens twice. Ops may run on
 * two threads. */
#include "worker/step/fault.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FIRST 2 /* step 1 completes without a fault */
#define MAX_ROWS 512

struct row {
    char mode[8], action[16], op[24], side[8];
    int rank;
};

static struct row rows[MAX_ROWS];
static int n_rows;
static int *done; /* maps the counter file */
static pthread_once_t table_once = PTHREAD_ONCE_INIT;

static void exit_with_error(const char *what)
{
    perror(what);
    abort();
}

static void read_table(void)
{
    char line[128], counter[PATH_MAX];
    const char *path = getenv("DTD_FAULTS");
    FILE *f = fopen(path, "r");
    if (!f)
        exit_with_error(path);
    for (struct row *w = rows; n_rows < MAX_ROWS && fgets(line, sizeof(line), f); w++, n_rows++)
        if (sscanf(line, "%7s %15s %23s %7s %d", w->mode, w->action, w->op, w->side, &w->rank) != 5)
            exit_with_error(line);
    fclose(f);
    snprintf(counter, sizeof(counter), "%s.done", path);
    int fd = open(counter, O_RDWR | O_CLOEXEC);
    done = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof(*done), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (done == MAP_FAILED)
        exit_with_error(counter);
    close(fd);
}

static bool is_here(const struct row *w, const struct run *r, const struct op *op, enum fault_side side)
{
    static const char *const modes[] = {"train", "eval", "generate"}, *const sides[] = {"before", "within", "after"};
    return w->rank == r->engine->config.rank && strcmp(w->side, sides[side]) == 0 &&
           strcmp(w->mode, modes[r->program->mode]) == 0 && strcmp(w->action, action_name(r->action->kind)) == 0 &&
           strcmp(w->op, op_name(op->kind)) == 0;
}

void fault_point(const struct run *r, const struct op *op, enum fault_side side)
{
    if (!getenv("DTD_FAULTS"))
        return;
    pthread_once(&table_once, read_table);
    int k = __atomic_load_n(done, __ATOMIC_SEQ_CST);
    if (k >= n_rows || r->engine->step < FIRST + k || !is_here(&rows[k], r, op, side))
        return;
    __atomic_store_n(done, k + 1, __ATOMIC_SEQ_CST);
    kill(getpid(), SIGKILL);
}
