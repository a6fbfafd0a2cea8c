/* Saves: every element of every state exactly once over all ranks, shares alike by bytes within a row. */
#include "tests/common/plan/plan_fixture.h"

static int64_t elements(const struct graph_tensor *t)
{
    return t->dim[0].factor * (t->ndim > 1 ? t->dim[1].factor : 1);
}

/* Paints a rank's items; returns its bytes. */
static int64_t paint(const struct fixture *f, int rank, int *marks, const int64_t *start, int64_t n_params)
{
    struct save_item *items;
    int n;
    int64_t bytes = 0;
    assert_ok(plan_save_items(&f->programs[rank], &f->graph, &items, &n));
    for (int i = 0; i < n; i++) {
        const struct graph_tensor *t = &f->graph.tensors[items[i].tensor];
        int64_t row = elements(t) / t->dim[0].factor;
        assert_int_equal(items[i].box.ndim, t->ndim);
        assert_int_equal(items[i].buffer_offset, items[i].box.offset[0] * row);
        assert_true(items[i].box.offset[0] + items[i].box.size[0] <= t->dim[0].factor);
        if (t->ndim > 1)
            assert_int_equal(items[i].box.size[1], row);
        for (int64_t e = 0; e < box_elements(&items[i].box); e++)
            marks[items[i].state * n_params + start[items[i].tensor] + items[i].buffer_offset + e]++;
        bytes += box_elements(&items[i].box) * 4;
    }
    free(items);
    return bytes;
}

static void check(enum model_arch arch, int workers)
{
    struct job_spec job = job_small(arch, workers);
    struct fixture f;
    fixture_init(&f, &job, MODE_TRAIN);
    int64_t start[256], n_params = 0, longest_row = 0;
    for (int i = 0; i < f.graph.n_tensors; i++) {
        const struct graph_tensor *t = &f.graph.tensors[i];
        start[i] = n_params;
        if (t->kind != GT_PARAM)
            continue;
        n_params += elements(t);
        longest_row = elements(t) / t->dim[0].factor > longest_row ? elements(t) / t->dim[0].factor : longest_row;
    }
    assert_int_equal(n_params, f.graph.n_params);
    int *marks = calloc((size_t)(3 * n_params), sizeof(*marks));
    for (int r = 0; r < workers; r++) {
        int64_t bytes = paint(&f, r, marks, start, n_params), fair = 3 * n_params * 4 / workers;
        if (llabs(bytes - fair) > longest_row * 4)
            fail_msg("rank %d of %d saves %lld bytes, its share is %lld", r, workers, (long long)bytes,
                     (long long)fair);
        assert_true(f.programs[r].arena_bytes >= bytes);
        assert_true(f.programs[r].arena_bytes <= bytes + 4096 + 64 * 3 * 64);
        assert_int_equal(f.programs[r].arena_bytes % 4096, 0);
    }
    for (int64_t i = 0; i < 3 * n_params; i++)
        if (marks[i] != 1)
            fail_msg("element %lld of %lld is saved %d times", (long long)i, (long long)(3 * n_params), marks[i]);
    free(marks);
    fixture_fini(&f);
}

TEST(every_element_is_saved_once)
{
    for (int workers = 1; workers <= MAX_RANKS; workers++) {
        check(ARCH_LLAMA, workers);
        check(ARCH_GPT2, workers);
    }
}
