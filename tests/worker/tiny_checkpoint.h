/* A checkpoint that a test writes: a model with its initial parameters. */
#ifndef DTD_TESTS_WORKER_TINY_CHECKPOINT_H
#define DTD_TESTS_WORKER_TINY_CHECKPOINT_H

#include "tests/lib/test.h"

#include "common/base/file.h"
#include "common/ckpt/ckpt.h"
#include "common/plan/models/build.h"
#include "worker/step/snapshot.h"

#include <math.h>

/* Files of the checkpoint beside the parameters. */
struct tiny_files {
    const char *job;         /* the job file */
    const struct buf *vocab; /* NULL: none */
    const char *hf;          /* content of CKPT_HF_FILE; NULL: none */
    float scale; /* of the matrices; 0: as they are, and a token depends on hardly more than the one before it */
};

/* Writes the initial parameters of the model of `yaml` as a committed checkpoint, and its folder to `ret`. */
static inline void tiny_checkpoint(const char *yaml, const struct tiny_files *files, char *ret, size_t size)
{
    struct job_spec job;
    struct graph graph;
    struct engine e;
    struct snapshot s;
    struct ckpt_part *part;
    struct dev *dev;
    struct why why = {""};
    char partial[512];
    static int64_t step; /* all cases may run in one process */
    assert_ok(job_parse("tiny", yaml, strlen(yaml), NULL, 0, &job, &why));
    assert_ok(graph_build(&job.model, job.train.seq, &graph, &why));
    assert_ok(dev_open("cpu", 0, &dev, &why));
    const struct engine_config config = {.dev = dev, .job = &job, .graph = &graph, .world = 1, .generate = true};
    assert_ok(engine_init(&e, &config, &why));
    assert_ok(engine_start(&e, NULL, &why));
    assert_ok(engine_fill_state(&e, &why));
    assert_ok(snapshot_plan_load(&e, false, &s));
    for (int i = 0; files->scale > 0 && i < s.n; i++)
        for (int64_t k = 0; s.pieces[i].ndim > 1 && k < box_elements(&s.pieces[i].box); k++)
            ((float *)s.pieces[i].data)[k] *= files->scale;
    struct ckpt_piece *pieces = calloc((size_t)s.n, sizeof(*pieces));
    for (int i = 0; i < s.n; i++) {
        pieces[i] = (struct ckpt_piece){.fqn = s.pieces[i].fqn,
                                        .dtype = s.pieces[i].dtype,
                                        .ndim = s.pieces[i].ndim,
                                        .box = s.pieces[i].box,
                                        .data = s.pieces[i].data};
        memcpy(pieces[i].shape, s.pieces[i].shape, sizeof(s.pieces[i].shape));
    }
    assert_ok(ckpt_partial_dir(test_tmpdir(), ++step, 1, partial, sizeof(partial)));
    assert_ok(file_make_dirs(partial, 0700));
    assert_ok(ckpt_part_write(partial, 0, pieces, s.n, NULL, 0, &part, &why));
    const struct ckpt_commit commit = {.root = test_tmpdir(),
                                       .step = step,
                                       .epoch = 1,
                                       .job_yaml = files->job,
                                       .vocab = files->vocab ? files->vocab->data : NULL,
                                       .vocab_bytes = files->vocab ? files->vocab->len : 0,
                                       .hf = files->hf,
                                       .hf_bytes = files->hf ? strlen(files->hf) : 0,
                                       .loss = NAN};
    assert_ok(ckpt_commit(&commit, &part, 1, &why));
    assert_ok(ckpt_step_dir(test_tmpdir(), step, ret, size));
    ckpt_part_free(part);
    free(pieces);
    snapshot_fini(&s);
    engine_fini(&e);
    dev_close(dev);
    graph_fini(&graph);
    job_fini(&job);
}

#endif
