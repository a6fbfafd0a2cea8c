/* Pieces on their way through the nodes, several at once: while one is added here, others are on their way.
 *
 * A rank takes its pieces in the order that all ranks share, each piece takes the steps of its route, and a piece may
 * post a message of a step only when the pieces before it have posted theirs: so both ends of a lane name the messages
 * in one order, and the first piece that is not through can always go on. That holds as long as a route crosses a lane
 * in one direction once. Where a node comes twice in the order of the ranks (its ranks are no neighbours), one piece is
 * under way at a time. */
#include "worker/comm/hier/internal.h"

#include <limits.h>

#define MAX_SLOTS 64
#define PIECES 4 /* of each channel at least, so that they overlap; unless they get too small */
#define LEAST ((int64_t)8 << 10)

struct slot {
    struct hier_item item;
    struct wire_op in, out;
    uint8_t *sum, *result;
    int at; /* step; INT_MAX: over */
    bool posted, sending;
};

struct run {
    struct hier_relay *r;
    struct slot slot[MAX_SLOTS];
    int n_slots;
    int64_t first, end; /* pieces under way, counted from 0 */
    bool dry;           /* no more will come */
};

static int slots_of(const struct hier_group *g)
{
    int most = 2 * g->n_nodes + 4;
    if (g->n_runs != g->n_nodes)
        return 1;
    return most < MAX_SLOTS ? most : MAX_SLOTS;
}

static int channels_of(const struct hier_group *g)
{
    int most = 1;
    for (int y = 0; y < g->n_nodes; y++)
        most = g->nodes[y].n > most ? g->nodes[y].n : most;
    return most;
}

int64_t hier_piece(const struct hier_group *g, int64_t n, int64_t most, int64_t size)
{
    const int64_t fits = hier_min(HIER_SCRATCH / slots_of(g), HIER_PIECE) / size;
    int64_t piece = hier_max(n / (channels_of(g) * PIECES), LEAST / size);
    piece = hier_min(hier_min(piece, fits), most) / 64 * 64;
    return piece > 0 ? piece : 64;
}

static int member_of(const struct hier_relay *r, const struct slot *s, const struct hier_step *step)
{
    return hier_owner(r->g, step->with, s->item.channel);
}

static void recv(const struct hier_relay *r, struct slot *s, const struct hier_step *step, uint8_t *to)
{
    hier_recv(r->g, member_of(r, s, step), to, s->item.m * r->size, &s->in);
    s->posted = true;
}

static void send(const struct hier_relay *r, struct slot *s, const struct hier_step *step, uint8_t *from)
{
    hier_send(r->g, member_of(r, s, step), from, s->item.m * r->size, &s->out);
    s->sending = true;
}

/* What is being sent must not be touched, and there is one send of a piece at a time. */
static bool is_sent(struct slot *s)
{
    s->sending = s->sending && !s->out.done;
    return !s->sending;
}

/* Takes the step; false when it has to wait. */
static bool take_step(const struct hier_relay *r, struct slot *s, const struct hier_step *step)
{
    if (s->posted) {
        s->posted = !s->in.done;
        return s->in.done;
    }
    if (step->kind != STEP_GIVE && !is_sent(s))
        return false;
    switch (step->kind) {
    case STEP_RECV_SUM:
        recv(r, s, step, s->sum);
        return false;
    case STEP_SUM:
        r->sum(r, &s->item, &r->g->runs[step->with], s->sum, step->with == 0);
        return true;
    case STEP_SEND_SUM:
        send(r, s, step, s->sum);
        return true;
    case STEP_FINISH:
        r->finish(r, &s->item, s->sum);
        s->result = s->sum;
        return true;
    case STEP_RECV:
        recv(r, s, step, s->result);
        return false;
    case STEP_GIVE:
        r->give(r, &s->item, s->result);
        return true;
    case STEP_SEND:
        send(r, s, step, s->result);
        return true;
    }
    return true;
}

/* Whether the piece before lets this one take its step. */
static bool may(const struct slot *before, const struct slot *s)
{
    return !before || before->at > s->at || (before->at == s->at && before->posted);
}

static bool advance(const struct hier_relay *r, const struct slot *before, struct slot *s)
{
    const struct hier_route *route = s->item.route;
    bool moved = false;
    while (s->at < route->n && may(before, s)) {
        const bool was_posted = s->posted;
        if (!take_step(r, s, &route->step[s->at])) {
            moved |= s->posted != was_posted;
            break;
        }
        s->at++;
        moved = true;
    }
    if (s->at == route->n)
        s->at = INT_MAX;
    return moved;
}

static struct slot *slot_of(struct run *run, int64_t i)
{
    return &run->slot[i % run->n_slots];
}

static bool take_more(struct run *run)
{
    const struct hier_relay *r = run->r;
    bool taken = false;
    while (!run->dry && run->end - run->first < run->n_slots) {
        struct slot *s = slot_of(run, run->end);
        uint8_t *sum = hier_of(&r->g->base)->scratch + (s - run->slot) * r->piece * r->size;
        *s = (struct slot){.sum = sum};
        run->dry = !run->r->next(run->r, &s->item);
        if (run->dry)
            break;
        s->result = r->place ? r->place(r, &s->item) : sum;
        run->end++;
        taken = true;
    }
    return taken;
}

static bool move_all(struct run *run)
{
    bool moved = false;
    for (int64_t i = run->first; i < run->end; i++)
        moved |= advance(run->r, i > run->first ? slot_of(run, i - 1) : NULL, slot_of(run, i));
    while (run->first < run->end && slot_of(run, run->first)->at == INT_MAX && is_sent(slot_of(run, run->first))) {
        run->first++;
        moved = true;
    }
    return moved;
}

err_t hier_relay(struct hier_relay *r)
{
    struct hier_comm *h = hier_of(&r->g->base);
    struct run run = {.r = r, .n_slots = slots_of(r->g)};
    int turn = 0;
    err_t err = OK;
    while (!err && (take_more(&run) || run.first < run.end)) {
        bool moved = move_all(&run);
        if (run.first < run.end)
            err = hier_turn(h, moved, &turn);
    }
    return err ? err : hier_wait_ops(h, NULL, 0);
}
