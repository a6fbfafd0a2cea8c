/* The algorithm file: which algorithm each product uses, stored as text and shared by processes, so that processes that
 * compute the same products on the same model of GPU get the same bits (docs/internals/kernels.md, "Which algorithm a
 * product uses").
 *
 * Several processes may have the file open. A choice is appended under a lock, and only if the file has none for its
 * key yet, so all processes use the first writer's choice. A line is valid only if its checksum matches; the caller
 * checks its algorithm with cuBLASLt. Nothing here requires CUDA. One thread per open file. */
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
    bool apart;                     /* not fused: the plain product and our own kernels */
    uint64_t algo[GEMM_ALGO_WORDS]; /* cublasLtMatmulAlgo_t as the library filled it; zeros when `apart` */
    double us;                      /* duration of a call when it was chosen; 0: nothing was timed */
    int line;                       /* line in the file, from 1 */
    bool refused;                   /* set by gemm_file_refuse: the line is ignored */
};

/* Formats a choice as a line without its newline; returns its length. */
size_t gemm_choice_print(const struct gemm_choice *c, char ret[GEMM_LINE_BYTES]);
/* False, with *ret unchanged, unless `line` is exactly what gemm_choice_print makes of some choice. */
bool gemm_choice_parse(const char *line, struct gemm_choice *ret);

struct gemm_file;

/* Opens and reads `path`, or creates it: a file, or a folder in which the file is named after GPU and library. `gpu`
 * ("NVIDIA H200, 132 processors") and `library`, the version of cuBLASLt, are stored in the header. ERR_STALE: the file
 * belongs to another GPU, library or format; it is not changed. ERR_LIMIT: it is too long for an algorithm file. A
 * read-only file can be used without adding to it. Damaged lines are logged with their number and skipped. */
NODISCARD err_t gemm_file_open(const char *path, const char *gpu, uint64_t library, struct gemm_file **ret,
                               struct why *why);
void gemm_file_close(struct gemm_file *f); /* NULL is legal */
const char *gemm_file_path(const struct gemm_file *f);
/* Whether choices can still be added: not to a read-only file, nor after an addition failed (which is logged once). */
bool gemm_file_takes(const struct gemm_file *f);

/* The first choice for the key that is not refused, or NULL. Valid until the next refresh or add. */
struct gemm_choice *gemm_file_find(struct gemm_file *f, const struct gemm_key *key);
/* Logs that the line cannot be used here and ignores it from now on. */
void gemm_file_refuse(struct gemm_file *f, struct gemm_choice *c, const char *cause);
/* Reads the lines that other processes have added since. */
void gemm_file_refresh(struct gemm_file *f);
/* Appends the choice durably, unless the file has one for its key by now; gemm_file_find then returns the file's
 * choice. False: it could not be stored. */
NODISCARD bool gemm_file_add(struct gemm_file *f, const struct gemm_choice *c);

#endif
