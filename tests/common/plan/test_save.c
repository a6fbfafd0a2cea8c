/* Saves, on any mesh: over all ranks every element of every state is written exactly once, from its offset in memory,
 * and the parts of replicas differ by at most a row. Only sharding.c decides the boxes, so no program is compiled. */
#include "tests/common/plan/plan_fixture.h"

static int64_t elements(const struct graph_tensor *t)
{
    return t->dim[0].factor * (t->ndim > 1 ? t->dim[1].factor : 1);
}

struct saved {
    struct graph graph;
    struct mesh mesh;
    struct sharding_choice choice;
    int64_t start[512]; /* by tensor: its first element in a line of all elements */
    int64_t n;
    int *marks; /* [state][element] */
    int64_t bytes[64], arena[64];
};

static void rank_init(struct saved *s, int rank, struct program *p)
{
    struct why why;
    *p = (struct program){.mesh = s->mesh, .rank = rank, .wide = DT_F32, .dtype = DT_F32};
    if (sharding_init(&p->sharding, &s->graph, &s->mesh, rank, s->choice, &why) != OK)
        fail_msg("%s", why.text);
}

/* The index of an element in the rank's piece, the inverse of sharding_boxes. */
static int64_t place_of(struct saved *s, const struct program *p, int t, int64_t i, int64_t j)
{
    const struct sharding_param *q = &p->sharding.param[t];
    struct sharding_box boxes[SHARDING_MAX_BOXES];
    int n = sharding_boxes(&p->sharding, &s->graph, t, q->lo, q->hi, boxes);
    for (int b = 0; b < n; b++) {
        const struct box *x = &boxes[b].box;
        int64_t y = i - x->offset[0], z = x->ndim > 1 ? j - x->offset[1] : 0;
        if (y >= 0 && y < x->size[0] && z >= 0 && z < (x->ndim > 1 ? x->size[1] : 1))
            return boxes[b].offset + y * boxes[b].stride + z;
    }
    fail_msg("rank %d saves element %lld,%lld of %s, which it does not have", p->rank, (long long)i, (long long)j,
             s->graph.tensors[t].name);
    return -1;
}

static void paint(struct saved *s, const struct program *p, const struct save_item *x)
{
    const struct graph_tensor *t = &s->graph.tensors[x->tensor];
    int64_t cols = t->ndim > 1 ? t->dim[1].factor : 1, width = t->ndim > 1 ? x->box.size[1] : 1;
    int64_t col0 = t->ndim > 1 ? x->box.offset[1] : 0;
    assert_int_equal(x->box.ndim, t->ndim);
    for (int64_t i = 0; i < x->box.size[0]; i++)
        for (int64_t j = 0; j < width; j++) {
            int64_t row = x->box.offset[0] + i, col = col0 + j;
            s->marks[x->state * s->n + s->start[x->tensor] + row * cols + col]++;
            assert_int_equal(place_of(s, p, x->tensor, row, col), x->buffer_offset + i * x->stride + j);
        }
}

static void save_rank(struct saved *s, int rank)
{
    struct program p;
    struct save_item *items;
    int n;
    rank_init(s, rank, &p);
    assert_ok(plan_save_items(&p, &s->graph, &items, &n));
    assert_ok(plan_arena_bytes(&p, &s->graph, &s->arena[rank]));
    for (int i = 0; i < n; i++) {
        paint(s, &p, &items[i]);
        s->bytes[rank] += box_elements(&items[i].box) * 4;
    }
    assert_true(s->arena[rank] >= s->bytes[rank]);
    assert_true(s->arena[rank] <= s->bytes[rank] + PLAN_ARENA_ALIGN * GRAPH_BOXES_MAX * n);
    assert_int_equal(s->arena[rank] % PLAN_ARENA_ALIGN, 0);
    free(items);
    sharding_fini(&p.sharding);
}

static struct saved *save_all(const struct job_spec *job, struct mesh mesh, int zero, int chunks)
{
    int64_t near;
    struct why why;
    struct saved *s = calloc(1, sizeof(*s));
    s->mesh = mesh;
    s->choice = (struct sharding_choice){.zero = zero, .chunks = chunks};
    assert_true(mesh_fold_init(&mesh, job->parallel.ep, &s->choice.ep, &near));
    if (graph_build(&job->model, job->train.seq, &s->graph, &why) != OK)
        fail_msg("%s", why.text);
    assert_in_range(s->graph.n_tensors, 1, 511);
    for (int t = 0; t < s->graph.n_tensors; t++) {
        s->start[t] = s->n;
        s->n += s->graph.tensors[t].kind == GT_PARAM ? elements(&s->graph.tensors[t]) : 0;
    }
    s->marks = calloc((size_t)(3 * s->n), sizeof(*s->marks));
    for (int r = 0; r < mesh_workers(&mesh); r++)
        save_rank(s, r);
    for (int t = 0; t < s->graph.n_tensors; t++)
        for (int64_t i = 0; s->graph.tensors[t].kind == GT_PARAM && i < elements(&s->graph.tensors[t]); i++)
            for (int state = 0; state < 3; state++)
                if (s->marks[state * s->n + s->start[t] + i] != 1)
                    fail_msg("element %lld of %s, state %d, is saved %d times", (long long)i, s->graph.tensors[t].name,
                             state, s->marks[state * s->n + s->start[t] + i]);
    return s;
}

static void saved_free(struct saved *s)
{
    graph_fini(&s->graph);
    free(s->marks);
    free(s);
}

static int64_t longest_row(const struct graph *g)
{
    int64_t n = 0;
    for (int t = 0; t < g->n_tensors; t++)
        if (g->tensors[t].kind == GT_PARAM && g->tensors[t].ndim > 1 && g->tensors[t].dim[1].factor > n)
            n = g->tensors[t].dim[1].factor;
    return n;
}

/* Without shards every rank is a replica of every tensor: one class, on any axis. */
TEST(replicas_share_the_work_evenly)
{
    for (int workers = 1; workers <= 8; workers++)
        for (int axis = AXIS_DP; axis <= AXIS_CP; axis++)
            for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++) {
                struct job_spec job = job_small((enum model_arch)arch, workers);
                struct mesh mesh = {{1, 1, 1, 1, 1}};
                mesh.size[axis] = workers;
                struct saved *s = save_all(&job, mesh, 0, 1);
                for (int r = 0; r < workers; r++)
                    if (llabs(s->bytes[r] - 12 * s->n / workers) > longest_row(&s->graph) * 4)
                        fail_msg("rank %d of %d saves %lld bytes, its share is %lld", r, workers,
                                 (long long)s->bytes[r], (long long)(12 * s->n / workers));
                saved_free(s);
            }
}

/* Replicas over dp, cp, and tp where a tensor is not cut, split each piece: no two ranks write the same part. */
TEST(every_element_is_saved_once_on_every_mesh)
{
    static const struct mesh meshes[] = {
        {{1, 2, 2, 1, 1}}, {{1, 1, 4, 1, 1}}, {{1, 1, 3, 2, 1}}, {{1, 1, 1, 1, 2}}, {{1, 1, 1, 1, 4}},
        {{2, 1, 1, 1, 1}}, {{2, 1, 2, 1, 2}}, {{2, 2, 2, 1, 2}}, {{3, 1, 2, 2, 1}}, {{2, 1, 3, 2, 4}},
        {{1, 3, 1, 1, 3}}, {{2, 3, 1, 2, 2}}, {{1, 1, 5, 1, 3}}, {{2, 2, 2, 2, 2}},
    };
    for (size_t i = 0; i < sizeof(meshes) / sizeof(meshes[0]); i++)
        for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
            for (int zero = 0; zero <= 3; zero += 3)
                for (int tied = 0; tied < 2; tied++) {
                    struct job_spec job = job_small((enum model_arch)arch, 1);
                    job.model.dim = 24;
                    job.model.layers = 6;
                    job.model.vocab = 333;
                    job.model.tied = arch == ARCH_GPT2 || tied;
                    struct saved *s = save_all(&job, meshes[i], zero, meshes[i].size[AXIS_PP] == 2 ? 2 : 1);
                    saved_free(s);
                }
}

/* Experts on all folds of a mesh, beside key-value heads that other sets of tp ranks share. */
TEST(every_expert_is_saved_once_on_every_fold)
{
    static const struct mesh meshes[] = {{{1, 1, 1, 1, 4}}, {{1, 2, 4, 1, 1}}, {{2, 1, 1, 4, 2}}, {{1, 1, 4, 2, 4}},
                                         {{2, 2, 3, 2, 1}}, {{1, 1, 2, 4, 1}}, {{1, 1, 6, 1, 2}}};
    for (size_t i = 0; i < sizeof(meshes) / sizeof(meshes[0]); i++)
        for (int ep = 1; ep <= 16; ep++)
            for (int zero = 0; zero <= 3; zero += 3) {
                struct job_spec job = job_small(ARCH_LLAMA, 1);
                if (!mesh_fold_init(&meshes[i], ep, NULL, NULL))
                    continue;
                job.model.experts = 17;
                job.model.experts_per_token = 2;
                job.model.expert_ffn = 9;
                job.parallel.ep = ep;
                saved_free(save_all(&job, meshes[i], zero, 1));
            }
}

/* Four tp ranks and two key-value heads: two ranks hold the rows of each head and split them. */
TEST(ranks_of_one_key_value_head_share_its_rows)
{
    struct job_spec job = job_small(ARCH_LLAMA, 4);
    struct mesh mesh = {{1, 1, 1, 1, 4}};
    struct saved *s = save_all(&job, mesh, 0, 1);
    int64_t least = s->bytes[0], most = s->bytes[0];
    for (int r = 1; r < 4; r++) {
        least = s->bytes[r] < least ? s->bytes[r] : least;
        most = s->bytes[r] > most ? s->bytes[r] : most;
    }
    assert_true(most - least <= 3 * 4 * 16 * 4); /* three classes, a row each, and a feed-forward of odd size */
    saved_free(s);
}
