/* Logs of W&B that a job continues: whatever the log has, a row that is added is read back afterwards. The input is the
 * message of a record, and then the rest of the log. */
#include "common/metrics/wandb.h"
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
    char root[] = "/tmp/dtd-fuzz-wandb-XXXXXX", path[128];
    const struct card card = {.job = (char *)(uintptr_t) "7", .name = card.job, .host = "node0", .run_id = "00000007"};
    struct metric row = metric_none;
    struct buf log = {0};
    struct wandb_run run;
    row.step = 3;
    row.wall_ms = 1700000000000;
    need(mkdtemp(root) != NULL);
    snprintf(path, sizeof(path), "%s/wandb/offline-run-1-00000007", root);
    need(file_make_dirs(path, 0700) == 0);
    snprintf(path, sizeof(path), "%s/wandb/offline-run-1-00000007/run-00000007.wandb", root);
    need(buf_append(&log, wandb_header, WANDB_HEADER_BYTES) == OK && wandb_record(&log, 0, data, size) == OK &&
         buf_append(&log, data, size) == OK);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    need(fd >= 0 && file_write_all(fd, log.data, log.len) == OK);
    close(fd);
    need(wandb_run_open(&run, root, &card, NULL) == OK && wandb_run_add(&run, &card, &row, 1, NULL) == OK);
    wandb_run_close(&run);
    need(wandb_run_open(&run, root, &card, NULL) == OK && curve_points_have(&run.points, &row));
    wandb_run_close(&run);
    buf_fini(&log);
    need(file_remove_tree(root) == OK);
    return 0;
}
