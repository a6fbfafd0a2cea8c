/* The algorithm file: which algorithm each product uses, kept as text over processes, so that whoever computes the same
 * products on the same model of GPU gets the same bits (docs/internals/kernels.md, "Which algorithm a product uses").
 *
 * Several processes may have the file open. A choice is appended under a lock and only if the file has none for its key
 * yet, so the first writer's choice is everybody's. A line counts only when its checksum holds; the caller checks with
 * cuBLASLt what the line asks for. Nothing here needs CUDA. One thread for each open file. */
#ifndef DTD_KERNELS_CUDA_GEMM_FILE_H
#define DTD_KERNELS_CUDA_GEMM_FILE_H

#include "common/base/err.h"
#include "kernels/cuda/gemm_key.h"

#include <stdbool.h>
#include <stddef.h>

#define GEMM_ALGO_WORDS 8
/* Bytes that hold any choice as text: 17 numbers of at most 20 digits, the algorithm, a time, a checksum. */
#define GEMM_LINE_BYTES 640

struct gemm_choice {
    struct gemm_key key;
    bool apart;                     /* not fused: the plain product and kernels of our own */
    uint64_t algo[GEMM_ALGO_WORDS]; /* cublasLtMatmulAlgo_t as the library filled it; zeros when `apart` */
    double us;                      /* what a call took when it was chosen; 0: nothing was timed */
    int line;                       /* in the file, from 1 */
    bool refused;                   /* by gemm_file_refuse: as if it were not there */
};

/* A choice as a line without its end; returns its length. */
size_t gemm_choice_print(const struct gemm_choice *c, char ret[GEMM_LINE_BYTES]);
/* False, and nothing is written, unless `line` is exactly what gemm_choice_print makes of some choice. */
bool gemm_choice_parse(const char *line, struct gemm_choice *ret);

struct gemm_file;

/* Opens and reads `path`, or makes it: a file, or a folder (then the file in it is named after GPU and library).
 * `gpu` ("NVIDIA H200, 132 processors") and `library`, the version of cuBLASLt, stand in the header. ERR_STALE: the
 * file is of another GPU, library or format; it stays as it is. ERR_LIMIT: it is too long to be one. A file that may
 * only be read is read. Damaged lines are logged with their number and left out. */
NODISCARD err_t gemm_file_open(const char *path, const char *gpu, uint64_t library, struct gemm_file **ret,
                               struct why *why);
void gemm_file_close(struct gemm_file *f); /* NULL is legal */
const char *gemm_file_path(const struct gemm_file *f);
/* Whether choices can still be added: not when it may only be read, nor after adding failed (which is logged, once). */
bool gemm_file_takes(const struct gemm_file *f);

/* The first choice for the key that is not refused, or NULL. Valid until the next refresh or add. */
struct gemm_choice *gemm_file_find(struct gemm_file *f, const struct gemm_key *key);
/* The line cannot be used here: logs that, and finds it no more. */
void gemm_file_refuse(struct gemm_file *f, struct gemm_choice *c, const char *cause);
/* Reads what other processes have added since. */
void gemm_file_refresh(struct gemm_file *f);
/* Appends the choice and makes it durable, unless the file has one for its key by now; gemm_file_find then gives what
 * the file has. False: it could not be kept. */
NODISCARD bool gemm_file_add(struct gemm_file *f, const struct gemm_choice *c);

#endif
