/* A layer is a table of operations (forward and backward). The weight of a product or a pass follows from its
 * arithmetic or its bytes; the weights of a layer are scaled to the time that step_time.h has for it.
 *
 * A transfer beside computation takes a part of its time from the computation (plan_overlap_cost) and the rest from a
 * second queue, as the closed form has it. */
#include "common/plan/search/operations.h"

#include "common/plan/search/simulate.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- weights ---- */

struct op_weights {
    const struct plan_shape *s;
    const struct plan_layout *l;
    double rows, flops, bytes; /* tokens of a rank; rates of the device */
    double mixed;              /* the share of layers with experts */
};

static double product_weight(const struct op_weights *w, double out, double in)
{
    return 2 * w->rows * out * in / w->flops;
}

static double pass_weight(const struct op_weights *w, double width)
{
    return w->rows * width * w->s->type_bytes / w->bytes;
}

static double weigh_qkv(const struct op_weights *w)
{
    return product_weight(w, w->s->head_dim * (w->s->heads + 2 * w->s->kv_heads) / (double)w->l->tp, w->s->dim);
}

static double weigh_rotation(const struct op_weights *w)
{
    return pass_weight(w, 2 * w->s->head_dim * (w->s->heads + w->s->kv_heads) / (double)w->l->tp);
}

static double weigh_attention(const struct op_weights *w)
{
    const double seen = w->s->window > 0 ? fmin(w->s->window, w->s->seq / 2) : w->s->seq / 2;
    return 4 * w->rows * seen * w->s->head_dim * w->s->heads / (double)w->l->tp / w->flops;
}

static double weigh_projection(const struct op_weights *w)
{
    return product_weight(w, w->s->dim, w->s->head_dim * w->s->heads / (double)w->l->tp);
}

static double weigh_stream(const struct op_weights *w)
{
    return pass_weight(w, 2.5 * w->s->dim / (w->l->sp ? (double)w->l->tp : 1));
}

static double ffn_width(const struct op_weights *w)
{
    const double routed = w->s->experts_per_token * w->s->expert_ffn + w->s->shared_ffn;
    return ((1 - w->mixed) * w->s->ffn + w->mixed * routed) / (double)w->l->tp;
}

static double weigh_up(const struct op_weights *w)
{
    return product_weight(w, (w->s->ffn_matrices - 1) * ffn_width(w), w->s->dim);
}

static double weigh_activation(const struct op_weights *w)
{
    return pass_weight(w, w->s->ffn_matrices * ffn_width(w));
}

static double weigh_down(const struct op_weights *w)
{
    return product_weight(w, w->s->dim, ffn_width(w));
}

/* ---- a layer ---- */

/* The rows of a layer in forward order. A backward pass goes from the last row to the first one. */
enum row_kind { ROW_PRODUCT, ROW_ATTENTION, ROW_PASS, ROW_TP_BEFORE, ROW_TP_AFTER, ROW_CP, ROW_EP };

static const struct layer_row {
    enum row_kind kind;
    double (*weigh)(const struct op_weights *w);
} layer_rows[] = {
    {ROW_PASS, weigh_stream}, /* norm */
    {ROW_TP_BEFORE, NULL},
    {ROW_PRODUCT, weigh_qkv},
    {ROW_PASS, weigh_rotation},
    {ROW_CP, NULL},
    {ROW_ATTENTION, weigh_attention},
    {ROW_PRODUCT, weigh_projection},
    {ROW_TP_AFTER, NULL},
    {ROW_PASS, weigh_stream}, /* residual */
    {ROW_PASS, weigh_stream}, /* norm */
    {ROW_TP_BEFORE, NULL},
    {ROW_EP, NULL},
    {ROW_PRODUCT, weigh_up},
    {ROW_PASS, weigh_activation},
    {ROW_PRODUCT, weigh_down},
    {ROW_EP, NULL},
    {ROW_TP_AFTER, NULL},
    {ROW_PASS, weigh_stream}, /* residual */
};
#define LAYER_ROWS ((int)(sizeof(layer_rows) / sizeof(layer_rows[0])))

/* The backward pass: gradients of inputs and of weights, each as often as the forward operation. */
static const struct {
    double inputs, weights;
} backward_times[] = {[ROW_PRODUCT] = {1, 1}, [ROW_ATTENTION] = {2.5, 0}, [ROW_PASS] = {1.2, 0}, [ROW_EP] = {0, 0}};

/* What builds the operations of a layout. All seconds of collectives are those of one. */
struct op_builder {
    const struct plan_layout *l;
    struct plan_operations *o;
    struct op_weights weights;
    double meets[PLAN_GROUPS];            /* seconds of one; cp: of a forward pass */
    double gather_s, scatter_s;           /* zero 3 and 2: of a layer */
    double gather_cost, scatter_cost;     /* what computation beside them loses, as a part of their time */
    bool gathers_beside, scatters_beside; /* they run beside computation */
    bool slots_only;
    err_t err;
};

static void add(struct op_builder *b, struct plan_slot *slot, struct plan_op op)
{
    if (slot->n == slot->room) {
        const int room = 2 * slot->room + 16;
        struct plan_op *more = realloc(slot->ops, (size_t)room * sizeof(*more));
        if (!more) {
            b->err = ERR_NOMEM;
            return;
        }
        slot->ops = more;
        slot->room = room;
    }
    slot->ops[slot->n++] = op;
}

static void add_run(struct op_builder *b, struct plan_slot *slot, double seconds)
{
    if (seconds > 0)
        add(b, slot, (struct plan_op){.kind = PLAN_OP_RUN, .seconds = seconds});
}

static void add_meet(struct op_builder *b, struct plan_slot *slot, enum plan_group g, double seconds)
{
    if (b->o->groups[g].n > 1)
        add(b, slot, (struct plan_op){.kind = PLAN_OP_MEET, .group = g, .seconds = seconds});
}

/* With sequence parallelism a gather before products and a reduce-scatter behind them; else one all-reduce behind them,
 * which in the backward pass is in front of them. */
static void add_collective(struct op_builder *b, struct plan_slot *slot, enum row_kind kind, bool backward)
{
    const bool reduces = kind == (backward ? ROW_TP_BEFORE : ROW_TP_AFTER);
    if ((kind == ROW_TP_BEFORE || kind == ROW_TP_AFTER) && (b->l->sp || reduces))
        add_meet(b, slot, PLAN_GROUP_TP, b->meets[PLAN_GROUP_TP]);
    if (kind == ROW_CP)
        add_meet(b, slot, PLAN_GROUP_CP, b->meets[PLAN_GROUP_CP] * (backward ? 2 : 1));
    if (kind == ROW_EP && b->weights.mixed > 0)
        add_meet(b, slot, PLAN_GROUP_EP, b->meets[PLAN_GROUP_EP]);
}

static double row_weight(const struct op_builder *b, const struct layer_row *row)
{
    return row->weigh ? row->weigh(&b->weights) : 0;
}

static double forward_weight(const struct op_builder *b)
{
    double sum = 0;
    for (int i = 0; i < LAYER_ROWS; i++)
        sum += row_weight(b, &layer_rows[i]);
    return sum;
}

static double backward_weight(const struct op_builder *b)
{
    double sum = 0;
    for (int i = 0; i < LAYER_ROWS; i++)
        if (layer_rows[i].weigh)
            sum += row_weight(b, &layer_rows[i]) *
                   (backward_times[layer_rows[i].kind].inputs + backward_times[layer_rows[i].kind].weights);
    return sum;
}

static void add_forward(struct op_builder *b, struct plan_slot *slot, double seconds)
{
    const double scale = seconds / forward_weight(b);
    for (int i = 0; i < LAYER_ROWS; i++) {
        if (layer_rows[i].weigh)
            add_run(b, slot, scale * row_weight(b, &layer_rows[i]));
        else
            add_collective(b, slot, layer_rows[i].kind, false);
    }
}

static void add_backward(struct op_builder *b, struct plan_slot *slot, double seconds, bool inputs, bool weights)
{
    const double scale = seconds / backward_weight(b);
    for (int i = LAYER_ROWS - 1; i >= 0; i--) {
        const enum row_kind kind = layer_rows[i].kind;
        if (!layer_rows[i].weigh) {
            if (inputs)
                add_collective(b, slot, kind, true);
            continue;
        }
        const double one = scale * row_weight(b, &layer_rows[i]);
        if (inputs)
            add_run(b, slot, one * backward_times[kind].inputs);
        if (weights)
            add_run(b, slot, one * backward_times[kind].weights);
    }
}

/* ---- a slot ---- */

static void add_queued(struct op_builder *b, struct plan_slot *slot, int number, double seconds, double cost)
{
    const double tax = seconds * cost;
    add(b, slot, (struct plan_op){PLAN_OP_QUEUE, PLAN_GROUP_FSDP, number, seconds - tax, tax});
}

static void add_await(struct op_builder *b, struct plan_slot *slot, int number)
{
    add(b, slot, (struct plan_op){.kind = PLAN_OP_AWAIT, .group = PLAN_GROUP_FSDP, .number = number});
}

/* The gather of the next layer begins with a layer; with the last one, that of the first layer of the next slot. */
static void begin_layer(struct op_builder *b, struct plan_slot *slot, int i, int layers)
{
    const int first = PLAN_EVENTS - 1;
    if (b->gather_s <= 0)
        return;
    if (!b->gathers_beside) {
        add_meet(b, slot, PLAN_GROUP_FSDP, b->gather_s);
        return;
    }
    if (i == 0)
        add_await(b, slot, first); /* before it queues anything under the same number */
    add_queued(b, slot, i + 1 < layers ? (i + 1) % first : first, b->gather_s, b->gather_cost);
    if (i > 0)
        add_await(b, slot, i % first);
}

static void end_layer(struct op_builder *b, struct plan_slot *slot, int number, bool last)
{
    if (b->scatter_s > 0 && b->scatters_beside)
        add_queued(b, slot, -1, b->scatter_s, b->scatter_cost);
    else if (b->scatter_s > 0)
        add_meet(b, slot, PLAN_GROUP_FSDP, b->scatter_s);
    if (last && b->o->sums.layers > 0)
        add(b, slot, (struct plan_op){.kind = PLAN_OP_READY, .number = number, .tax = b->o->sums.tax});
}

/* Repeats what recomputation repeats; all of a layer with its collectives. */
static void add_again(struct op_builder *b, struct plan_slot *slot, double seconds)
{
    if (b->l->recompute == RECOMPUTE_FULL)
        add_forward(b, slot, seconds);
    else
        add_run(b, slot, seconds);
}

static void build_forward(struct op_builder *b, const struct plan_stage *stage, struct plan_slot *slot)
{
    const int layers = (int)stage->layers;
    for (int i = 0; i < layers; i++) {
        begin_layer(b, slot, i, layers);
        add_forward(b, slot, stage->forward);
    }
    add_run(b, slot, stage->head_forward);
}

/* `first`: the number of the rank's first layer of this stage. */
static void build_backward(struct op_builder *b, const struct plan_stage *stage, enum slot_kind kind, bool last,
                           int first, struct plan_slot *slot)
{
    const bool inputs = kind != SLOT_WEIGHT, weights = kind != SLOT_INPUT;
    const int layers = (int)stage->layers;
    if (inputs)
        add_run(b, slot, stage->head_backward);
    for (int i = 0; i < layers; i++) {
        if (inputs) {
            if (b->l->reshard)
                begin_layer(b, slot, i, layers);
            add_again(b, slot, stage->again);
        }
        add_backward(b, slot, stage->backward, inputs, weights);
        if (weights)
            end_layer(b, slot, first + i, last);
    }
}

/* All that a slot computes, and all its collectives, as one of each. */
static void shorten(struct op_builder *b, struct plan_slot *slot)
{
    double runs = 0, meets = 0;
    for (int i = 0; i < slot->n; i++)
        *(slot->ops[i].kind == PLAN_OP_RUN ? &runs : &meets) += slot->ops[i].seconds;
    slot->n = 0;
    add_run(b, slot, runs);
    add(b, slot, (struct plan_op){.kind = PLAN_OP_MEET, .group = PLAN_GROUP_TP, .seconds = meets});
}

const struct plan_slot *plan_operations_slot(const struct plan_operations *o, int stage, enum slot_kind kind, bool last)
{
    return &o->slots[((stage % o->stages) * SLOT_KIND_COUNT + (int)kind) * 2 + (last ? 1 : 0)];
}

static void build_slots(struct op_builder *b, const struct plan_stage *stages, const struct schedule *schedule)
{
    for (int rank = 0; rank < schedule->ranks; rank++)
        for (int chunk = 0, first = 0; chunk < schedule->chunks; chunk++) {
            const int at = schedule_stage(schedule, rank, chunk);
            for (int i = 0; i < 2 * SLOT_KIND_COUNT; i++) {
                const enum slot_kind kind = (enum slot_kind)(i / 2);
                struct plan_slot *slot = &b->o->slots[at * 2 * SLOT_KIND_COUNT + i];
                if (kind == SLOT_FORWARD)
                    build_forward(b, &stages[at], slot);
                else
                    build_backward(b, &stages[at], kind, i % 2, first, slot);
                if (b->slots_only)
                    shorten(b, slot);
            }
            first += (int)stages[at].layers;
        }
}

/* ---- collectives ---- */

static bool meets_in_slots(const struct plan_layout *l, bool slots_only)
{
    const bool waits = l->zero == 3 || l->ep > l->tp * l->cp, queues = l->zero == 2 && !slots_only;
    return l->fsdp > 1 && (waits || queues);
}

static void set_groups(const struct plan_layout *l, bool slots_only, struct plan_operations *o)
{
    o->joined = meets_in_slots(l, slots_only) ? l->fsdp : 1;
    const int64_t sizes[PLAN_GROUPS][2] = {[PLAN_GROUP_TP] = {slots_only ? l->tp * l->cp * o->joined : l->tp, 1},
                                           [PLAN_GROUP_CP] = {l->cp, l->tp},
                                           [PLAN_GROUP_EP] = {l->ep, 1},
                                           [PLAN_GROUP_FSDP] = {o->joined, l->tp * l->cp}};
    for (int g = 0; g < PLAN_GROUPS; g++) {
        o->groups[g].n = sizes[g][0];
        o->groups[g].stride = sizes[g][1];
    }
}

/* Without overlap the closed form has the whole time of each kind of collective. Of exchanges of tokens it has what
 * remains beside the computation of another microbatch, since operations know of one at a time. */
static struct plan_time raw_time(const struct plan_shape *s, const struct plan_layout *l, const struct machine *m,
                                 const struct plan_overlap *overlap)
{
    struct plan_overlap none = *overlap;
    struct plan_time t;
    none.gradients = none.parameters = none.messages = false;
    plan_step_time(s, l, m, &none, &t);
    return t;
}

static double seconds_of(struct plan_seconds t)
{
    return t.link + t.network;
}

/* The reductions at the end of the step. */
static double sums_seconds(const struct plan_shape *s, const struct plan_layout *l, const struct machine *m)
{
    static const struct plan_overlap none;
    struct plan_transfers t;
    plan_step_transfers(s, l, m, &none, &t);
    return seconds_of(t.sums);
}

/* Twice the bandwidth of the network halves what links can stretch. */
static double stretched_seconds(const struct plan_shape *s, const struct plan_layout *l, const struct machine *m)
{
    struct machine twice = *m;
    twice.network.bandwidth_gb *= 2;
    return 2 * (sums_seconds(s, l, m) - sums_seconds(s, l, &twice));
}

static void set_meets(struct op_builder *b, const struct plan_shape *s, const struct plan_time *t,
                      const struct plan_transfers *transfers, double layers)
{
    const struct plan_layout *l = b->l;
    const double passes = l->recompute == RECOMPUTE_FULL ? 3 : 2, all = plan_layout_micros(s, l) * layers;
    b->meets[PLAN_GROUP_TP] = t->tp / (all * passes * (l->sp ? 4 : 2));
    b->meets[PLAN_GROUP_CP] = t->cp / (all * (passes + 1));
    b->meets[PLAN_GROUP_EP] = t->ep / (all * passes * 2);
    b->gather_cost = plan_overlap_cost(transfers->gathers);
    b->scatter_cost = plan_overlap_cost(transfers->scatters);
    if (b->slots_only)
        return;
    b->gather_s = l->zero == 3 ? seconds_of(transfers->gathers) / layers : 0;
    b->scatter_s = seconds_of(transfers->scatters) / layers;
}

static void set_messages(const struct plan_layout *l, const struct plan_transfers *transfers, bool beside,
                         struct plan_operations *o)
{
    const double one = seconds_of(transfers->message);
    if (l->pp < 2)
        return;
    o->message_s = one * (beside ? plan_overlap_cost(transfers->message) : 1);
    o->latency_s = one - o->message_s;
}

/* ---- links ---- */

/* Whether a stage has nodes in this pod and in others. */
static bool crosses_border(double nodes, double stages, double stage, double pod_nodes, double pod)
{
    const double each = nodes / stages, from = stage * each, to = from + each;
    const double begin = pod * pod_nodes, end = begin + pod_nodes;
    return from < end && to > begin && (from < begin || to > end);
}

/* Where a stage leaves a pod, each ring does so once, with the traffic of one node. So many nodes' adapters send at the
 * same time, as a part of those for which the pod has links. */
static double border_load(const struct plan_layout *l, const struct machine *m)
{
    const double wide = fmax(1, (double)(l->tp * l->cp) / (double)m->device.per_node);
    return m->network.oversubscription * fmin(1, wide / (double)m->network.pod);
}

/* All capacities are 1, and rate 1 is that of the closed form. If that lets a group have less than its adapters
 * (`thin`), then the groups of one stage fill the links between pods. Other groups have the rate of their adapters, and
 * need these links if their stage has nodes in several pods. */
static void set_links(const struct plan_layout *l, const struct machine *m, double thin, struct plan_sums *sums,
                      err_t *err)
{
    const double workers = (double)plan_layout_workers(l), per_node = (double)m->device.per_node, pp = (double)l->pp;
    const double parts = (double)(sums->inner * sums->pipes), nodes = ceil(workers / per_node);
    const double adapters = m->network.adapters ? (double)m->network.adapters : per_node;
    const double pod = (double)m->network.pod, ratio = m->network.oversubscription;
    const bool shares = adapters < per_node;
    const int pods = pod > 0 && nodes > pod && ratio > 1 ? (int)ceil(nodes / pod) : 0;
    const double load = thin > 1 || !pods ? 1 : border_load(l, m);
    sums->most = thin * fmax(1, per_node / adapters);
    sums->n_uses = pods + (shares ? 1 : 0);
    sums->links = pods + (shares ? (int)l->pp : 0);
    sums->uses = malloc(((size_t)l->pp * (size_t)sums->n_uses + 1) * sizeof(*sums->uses));
    if (!sums->uses) {
        *err = ERR_NOMEM;
        return;
    }
    for (int r = 0; r < l->pp; r++) {
        struct flow_use *use = sums->uses + r * sums->n_uses;
        for (int i = 0; i < pods; i++)
            use[i] = (struct flow_use){i, crosses_border(nodes, pp, r, pod, i) ? load / parts : 0};
        if (shares)
            use[pods] = (struct flow_use){pods + r, 1 / (parts * thin)};
    }
}

/* Seconds of the reductions at the end that depend on the network's links: with those between pods as wide as adapters,
 * and as they are. A node's own links may hide all of the first ones. */
struct stretched {
    double wide, real;
};

static struct stretched stretched_by_pods(const struct plan_shape *s, const struct plan_layout *l,
                                          const struct machine *m)
{
    struct machine wide = *m;
    wide.network.pod = 0;
    const double more = fmax(0, sums_seconds(s, l, m) - sums_seconds(s, l, &wide));
    const double alone = fmax(stretched_seconds(s, l, &wide), more / 1000);
    return (struct stretched){alone, alone + more};
}

static void set_sums(const struct plan_shape *s, const struct plan_layout *l, const struct machine *m, bool beside,
                     const struct plan_transfers *transfers, double layers, struct plan_operations *o, err_t *err)
{
    const struct stretched stretched = stretched_by_pods(s, l, m);
    const double all = seconds_of(transfers->sums), far = fmin(all, stretched.real);
    const double part = beside ? 1 - plan_overlap_cost(transfers->sums) : 1;
    if (all <= 0)
        return;
    o->sums = (struct plan_sums){.inner = l->tp,
                                 .pipes = o->joined > 1 && l->zero >= 2 ? l->fsdp : 1,
                                 .layers = (int)layers,
                                 .delay = part * (all - far) / layers,
                                 .work = part * far / layers,
                                 .tax = (1 - part) * all / layers,
                                 .exposed = !beside};
    set_links(l, m, far > 0 ? stretched.real / stretched.wide : 1, &o->sums, err);
}

/* ---- all ---- */

/* Layers of the rank that has most. */
static double most_layers(const struct plan_stage *stages, const struct schedule *schedule)
{
    double most = 1;
    for (int rank = 0; rank < schedule->ranks; rank++) {
        double sum = 0;
        for (int chunk = 0; chunk < schedule->chunks; chunk++)
            sum += stages[schedule_stage(schedule, rank, chunk)].layers;
        most = fmax(most, sum);
    }
    return most;
}

static void build(struct op_builder *b, const struct plan_shape *s, const struct machine *m,
                  const struct plan_overlap *overlap, const struct schedule *schedule, struct plan_stage *stages)
{
    struct plan_operations *o = b->o;
    for (int i = 0; i < o->stages; i++)
        plan_stage_time(s, b->l, m, i, &stages[i]);
    const struct plan_time t = raw_time(s, b->l, m, overlap);
    const double layers = most_layers(stages, schedule);
    struct plan_transfers transfers;
    plan_step_transfers(s, b->l, m, overlap, &transfers);
    set_meets(b, s, &t, &transfers, layers);
    set_messages(b->l, &transfers, overlap->messages, o);
    if (!b->slots_only)
        set_sums(s, b->l, m, overlap->gradients, &transfers, layers, o, &b->err);
    build_slots(b, stages, schedule);
}

err_t plan_operations_init(const struct plan_shape *s, const struct plan_layout *l, const struct machine *m,
                           const struct plan_overlap *overlap, const struct schedule *schedule, bool slots_only,
                           struct plan_operations *ret)
{
    struct plan_operations o = {.stages = schedule->ranks * schedule->chunks};
    struct plan_stage *stages = calloc((size_t)o.stages, sizeof(*stages));
    o.slots = calloc((size_t)o.stages * SLOT_KIND_COUNT * 2, sizeof(*o.slots));
    struct op_builder b = {.l = l, .o = &o, .slots_only = slots_only};
    b.gathers_beside = overlap->parameters;
    b.scatters_beside = overlap->gradients;
    b.weights = (struct op_weights){.s = s,
                                    .l = l,
                                    .rows = (double)l->micro_batch * s->seq / (double)l->cp,
                                    .flops = m->device.bf16_tflops * 1e12,
                                    .bytes = m->device.bandwidth_gb * 1e9,
                                    .mixed = s->layers > 0 ? s->expert_layers / s->layers : 0};
    set_groups(l, slots_only, &o);
    if (stages && o.slots)
        build(&b, s, m, overlap, schedule, stages);
    err_t err = stages && o.slots ? b.err : ERR_NOMEM;
    free(stages);
    if (err)
        plan_operations_fini(&o);
    else
        *ret = o;
    return err;
}

void plan_operations_fini(struct plan_operations *o)
{
    for (int i = 0; o->slots && i < o->stages * SLOT_KIND_COUNT * 2; i++)
        free(o->slots[i].ops);
    free(o->slots);
    free(o->sums.uses);
    memset(o, 0, sizeof(*o));
}
