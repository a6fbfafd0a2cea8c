/* The files of control on each computer, besides the log: STATE/cluster and the clock. They replace file_read,
 * file_replace, unlink and open, by the linker's --wrap. A file is written completely or not at all, and at once. */
#ifndef DTD_TESTS_SIM_CONTROL_SAVED_H
#define DTD_TESTS_SIM_CONTROL_SAVED_H

#include <stdbool.h>
#include <stddef.h>

#define SAVED_FILES 10

struct saved_file {
    char path[64]; /* "": free */
    void *data;
    size_t len;
    void *before; /* an older content; NULL: none */
    size_t before_len;
};

/* The files of a computer, SAVED_FILES of them. */
struct saved_file *saved_files(int id);
struct saved_file *saved_find(int id, const char *path); /* NULL: there is none */
void saved_put(struct saved_file *f, const void *data, size_t len);
void saved_remove(struct saved_file *f);
/* From now on computers have the id of a boot, so that control keeps the clock of the cluster in a file. */
void saved_keep_clocks(void);
void saved_boot(int id); /* the computer has lost its power */

#endif
