/* Limits and memory of a schedule, and the sources and targets of values between its stages.
 *
 * Only schedule_stage and stage_holder use the placement of stages on ranks. */
#include "common/plan/schedule/schedule.h"

#include <stdlib.h>

static const struct {
    char letter;
    const char *name;
} slot_kinds[] = {
#define X(kind, letter, name) {letter, name},
    SLOT_LIST(X)
#undef X
};

static const char *const schedule_kinds[] = {
#define X(id, name, fewest, most, placement, row) name,
#include "common/conf/schedules.inc"
#undef X
};

const char *slot_name(enum slot_kind kind)
{
    return (unsigned)kind < SLOT_KIND_COUNT ? slot_kinds[kind].name : "?";
}

char slot_letter(enum slot_kind kind)
{
    return (unsigned)kind < SLOT_KIND_COUNT ? slot_kinds[kind].letter : '?';
}

const char *schedule_name(enum schedule_kind kind)
{
    return (unsigned)kind < SCHEDULE_KIND_COUNT ? schedule_kinds[kind] : "?";
}

err_t schedule_check_size(int ranks, int chunks, int micros, struct why *why)
{
    const struct {
        const char *what;
        int value, max;
    } rows[] = {{"ranks", ranks, SCHEDULE_MAX_RANKS},
                {"chunks per rank", chunks, SCHEDULE_MAX_CHUNKS},
                {"microbatches", micros, SCHEDULE_MAX_MICROS}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (rows[i].value < 1 || rows[i].value > rows[i].max)
            return why_set(why, ERR_INVALID,
                           "a pipeline cannot have %d %s: the legal range is 1 to %d; the nearest legal number is %d",
                           rows[i].value, rows[i].what, rows[i].max, rows[i].value < 1 ? 1 : rows[i].max);
    int most = SCHEDULE_MAX_WORK / (ranks * chunks);
    if (micros > most)
        return why_set(why, ERR_INVALID,
                       "%d ranks x %d chunks x %d microbatches exceed the limit of %d; the nearest legal number of "
                       "microbatches is %d",
                       ranks, chunks, micros, SCHEDULE_MAX_WORK, most);
    return OK;
}

void schedule_fini(struct schedule *s)
{
    for (int r = 0; s->rows && r < s->ranks; r++)
        free(s->rows[r].slots);
    free(s->rows);
    *s = (struct schedule){0};
}

int schedule_stage(const struct schedule *s, int rank, int chunk)
{
    return placement_stage(s->placement, s->ranks, rank, chunk);
}

/* The work of a stage, with the rank and chunk that hold the stage. */
static struct schedule_work stage_holder(const struct schedule *s, int stage, enum slot_kind kind, int micro)
{
    return (struct schedule_work){placement_rank(s->placement, s->ranks, stage), kind, placement_chunk(s->ranks, stage),
                                  micro};
}

/* Outputs of forwards go to the next stage and gradients of inputs to the previous one; gradients of weights stay.
 * `way` is -1 for the source and 1 for the target. */
static bool neighbour(const struct schedule *s, int rank, const struct slot *slot, int way, struct schedule_work *ret)
{
    bool forward = slot->kind == SLOT_FORWARD;
    int stage = schedule_stage(s, rank, slot->chunk) + (forward ? way : -way);
    if (slot->kind == SLOT_WEIGHT || stage < 0 || stage >= s->ranks * s->chunks)
        return false;
    *ret = stage_holder(s, stage, forward ? SLOT_FORWARD : SLOT_INPUT, slot->micro);
    return true;
}

bool schedule_source(const struct schedule *s, int rank, const struct slot *slot, struct schedule_work *ret)
{
    return neighbour(s, rank, slot, -1, ret);
}

bool schedule_target(const struct schedule *s, int rank, const struct slot *slot, struct schedule_work *ret)
{
    return neighbour(s, rank, slot, 1, ret);
}

bool schedule_is(const struct slot *slot, const struct schedule_work *work)
{
    enum slot_kind kind = slot->kind == SLOT_BACKWARD ? SLOT_INPUT : slot->kind;
    return kind == work->kind && slot->chunk == work->chunk && slot->micro == work->micro;
}
