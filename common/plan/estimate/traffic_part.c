/* The kind of an op decides where it has one purpose, then the action, then the axes of its group. */
#include "common/plan/estimate/traffic_part.h"

#define UNDECIDED TRAFFIC_COUNT

static enum traffic_part by_kind(enum op_kind kind)
{
    switch (kind) {
    case OP_SEND:
    case OP_RECV:
    case OP_PUSH:
    case OP_WAIT: /* rings use OP_SHIFT */
        return TRAFFIC_PP;
    case OP_EXCHANGE:
    case OP_BORROW:
    case OP_GIVE_BACK:
    case OP_GATHER_TOKENS:
        return TRAFFIC_EP;
    case OP_UNIT_GATHER:
        return TRAFFIC_PARAMS;
    case OP_UNIT_SCATTER:
    case OP_TREE_REDUCE:
        return TRAFFIC_GRADS;
    default:
        return UNDECIDED;
    }
}

static bool is_in_layers(enum action_kind action)
{
    return action == ACT_FORWARD || action == ACT_BACKWARD || action == ACT_INPUT || action == ACT_WEIGHT;
}

/* A group inside a layer over several axes, or over fsdp, belongs to experts, whose ranks fold tp, cp and fsdp. */
static enum traffic_part by_axes(const struct program *p, unsigned all)
{
    unsigned axes = 0;
    for (int a = 0; a < AXIS_COUNT; a++)
        axes |= p->mesh.size[a] > 1 ? all & 1u << a : 0;
    return axes == 1u << AXIS_TP   ? TRAFFIC_TP
           : axes == 1u << AXIS_CP ? TRAFFIC_CP
           : axes == 1u << AXIS_PP ? TRAFFIC_PP
                                   : TRAFFIC_EP;
}

enum traffic_part traffic_part_of(const struct program *p, enum action_kind action, const struct op *op)
{
    const enum traffic_part part = by_kind(op->kind);
    if (part != UNDECIDED)
        return part;
    if (action == ACT_GATHER)
        return TRAFFIC_PARAMS;
    return is_in_layers(action) && op->group >= 0 ? by_axes(p, p->groups[op->group].axes) : TRAFFIC_GRADS;
}
