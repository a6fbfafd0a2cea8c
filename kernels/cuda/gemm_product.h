/* One product by cuBLASLt with one epilogue, and which algorithm does it.
 *
 * The choice is made when a key first comes up and kept in the device's cache. Without an algorithm file it is the
 * first that cuBLASLt proposes. With one it is what the file says; what is not in it is timed here, on the caller's
 * stream and with its operands, and added to the file. See docs/internals/kernels.md, "Which algorithm a product uses". */
#ifndef DTD_KERNELS_CUDA_GEMM_PRODUCT_H
#define DTD_KERNELS_CUDA_GEMM_PRODUCT_H

#include "kernels/cuda/cuda.h"

#include <library_types.h>

/* The alignment that every buffer of a plan has. Where one happens to be aligned better, the product is the same to us:
 * else each layer would have choices of its own. Algorithms are not known to ask for more than 16 bytes. */
#define GEMM_ALIGN_MOST 64

/* What a product does by other means than this epilogue; may be called several times to be timed, with outputs that are
 * given up then. */
typedef err_t gemm_apart_fn(struct kern_stream *s, const struct kern_gemm *g);

struct gemm_product {
    const struct kern_gemm *g;
    cudaDataType_t type, c_type; /* of a, b, bias and aux; of c */
    uint32_t epilogue;           /* cublasLtEpilogue_t */
    void *vector, *aux;          /* as the epilogue takes them; NULL: it takes none */
    size_t vector_bytes;         /* of a vector that is the stream's scratch: set by gemm_product, valid as that is */
    bool add;                    /* c is added to */
    gemm_apart_fn *apart;        /* NULL: this is the only way */
};

/* Queues the product. ERR_UNSUPPORTED, without a trace: cuBLASLt is not to do it in this form. */
NODISCARD err_t gemm_product(struct kern_stream *s, struct gemm_product *p);

/* Bytes, a power of two up to GEMM_ALIGN_MOST; 0 for NULL. */
uint32_t gemm_alignment(const void *p);
/* `err` with a sentence that names the product and `cause`; the stream's failure. */
err_t gemm_failed(struct kern_stream *s, const struct kern_gemm *g, err_t err, const char *cause, const char *call,
                  const char *file, int line);

#endif
