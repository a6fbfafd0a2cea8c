/* Any bytes as a schedule: they are refused with a message; otherwise writing and reading the schedule gives the same,
 * and times can be computed for a schedule that passes the check. */
#include "common/plan/schedule/schedule.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void print_and_read(const struct schedule *s, enum schedule_form form)
{
    char *text = NULL;
    size_t len;
    struct schedule again;
    FILE *out = open_memstream(&text, &len);
    if (!out || schedule_print_csv(s, form, out) || fclose(out))
        abort();
    if (schedule_read_csv(text, len, "again", &again, NULL))
        abort();
    for (int r = 0; r < s->ranks; r++)
        if (s->rows[r].n != again.rows[r].n ||
            memcmp(s->rows[r].slots, again.rows[r].slots, (size_t)s->rows[r].n * sizeof(struct slot)) != 0)
            abort();
    if (form == SCHEDULE_PYTORCH && again.placement != s->placement)
        abort();
    schedule_fini(&again);
    free(text);
}

static void check_and_time(const struct schedule *s)
{
    const struct schedule_cost cost = {{1, 2, 1, 1}, 0.5, 0.5};
    struct schedule_times times;
    struct why why = {""};
    err_t err = schedule_check(s, NULL, &why);
    if (err && !why.text[0])
        abort();
    if (schedule_simulate(s, &cost, &times, NULL) == OK)
        schedule_times_fini(&times);
    else if (!err)
        abort();
}

/* PyTorch's form has as many stages as the largest number in it, so it keeps a schedule that has the last one. */
static bool has_all_stages(const struct schedule *s)
{
    int last = 0;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->rows[r].n; i++) {
            int stage = schedule_stage(s, r, s->rows[r].slots[i].chunk);
            last = stage > last ? stage : last;
        }
    return last == s->ranks * s->chunks - 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct schedule s;
    struct why why = {""};
    err_t err = schedule_read_csv((const char *)data, size, "x.csv", &s, &why);
    if (err) {
        if (!why.text[0])
            abort();
        return 0;
    }
    check_and_time(&s);
    if (s.ranks * s.chunks * s.micros <= 4096) {
        print_and_read(&s, SCHEDULE_OWN);
        if (has_all_stages(&s))
            print_and_read(&s, SCHEDULE_PYTORCH);
    }
    schedule_fini(&s);
    return 0;
}
