/* The matrix: every product of one or two axes up to 8 workers, every triple of choices, four axes on 16 workers, and
 * all folds of expert parallelism: 2,889 cells (docs/guarantees.md). */
#include "tests/parity/cells.h"

typedef void (*list_fn)(struct cells *c, enum cell_model model);

static void all_pairs(struct cells *c, enum cell_model model)
{
    cells_pairs(c, model, 8);
}

static void all_triples(struct cells *c, enum cell_model model)
{
    cells_triples(c, model, 8);
}

static int run(list_fn list, enum cell_model model)
{
    struct cells c = {0};
    list(&c, model);
    int n = c.n;
    cells_run(&c);
    cells_fini(&c);
    return n;
}

TEST(llama_pairs_of_axes)
{
    assert_true(run(all_pairs, CELL_LLAMA) >= 80);
}

TEST(qwen_pairs_of_axes)
{
    assert_true(run(all_pairs, CELL_QWEN) >= 80);
}

TEST(olmo_pairs_of_axes)
{
    assert_true(run(all_pairs, CELL_OLMO) >= 50);
}

TEST(neox_pairs_of_axes)
{
    assert_true(run(all_pairs, CELL_NEOX) >= 80);
}

TEST(gemma_pairs_of_axes)
{
    assert_true(run(all_pairs, CELL_GEMMA) >= 80);
}

TEST(transformer_pairs_of_axes)
{
    assert_true(run(all_pairs, CELL_TRANSFORMER) >= 80);
}

TEST(gpt2_pairs_of_axes)
{
    assert_true(run(all_pairs, CELL_GPT2) >= 80);
}

TEST(llama_triples_of_choices)
{
    assert_true(run(all_triples, CELL_LLAMA) >= 80);
}

TEST(qwen_triples_of_choices)
{
    assert_true(run(all_triples, CELL_QWEN) >= 80);
}

TEST(gemma_triples_of_choices)
{
    assert_true(run(all_triples, CELL_GEMMA) >= 80);
}

TEST(transformer_triples_of_choices)
{
    assert_true(run(all_triples, CELL_TRANSFORMER) >= 80);
}

TEST(gpt2_triples_of_choices)
{
    assert_true(run(all_triples, CELL_GPT2) >= 80);
}

TEST(llama_four_axes)
{
    assert_true(run(cells_four_axes, CELL_LLAMA) >= 12);
}

TEST(qwen_four_axes)
{
    assert_true(run(cells_four_axes, CELL_QWEN) >= 12);
}

TEST(transformer_four_axes)
{
    assert_true(run(cells_four_axes, CELL_TRANSFORMER) >= 12);
}

TEST(gpt2_four_axes)
{
    assert_true(run(cells_four_axes, CELL_GPT2) >= 12);
}

TEST(mixture_pairs_of_axes)
{
    assert_true(run(all_pairs, CELL_MIXTURE) >= 80);
}

TEST(mixture_triples_of_choices)
{
    assert_true(run(all_triples, CELL_MIXTURE) >= 80);
}

TEST(mixture_four_axes)
{
    assert_true(run(cells_four_axes, CELL_MIXTURE) >= 12);
}

static void all_folds(struct cells *c, enum cell_model model)
{
    (void)model;
    cells_folds(c, 8);
}

static void all_five_axes(struct cells *c, enum cell_model model)
{
    (void)model;
    cells_five_axes(c);
}

TEST(mixture_folds)
{
    assert_true(run(all_folds, CELL_MIXTURE) >= 190);
}

TEST(mixture_five_axes)
{
    assert_true(run(all_five_axes, CELL_MIXTURE) >= 24);
}
