/* Moves pieces through the nodes, several at once: while one piece is summed here, others are in transit.
 *
 * A rank processes its pieces in the order that all ranks share, and each piece takes the steps of its route. A piece
 * may post the message of a step only when the pieces before it have posted theirs. So both ends of a lane post their
 * messages in the same order, and the first unfinished piece can always proceed. This holds if a route uses each lane
 * at most once in each direction. If the ranks of a node are not consecutive, a route visits the node twice; then one
 * piece is in flight at a time. */
#include "worker/comm/hier/internal.h"

#include <limits.h>

#define MAX_SLOTS 64
#define PIECES 4                 /* pieces per channel, so that they overlap, unless they would be smaller than LEAST */
#define LEAST ((int64_t)8 << 10) /* bytes */

struct hier_relay_slot {
    struct hier_item item;
    struct wire_op in, out;
    uint8_t *sum, *result;
    int at; /* step; INT_MAX: all steps are taken */
    bool posted, sending;
};

struct hier_relay_run {
    struct hier_relay *r;
    struct hier_relay_slot slot[MAX_SLOTS];
    int n_slots;
    int64_t first, end; /* pieces [first, end) are in flight; counted from 0 */
    bool dry;           /* the collective has no more pieces */
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

static int member_of(const struct hier_relay *r, const struct hier_relay_slot *s, const struct hier_step *step)
{
    return hier_owner(r->g, step->with, s->item.channel);
}

static void post_recv(const struct hier_relay *r, struct hier_relay_slot *s, const struct hier_step *step, uint8_t *to,
                      int64_t size)
{
    hier_recv(r->g, member_of(r, s, step), to, s->item.m * size, &s->in);
    s->posted = true;
}

static void post_send(const struct hier_relay *r, struct hier_relay_slot *s, const struct hier_step *step,
                      uint8_t *from, int64_t size)
{
    hier_send(r->g, member_of(r, s, step), from, s->item.m * size, &s->out);
    s->sending = true;
}

/* Whether the piece's last send is done: until then its buffer must not change, and it may not send again. */
static bool is_sent(struct hier_relay_slot *s)
{
    s->sending = s->sending && !s->out.done;
    return !s->sending;
}

/* Takes the step; returns false when it must wait. */
static bool take_step(const struct hier_relay *r, struct hier_relay_slot *s, const struct hier_step *step)
{
    if (s->posted) {
        s->posted = !s->in.done;
        return s->in.done;
    }
    if (step->kind != STEP_DELIVER && !is_sent(s))
        return false;
    switch (step->kind) {
    case STEP_RECV_SUM:
        post_recv(r, s, step, s->sum, r->sum_size);
        return false;
    case STEP_SUM:
        r->sum(r, &s->item, &r->g->runs[step->with], s->sum, step->with == 0);
        return true;
    case STEP_SEND_SUM:
        post_send(r, s, step, s->sum, r->sum_size);
        return true;
    case STEP_FINISH:
        r->finish(r, &s->item, s->sum);
        s->result = s->sum;
        return true;
    case STEP_RECV:
        post_recv(r, s, step, s->result, r->size);
        return false;
    case STEP_DELIVER:
        r->deliver(r, &s->item, s->result);
        return true;
    case STEP_SEND:
        post_send(r, s, step, s->result, r->size);
        return true;
    }
    return true;
}

/* Whether the previous piece allows this one to take its next step. */
static bool may_advance(const struct hier_relay_slot *before, const struct hier_relay_slot *s)
{
    return !before || before->at > s->at || (before->at == s->at && before->posted);
}

static bool advance(const struct hier_relay *r, const struct hier_relay_slot *before, struct hier_relay_slot *s)
{
    const struct hier_route *route = s->item.route;
    bool moved = false;
    while (s->at < route->n && may_advance(before, s)) {
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

static struct hier_relay_slot *slot_of(struct hier_relay_run *run, int64_t i)
{
    return &run->slot[i % run->n_slots];
}

static bool start_pieces(struct hier_relay_run *run)
{
    const struct hier_relay *r = run->r;
    bool taken = false;
    while (!run->dry && run->end - run->first < run->n_slots) {
        struct hier_relay_slot *s = slot_of(run, run->end);
        uint8_t *sum = hier_of(&r->g->base)->scratch + (s - run->slot) * r->piece * r->sum_size;
        *s = (struct hier_relay_slot){.sum = sum};
        run->dry = !run->r->next(run->r, &s->item);
        if (run->dry)
            break;
        s->result = r->place ? r->place(r, &s->item) : sum;
        run->end++;
        taken = true;
    }
    return taken;
}

static bool move_pieces(struct hier_relay_run *run)
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
    struct hier_relay_run run = {.r = r, .n_slots = slots_of(r->g)};
    int turn = 0;
    err_t err = OK;
    while (!err && (start_pieces(&run) || run.first < run.end)) {
        bool moved = move_pieces(&run);
        if (run.first < run.end)
            err = hier_turn(h, moved, &turn);
    }
    return err ? err : hier_wait_ops(h, NULL, 0);
}
