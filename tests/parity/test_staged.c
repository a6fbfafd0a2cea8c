/* Collectives that are staged through the host have the same bits as those in shared memory. An engine on a device with
 * hidden memory (streams of its own, batches and losses copied, gradients outside the segment) has the same bits as one
 * in host memory. */
#include "tests/parity/compare.h"
#include "tests/worker/record_device.h"

#define STEPS 6

/* A layout as overrides. */
static const char *const layouts[][5] = {
    {"parallel.workers=1"},
    {"parallel.workers=2"},
    {"parallel.workers=3"},
    {"parallel.workers=4"},
    {"parallel.workers=2", "parallel.fsdp=2", "parallel.zero=1"},
    {"parallel.workers=3", "parallel.fsdp=3", "parallel.zero=3"},
    {"parallel.workers=2", "parallel.tp=2"},
    {"parallel.workers=2", "parallel.cp=2"},
    {"parallel.workers=2", "parallel.pp=2"},
    {"parallel.workers=4", "parallel.pp=2", "parallel.fsdp=2", "parallel.zero=2"},
};

static struct parity_result *run(const char *yaml, const char *numerics, const char *const layout[5],
                                 const struct parity_options *o, struct parity_model *m)
{
    char n[48];
    snprintf(n, sizeof(n), "train.numerics=%s", numerics);
    parity_model_init(m, yaml, (const char *[]){n, layout[0], layout[1], layout[2], layout[3], layout[4], NULL});
    return parity_run(m, STEPS, o);
}

static void compare(const char *yaml, const char *numerics, const struct parity_options *o)
{
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        struct parity_model m, other;
        struct parity_result *a = run(yaml, numerics, layouts[i], NULL, &m);
        struct parity_result *b = run(yaml, numerics, layouts[i], o, &other);
        print_message("layout %zu\n", i);
        assert_true(a->loss[STEPS - 1] < a->loss[0]);
        parity_compare_bits(a, b, STEPS);
        parity_result_free(a);
        parity_result_free(b);
        parity_model_fini(&m);
        parity_model_fini(&other);
    }
}

static const struct parity_options staged = {.comm = "staged"};
static const struct parity_options hidden = {.comm = "staged", .open = rec_open, .close = rec_close};

TEST(staged_llama_has_the_bits_of_shm)
{
    compare(parity_llama, "fast", &staged);
    compare(parity_llama, "proof", &staged);
}

TEST(staged_gpt2_has_the_bits_of_shm)
{
    compare(parity_gpt2, "fast", &staged);
    compare(parity_gpt2, "proof", &staged);
}

TEST(llama_on_hidden_memory_has_the_bits_of_the_cpu)
{
    compare(parity_llama, "fast", &hidden);
}

TEST(gpt2_on_hidden_memory_has_the_bits_of_the_cpu)
{
    compare(parity_gpt2, "fast", &hidden);
}

/* A job that is saved on one kind of device and resumed on the other, with a load in rounds and a snapshot, equals one
 * without a stop. */
static void move_between(const struct parity_options *before, const struct parity_options *after)
{
    struct parity_model m, first, second;
    struct parity_result *whole = run(parity_gpt2, "fast", layouts[1], NULL, &m);
    struct store *store = store_new(&m.graph, DT_F32);
    struct parity_options save = *before, load = *after;
    save.save = load.load = store;
    parity_model_init(&first, parity_gpt2, (const char *[]){"parallel.workers=2", "train.numerics=fast", NULL});
    struct parity_result *a = parity_run(&first, STEPS / 2, &save);
    assert_int_equal(store_bad_elements(store), 0);
    struct parity_result *b = run(parity_gpt2, "fast", layouts[1], &load, &second);
    assert_memory_equal(whole->param, b->param, (size_t)b->n * sizeof(double));
    parity_result_free(whole);
    parity_result_free(a);
    parity_result_free(b);
    store_free(store);
    parity_model_fini(&m);
    parity_model_fini(&first);
    parity_model_fini(&second);
}

TEST(a_job_moves_between_devices_bit_for_bit)
{
    static const struct parity_options plain;
    move_between(&plain, &hidden);
    move_between(&hidden, &plain);
}
