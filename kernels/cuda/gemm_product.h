/* One product by cuBLASLt with one epilogue, and the choice of its algorithm.
 *
 * The choice is made when a key first occurs, and is kept in the device's cache. Without an algorithm file it is
 * cuBLASLt's first proposal. With a file it is the file's choice; a product that is not in the file is timed on the
 * caller's stream with its operands and added to the file. See docs/internals/kernels.md, "Which algorithm a product
 * uses". */
#ifndef DTD_KERNELS_CUDA_GEMM_PRODUCT_H
#define DTD_KERNELS_CUDA_GEMM_PRODUCT_H

#include "kernels/cuda/cuda.h"

#include <library_types.h>

/* The alignment that every buffer of a plan has. Higher alignments are treated as this one, because otherwise each
 * layer would have its own choices. No algorithm is known to require more than 16 bytes. */
#define GEMM_ALIGN_MOST 64

/* Computes the product without this epilogue. It may be called several times for timing; its outputs are then
 * discarded. */
typedef err_t gemm_apart_fn(struct kern_stream *s, const struct kern_gemm *g);

struct gemm_product {
    const struct kern_gemm *g;
    cudaDataType_t type, c_type; /* type of a, b, bias and aux; type of c */
    uint32_t epilogue;           /* cublasLtEpilogue_t */
    void *vector, *aux;          /* arguments of the epilogue; NULL: not used */
    size_t vector_bytes;  /* if the vector is in the stream's scratch memory: its size. gemm_product then sets `vector`,
                             valid as long as scratch memory */
    bool add;             /* the product adds to c */
    gemm_apart_fn *apart; /* NULL: there is no separate form */
};

/* Queues the product. ERR_UNSUPPORTED, recorded nowhere: cuBLASLt is not used in this form. */
NODISCARD err_t gemm_product(struct kern_stream *s, struct gemm_product *p);

/* The alignment of p in bytes, a power of two up to GEMM_ALIGN_MOST; 0 for NULL. */
uint32_t gemm_alignment(const void *p);
/* Records `err` as the stream's failure, with a sentence that names the product and `cause`; returns `err`. */
err_t gemm_failed(struct kern_stream *s, const struct kern_gemm *g, err_t err, const char *cause, const char *call,
                  const char *file, int line);

#endif
