/* Why a closed form is good enough to rank layouts: a step is long sums of few kinds of operations, and layouts differ
 * in how often each kind occurs, over which links its bytes go, and how long ranks wait. Effects that change no ranking
 * (clock rates, allocators) are left to the constants of the machine file. */
#include "common/plan/search/step_time.h"

#include <assert.h>
#include <math.h>
#include <string.h>

int64_t plan_layout_workers(const struct plan_layout *l)
{
    return l->dp * l->fsdp * l->tp * l->cp * l->pp;
}

double plan_layout_micros(const struct plan_shape *s, const struct plan_layout *l)
{
    return ceil(s->global_batch / (double)(l->micro_batch * l->dp * l->fsdp));
}

/* ---- the model's parameters ---- */

static double attention_params(const struct plan_shape *s)
{
    return s->dim * s->head_dim * (2 * s->heads + 2 * s->kv_heads);
}

static double expert_params(const struct plan_shape *s)
{
    return s->experts * s->ffn_matrices * s->dim * s->expert_ffn;
}

static double dense_ffn_params(const struct plan_shape *s)
{
    return s->ffn_matrices * s->dim * s->ffn;
}

static double mixture_params(const struct plan_shape *s) /* without the experts themselves */
{
    return s->ffn_matrices * s->dim * s->shared_ffn + s->dim * s->experts;
}

double plan_shape_params(const struct plan_shape *s, double *ret_experts)
{
    double dense = s->layers - s->expert_layers, experts = s->expert_layers * expert_params(s);
    double all = s->layers * (attention_params(s) + 2 * s->dim) + dense * dense_ffn_params(s) +
                 s->expert_layers * mixture_params(s) + experts + (s->tied ? 1 : 2) * s->vocab * s->dim + s->dim;
    if (ret_experts)
        *ret_experts = experts;
    return all;
}

/* ---- operations ---- */

struct bench { /* the device, in operations and bytes per second */
    double flops, bytes, launch, call, units;
};

static struct bench bench_of(const struct machine *m, double type_bytes)
{
    double peak = type_bytes == 2   ? m->device.bf16_tflops
                  : type_bytes == 8 ? m->device.f64_tflops
                                    : m->device.f32_tflops;
    return (struct bench){peak * 1e12 * m->device.product, m->device.bandwidth_gb * 1e9 * m->device.copy,
                          m->device.launch_us * 1e-6, m->device.call_us * 1e-6, (double)m->device.units};
}

/* Seconds on the device, and the number of operations that the worker issues. */
struct work {
    double seconds, calls, flops;
};

static struct work work_sum(struct work a, struct work b, double times)
{
    return (struct work){a.seconds + times * b.seconds, a.calls + times * b.calls, a.flops + times * b.flops};
}

/* Units take whole tiles, all of them at once in waves; the last wave may leave units idle. A smaller tile leaves fewer
 * idle and reads its operands more often, so libraries try several (their rates are CUTLASS's profiles on an A100, as
 * parts of that of the largest). */
static double waves_seconds(const struct bench *b, double m, double n, double k, double batch)
{
    static const struct {
        double m, n, rate;
    } tiles[] = {{256, 128, 1}, {128, 256, 1}, {128, 128, 0.93}, {128, 64, 0.77}, {64, 128, 0.77}, {64, 64, 0.6}};
    double best = INFINITY;
    for (size_t i = 0; i < sizeof(tiles) / sizeof(tiles[0]); i++) {
        double waves = ceil(ceil(m / tiles[i].m) * ceil(n / tiles[i].n) * batch / b->units);
        double t = waves * 2 * tiles[i].m * tiles[i].n * k / (b->flops / b->units * tiles[i].rate);
        best = t < best ? t : best;
    }
    return best;
}

/* A unit does not compute while it writes the result of a tile. Of the 183 single products of SimuMax's table for an
 * A100 (1,024 to 128,000 rows and columns, K from 512 to 102,400) the mean error is 4.0 % with this and 5.2 % without.
 */
static struct work product(const struct bench *b, double type, double m, double n, double k, double batch)
{
    double flops = 2 * m * n * k * batch, moved = type * batch * (m * k + k * n + m * n);
    double written = type * batch * m * n / b->bytes;
    double compute = b->units > 1 ? waves_seconds(b, m, n, k, batch) + written : flops / b->flops;
    return (struct work){fmax(fmax(compute, moved / b->bytes), b->launch), 1, flops};
}

static struct work pass(const struct bench *b, double bytes)
{
    return (struct work){fmax(bytes / b->bytes, b->launch), 1, 0};
}

/* Forward and backward of y = x w: y [rows, out], and the gradients of x and w. */
static void linear(const struct bench *b, double type, double rows, double out, double in, struct work *fwd,
                   struct work *bwd)
{
    *fwd = work_sum(*fwd, product(b, type, rows, out, in, 1), 1);
    *bwd = work_sum(*bwd, product(b, type, rows, in, out, 1), 1);
    *bwd = work_sum(*bwd, product(b, type, in, out, rows, 1), 1);
}

/* Pairs of a query and a key that are computed, of one head and sample. */
static double pairs_of(const struct plan_shape *s, double seq)
{
    if (!s->fused_attention)
        return seq * seq;
    return s->window > 0 && s->window < seq ? s->window * seq - s->window * s->window / 2 : seq * seq / 2;
}

/* Attention proper. Fused, it reaches three quarters of a product's rate and reads its operands once; else two batches
 * of products with the scores in memory between them: written, masked and normalized, dropped out, read. */
static void attention(const struct plan_shape *s, const struct plan_layout *l, const struct bench *b, struct work *fwd,
                      struct work *bwd)
{
    double heads = s->heads / (double)l->tp, samples = (double)l->micro_batch, t = s->type_bytes;
    double rows = samples * s->seq / (double)l->cp;
    if (s->fused_attention) {
        double flops = 4 * pairs_of(s, s->seq) * s->head_dim * heads * samples / (double)l->cp;
        double moved = t * rows * s->head_dim * (2 * heads + 2 * s->kv_heads / (double)l->tp);
        struct work w = {fmax(flops / (0.75 * b->flops), moved / b->bytes), 1, flops};
        *fwd = work_sum(*fwd, w, 1);
        *bwd = work_sum(*bwd, w, 2.5);
        return;
    }
    double scores = samples * heads * s->seq * s->seq, batch = samples * heads;
    struct work qk = product(b, t, s->seq, s->seq, s->head_dim, batch);
    struct work pv = product(b, t, s->seq, s->head_dim, s->seq, batch);
    *fwd = work_sum(work_sum(*fwd, qk, 1), pv, 1);
    *bwd = work_sum(work_sum(*bwd, qk, 2), pv, 2);
    *fwd = work_sum(*fwd, pass(b, 2 * t * scores), 1);
    *bwd = work_sum(*bwd, pass(b, 3 * t * scores), 1);
    if (s->dropout) {
        *fwd = work_sum(*fwd, pass(b, (2 * t + 1) * scores), 1);
        *bwd = work_sum(*bwd, pass(b, (2 * t + 1) * scores), 1);
    }
}

static void feed_forward(const struct plan_shape *s, const struct bench *b, double rows, double width, struct work *fwd,
                         struct work *bwd)
{
    double up = s->ffn_matrices - 1, t = s->type_bytes;
    linear(b, t, rows, up * width, s->dim, fwd, bwd);
    linear(b, t, rows, s->dim, width, fwd, bwd);
    *fwd = work_sum(*fwd, pass(b, t * rows * width * (up + 1)), 1);
    *bwd = work_sum(*bwd, pass(b, t * rows * width * (2 * up + 1)), 1);
}

/* Norms, residual additions, rotations: passes over the residual stream. With sequence parallelism each rank has its
 * part of the rows. */
static void streams(const struct plan_shape *s, const struct plan_layout *l, const struct bench *b, double rows,
                    struct work *fwd, struct work *bwd)
{
    double stream = s->type_bytes * rows * s->dim / (l->sp ? (double)l->tp : 1);
    double heads = s->type_bytes * rows * s->head_dim * (s->heads + s->kv_heads) / (double)l->tp;
    *fwd = work_sum(*fwd, pass(b, 2 * stream), 2);
    *bwd = work_sum(*bwd, pass(b, 4 * stream), 2);
    *fwd = work_sum(*fwd, pass(b, (s->dropout ? 3.5 : 3) * stream), 2);
    *bwd = work_sum(*bwd, pass(b, (s->dropout ? 2.5 : 2) * stream), 2);
    *fwd = work_sum(*fwd, pass(b, 2 * heads), 1);
    *bwd = work_sum(*bwd, pass(b, 2 * heads), 1);
    if (!s->fused_attention) { /* heads become the outer dimension, and back */
        *fwd = work_sum(*fwd, pass(b, 2 * heads), 2);
        *bwd = work_sum(*bwd, pass(b, 2 * heads), 2);
    }
}

/* The expected largest of 2^i standard normal numbers (order statistics, integrated numerically). */
static const double largest_normal[] = {0,      0.5642, 1.0294, 1.4236, 1.7660, 2.0697, 2.3437,
                                        2.5946, 2.8269, 3.0439, 3.2482, 3.4418, 3.6261, 3.8023,
                                        3.9714, 4.1341, 4.2911, 4.4430, 4.5903, 4.7332, 4.8723};

double plan_slowest(double devices)
{
    const int last = (int)(sizeof(largest_normal) / sizeof(largest_normal[0])) - 1;
    double at = log2(fmax(devices, 1));
    int low = at < last - 1 ? (int)at : last - 1;
    return largest_normal[low] + (at - low) * (largest_normal[low + 1] - largest_normal[low]);
}

/* Tokens of the rank of ep that gets most, over the mean: with a router that spreads them at random, the number of each
 * rank is binomial, and all ranks wait for the largest one. Routers of real models are less even. */
static double expert_load(const struct plan_shape *s, const struct plan_layout *l)
{
    const double ep = (double)l->ep,
                 mean = (double)l->micro_batch * s->seq / (double)(l->cp * l->tp) * s->experts_per_token;
    return s->even_experts || l->ep < 2 ? 1 : 1 + plan_slowest(ep) * sqrt((1 - 1 / ep) / mean);
}

/* One layer, of which the part `expert_part` has experts. `again`: what recomputation repeats. */
struct layer_work {
    struct work fwd, bwd, again;
};

static struct layer_work layer_of(const struct plan_shape *s, const struct plan_layout *l, const struct bench *b)
{
    struct layer_work w = {0};
    double tp = (double)l->tp, rows = (double)l->micro_batch * s->seq / (double)l->cp;
    double mixed = s->layers > 0 ? s->expert_layers / s->layers : 0;
    struct work attend = {0}, none = {0}, dense[2] = {{0}}, mixture[2] = {{0}}, pointwise = {0};
    linear(b, s->type_bytes, rows, s->head_dim * (s->heads + 2 * s->kv_heads) / tp, s->dim, &w.fwd, &w.bwd);
    linear(b, s->type_bytes, rows, s->dim, s->head_dim * s->heads / tp, &w.fwd, &w.bwd);
    attention(s, l, b, &attend, &w.bwd);
    w.fwd = work_sum(w.fwd, attend, 1);
    streams(s, l, b, rows, &pointwise, &w.bwd);
    w.fwd = work_sum(w.fwd, pointwise, 1);
    if (mixed < 1)
        feed_forward(s, b, rows, s->ffn / tp, &dense[0], &dense[1]);
    if (mixed > 0) { /* each expert multiplies its own rows: as many products as a rank has experts */
        double here = s->experts / (double)l->ep;
        double each = rows / tp * s->experts_per_token * (double)l->ep / s->experts;
        struct work one[2] = {{0}};
        feed_forward(s, b, each, s->expert_ffn, &one[0], &one[1]);
        mixture[0] = work_sum(mixture[0], one[0], here * expert_load(s, l));
        mixture[1] = work_sum(mixture[1], one[1], here * expert_load(s, l));
        mixture[0].calls = one[0].calls;
        mixture[1].calls = one[1].calls;
        if (s->shared_ffn > 0)
            feed_forward(s, b, rows, s->shared_ffn / tp, &mixture[0], &mixture[1]);
        mixture[0] = work_sum(mixture[0], pass(b, 4 * s->type_bytes * rows / tp * s->dim * s->experts_per_token), 1);
        mixture[1] = work_sum(mixture[1], pass(b, 4 * s->type_bytes * rows / tp * s->dim * s->experts_per_token), 1);
    }
    struct work ffn = work_sum(work_sum(none, dense[0], 1 - mixed), mixture[0], mixed);
    w.fwd = work_sum(w.fwd, ffn, 1);
    w.bwd = work_sum(work_sum(w.bwd, dense[1], 1 - mixed), mixture[1], mixed);
    w.again = l->recompute == RECOMPUTE_FULL        ? w.fwd
              : l->recompute == RECOMPUTE_ATTENTION ? attend
              : l->recompute == RECOMPUTE_POINTWISE ? pointwise
              : l->recompute == RECOMPUTE_EXPERTS   ? work_sum(none, mixture[0], mixed)
                                                    : none;
    return w;
}

/* Bytes of memory that the loss and its gradient move for each logit: two passes forward, two backward. */
#define LOSS_BYTES 16

static struct layer_work head_of(const struct plan_shape *s, const struct plan_layout *l, const struct bench *b)
{
    struct layer_work w = {0};
    double rows = (double)l->micro_batch * s->seq / (double)l->cp, width = s->vocab / (double)l->tp;
    double loss = s->loss_bytes > 0 ? s->loss_bytes : LOSS_BYTES;
    linear(b, s->type_bytes, rows, width, s->dim, &w.fwd, &w.bwd);
    w.fwd = work_sum(w.fwd, pass(b, loss / 2 * rows * width), 1);
    w.bwd = work_sum(w.bwd, pass(b, loss / 2 * rows * width), 1);
    return w;
}

/* A worker that issues operations more slowly than the device computes them makes the device wait. */
static double work_seconds(const struct bench *b, struct work w)
{
    return fmax(w.seconds, w.calls * b->call);
}

/* ---- communication ---- */

static int64_t at_least(int64_t value, int64_t low)
{
    return value > low ? value : low;
}

/* Every rank of a node sends to the next stage at the same time. Where a stage's border is also that of a pod, its
 * nodes share the switches between pods; `ranks` are those of the job. */
static struct plan_seconds message_parts(const struct machine *m, double bytes, int64_t distance, int64_t ranks)
{
    if (distance < m->device.per_node)
        return (struct plan_seconds){bytes / (m->link.bandwidth_gb * 1e9) + m->link.latency_us * 0.25e-6, 0};
    double rate = m->network.bandwidth_gb * 1e9 * m->network.share / (double)m->device.per_node;
    const double pod = (double)(m->network.pod * m->device.per_node);
    if (pod > 0 && (double)ranks > pod)
        rate /= fmax(1, m->network.oversubscription * fmin(1, (double)distance / pod));
    return (struct plan_seconds){0, bytes / rate + m->network.latency_us * 1e-6};
}

static double message_time(const struct machine *m, double bytes, int64_t distance)
{
    struct plan_seconds t = message_parts(m, bytes, distance, 0);
    return t.link + t.network;
}

/* Calculon gives collectives over links 15 % of a GPU and those over a network 2 %. Galvatron measures a factor of 1.1
 * to 1.3 for all (1.126 in the profile that it ships). */
#define LINK_COST 0.15
#define NETWORK_COST 0.02

double plan_overlap_cost(struct plan_seconds t)
{
    const double all = t.link + t.network;
    return all > 0 ? (LINK_COST * t.link + NETWORK_COST * t.network) / all : 0;
}

/* What remains of communication that may run beside `room` seconds of computation. Flows take turns on a link and on an
 * adapter: `busy` is the part of the computation beside which others run already, and grows by this one's. */
static double exposed(struct plan_seconds comm, double room, double *busy)
{
    const double all = comm.link + comm.network, hidden = fmin(all, room * (1 - *busy));
    if (room > 0)
        *busy += hidden / room;
    return all - hidden + hidden * plan_overlap_cost(comm);
}

static struct plan_seconds seconds_sum(struct plan_seconds a, struct plan_seconds b, double times)
{
    return (struct plan_seconds){a.link + times * b.link, a.network + times * b.network};
}

/* Collectives of a layer and microbatch, in seconds. */
struct layer_comm {
    double tp, cp;
    struct plan_seconds ep;
};

/* An all-to-all of the tokens of one microbatch, each of which goes to experts_per_token experts. With `once_per_node`
 * a token crosses the network once for each other node that has one of its experts: of k nodes, 1 - (1 - 1/k)^experts
 * of them in the mean. */
static struct plan_seconds expert_exchange(const struct plan_shape *s, const struct plan_layout *l,
                                           const struct machine *m, const struct plan_overlap *overlap)
{
    const double rows = (double)l->micro_batch * s->seq / (double)(l->cp * l->tp);
    const double nodes = ceil((double)l->ep / (double)m->device.per_node), each = s->experts_per_token;
    struct plan_seconds t =
        plan_collective_parts(m, PLAN_ALL_TO_ALL, s->type_bytes * rows * s->dim * each * expert_load(s, l), l->ep, 1);
    if (overlap->once_per_node && nodes > 1)
        t.network *= (1 - pow(1 - 1 / nodes, each)) * nodes / each;
    return t;
}

/* Forward and backward have two all-reduces each over tp, or with sequence parallelism a gather and a reduce-scatter in
 * the place of each; full recomputation repeats the forward ones, all but the last. Keys and values travel around the
 * ring of cp while attention computes. */
static struct layer_comm layer_comm(const struct plan_shape *s, const struct plan_layout *l, const struct machine *m,
                                    const struct plan_overlap *overlap, double attention_s)
{
    double rows = (double)l->micro_batch * s->seq / (double)l->cp, stream = s->type_bytes * rows * s->dim;
    double passes = l->recompute == RECOMPUTE_FULL ? 3 : 2;
    double one = l->sp ? 2 * plan_collective_time(m, PLAN_GATHER, stream, l->tp, 1)
                       : plan_collective_time(m, PLAN_REDUCE, stream, l->tp, 1);
    struct layer_comm ret = {.tp = 2 * passes * one};
    if (l->cp > 1) {
        double kv = 2 * s->type_bytes * rows * s->head_dim * s->kv_heads / (double)l->tp;
        double ring = (double)(l->cp - 1) * message_time(m, kv, l->tp);
        double hidden = m->device.one_thread ? 0 : attention_s;
        ret.cp = (passes - 1) * fmax(0, ring - hidden) + fmax(0, 2 * ring - 2.5 * hidden);
    }
    if (l->ep > 1 && s->layers > 0)
        ret.ep = seconds_sum(ret.ep, expert_exchange(s, l, m, overlap), 2 * passes * s->expert_layers / s->layers);
    return ret;
}

/* ---- the step ---- */

/* The layers of a pipeline's stages. The compiler makes the most expensive stage as cheap as possible and fills stages
 * from the front (common/plan/sharding.c). Products count, attention does not. */
static double head_layers(const struct plan_shape *s)
{
    double mixed = s->layers > 0 ? s->expert_layers / s->layers : 0;
    double ffn = (1 - mixed) * s->ffn + mixed * (s->experts_per_token * s->expert_ffn + s->shared_ffn);
    double layer = attention_params(s) + s->ffn_matrices * s->dim * ffn;
    return s->vocab * s->dim / layer;
}

static double stages_of(const struct plan_layout *l)
{
    return (double)(l->pp * at_least(l->chunks, 1));
}

/* The embedding costs a little in the first stage: where the others can be as full, the first one has a layer less. */
#define EMBEDDING_LAYERS 1e-6

/* The cost of the most expensive stage, in layers. */
static double most_layers(const struct plan_shape *s, double stages)
{
    const double head = head_layers(s);
    double most = INFINITY;
    if (s->even_stages || stages < 2)
        return ceil(s->layers / stages) + EMBEDDING_LAYERS;
    for (int64_t i = 1; i <= (int64_t)(s->layers - (stages - 1)); i++) {
        const double last = (double)i;
        if (last + head >= most) /* later ones only cost more */
            break;
        double rest = ceil((s->layers - last) / (stages - 1));
        bool all_full = rest * (stages - 1) == s->layers - last;
        most = fmin(most, fmax(rest + (all_full ? EMBEDDING_LAYERS : 0), last + head));
    }
    return most;
}

/* The layers of stage `at`, from 0: stages before it have taken as many as they may, and each behind it gets one. */
static double layers_of_stage(const struct plan_shape *s, double stages, double most, double at)
{
    double left = s->layers, take = 0;
    for (int64_t i = 0; i <= (int64_t)at; i++) {
        const double k = (double)i;
        left -= take;
        double room = floor(k == 0 ? most - EMBEDDING_LAYERS / 2 : most);
        take = k + 1 == stages ? left : fmin(room, left - (stages - 1 - k));
    }
    return take;
}

/* Two chunks that go back and forth: the first rank has the first and the last stage. */
static bool is_v(const struct plan_layout *l)
{
    return l->pp > 1 && (l->schedule == PIPE_ZB_V || l->schedule == PIPE_DUALPIPE_V);
}

/* Layers of a rank of the pipeline, all its chunks together. */
static double rank_layers(const struct plan_shape *s, const struct plan_layout *l, int64_t rank)
{
    const double stages = stages_of(l), most = most_layers(s, stages), pp = (double)l->pp;
    double sum = 0;
    for (double chunk = 0; chunk * pp < stages; chunk++) {
        bool back = is_v(l) && chunk == 1;
        sum += layers_of_stage(s, stages, most, chunk * pp + (back ? pp - 1 - (double)rank : (double)rank));
    }
    return sum;
}

/* The first stage behind the first one that has not `most` layers: as many stages take that many as leave one layer for
 * each behind them (layers_of_stage). */
static int64_t short_stage(const struct plan_shape *s, double stages, double most)
{
    const double full = floor(most), first = floor(most - EMBEDDING_LAYERS / 2);
    return full > 1 ? (int64_t)floor((s->layers - first - stages + 1) / (full - 1)) + 1 : 1;
}

/* The rank that has most layers. With chunks in one direction, the second rank may have one more than the first, and
 * later ones never do. In a V a rank adds a stage and its mirror image, so that the sum changes only beside the short
 * stage and its image. */
static int64_t fullest_rank(const struct plan_shape *s, const struct plan_layout *l)
{
    const double stages = stages_of(l);
    const int64_t at = is_v(l) ? short_stage(s, stages, most_layers(s, stages)) : 1, image = 2 * l->pp - 1 - at;
    const int64_t ranks[] = {1, at, at + 1, image, image + 1, l->pp - 1};
    int64_t best = 0;
    double layers = rank_layers(s, l, 0);
    for (size_t i = 0; i < (is_v(l) ? sizeof(ranks) / sizeof(ranks[0]) : 1); i++) {
        const double other = ranks[i] >= 0 && ranks[i] < l->pp ? rank_layers(s, l, ranks[i]) : 0;
        if (other > layers) {
            layers = other;
            best = ranks[i];
        }
    }
    return best;
}

/* Parameters of a rank of the pipeline; those of experts apart. */
struct stage {
    double layers, dense, experts;
};

static struct stage stage_of(const struct plan_shape *s, const struct plan_layout *l, int64_t rank)
{
    double experts, all = plan_shape_params(s, &experts), table = s->vocab * s->dim;
    double layers = rank_layers(s, l, rank), share = s->layers > 0 ? layers / s->layers : 0;
    double body = all - experts - (s->tied ? 1 : 2) * table, tables = 1;
    if (rank > 0 && rank + 1 < l->pp)
        tables = 0;
    else if (l->pp == 1 || (is_v(l) && rank == 0))
        tables = s->tied ? 1 : 2;
    return (struct stage){layers, (share * body + tables * table) / (double)l->tp, share * experts / (double)l->ep};
}

/* Seconds that each of the other pp - 1 stages adds as idle time to a step of many microbatches. GPipe and 1F1B: a
 * whole microbatch; interleaved: one chunk of it. Zero-bubble schedules fill it with the gradients of weights, about
 * half of the backward pass (Qi et al. 2023), for which they need microbatches: with fewer, a part of the time stays
 * idle. */
static double bubble_of(const struct plan_layout *l, double micros, double fwd, double bwd)
{
    const double whole = fwd + bwd, weights = bwd / 2, pp = (double)l->pp;
    switch (l->schedule) {
    case PIPE_INTERLEAVED:
        return whole / (double)at_least(l->chunks, 1);
    case PIPE_ZB_H1:
        return whole - (fwd + weights) * fmin(1, micros / pp);
    case PIPE_ZB_H2:
    case PIPE_ZB_V:
        return whole * (1 - fmin(1, micros / (2 * pp)));
    case PIPE_DUALPIPE_V:
        return whole - (whole - (fwd + bwd - 2 * weights) / 2) * fmin(1, micros / (2 * pp));
    default:
        return whole;
    }
}

/* A microbatch's activations from one stage to the next. */
static struct plan_seconds stage_message(const struct plan_shape *s, const struct plan_layout *l,
                                         const struct machine *m, const struct plan_overlap *overlap)
{
    const int64_t distance = plan_layout_workers(l) / l->pp;
    double bytes = s->type_bytes * (double)l->micro_batch * s->seq * s->dim / (double)l->cp;
    struct plan_seconds t = message_parts(m, bytes / (l->sp || overlap->cut_messages ? (double)l->tp : 1), distance,
                                          plan_layout_workers(l));
    if (!l->sp && overlap->cut_messages)
        t = seconds_sum(t, plan_collective_parts(m, PLAN_GATHER, bytes, l->tp, 1), 1);
    return t;
}

/* ZeRO 2 and 3 reduce the gradients of a layer at a time, in each microbatch: those of all layers in one of them. */
static struct plan_seconds gradient_scatters(const struct plan_shape *s, const struct plan_layout *l,
                                             const struct machine *m, double own, double layers)
{
    const struct plan_seconds none = {0, 0};
    if (l->zero < 2)
        return none;
    return seconds_sum(
        none, plan_collective_parts(m, PLAN_GATHER, s->grad_bytes * own / layers, l->fsdp, l->tp * l->cp), layers);
}

/* Reductions of gradients after the last microbatch. */
static struct plan_seconds gradient_sums(const struct plan_shape *s, const struct plan_layout *l,
                                         const struct machine *m, double own)
{
    const int64_t inner = l->tp * l->cp;
    const double grads = s->grad_bytes * own, shard = grads / (l->zero >= 1 ? (double)l->fsdp : 1);
    struct plan_seconds t = plan_collective_parts(m, PLAN_REDUCE, shard, l->dp, inner * l->fsdp);
    if (l->zero < 2)
        t = seconds_sum(t, plan_collective_parts(m, l->zero ? PLAN_GATHER : PLAN_REDUCE, grads, l->fsdp, inner), 1);
    t = seconds_sum(t, plan_collective_parts(m, PLAN_REDUCE, grads, l->cp, l->tp), 1);
    if (l->pp > 1 && s->tied)
        t = seconds_sum(t,
                        message_parts(m, 2 * s->grad_bytes * s->vocab * s->dim / (double)l->tp,
                                      plan_layout_workers(l) / l->pp * (l->pp - 1), plan_layout_workers(l)),
                        1);
    return t;
}

/* Gathers of all parameters: at the end of a step, with ZeRO 3 of a layer at a time. */
static struct plan_seconds parameter_gathers(const struct plan_shape *s, const struct plan_layout *l,
                                             const struct machine *m, double own, double layers)
{
    const double units = l->zero == 3 ? layers : 1;
    const struct plan_seconds none = {0, 0};
    if (!l->zero)
        return none;
    return seconds_sum(none, plan_collective_parts(m, PLAN_GATHER, s->type_bytes * own / units, l->fsdp, l->tp * l->cp),
                       units);
}

void plan_step_transfers(const struct plan_shape *s, const struct plan_layout *l, const struct machine *m,
                         const struct plan_overlap *overlap, struct plan_transfers *ret)
{
    const struct stage stage = stage_of(s, l, 0);
    const double own = stage.dense + stage.experts, layers = fmax(stage.layers, 1);
    *ret = (struct plan_transfers){.gathers = parameter_gathers(s, l, m, own, layers),
                                   .scatters = gradient_scatters(s, l, m, own, layers),
                                   .sums = gradient_sums(s, l, m, own)};
    if (l->pp > 1)
        ret->message = stage_message(s, l, m, overlap);
}

static void step_end(const struct plan_shape *s, const struct plan_layout *l, const struct machine *m,
                     const struct plan_overlap *overlap, double micros, double last_backward, double busy,
                     struct plan_time *t)
{
    const struct stage stage = stage_of(s, l, 0);
    const struct bench b = bench_of(m, s->type_bytes);
    const struct plan_seconds none = {0, 0};
    const double own = stage.dense + stage.experts, gathers = l->zero == 3 ? micros * (l->reshard ? 2 : 1) : 1;
    const double beside = overlap->gradients ? last_backward * (l->zero >= 2 ? micros : 1) : 0;
    struct plan_transfers all;
    plan_step_transfers(s, l, m, overlap, &all);
    t->params = exposed(seconds_sum(none, all.gathers, gathers), overlap->parameters ? t->compute : 0, &busy);
    t->grads = exposed(seconds_sum(all.sums, all.scatters, micros), beside, &busy);
    double kept = own / (l->zero >= 1 ? (double)l->fsdp : 1);
    double moved = s->update_bytes > 0 ? s->update_bytes : 2 * s->state_bytes + 2 * s->keep_bytes + s->grad_bytes;
    t->update = (kept * moved + (micros - 1) * own * s->accumulate_bytes) / b.bytes + b.launch;
}

static double full_layers(const struct plan_shape *s, const struct plan_layout *l)
{
    return rank_layers(s, l, fullest_rank(s, l));
}

/* What the slowest rank computes beyond `layers` layers of `layer` seconds: the rank with the head may take longer. */
static double head_extra(const struct plan_shape *s, const struct plan_layout *l, double head, double layer,
                         double layers)
{
    const int64_t rank = l->pp == 1 || is_v(l) ? 0 : l->pp - 1;
    return fmax(0, head + layer * (rank_layers(s, l, rank) - layers));
}

void plan_step_time(const struct plan_shape *s, const struct plan_layout *l, const struct machine *m,
                    const struct plan_overlap *overlap, struct plan_time *ret)
{
    assert(l->dp > 0 && l->fsdp > 0 && l->tp > 0 && l->cp > 0 && l->pp > 0 && l->ep > 0 && l->micro_batch > 0);
    const struct bench b = bench_of(m, s->type_bytes);
    const struct layer_work layer = layer_of(s, l, &b), head = head_of(s, l, &b);
    const double micros = plan_layout_micros(s, l), layers = full_layers(s, l);
    struct plan_time t = {0};
    struct work attend = {0}, ignored = {0};
    attention(s, l, &b, &attend, &ignored);
    const struct layer_comm comm = layer_comm(s, l, m, overlap, attend.seconds);
    const struct plan_seconds none = {0, 0};
    double busy = 0;
    double again = layers * work_seconds(&b, layer.again);
    double fwd = layers * work_seconds(&b, layer.fwd), bwd = layers * work_seconds(&b, layer.bwd);
    double head_s =
        head_extra(s, l, work_seconds(&b, head.fwd) + work_seconds(&b, head.bwd), (fwd + bwd + again) / layers, layers);
    t.compute = micros * (fwd + bwd + again + head_s);
    t.recompute = micros * again;
    t.tp = micros * layers * comm.tp;
    t.cp = micros * layers * comm.cp;
    t.ep = exposed(seconds_sum(none, comm.ep, micros * layers), overlap->exchanges ? t.compute : 0, &busy);
    if (l->pp > 1) {
        struct plan_seconds one = stage_message(s, l, m, overlap);
        double chunks = (double)at_least(l->chunks, 1);
        double collectives = layers * (comm.tp + comm.cp) + t.ep / micros;
        double idle = bubble_of(l, micros, fwd + collectives / 3, bwd + again + collectives * 2 / 3);
        t.bubble = (double)(l->pp - 1) * (idle + 2 * (one.link + one.network));
        t.pp = exposed(seconds_sum(none, one, 2 * micros * chunks), overlap->messages ? t.compute : 0, &busy);
    }
    step_end(s, l, m, overlap, micros, bwd + again + head_s, busy, &t);
    t.wait = m->noise.spread * plan_slowest((double)plan_layout_workers(l)) * (t.compute + t.bubble);
    t.seconds = t.compute + t.tp + t.cp + t.ep + t.pp + t.bubble + t.wait + t.params + t.grads + t.update;
    t.model_flops =
        micros / (double)l->pp * (s->layers * (layer.fwd.flops + layer.bwd.flops) + head.fwd.flops + head.bwd.flops);
    *ret = t;
}

void plan_stage_time(const struct plan_shape *s, const struct plan_layout *l, const struct machine *m, int at,
                     struct plan_stage *ret)
{
    const struct bench b = bench_of(m, s->type_bytes);
    const struct layer_work layer = layer_of(s, l, &b), head = head_of(s, l, &b);
    const double stages = stages_of(l);
    const bool has_head = at + 1 == (int)stages;
    *ret = (struct plan_stage){.layers = layers_of_stage(s, stages, most_layers(s, stages), at),
                               .forward = work_seconds(&b, layer.fwd),
                               .backward = work_seconds(&b, layer.bwd),
                               .again = work_seconds(&b, layer.again),
                               .head_forward = has_head ? work_seconds(&b, head.fwd) : 0,
                               .head_backward = has_head ? work_seconds(&b, head.bwd) : 0};
}

/* ---- memory ---- */

/* Bytes that a layer keeps of one microbatch until its backward pass. Without recomputation: the inputs of products and
 * what norms, attention and activations need (Korthikanti et al. 2022, for the kernels of this project). */
static double kept_of_layer(const struct plan_shape *s, const struct plan_layout *l)
{
    double rows = (double)l->micro_batch * s->seq / (double)l->cp, tp = (double)l->tp, t = s->type_bytes;
    double stream = rows * s->dim / (l->sp ? tp : 1), heads = rows * s->head_dim / tp;
    double mixed = s->layers > 0 ? s->expert_layers / s->layers : 0;
    if (l->recompute == RECOMPUTE_FULL)
        return t * stream;
    double up = s->ffn_matrices; /* results of the first products, and the activation */
    double wide = (1 - mixed) * rows * s->ffn * up / tp + mixed * rows * up * s->shared_ffn / tp;
    double routed = mixed * rows / tp * s->experts_per_token * (up * s->expert_ffn + 2 * s->dim);
    double attended = heads * (2 * s->heads + 2 * s->kv_heads);
    double scores =
        s->fused_attention ? 0 : (double)l->micro_batch * s->heads / tp * s->seq * s->seq * (s->dropout ? 2.5 : 1);
    if (l->recompute == RECOMPUTE_EXPERTS)
        routed = 0;
    if (l->recompute == RECOMPUTE_ATTENTION) {
        if (s->fused_attention) /* else the result of attention stays as the input of the next product (Megatron) */
            attended -= heads * s->heads;
        scores = 0;
    }
    if (l->recompute == RECOMPUTE_POINTWISE)
        return t * (2 * stream + wide * (up - 1) / up + routed + attended + scores);
    return t * (4 * stream + wide + routed + attended + scores) + (s->dropout ? 2 * stream : 0);
}

/* Whether the backward pass is in halves, of which the second may come much later and needs what a layer keeps. */
static bool is_split(const struct plan_layout *l)
{
    return l->pp > 1 && (l->schedule == PIPE_ZB_H1 || l->schedule == PIPE_ZB_H2 || is_v(l));
}

/* Microbatches that a rank keeps at once (those of schedules with chunks and halves: counted in programs that
 * the compiler made, of 2 to 16 stages). */
static double kept_micros(const struct plan_shape *s, const struct plan_layout *l, int64_t rank)
{
    const double micros = plan_layout_micros(s, l), pp = (double)l->pp;
    if (l->pp == 1)
        return 1;
    switch (l->schedule) {
    case PIPE_GPIPE:
        return micros;
    case PIPE_INTERLEAVED: /* (chunks + 1) pp chunks at once; Megatron has one less */
        return fmin(pp + pp / (double)at_least(l->chunks, 1), micros);
    case PIPE_ZB_H1:
        return fmin(1.03 * pp, micros);
    case PIPE_ZB_H2:
        return fmin(2 * pp - 0.5, micros);
    case PIPE_ZB_V:
    case PIPE_DUALPIPE_V:
        return fmin(1.07 * pp + 0.4, micros);
    default:
        return fmin(pp - (double)rank, micros);
    }
}

/* Logits and their gradient share a buffer of the rank that has the head: the first one, of those that may need most.
 */
static double logits_bytes(const struct plan_shape *s, const struct plan_layout *l, int64_t rank)
{
    const double rows = (double)l->micro_batch * s->seq / (double)l->cp,
                 one = s->type_bytes * rows * s->vocab / (double)l->tp;
    return l->pp == 1 ? one : is_v(l) && rank == 0 ? one * kept_micros(s, l, 0) : 0;
}

static double max_of(double a, double b)
{
    return a > b ? a : b;
}

static void model_bytes(const struct plan_shape *s, const struct plan_layout *l, const struct stage *stage,
                        struct plan_bytes *b)
{
    const double own = stage->dense + stage->experts, fsdp = (double)l->fsdp, table = s->vocab * s->dim / (double)l->tp;
    const double layer = max_of(0, own - table) / max_of(1, stage->layers), piece = l->zero ? own / fsdp : own;
    const bool copies = s->type_bytes < s->keep_bytes;
    b->params = piece * (s->keep_bytes + (copies && l->zero ? s->type_bytes : 0));
    if (l->zero == 3)
        b->params += s->type_bytes * max_of(2 * layer, table);
    else if (copies || l->zero)
        b->params += s->type_bytes * own;
    b->optimizer = piece * s->state_bytes;
    b->grads = s->grad_bytes * (l->zero >= 2 ? piece + max_of(layer, table) + layer : l->zero == 1 ? own + piece : own);
    if (s->saves_in_memory)
        b->buffers += piece * (s->keep_bytes + s->state_bytes) / (double)(l->dp * l->cp * (l->zero ? 1 : l->fsdp));
}

static struct plan_bytes rank_bytes(const struct plan_shape *s, const struct plan_layout *l, int64_t rank)
{
    const struct stage stage = stage_of(s, l, rank);
    struct plan_layout whole = *l;
    struct plan_bytes b = {0};
    whole.recompute = RECOMPUTE_NONE;
    double logits = logits_bytes(s, l, rank);
    if (l->recompute == RECOMPUTE_FULL) /* one layer at a time is there in full */
        logits = max_of(logits, kept_of_layer(s, &whole));
    b.buffers = logits;
    model_bytes(s, l, &stage, &b);
    b.activations = kept_micros(s, l, rank) * stage.layers * kept_of_layer(s, is_split(l) ? &whole : l);
    b.total = b.params + b.grads + b.optimizer + b.activations + b.buffers;
    return b;
}

/* The first rank keeps most microbatches and has the embedding; another one may have more layers. */
void plan_step_bytes(const struct plan_shape *s, const struct plan_layout *l, struct plan_bytes *ret)
{
    const int64_t rank = is_v(l) ? fullest_rank(s, l) : 1;
    struct plan_bytes first = rank_bytes(s, l, 0);
    struct plan_bytes full = l->pp > 1 ? rank_bytes(s, l, rank) : first;
    *ret = full.total > first.total ? full : first;
}
