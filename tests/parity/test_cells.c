/* The part of the matrix that takes minutes; test_cells_all.c has the rest. */
#include "tests/parity/cells.h"

static void pairs(enum cell_model model, int most)
{
    struct cells c = {0};
    cells_pairs(&c, model, most);
    cells_run(&c);
    cells_fini(&c);
}

TEST(llama_cells_of_four_workers)
{
    pairs(CELL_LLAMA, 4);
}

TEST(gpt2_cells_of_four_workers)
{
    pairs(CELL_GPT2, 4);
}

TEST(qwen_cells_of_four_workers)
{
    pairs(CELL_QWEN, 4);
}

TEST(olmo_cells_of_four_workers)
{
    pairs(CELL_OLMO, 4);
}

TEST(neox_cells_of_four_workers)
{
    pairs(CELL_NEOX, 4);
}

TEST(gemma_cells_of_four_workers)
{
    pairs(CELL_GEMMA, 4);
}

TEST(transformer_cells_of_four_workers)
{
    pairs(CELL_TRANSFORMER, 4);
}

TEST(mixture_cells_of_four_workers)
{
    pairs(CELL_MIXTURE, 4);
}

/* A schedule in proof mode, with the norm of all ranks and a clip that bites; gpt2's head is tied. */
static void schedule_cells(enum pipe_schedule schedule)
{
    static const enum cell_model models[] = {CELL_LLAMA, CELL_GPT2, CELL_MIXTURE};
    struct cells c = {0};
    for (int i = 0; i < 3; i++)
        cells_schedule(&c, models[i], schedule, 4);
    cells_run(&c);
    cells_fini(&c);
}

TEST(zb_v_cells_of_four_workers)
{
    schedule_cells(PIPE_ZB_V);
}

TEST(dualpipe_v_cells_of_four_workers)
{
    schedule_cells(PIPE_DUALPIPE_V);
}

TEST(zb_h2_cells_of_four_workers)
{
    schedule_cells(PIPE_ZB_H2);
}
