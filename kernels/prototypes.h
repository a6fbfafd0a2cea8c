/* The functions of a backend, declared once for every table. The including file defines KERN_FN(name)
 * (kern_ref_f32_gemm, kern_cpu_avx2_gemm, ...). kernels/kernels.h specifies the functions. There is no include guard: a
 * file is included once per compiled variant. */
#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

extern const struct kern_ops KERN_FN(ops);

NODISCARD err_t KERN_FN(gemm)(struct kern_stream *s, const struct kern_gemm *g);
void KERN_FN(bias_grad)(struct kern_stream *s, int64_t t, int64_t n, const void *dy, void *db);
void KERN_FN(embed)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, int64_t lo, int64_t hi,
                    const int32_t *ids, const void *table, const void *pos, void *y);
void KERN_FN(embed_grad)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, int64_t lo, int64_t hi,
                         const int32_t *ids, const void *dy, void *d_table, void *d_pos);
void KERN_FN(rmsnorm)(struct kern_stream *s, int64_t t, int64_t d, double eps, bool plus_one, const void *x,
                      const void *res, const void *w, void *r, void *y, void *rstd);
void KERN_FN(rmsnorm_grad)(struct kern_stream *s, int64_t t, int64_t d, bool plus_one, const void *x, const void *w,
                           const void *rstd, const void *dy, const void *d_res, void *dx, void *dw);
void KERN_FN(row_dots)(struct kern_stream *s, int64_t t, int64_t d, bool plus_one, const void *a, const void *b,
                       const void *w, double *sums);
void KERN_FN(rmsnorm_part)(struct kern_stream *s, int64_t t, int64_t d, int64_t whole, double eps, bool plus_one,
                           const void *x, const void *w, const double *sums, void *y, void *rstd);
void KERN_FN(rmsnorm_part_grad)(struct kern_stream *s, int64_t t, int64_t d, int64_t whole, bool plus_one,
                                const void *x, const void *w, const void *rstd, const double *sums, const void *dy,
                                void *dx, void *dw);
void KERN_FN(layernorm)(struct kern_stream *s, int64_t t, int64_t d, double eps, const void *x, const void *res,
                        const void *w, const void *b, void *r, void *y, void *mean, void *rstd);
void KERN_FN(layernorm_grad)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *w,
                             const void *mean, const void *rstd, const void *dy, const void *d_res, void *dx, void *dw,
                             void *db);
void KERN_FN(rope)(struct kern_stream *s, int64_t t, int64_t seq, int64_t pos0, int64_t heads, int64_t head_dim,
                   int64_t stride, const struct kern_rope *rope, bool inverse, void *x);
void KERN_FN(positions)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, const int32_t *rows, const void *x,
                        void *y);
NODISCARD err_t KERN_FN(attention)(struct kern_stream *s, const struct kern_attention *a);
NODISCARD err_t KERN_FN(attention_grad)(struct kern_stream *s, const struct kern_attention_grad *a);
void KERN_FN(attention_join)(struct kern_stream *s, const struct kern_attention_join *a);
NODISCARD err_t KERN_FN(attention_cached)(struct kern_stream *s, const struct kern_attention_cached *a);
void KERN_FN(swiglu)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y);
void KERN_FN(swiglu_grad)(struct kern_stream *s, int64_t n, const void *a, const void *b, const void *dy, void *da,
                          void *db);
void KERN_FN(gelu)(struct kern_stream *s, int64_t n, const void *x, void *y);
void KERN_FN(gelu_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx);
void KERN_FN(geglu)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y);
void KERN_FN(geglu_grad)(struct kern_stream *s, int64_t n, const void *a, const void *b, const void *dy, void *da,
                         void *db);
void KERN_FN(gelu_erf)(struct kern_stream *s, int64_t n, const void *x, void *y);
void KERN_FN(gelu_erf_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx);
void KERN_FN(scale)(struct kern_stream *s, int64_t n, double c, const void *x, void *y);
void KERN_FN(cap)(struct kern_stream *s, int64_t n, double c, const void *x, void *y);
void KERN_FN(cap_grad)(struct kern_stream *s, int64_t n, double c, const void *x, const void *dy, void *dx);
void KERN_FN(relu)(struct kern_stream *s, int64_t n, const void *x, void *y);
void KERN_FN(relu_grad)(struct kern_stream *s, int64_t n, const void *x, const void *dy, void *dx);
void KERN_FN(add)(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y);
void KERN_FN(dropout)(struct kern_stream *s, const struct kern_dropout *d);
void KERN_FN(copy_cols)(struct kern_stream *s, int64_t rows, int64_t n, const void *x, int64_t ldx, void *y,
                        int64_t ldy);
void KERN_FN(cross_entropy)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, const int32_t *targets, bool grad,
                            double scale, void *logits, double *loss_sum);
void KERN_FN(loss_part)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, int64_t lo, const int32_t *targets,
                        const void *logits, double *stats);
void KERN_FN(loss_join)(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, int64_t lo, int64_t parts,
                        const int32_t *targets, const double *stats, bool grad, double scale, void *logits,
                        double *loss_sum);
void KERN_FN(adamw)(struct kern_stream *s, const struct kern_adamw *a);
void KERN_FN(sumsq_blocks)(struct kern_stream *s, int64_t n, int64_t block, const void *x, double *blocks);
void KERN_FN(clip)(struct kern_stream *s, const struct kern_clip *c);
void KERN_FN(cast)(struct kern_stream *s, int64_t n, const void *x, void *y);
void KERN_FN(normal)(struct kern_stream *s, const struct kern_normal *k);
void KERN_FN(route)(struct kern_stream *s, const struct kern_route *r);
void KERN_FN(route_grad)(struct kern_stream *s, const struct kern_route_grad *r);
void KERN_FN(balance)(struct kern_stream *s, const struct kern_balance *b);
void KERN_FN(keep)(struct kern_stream *s, int64_t n, const double *from, const double *factor, double *to);
void KERN_FN(aux_loss)(struct kern_stream *s, int64_t sets, int64_t experts, const double *sums, double scale,
                       double *total);
void KERN_FN(choices)(struct kern_stream *s, const struct kern_drop *d);
NODISCARD err_t KERN_FN(drop)(struct kern_stream *s, const struct kern_drop *d);
void KERN_FN(route_sort)(struct kern_stream *s, int64_t t, int64_t k, int64_t experts, const int32_t *ids,
                         int32_t *place, int32_t *source, int32_t *offsets);
void KERN_FN(arrive)(struct kern_stream *s, const struct kern_arrive *a);
void KERN_FN(rows_gather)(struct kern_stream *s, int64_t rows, int64_t k, int64_t d, const int32_t *source,
                          const void *weights, const void *x, void *y);
void KERN_FN(rows_sum)(struct kern_stream *s, int64_t t, int64_t k, int64_t d, const int32_t *place,
                       const void *weights, const void *x, void *y);
void KERN_FN(rows_sum_grad)(struct kern_stream *s, int64_t t, int64_t k, int64_t d, const int32_t *place,
                            const void *weights, const void *x, const void *dy, void *dx, void *d_weights);
NODISCARD err_t KERN_FN(grouped_gemm)(struct kern_stream *s, const struct kern_grouped *g);
void KERN_FN(gate)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *z, void *y);
void KERN_FN(gate_grad)(struct kern_stream *s, int64_t t, int64_t d, const void *x, const void *z, const void *dy,
                        void *dx, void *dz);

#ifdef __cplusplus
}
#endif

/* The rows of a table, in the order of struct kern_ops; the backend supplies `name` and the types. */
#define KERN_TABLE(backend, type, wide_type)                                                                           \
    {                                                                                                                  \
        .name = (backend), .dtype = (type), .wide = (wide_type), .gemm = KERN_FN(gemm),                                \
        .bias_grad = KERN_FN(bias_grad), .embed = KERN_FN(embed), .embed_grad = KERN_FN(embed_grad),                   \
        .rmsnorm = KERN_FN(rmsnorm), .rmsnorm_grad = KERN_FN(rmsnorm_grad), .row_dots = KERN_FN(row_dots),             \
        .rmsnorm_part = KERN_FN(rmsnorm_part), .rmsnorm_part_grad = KERN_FN(rmsnorm_part_grad),                        \
        .layernorm = KERN_FN(layernorm), .layernorm_grad = KERN_FN(layernorm_grad), .rope = KERN_FN(rope),             \
        .positions = KERN_FN(positions), .attention = KERN_FN(attention), .attention_grad = KERN_FN(attention_grad),   \
        .attention_join = KERN_FN(attention_join), .attention_cached = KERN_FN(attention_cached),                      \
        .swiglu = KERN_FN(swiglu), .swiglu_grad = KERN_FN(swiglu_grad), .gelu = KERN_FN(gelu),                         \
        .gelu_grad = KERN_FN(gelu_grad), .relu = KERN_FN(relu), .geglu = KERN_FN(geglu),                               \
        .geglu_grad = KERN_FN(geglu_grad), .gelu_erf = KERN_FN(gelu_erf), .gelu_erf_grad = KERN_FN(gelu_erf_grad),     \
        .scale = KERN_FN(scale), .cap = KERN_FN(cap), .cap_grad = KERN_FN(cap_grad), .relu_grad = KERN_FN(relu_grad),  \
        .add = KERN_FN(add), .dropout = KERN_FN(dropout), .copy_cols = KERN_FN(copy_cols),                             \
        .cross_entropy = KERN_FN(cross_entropy), .loss_part = KERN_FN(loss_part), .loss_join = KERN_FN(loss_join),     \
        .adamw = KERN_FN(adamw), .sumsq_blocks = KERN_FN(sumsq_blocks), .clip = KERN_FN(clip), .cast = KERN_FN(cast),  \
        .normal = KERN_FN(normal), .route = KERN_FN(route), .route_grad = KERN_FN(route_grad),                         \
        .route_sort = KERN_FN(route_sort), .arrive = KERN_FN(arrive), .rows_gather = KERN_FN(rows_gather),             \
        .rows_sum = KERN_FN(rows_sum), .rows_sum_grad = KERN_FN(rows_sum_grad), .grouped_gemm = KERN_FN(grouped_gemm), \
        .gate = KERN_FN(gate), .gate_grad = KERN_FN(gate_grad), .balance = KERN_FN(balance), .keep = KERN_FN(keep),    \
        .aux_loss = KERN_FN(aux_loss), .choices = KERN_FN(choices), .drop = KERN_FN(drop),                             \
    }
