/* All small cells of data parallelism: model x batch x microbatch x workers, in proof mode and in canonical numerics.
 * The cells of one batch and microbatch are compared with one worker. Prints the number of compared cells. */
#include "tests/parity/compare.h"

#define STEPS 4

static struct parity_result *run(const char *yaml, const char *numerics, int batch, int micro, int workers,
                                 struct parity_model *m)
{
    char text[4][48];
    snprintf(text[0], sizeof(text[0]), "train.numerics=%s", numerics);
    snprintf(text[1], sizeof(text[1]), "train.global_batch=%d", batch);
    snprintf(text[2], sizeof(text[2]), "train.micro_batch=%d", micro);
    snprintf(text[3], sizeof(text[3]), "parallel.workers=%d", workers);
    const char *sets[] = {text[0], text[1], text[2], text[3], NULL};
    parity_model_init(m, yaml, sets);
    return parity_run(m, STEPS, NULL);
}

/* Runs one batch and microbatch on 1 to 6 workers; returns the number of cells that were compared. */
static int run_row(const char *yaml, const char *numerics, int batch, int micro)
{
    struct parity_model one, many;
    struct parity_result *a = run(yaml, numerics, batch, micro, 1, &one);
    int cells = 0;
    for (int workers = 2; workers <= 6; workers++) {
        struct parity_result *b = run(yaml, numerics, batch, micro, workers, &many);
        if (strcmp(numerics, "proof") == 0)
            parity_compare_bounds(&one.graph, a, b, STEPS);
        else
            parity_compare_bits(a, b, STEPS);
        assert_int_equal(b->replicas_differ, 0);
        parity_result_free(b);
        parity_model_fini(&many);
        cells++;
    }
    parity_result_free(a);
    parity_model_fini(&one);
    return cells;
}

static void run_matrix(const char *yaml, const char *numerics)
{
    static const int batches[] = {1, 2, 3, 5, 8, 11};
    int cells = 0;
    for (size_t b = 0; b < sizeof(batches) / sizeof(batches[0]); b++)
        for (int micro = 1; micro <= 3 && micro <= batches[b]; micro++)
            cells += run_row(yaml, numerics, batches[b], micro);
    printf("%d cells\n", cells);
    assert_true(cells >= 70);
}

TEST(llama_proof_cells)
{
    run_matrix(parity_llama, "proof");
}

TEST(gpt2_proof_cells)
{
    run_matrix(parity_gpt2, "proof");
}

TEST(llama_canonical_cells)
{
    run_matrix(parity_llama, "canonical");
}

TEST(gpt2_canonical_cells)
{
    run_matrix(parity_gpt2, "canonical");
}
