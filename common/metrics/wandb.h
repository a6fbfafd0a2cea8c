/* An offline run of Weights & Biases: the folder DIR/wandb/offline-run-TIME-ID with one transaction log, which
 * `wandb sync` uploads and `wandb leet` shows. A job has one log for all of its epochs. Blocking; one thread.
 *
 * The log has a header of 7 bytes and blocks of 32 KiB. A record is one chunk, or several where it crosses a block;
 * each chunk has a CRC-32. Readers stop at the first damaged chunk, so a log with a torn tail is cut there before it is
 * continued. Where the job goes back to an earlier step, the log is cut in front of this step as well: W&B keeps rows
 * in the order in which they come, and the step of a row never decreases. */
#ifndef DTD_COMMON_METRICS_WANDB_H
#define DTD_COMMON_METRICS_WANDB_H

#include "common/metrics/curve.h"

#define WANDB_HEADER_BYTES 7
#define WANDB_BLOCK_BYTES 32768

/* The bytes with which a log begins. */
extern const uint8_t wandb_header[WANDB_HEADER_BYTES];
/* Appends one record to the block of bytes `b`, which begins at offset `at` of the log. */
NODISCARD err_t wandb_record(struct buf *b, uint64_t at, const void *message, size_t len);

/* Reads records of a log that is in memory. */
struct wandb_reader {
    const uint8_t *data;
    size_t len, at; /* at: end of the last whole record */
    struct buf joined;
};
/* False at the end, and at the first damaged or incomplete record. *ret is valid until the next call. */
NODISCARD err_t wandb_next(struct wandb_reader *r, bool *ret_more, const uint8_t **ret, size_t *ret_len);
void wandb_reader_fini(struct wandb_reader *r);

struct wandb_run {
    char *dir, *path; /* of the run's folder and log; dir NULL: there is none yet */
    char *root;
    int fd;            /* -1: not open for writing */
    uint64_t end, num; /* where the next record comes, and the number of the last one */
    int64_t start_ms;  /* of the run: rows count their time from it */
    double runtime_s;  /* of the last row; it never decreases, although the clocks of nodes differ */
    struct curve_points points;
    uint64_t rows_end, rows_num; /* `end` and `num` before the records that end the run; has_end */
    bool busy;                   /* another process is writing to the log */
    bool has_end;
};
/* Looks for the run of the job below `root`, the folder that has the folder wandb, and reads its log. */
NODISCARD err_t wandb_run_open(struct wandb_run *r, const char *root, const struct card *card, struct why *why);
/* Writes the rows, ascending by step. Rows that the log has are skipped. A row that replaces one cuts the log in front
 * of it. */
NODISCARD err_t wandb_run_add(struct wandb_run *r, const struct card *card, const struct metric *rows, size_t n,
                              struct why *why);
/* Cuts off the rows from `step` on. */
NODISCARD err_t wandb_run_cut(struct wandb_run *r, int64_t step, struct why *why);
/* Records how the job ended. Rows that are added later remove that again. */
NODISCARD err_t wandb_run_end(struct wandb_run *r, bool success, struct why *why);
void wandb_run_close(struct wandb_run *r); /* may be called on a zeroed struct */

#endif
