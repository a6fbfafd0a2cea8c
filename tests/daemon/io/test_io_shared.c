/* Several dtd-ios of one job, one per node, which share only the checkpoint directory: saves over all of them; any of
 * them killed, late, stale, or with another directory; and foreign files in the directory. */
#include "tests/daemon/io/io_harness.h"

#include "common/ckpt/marker.h"
#include "common/ckpt/part.h"

#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define MIB ((size_t)1 << 20)
#define COMMITTED DTD__IO_REPORT__KIND__COMMITTED
#define SAVE_FAILED DTD__IO_REPORT__KIND__SAVE_FAILED
#define MAX_NODES 3
#define MAX_RANKS 8
#define SUBMITTED_MS 1700000000000

/* Rank r is on node r % n. */
struct nodes {
    struct io_test t[MAX_NODES];
    int n, world;
    struct io_worker w[MAX_RANKS];
    struct fixture f;
};

static void workers_open(struct nodes *c, int node)
{
    for (int r = node; r < c->world; r += c->n)
        io_worker_open(&c->w[r], &c->t[node], r / c->n);
}

static void nodes_start_with(struct nodes *c, int n, int world, const char *const *args)
{
    *c = (struct nodes){.n = n, .world = world};
    c->f = (struct fixture){.tensors = fixture_model, .n_tensors = fixture_n_model};
    fixture_shard(&c->f, world);
    io_test_start_with(&c->t[0], (world + n - 1) / n, 1 * MIB, args);
    for (int k = 1; k < n; k++)
        io_test_join(&c->t[k], &c->t[0], k);
    for (int k = 0; k < n; k++)
        workers_open(c, k);
}

static void nodes_start(struct nodes *c, int n, int world)
{
    nodes_start_with(c, n, world, NULL);
}

static void nodes_stop(struct nodes *c)
{
    for (int r = 0; r < c->world; r++)
        io_worker_close(&c->w[r]);
    for (int k = c->n - 1; k >= 0; k--)
        io_test_stop(&c->t[k]);
    fixture_free(&c->f);
}

static void say_node(struct nodes *c, int node, uint64_t epoch, int64_t step, int committer)
{
    struct io_part_of part = {.committer = node == committer, .n_ios = c->n, .submitted_ms = SUBMITTED_MS};
    for (int r = node; r < c->world; r += c->n)
        part.ranks[part.n_ranks++] = r;
    io_say_share(&c->t[node], epoch, step, &part);
}

static void say(struct nodes *c, uint64_t epoch, int64_t step, int committer)
{
    for (int k = 0; k < c->n; k++)
        say_node(c, k, epoch, step, committer);
}

static void save(struct nodes *c, uint64_t epoch, int64_t step, int rank, struct io_op *ret)
{
    io_save(&c->w[rank], &c->f, epoch, step, rank, c->world, ret);
}

static void wait_done(struct nodes *c, const struct io_op *op, err_t err)
{
    io_until(&c->t[0], &op->done, 30000, "the end of the call");
    if (op->err != err)
        print_error("text: %s\n", op->text);
    assert_err(err, op->err);
}

static void save_all(struct nodes *c, uint64_t epoch, int64_t step)
{
    struct io_op op[MAX_RANKS];
    for (int r = 0; r < c->world; r++)
        save(c, epoch, step, r, &op[r]);
    for (int r = 0; r < c->world; r++) {
        wait_done(c, &op[r], OK);
        assert_true(op[r].written && op[r].committed);
    }
}

static void restart(struct nodes *c, int node)
{
    io_kill(&c->t[node]);
    for (int r = node; r < c->world; r += c->n)
        if (!c->w[r].closed)
            io_until(&c->t[0], &c->w[r].closed, 5000, "close");
    io_spawn(&c->t[node], 0);
    workers_open(c, node);
}

static const char *step_path(const struct nodes *c, int64_t step)
{
    static char path[PATH_MAX];
    assert_ok(ckpt_step_dir(c->t[0].root, step, path, sizeof(path)));
    return path;
}

static void check_step(const struct nodes *c, int64_t step, uint64_t epoch)
{
    struct why why = {{0}};
    struct ckpt_info info;
    struct ckpt *open;
    if (ckpt_verify(step_path(c, step), NULL, NULL, &why))
        fail_msg("%s", why.text);
    assert_ok(ckpt_info(step_path(c, step), &info, NULL));
    assert_int_equal(info.epoch, epoch);
    assert_ok(ckpt_open(step_path(c, step), &open, &why));
    fixture_check_all(&c->f, open);
    ckpt_close(open);
}

static bool exists(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0;
}

/* Folders of saves that are not committed. */
static int count_open(const struct nodes *c, const char *ending)
{
    int n = 0;
    DIR *d = opendir(c->t[0].root);
    for (struct dirent *e; d && (e = readdir(d));)
        n += strstr(e->d_name, ending) != NULL;
    if (d)
        closedir(d);
    return n;
}

static struct ckpt_shared_save as_other(const struct nodes *c, uint64_t epoch, int64_t step)
{
    return (struct ckpt_shared_save){
        .root = c->t[0].root,
        .me = {.job = "7", .submitted_ms = SUBMITTED_MS, .epoch = epoch, .writer = 99},
        .step = step,
        .world = c->world,
    };
}

/* The path of a folder of an open save of epoch 1, and of a file in it. */
static const char *open_path(const struct nodes *c, int64_t step, const char *kind, const char *file)
{
    static char path[PATH_MAX];
    char name[CKPT_OPEN_NAME];
    const struct ckpt_shared_save s = as_other(c, 1, step);
    ckpt_open_name(step, &s.me, kind, name);
    snprintf(path, sizeof(path), "%s/%s%s", c->t[0].root, name, file);
    return path;
}

static int count_reports(const struct io_test *t, int kind)
{
    int n = 0;
    for (int i = 0; i < t->n_reports; i++)
        n += t->reports[i].kind == kind;
    return n;
}

/* ---- saves and loads ---- */

static void saves_over(int n, int world)
{
    struct nodes c;
    int seen = 0;
    nodes_start(&c, n, world);
    say(&c, 1, 0, 0);
    save_all(&c, 1, 20);
    check_step(&c, 20, 1);
    const struct io_seen *r = io_report_wait(&c.t[0], COMMITTED, &seen, 10000);
    assert_int_equal(r->step, 20);
    assert_string_equal(r->path, step_path(&c, 20));
    save_all(&c, 1, 30);
    check_step(&c, 30, 1);
    io_report_wait(&c.t[0], COMMITTED, &seen, 10000);
    for (int k = 1; k < n; k++)
        assert_int_equal(c.t[k].n_reports, 0); /* only the committer reports to control */
    assert_int_equal(count_open(&c, ".partial") + count_open(&c, ".index") + count_open(&c, ".tmp"), 0);
    nodes_stop(&c);
}

TEST(two_ios)
{
    saves_over(2, 2);
}

TEST(three_ios_seven_ranks)
{
    saves_over(3, 7);
}

/* Saved by four ranks on two nodes, read by three on three; and the other way round. */
TEST(into_another_world)
{
    struct nodes c;
    struct io_op op[3];
    nodes_start(&c, 2, 4);
    say(&c, 1, 0, 0);
    save_all(&c, 1, 20);
    struct fixture f = {.tensors = fixture_model, .n_tensors = fixture_n_model};
    fixture_shard(&f, 3);
    for (int k = 0; k < 3; k++)
        io_load(&c.w[k], &f, step_path(&c, 20), k, &op[k]);
    for (int k = 0; k < 3; k++) {
        wait_done(&c, &op[k], OK);
        io_check_loaded(&c.w[k], &f, k);
        assert_int_equal(op[k].step, 20);
    }
    fixture_free(&f);
    nodes_stop(&c);
}

/* Writes step-1 for the PyTorch part of tests/interop into the folder named by DTD_SHARED_OUT. */
TEST(for_torch)
{
    struct nodes c;
    char command[2 * PATH_MAX];
    const char *out = getenv("DTD_SHARED_OUT");
    nodes_start(&c, 3, 3);
    say(&c, 1, 0, 1);
    save_all(&c, 1, 1);
    check_step(&c, 1, 1);
    if (out) {
        snprintf(command, sizeof(command), "%s/step-1", out);
        assert_int_equal(rename(step_path(&c, 1), command), 0);
    }
    nodes_stop(&c);
}

/* One dtd-io with all ranks writes no files for other dtd-ios. */
TEST(alone_writes_no_index)
{
    struct io_test t;
    struct io_worker w[2];
    struct io_op op[2];
    char path[PATH_MAX];
    struct fixture f = {.tensors = fixture_model, .n_tensors = fixture_n_model};
    fixture_shard(&f, 2);
    io_test_start(&t, 2, 1 * MIB);
    io_say_share(&t, 1, 0, &(struct io_part_of){.committer = true, .n_ios = 1, .n_ranks = 2, .ranks = {0, 1}});
    for (int k = 0; k < 2; k++)
        io_worker_open(&w[k], &t, k);
    io_save(&w[0], &f, 1, 5, 0, 2, &op[0]);
    io_until(&t, &op[0].written, 10000, "WRITTEN");
    snprintf(path, sizeof(path), "%s/.step-5.e1.index", t.root); /* no submitted_ms: no incarnation */
    assert_false(exists(path));
    io_save(&w[1], &f, 1, 5, 1, 2, &op[1]);
    for (int k = 0; k < 2; k++) {
        io_until(&t, &op[k].done, 10000, "the end");
        assert_ok(op[k].err);
    }
    fixture_free(&f);
    for (int k = 0; k < 2; k++)
        io_worker_close(&w[k]);
    io_test_stop(&t);
}

TEST(late_writer)
{
    struct nodes c;
    struct io_op op[3];
    nodes_start(&c, 3, 3);
    say(&c, 1, 0, 0);
    save(&c, 1, 5, 0, &op[0]);
    save(&c, 1, 5, 1, &op[1]);
    io_until(&c.t[0], &op[0].written, 10000, "WRITTEN");
    io_until(&c.t[0], &op[1].written, 10000, "WRITTEN");
    io_run_ms(&c.t[0], 700);
    assert_false(op[0].done || op[1].done || exists(step_path(&c, 5)));
    save(&c, 1, 5, 2, &op[2]);
    for (int r = 0; r < 3; r++)
        wait_done(&c, &op[r], OK);
    check_step(&c, 5, 1);
    nodes_stop(&c);
}

TEST(rank_of_another_node)
{
    struct nodes c;
    struct io_op op;
    nodes_start(&c, 2, 2);
    say(&c, 1, 0, 0);
    io_save(&c.w[1], &c.f, 1, 5, 0, 2, &op);
    wait_done(&c, &op, ERR_INVALID);
    assert_non_null(strstr(op.text, "rank 0 of epoch 1 has no worker on this node"));
    nodes_stop(&c);
}

/* ---- the epoch's word ---- */

TEST(others_wait_for_the_committer)
{
    struct nodes c;
    struct io_op op[2];
    nodes_start(&c, 2, 2);
    say_node(&c, 1, 1, 0, 0);
    save(&c, 1, 5, 1, &op[1]);
    io_run_ms(&c.t[0], 400);
    assert_false(op[1].written || op[1].done || exists(c.t[0].root));
    say_node(&c, 0, 1, 0, 0);
    save(&c, 1, 5, 0, &op[0]);
    for (int r = 0; r < 2; r++)
        wait_done(&c, &op[r], OK);
    check_step(&c, 5, 1);
    assert_int_equal(count_reports(&c.t[1], SAVE_FAILED), 0);
    nodes_stop(&c);
}

/* A step of the abandoned branch must not answer a save of the new epoch. */
TEST(roll_back)
{
    struct nodes c;
    struct io_op op[2];
    char aside[PATH_MAX + 8];
    nodes_start(&c, 2, 2);
    say(&c, 1, 0, 0);
    save_all(&c, 1, 10);
    save_all(&c, 1, 20);
    say_node(&c, 1, 2, 10, 0);
    save(&c, 2, 20, 1, &op[1]);
    io_run_ms(&c.t[0], 200);
    assert_false(op[1].written || op[1].done);
    say_node(&c, 0, 2, 10, 0);
    save(&c, 2, 20, 0, &op[0]);
    for (int r = 0; r < 2; r++)
        wait_done(&c, &op[r], OK);
    check_step(&c, 20, 2);
    check_step(&c, 10, 1);
    snprintf(aside, sizeof(aside), "%s.e1", step_path(&c, 20));
    assert_true(exists(aside));
    nodes_stop(&c);
}

/* The committer is killed while it prepares the directory: the others do not start, its successor completes it. */
TEST(killed_while_preparing)
{
    struct nodes c;
    struct io_op op;
    nodes_start(&c, 2, 2);
    const struct marker half = {.kind = MARKER_PREPARING, .by = as_other(&c, 3, 0).me};
    assert_int_equal(mkdir(c.t[0].root, 0777), 0);
    assert_ok(marker_write(c.t[0].root, NULL, CKPT_EPOCH_FILE, &half, NULL));
    say_node(&c, 1, 3, 0, 0);
    save(&c, 3, 5, 1, &op);
    io_run_ms(&c.t[0], 300);
    assert_false(op.written || op.done);
    restart(&c, 0);
    say_node(&c, 0, 3, 0, 0);
    struct io_op mine;
    save(&c, 3, 5, 0, &mine);
    wait_done(&c, &mine, OK);
    wait_done(&c, &op, OK);
    check_step(&c, 5, 3);
    nodes_stop(&c);
}

/* The directory contains files of another job with a higher epoch. All of them are ignored. */
TEST(marker_of_another_job)
{
    static const struct ckpt_writer_id strangers[] = {
        {.job = "5", .submitted_ms = SUBMITTED_MS, .epoch = 9, .writer = 1},
        {.job = "7", .submitted_ms = SUBMITTED_MS - 1, .epoch = 9, .writer = 1}, /* of another cluster */
    };
    for (int i = 0; i < 2; i++) {
        struct nodes c;
        struct io_op op[2];
        struct ckpt_part *parts[2];
        nodes_start(&c, 2, 2);
        struct ckpt_shared_save theirs = as_other(&c, 1, 5 + i);
        assert_ok(ckpt_prepare(c.t[0].root, &strangers[i], 0, NULL));
        theirs.me = strangers[i];
        theirs.me.epoch = 1;
        fixture_write_parts_of(&c.f, c.t[0].root, 5 + i, &theirs.me, 2, parts);
        assert_ok(ckpt_index_put(&theirs, parts[1], NULL));
        say_node(&c, 1, 1, 0, 0);
        save(&c, 1, 5 + i, 1, &op[1]);
        io_run_ms(&c.t[0], 200);
        assert_false(op[1].written || op[1].done);
        io_kill(&c.t[1]);
        say_node(&c, 0, 1, 0, 0);
        assert_ok(ckpt_index_put(&theirs, parts[1], NULL)); /* a process of the other job that still runs */
        save(&c, 1, 5 + i, 0, &op[0]);
        io_until(&c.t[0], &op[0].written, 10000, "WRITTEN");
        io_run_ms(&c.t[0], 300);
        assert_false(op[0].done);
        for (int r = 0; r < 2; r++)
            ckpt_part_free(parts[r]);
        io_spawn(&c.t[1], 0);
        workers_open(&c, 1);
        say_node(&c, 1, 1, 0, 0);
        save(&c, 1, 5 + i, 1, &op[1]);
        for (int r = 0; r < 2; r++)
            wait_done(&c, &op[r], OK);
        check_step(&c, 5 + i, 1);
        char command[PATH_MAX + 16];
        snprintf(command, sizeof(command), "rm -rf %s %s/*.sock %s/n1", c.t[0].root, c.t[0].dir, c.t[0].dir);
        nodes_stop(&c);
        assert_int_equal(system(command), 0);
    }
}

/* It finds the file of the newer epoch, or that its folder has been removed. */
static void wait_fenced(struct nodes *c, const struct io_op *op)
{
    io_until(&c->t[0], &op->done, 30000, "the end of the call");
    if (op->err != ERR_STALE && op->err != ERR_NOTFOUND)
        fail_msg("%s: %s", err_name(op->err), op->text);
}

/* A committer that was cut off continues in its old epoch: it commits nothing and reports why. */
TEST(old_committer_is_fenced)
{
    struct nodes c;
    struct io_op old[3], op[3];
    nodes_start(&c, 3, 3);
    say(&c, 1, 0, 0);
    save(&c, 1, 5, 0, &old[0]);
    save(&c, 1, 5, 1, &old[1]);
    io_until(&c.t[0], &old[0].written, 10000, "WRITTEN");
    io_until(&c.t[0], &old[1].written, 10000, "WRITTEN");
    kill(c.t[0].pid, SIGSTOP);
    save(&c, 1, 5, 2, &old[2]);
    io_until(&c.t[0], &old[2].written, 10000, "WRITTEN");
    struct io_part_of part = {.committer = true, .n_ios = 2, .n_ranks = 1, .ranks = {0}, .submitted_ms = SUBMITTED_MS};
    io_say_share(&c.t[1], 2, 0, &part); /* a smaller world on the nodes that are left */
    part.committer = false;
    part.ranks[0] = 1;
    io_say_share(&c.t[2], 2, 0, &part);
    wait_done(&c, &old[1], ERR_STALE);
    wait_done(&c, &old[2], ERR_STALE);
    kill(c.t[0].pid, SIGCONT);
    wait_fenced(&c, &old[0]);
    assert_false(exists(step_path(&c, 5)));
    save(&c, 1, 6, 0, &old[0]); /* a save that starts only now */
    wait_fenced(&c, &old[0]);
    assert_false(exists(step_path(&c, 6)));
    struct fixture f = {.tensors = fixture_model, .n_tensors = fixture_n_model};
    fixture_shard(&f, 2);
    io_save(&c.w[1], &f, 2, 5, 0, 2, &op[0]);
    io_save(&c.w[2], &f, 2, 5, 1, 2, &op[1]);
    for (int r = 0; r < 2; r++)
        wait_done(&c, &op[r], OK);
    check_step(&c, 5, 2);
    fixture_free(&f);
    nodes_stop(&c);
}

/* Two processes are committers of the same epoch: only the later one commits. */
TEST(committer_on_another_node)
{
    struct nodes c;
    struct io_op op[2];
    nodes_start(&c, 2, 2);
    say(&c, 1, 0, 0);
    save(&c, 1, 5, 0, &op[0]);
    io_until(&c.t[0], &op[0].written, 10000, "WRITTEN");
    say_node(&c, 1, 1, 0, 1); /* repeated with another role: it already has the epoch and keeps its role */
    restart(&c, 1);
    say_node(&c, 1, 1, 0, 1);
    wait_done(&c, &op[0], ERR_STALE);
    assert_non_null(strstr(op[0].text, "another dtd-io"));
    save(&c, 1, 6, 1, &op[1]);
    io_until(&c.t[0], &op[1].written, 10000, "WRITTEN");
    restart(&c, 0);
    say_node(&c, 0, 1, 0, 1);
    save(&c, 1, 6, 0, &op[0]);
    for (int r = 0; r < 2; r++)
        wait_done(&c, &op[r], OK);
    check_step(&c, 6, 1);
    nodes_stop(&c);
}

TEST(new_epoch_ends_the_wait)
{
    struct nodes c;
    struct io_op op[2];
    nodes_start(&c, 2, 2);
    say(&c, 1, 0, 0);
    for (int round = 0; round < 2; round++) { /* each one that is missing */
        uint64_t epoch = (uint64_t)round * 2 + 1;
        save(&c, epoch, 5, round, &op[round]);
        io_until(&c.t[0], &op[round].written, 10000, "WRITTEN");
        say(&c, epoch + 1, 0, 0);
        wait_done(&c, &op[round], ERR_STALE);
        save_all(&c, epoch + 1, 5);
        check_step(&c, 5, epoch + 1);
        say(&c, epoch + 2, 0, 0);
    }
    save_all(&c, 5, 5);
    check_step(&c, 5, 5);
    assert_int_equal(count_open(&c, ".partial") + count_open(&c, ".index"), 0);
    nodes_stop(&c);
}

/* Node b has a different folder at this path. */
TEST(directory_is_not_shared)
{
    static const char *const args[] = {"--word-wait-ms", "500", "--save-wait-ms", "1500", NULL};
    struct nodes c;
    struct io_op op[2];
    int seen = 0;
    nodes_start_with(&c, 2, 2, args);
    char *at = strstr(c.t[1].yaml, "/ckpt}");
    assert_non_null(at);
    memcpy(at, "/mine}", 6);
    say(&c, 1, 0, 0);
    save(&c, 1, 5, 0, &op[0]);
    save(&c, 1, 5, 1, &op[1]);
    const struct io_seen *r = io_report_wait(&c.t[1], SAVE_FAILED, &seen, 10000);
    assert_non_null(strstr(r->text, "/mine on node b is not the directory that node a sees"));
    assert_non_null(strstr(r->text, "use a shared file system"));
    wait_done(&c, &op[1], ERR_INVALID);
    assert_string_equal(op[1].text, r->text);
    wait_done(&c, &op[0], ERR_TIMEOUT);
    io_run_ms(&c.t[0], 700);
    assert_int_equal(count_reports(&c.t[1], SAVE_FAILED), 1); /* once, not at every poll */
    nodes_stop(&c);
}

/* The committer exceeds the time limit: the others report it, and continue when the committer is ready. */
TEST(committer_is_very_late)
{
    static const char *const args[] = {"--word-wait-ms", "300", NULL};
    struct nodes c;
    int seen = 0;
    nodes_start_with(&c, 2, 2, args);
    say_node(&c, 1, 1, 0, 0);
    io_report_wait(&c.t[1], SAVE_FAILED, &seen, 10000);
    say_node(&c, 0, 1, 0, 0);
    struct io_op op[2];
    save(&c, 1, 5, 0, &op[0]);
    for (int i = 0; i < 100; i++) { /* until it has polled again */
        save(&c, 1, 5, 1, &op[1]);
        io_until(&c.t[0], &op[1].done, 10000, "the end of the call");
        if (op[1].err != ERR_INVALID)
            break;
        io_run_ms(&c.t[0], 100);
    }
    for (int r = 0; r < 2; r++)
        wait_done(&c, &op[r], OK);
    nodes_stop(&c);
}

/* ---- failures ---- */

TEST(missing_rank)
{
    static const char *const args[] = {"--save-wait-ms", "3000", NULL};
    struct nodes c;
    struct io_op op[6], late;
    int seen = 0;
    nodes_start_with(&c, 2, 6, args);
    say(&c, 1, 0, 0);
    save_all(&c, 1, 4);
    for (int r = 0; r < 6; r++)
        if (r != 1 && r != 5)
            save(&c, 1, 5, r, &op[r]);
    wait_done(&c, &op[0], ERR_TIMEOUT);
    assert_non_null(strstr(op[0].text, "from rank 1, 5 of 6"));
    wait_done(&c, &op[3], ERR_TIMEOUT); /* failed by the committer */
    assert_string_equal(op[3].text, op[0].text);
    assert_string_equal(io_report_wait(&c.t[0], SAVE_FAILED, &seen, 10000)->text, op[0].text);
    assert_int_equal(count_reports(&c.t[1], SAVE_FAILED), 0);
    save(&c, 1, 5, 1, &late);
    wait_done(&c, &late, ERR_TIMEOUT);
    restart(&c, 1); /* its successor reads the result from the directory */
    say_node(&c, 1, 1, 0, 0);
    save(&c, 1, 5, 5, &late);
    wait_done(&c, &late, ERR_TIMEOUT);
    assert_string_equal(late.text, op[0].text);
    assert_int_equal(count_open(&c, ".partial"), 0);
    save_all(&c, 1, 6);
    check_step(&c, 6, 1);
    check_step(&c, 4, 1);
    nodes_stop(&c);
}

/* A worker reuses its arena for the next snapshot while its part is being written: this part must not be used. */
TEST(arena_is_taken_back)
{
    static const struct fixture_tensor big[] = {{"big", DT_F32, 2, {500, 1024}}};
    struct nodes c;
    struct io_op op[2], next[2];
    nodes_start(&c, 2, 2);
    fixture_free(&c.f);
    c.f = (struct fixture){.tensors = big, .n_tensors = 1};
    fixture_shard(&c.f, 2);
    say(&c, 1, 0, 0);
    save(&c, 1, 4, 0, &op[0]);
    save(&c, 1, 4, 1, &op[1]);
    for (int r = 0; r < 2; r++)
        wait_done(&c, &op[r], OK);
    kill(c.t[1].pid, SIGSTOP); /* so that it finds both requests at once */
    save(&c, 1, 5, 1, &op[1]);
    save(&c, 1, 6, 1, &next[1]);
    io_run_ms(&c.t[0], 50);
    kill(c.t[1].pid, SIGCONT);
    save(&c, 1, 5, 0, &op[0]);
    wait_done(&c, &op[1], ERR_CANCELED);
    wait_done(&c, &op[0], ERR_CANCELED);
    assert_string_equal(op[0].text, op[1].text);
    save(&c, 1, 6, 0, &next[0]);
    for (int r = 0; r < 2; r++)
        wait_done(&c, &next[r], OK);
    check_step(&c, 6, 1);
    assert_false(exists(step_path(&c, 5)));
    nodes_stop(&c);
}

/* The disk of `node` is full. All ranks receive the error long before any deadline, and the next save succeeds. */
static void full_disk_of(int node)
{
    struct nodes c;
    struct io_op op[3];
    struct rlimit small = {2000, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
    nodes_start(&c, 3, 3);
    say(&c, 1, 0, 0);
    save_all(&c, 1, 1);
    assert_int_equal(prlimit(c.t[node].pid, RLIMIT_FSIZE, &small, NULL), 0);
    for (int r = 0; r < 3; r++)
        save(&c, 1, 2, r, &op[r]);
    for (int r = 0; r < 3; r++) {
        wait_done(&c, &op[r], ERR_NOSPACE);
        assert_non_null(strstr(op[r].text, "no space"));
    }
    for (int i = 0; count_open(&c, ".partial") && i < 200; i++)
        io_run_ms(&c.t[0], 20);
    assert_int_equal(count_open(&c, ".partial"), 0);
    check_step(&c, 1, 1);
    assert_int_equal(prlimit(c.t[node].pid, RLIMIT_FSIZE, &none, NULL), 0);
    save_all(&c, 1, 3);
    check_step(&c, 3, 1);
    nodes_stop(&c);
}

TEST(full_disk_of_the_committer)
{
    full_disk_of(0);
}

TEST(full_disk_of_another)
{
    full_disk_of(2);
}

/* ---- files that none of them wrote ---- */

static void put_bytes(const char *path, const void *data, size_t len)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void garbage(const char *path, const struct buf *good)
{
    put_bytes(path, "DTDWORDS and so on, but nothing of it is true.................................", 78);
}

static void nothing(const char *path, const struct buf *good)
{
    put_bytes(path, "", 0);
}

static void truncated(const char *path, const struct buf *good)
{
    put_bytes(path, good->data, good->len - 1);
}

static void flipped(const char *path, const struct buf *good)
{
    good->data[good->len / 2] ^= 8;
    put_bytes(path, good->data, good->len);
}

static void link_to_good(const char *path, const struct buf *good)
{
    char target[PATH_MAX + 8];
    snprintf(target, sizeof(target), "%s.good", path);
    put_bytes(target, good->data, good->len);
    assert_int_equal(symlink(target, path), 0);
}

static void a_pipe(const char *path, const struct buf *good)
{
    assert_int_equal(mkfifo(path, 0666), 0);
}

static void a_folder(const char *path, const struct buf *good)
{
    assert_int_equal(mkdir(path, 0777), 0);
}

/* Rank 1's part exists, but its index is another file: the save fails and names the file. */
static void bad_index(void (*put)(const char *path, const struct buf *good))
{
    struct nodes c;
    struct io_op op;
    struct ckpt_part *parts[2];
    struct buf body = {0}, good = {0};
    char path[PATH_MAX + 64];
    nodes_start(&c, 2, 2);
    say(&c, 1, 0, 0);
    save_all(&c, 1, 4);
    const struct ckpt_writer_id mine = as_other(&c, 1, 5).me;
    fixture_write_parts_of(&c.f, c.t[0].root, 5, &mine, 2, parts);
    assert_ok(ckpt_part_encode(parts[1], &body));
    struct marker w = {.kind = MARKER_PART, .by = as_other(&c, 1, 5).me, .step = 5, .rank = 1, .world = 2};
    w.body = body.data;
    w.body_bytes = body.len;
    assert_ok(marker_encode(&w, &good));
    snprintf(path, sizeof(path), "%s", open_path(&c, 5, "index", ""));
    assert_int_equal(mkdir(path, 0777), 0);
    strcat(path, "/__1_0.part");
    put(path, &good);
    save(&c, 1, 5, 0, &op);
    wait_done(&c, &op, ERR_CORRUPT);
    assert_non_null(strstr(op.text, open_path(&c, 5, "index", "/__1_0.part")));
    assert_false(exists(step_path(&c, 5)));
    save_all(&c, 1, 6);
    check_step(&c, 4, 1);
    check_step(&c, 6, 1);
    for (int r = 0; r < 2; r++)
        ckpt_part_free(parts[r]);
    buf_fini(&body);
    buf_fini(&good);
    nodes_stop(&c);
}

TEST(index_is_garbage)
{
    bad_index(garbage);
}

TEST(index_is_empty)
{
    bad_index(nothing);
}

TEST(index_is_truncated)
{
    bad_index(truncated);
}

TEST(index_has_a_flipped_bit)
{
    bad_index(flipped);
}

TEST(index_is_a_link)
{
    bad_index(link_to_good);
}

TEST(index_is_a_pipe)
{
    bad_index(a_pipe);
}

TEST(index_is_a_folder)
{
    bad_index(a_folder);
}

/* The index is valid, but the part does not match it. */
TEST(part_is_shorter_than_its_index)
{
    struct nodes c;
    struct io_op op[2];
    char path[PATH_MAX + 64];
    nodes_start(&c, 2, 2);
    say(&c, 1, 0, 0);
    save(&c, 1, 5, 1, &op[1]);
    io_until(&c.t[0], &op[1].written, 10000, "WRITTEN");
    snprintf(path, sizeof(path), "%s", open_path(&c, 5, "partial", "/__1_0.distcp"));
    assert_int_equal(truncate(path, 100), 0);
    save(&c, 1, 5, 0, &op[0]);
    wait_done(&c, &op[0], ERR_CORRUPT);
    assert_non_null(strstr(op[0].text, "__1_0.distcp has 100 bytes"));
    wait_done(&c, &op[1], ERR_CORRUPT);
    nodes_stop(&c);
}

/* ---- kill -9 ---- */

/* The index suffices: the dtd-io that wrote it need not run when the step is committed. */
TEST(other_killed_after_its_part)
{
    struct nodes c;
    struct io_op op[2];
    struct stat before, after;
    nodes_start(&c, 2, 2);
    say(&c, 1, 0, 0);
    save(&c, 1, 5, 1, &op[1]);
    io_until(&c.t[0], &op[1].written, 10000, "WRITTEN");
    restart(&c, 1);
    wait_done(&c, &op[1], ERR_CLOSED);
    char part[PATH_MAX + 64];
    snprintf(part, sizeof(part), "%s", open_path(&c, 5, "partial", "/__1_0.distcp"));
    assert_int_equal(stat(part, &before), 0);
    say_node(&c, 1, 1, 0, 0);
    save(&c, 1, 5, 1, &op[1]); /* repeated: the part exists and is not written again */
    io_until(&c.t[0], &op[1].written, 10000, "WRITTEN");
    assert_int_equal(stat(part, &after), 0);
    assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    assert_int_equal(before.st_mtim.tv_sec, after.st_mtim.tv_sec);
    io_kill(&c.t[1]);
    wait_done(&c, &op[1], ERR_CLOSED);
    save(&c, 1, 5, 0, &op[0]);
    wait_done(&c, &op[0], OK);
    check_step(&c, 5, 1);
    io_spawn(&c.t[1], 0);
    workers_open(&c, 1);
    say_node(&c, 1, 1, 0, 0);
    save(&c, 1, 5, 1, &op[1]);
    wait_done(&c, &op[1], OK);
    assert_true(op[1].committed);
    assert_int_equal(count_open(&c, ".partial") + count_open(&c, ".index"), 0);
    nodes_stop(&c);
}

/* The committer is killed while it waits; its successor finds what the others have written. */
TEST(committer_killed_while_it_waits)
{
    struct nodes c;
    struct io_op op[3];
    nodes_start(&c, 3, 3);
    say(&c, 1, 0, 0);
    save(&c, 1, 5, 0, &op[0]);
    save(&c, 1, 5, 1, &op[1]);
    io_until(&c.t[0], &op[0].written, 10000, "WRITTEN");
    io_until(&c.t[0], &op[1].written, 10000, "WRITTEN");
    restart(&c, 0);
    wait_done(&c, &op[0], ERR_CLOSED);
    save(&c, 1, 5, 2, &op[2]);
    save(&c, 1, 5, 0, &op[0]);
    io_run_ms(&c.t[0], 100);
    assert_false(op[0].done);
    say_node(&c, 0, 1, 0, 0);
    for (int r = 0; r < 3; r++)
        wait_done(&c, &op[r], OK);
    check_step(&c, 5, 1);
    nodes_stop(&c);
}

/* Any of them is killed at any moment of a save; the workers repeat unanswered calls. */
static void killed_at_moments(int node)
{
    static const struct fixture_tensor big[] = {{"big", DT_F32, 2, {192, 1024}}, {"w", DT_F32, 1, {1000}}};
    struct nodes c;
    struct io_op op[3];
    nodes_start(&c, 3, 3);
    fixture_free(&c.f);
    c.f = (struct fixture){.tensors = big, .n_tensors = 2};
    fixture_shard(&c.f, 3);
    say(&c, 1, 0, 0);
    save_all(&c, 1, 1);
    for (int round = 0; round < 12; round++) {
        int64_t step = 2 + round;
        for (int r = 0; r < 3; r++)
            save(&c, 1, step, r, &op[r]);
        io_run_ms(&c.t[0], 1 + round * 5);
        io_kill(&c.t[node]);
        check_step(&c, step - 1, 1);
        if (!c.w[node].closed)
            io_until(&c.t[0], &c.w[node].closed, 5000, "close");
        io_spawn(&c.t[node], 0);
        workers_open(&c, node);
        say_node(&c, node, 1, 0, 0);
        if (op[node].err) /* also if COMMITTED was received, but not the end of the call */
            save(&c, 1, step, node, &op[node]);
        for (int r = 0; r < 3; r++)
            wait_done(&c, &op[r], OK);
        check_step(&c, step, 1);
    }
    say(&c, 2, 13, 0);
    save_all(&c, 2, 20);
    assert_int_equal(count_open(&c, ".partial") + count_open(&c, ".index") + count_open(&c, ".tmp"), 0);
    nodes_stop(&c);
}

TEST(committer_killed_at_moments)
{
    killed_at_moments(0);
}

TEST(other_killed_at_moments)
{
    killed_at_moments(2);
}

/* Killed and not restarted: the next epoch removes its files, also if it was about to commit. */
TEST(next_epoch_collects)
{
    struct nodes c;
    struct io_op op[3];
    nodes_start(&c, 3, 3);
    for (uint64_t epoch = 1; epoch <= 6; epoch++) {
        int dead = (int)(epoch % 3);
        say(&c, epoch, 0, 0);
        for (int r = 0; r < 3; r++)
            save(&c, epoch, 5, r, &op[r]);
        io_run_ms(&c.t[0], (int)epoch * 4);
        restart(&c, dead);
        say(&c, epoch + 10, 0, 0);
        for (int r = 0; r < 3; r++)
            io_until(&c.t[0], &op[r].done, 20000, "the end");
        restart(&c, (dead + 1) % 3);
        say(&c, epoch + 20, 0, 0);
        save_all(&c, epoch + 20, 5);
        check_step(&c, 5, epoch + 20);
        assert_int_equal(count_open(&c, ".partial") + count_open(&c, ".index"), 0);
        for (int k = 0; k < 3; k++)
            restart(&c, k);
        char command[PATH_MAX + 16];
        snprintf(command, sizeof(command), "rm -rf %s", c.t[0].root);
        assert_int_equal(system(command), 0);
    }
    nodes_stop(&c);
}
