/* Event files of TensorBoard that a job continues: whatever another program left there, a row that is added is read
 * back afterwards. The input is the message of a record, and then the rest of the file. */
#include "common/metrics/tfevents.h"
#include "common/base/file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void need(bool holds)
{
    if (!holds)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char dir[] = "/tmp/dtd-fuzz-tfevents-XXXXXX", path[64];
    const struct card card = {.job = (char *)(uintptr_t) "7", .name = card.job, .file = card.job, .host = "node0"};
    struct metric row = metric_none;
    struct buf file = {0};
    struct tf_run run;
    row.step = 3;
    row.wall_ms = 1700000000000;
    need(mkdtemp(dir) != NULL);
    need(tf_record(&file, data, size) == OK && buf_append(&file, data, size) == OK);
    snprintf(path, sizeof(path), "%s/events.out.tfevents.1", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    need(fd >= 0 && file_write_all(fd, file.data, file.len) == OK);
    close(fd);
    need(tf_run_open(&run, dir, NULL) == OK && tf_run_add(&run, &card, &row, 1, NULL) == OK);
    tf_run_close(&run);
    need(tf_run_open(&run, dir, NULL) == OK && curve_points_have(&run.points, &row));
    tf_run_close(&run);
    buf_fini(&file);
    need(file_remove_tree(dir) == OK);
    return 0;
}
