/* The program dtd-io: saves and loads over its socket, reports to control, crashes of dtd-io, control or a worker in
 * between, and full disks. */
#include "tests/daemon/io/io_harness.h"

#include "common/base/file.h"

#include <dirent.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define MIB ((size_t)1 << 20)
#define COMMITTED DTD__IO_REPORT__KIND__COMMITTED
#define SAVE_FAILED DTD__IO_REPORT__KIND__SAVE_FAILED
#define SCANNED DTD__IO_REPORT__KIND__SCANNED
#define REMOVED DTD__IO_REPORT__KIND__REMOVED

static struct fixture sharded(int ranks)
{
    struct fixture f = {.tensors = fixture_model, .n_tensors = fixture_n_model};
    fixture_shard(&f, ranks);
    return f;
}

static const char *step_path(const struct io_test *t, int64_t step)
{
    static char path[PATH_MAX];
    assert_ok(ckpt_step_dir(t->root, step, path, sizeof(path)));
    return path;
}

static void wait_done(struct io_test *t, const struct io_op *op, err_t err)
{
    io_until(t, &op->done, 20000, "the end of the call");
    if (op->err != err)
        print_error("text: %s\n", op->text);
    assert_err(err, op->err);
}

/* Every rank of `world` saves; all commit. */
static void save_all(struct io_test *t, struct io_worker *w, uint64_t epoch, int64_t step, int world)
{
    struct fixture f = sharded(world);
    struct io_op op[IO_MAX_SLOTS];
    for (int r = 0; r < world; r++)
        io_save(&w[r], &f, epoch, step, r, world, &op[r]);
    for (int r = 0; r < world; r++) {
        wait_done(t, &op[r], OK);
        assert_true(op[r].written && op[r].committed);
    }
    fixture_free(&f);
}

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

static int count_partials(const struct io_test *t)
{
    int n = 0;
    DIR *d = opendir(t->root);
    for (struct dirent *e; d && (e = readdir(d));)
        n += strstr(e->d_name, ".partial") != NULL;
    if (d)
        closedir(d);
    return n;
}

TEST(two_save_three_load)
{
    struct io_test t;
    struct io_worker w[3];
    int seen = 0;
    io_test_start(&t, 3, 1 * MIB);
    io_say_epoch(&t, 1, 0);
    io_report_wait(&t, SCANNED, &seen, 10000);
    for (int k = 0; k < 3; k++)
        io_worker_open(&w[k], &t, k);
    save_all(&t, w, 1, 20, 2);
    const struct io_seen *r = io_report_wait(&t, COMMITTED, &seen, 10000);
    assert_int_equal(r->epoch, 1);
    assert_int_equal(r->step, 20);
    assert_string_equal(r->path, step_path(&t, 20));
    struct fixture f = sharded(3);
    struct io_op op[3];
    for (int k = 0; k < 3; k++)
        io_load(&w[k], &f, step_path(&t, 20), k, &op[k]);
    for (int k = 0; k < 3; k++) {
        wait_done(&t, &op[k], OK);
        io_check_loaded(&w[k], &f, k);
        assert_int_equal(op[k].step, 20);
        assert_true(op[k].needed > 0 && op[k].read >= op[k].needed);
    }
    assert_ok(ckpt_verify(step_path(&t, 20), NULL, NULL, NULL));
    fixture_free(&f);
    for (int k = 0; k < 3; k++)
        io_worker_close(&w[k]);
    io_test_stop(&t);
}

TEST(job_file_is_beside)
{
    struct io_test t;
    struct io_worker w;
    struct ckpt *c;
    struct buf b = {0};
    io_test_start(&t, 1, 1 * MIB);
    io_say_epoch(&t, 1, 0);
    io_worker_open(&w, &t, 0);
    save_all(&t, &w, 1, 3, 1);
    assert_ok(ckpt_open(step_path(&t, 3), &c, NULL));
    assert_ok(ckpt_small_file(c, CKPT_JOB_FILE, &b, NULL));
    assert_int_equal(b.len, strlen(t.yaml));
    assert_memory_equal(b.data, t.yaml, b.len);
    assert_true(ckpt_loss(c) == 1.5);
    buf_fini(&b);
    ckpt_close(c);
    io_worker_close(&w);
    io_test_stop(&t);
}

/* Rank 0's part is durable, io is killed, both repeat: the step commits. */
TEST(killed_between_parts)
{
    struct io_test t;
    struct io_worker w[2];
    struct io_op op[2];
    struct fixture f = sharded(2);
    io_test_start(&t, 2, 1 * MIB);
    io_say_epoch(&t, 4, 0);
    for (int k = 0; k < 2; k++)
        io_worker_open(&w[k], &t, k);
    io_save(&w[0], &f, 4, 5, 0, 2, &op[0]);
    io_until(&t, &op[0].written, 10000, "WRITTEN");
    io_kill(&t);
    wait_done(&t, &op[0], ERR_CLOSED);
    assert_false(exists(step_path(&t, 5)));
    io_spawn(&t, 0);
    for (int k = 0; k < 2; k++)
        io_worker_open(&w[k], &t, k);
    for (int k = 0; k < 2; k++)
        io_save(&w[k], &f, 4, 5, k, 2, &op[k]);
    io_run_ms(&t, 50); /* dtd-io has not received an epoch: it must not answer */
    assert_false(op[0].written || op[0].done);
    io_say_epoch(&t, 4, 0);
    for (int k = 0; k < 2; k++)
        wait_done(&t, &op[k], OK);
    assert_ok(ckpt_verify(step_path(&t, 5), NULL, NULL, NULL));
    fixture_free(&f);
    for (int k = 0; k < 2; k++)
        io_worker_close(&w[k]);
    io_test_stop(&t);
}

/* dtd-io is killed at several moments of a write; the repeated save commits and is complete. */
TEST(killed_while_writing)
{
    static const struct fixture_tensor big[] = {{"big", DT_F32, 2, {2048, 1024}}, {"w", DT_F32, 1, {1000}}};
    struct fixture f = {.tensors = big, .n_tensors = 2};
    struct io_test t;
    struct io_worker w;
    struct io_op op;
    fixture_shard(&f, 1);
    io_test_start(&t, 1, 16 * MIB);
    for (int round = 0; round < 4; round++) {
        io_say_epoch(&t, 1, round);
        io_worker_open(&w, &t, 0);
        io_save(&w, &f, 1, round + 1, 0, 1, &op);
        io_run_ms(&t, 1 + round * 3);
        io_kill(&t);
        io_until(&t, &w.closed, 5000, "close");
        io_spawn(&t, 0);
        io_worker_open(&w, &t, 0);
        io_say_epoch(&t, 1, round);
        io_save(&w, &f, 1, round + 1, 0, 1, &op);
        wait_done(&t, &op, OK);
        assert_ok(ckpt_verify(step_path(&t, round + 1), NULL, NULL, NULL));
        io_worker_close(&w);
    }
    assert_int_equal(count_partials(&t), 0);
    fixture_free(&f);
    io_test_stop(&t);
}

/* A repeated call gets the same answer, and nothing is written twice. */
TEST(repeat_after_commit)
{
    struct io_test t;
    struct io_worker w;
    struct stat before, after;
    io_test_start(&t, 1, 1 * MIB);
    io_say_epoch(&t, 1, 0);
    io_worker_open(&w, &t, 0);
    save_all(&t, &w, 1, 9, 1);
    assert_int_equal(stat(step_path(&t, 9), &before), 0);
    struct fixture f = sharded(1);
    struct io_op op;
    io_save(&w, &f, 1, 9, 0, 1, &op);
    wait_done(&t, &op, OK);
    assert_true(op.committed);
    io_worker_close(&w);
    io_kill(&t); /* the next dtd-io has only the folder */
    io_spawn(&t, 0);
    io_say_epoch(&t, 1, 0);
    io_worker_open(&w, &t, 0);
    io_save(&w, &f, 1, 9, 0, 1, &op);
    wait_done(&t, &op, OK);
    assert_true(op.committed);
    assert_int_equal(stat(step_path(&t, 9), &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
    assert_int_equal(count_partials(&t), 0);
    fixture_free(&f);
    io_worker_close(&w);
    io_test_stop(&t);
}

TEST(stale_epoch_is_refused)
{
    struct io_test t;
    struct io_worker w[2];
    struct io_op op, late;
    struct fixture f = sharded(2);
    io_test_start(&t, 2, 1 * MIB);
    io_say_epoch(&t, 1, 0);
    for (int k = 0; k < 2; k++)
        io_worker_open(&w[k], &t, k);
    io_save(&w[0], &f, 1, 5, 0, 2, &op);
    io_until(&t, &op.written, 10000, "WRITTEN");
    io_say(&t, DTD__IO_COMMAND__KIND__EPOCH, 2, 0, t.yaml);
    wait_done(&t, &op, ERR_STALE);
    io_save(&w[1], &f, 1, 5, 1, 2, &late);
    wait_done(&t, &late, ERR_STALE);
    save_all(&t, w, 2, 5, 2);
    assert_int_equal(count_partials(&t), 0);
    fixture_free(&f);
    for (int k = 0; k < 2; k++)
        io_worker_close(&w[k]);
    io_test_stop(&t);
}

/* A worker may receive its epoch before dtd-io does: the save waits and is not taken for the older epoch's step. */
TEST(save_ahead_of_its_epoch)
{
    struct io_test t;
    struct io_worker w;
    struct io_op op;
    struct ckpt_info info;
    struct fixture f = sharded(1);
    io_test_start(&t, 1, 1 * MIB);
    io_say_epoch(&t, 1, 0);
    io_worker_open(&w, &t, 0);
    save_all(&t, &w, 1, 5, 1);
    io_save(&w, &f, 2, 5, 0, 1, &op);
    io_run_ms(&t, 50);
    assert_false(op.written || op.done);
    io_say(&t, DTD__IO_COMMAND__KIND__EPOCH, 2, 0, t.yaml);
    wait_done(&t, &op, OK);
    assert_ok(ckpt_info(step_path(&t, 5), &info, NULL));
    assert_int_equal(info.epoch, 2);
    fixture_free(&f);
    io_worker_close(&w);
    io_test_stop(&t);
}

/* The next epoch resumes from an older step: newer folders step aside, and the step can be saved again. */
TEST(roll_back_abandons_newer_steps)
{
    struct io_test t;
    struct io_worker w;
    char aside[PATH_MAX + 8];
    io_test_start(&t, 1, 1 * MIB);
    io_say_epoch(&t, 1, 0);
    io_worker_open(&w, &t, 0);
    save_all(&t, &w, 1, 10, 1);
    save_all(&t, &w, 1, 20, 1);
    io_say(&t, DTD__IO_COMMAND__KIND__EPOCH, 2, 10, t.yaml);
    save_all(&t, &w, 2, 20, 1);
    snprintf(aside, sizeof(aside), "%s.e1", step_path(&t, 20));
    assert_true(exists(aside));
    assert_true(exists(step_path(&t, 10)));
    io_say(&t, DTD__IO_COMMAND__KIND__EPOCH, 2, 10, t.yaml); /* repeated: step 20 of this epoch stays */
    io_say(&t, DTD__IO_COMMAND__KIND__METRICS, 0, 0, "{\"step\": 1}\n");
    io_run_ms(&t, 100);
    assert_true(exists(step_path(&t, 20)));
    io_worker_close(&w);
    io_test_stop(&t);
}

/* A full disk: the workers and control receive the error; after space has been freed, the next save commits. A limit on
 * file sizes simulates the full disk, because the test can lift it from outside. */
TEST(full_disk)
{
    static const struct fixture_tensor big[] = {{"big", DT_F32, 2, {512, 1024}}};
    struct fixture f = {.tensors = big, .n_tensors = 1};
    struct io_test t;
    struct io_worker w[2];
    struct io_op op[2];
    int seen = 0;
    fixture_shard(&f, 2);
    io_test_start(&t, 2, 4 * MIB);
    io_say_epoch(&t, 1, 0);
    for (int k = 0; k < 2; k++)
        io_worker_open(&w[k], &t, k);
    for (int k = 0; k < 2; k++)
        io_save(&w[k], &f, 1, 1, k, 2, &op[k]);
    for (int k = 0; k < 2; k++)
        wait_done(&t, &op[k], OK);
    struct rlimit small = {100000, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
    assert_int_equal(prlimit(t.pid, RLIMIT_FSIZE, &small, NULL), 0);
    for (int k = 0; k < 2; k++)
        io_save(&w[k], &f, 1, 2, k, 2, &op[k]);
    for (int k = 0; k < 2; k++)
        wait_done(&t, &op[k], ERR_NOSPACE);
    const struct io_seen *r = io_report_wait(&t, SAVE_FAILED, &seen, 10000);
    assert_non_null(strstr(r->text, "step-2"));
    assert_non_null(strstr(r->text, "no space"));
    for (int i = 0; count_partials(&t) && i < 100; i++)
        io_run_ms(&t, 20);
    assert_int_equal(count_partials(&t), 0);
    assert_ok(ckpt_verify(step_path(&t, 1), NULL, NULL, NULL));
    assert_int_equal(prlimit(t.pid, RLIMIT_FSIZE, &none, NULL), 0);
    for (int k = 0; k < 2; k++)
        io_save(&w[k], &f, 1, 3, k, 2, &op[k]);
    for (int k = 0; k < 2; k++)
        wait_done(&t, &op[k], OK);
    assert_ok(ckpt_verify(step_path(&t, 3), NULL, NULL, NULL));
    fixture_free(&f);
    for (int k = 0; k < 2; k++)
        io_worker_close(&w[k]);
    io_test_stop(&t);
}

/* A rank that calls after its step has failed receives the error and does not wait for the others. */
TEST(late_rank_of_a_failed_save)
{
    struct io_test t;
    struct io_worker w[2];
    struct io_op op[2];
    static const struct fixture_tensor big[] = {{"big", DT_F32, 2, {512, 1024}}};
    struct fixture f = {.tensors = big, .n_tensors = 1};
    fixture_shard(&f, 2);
    io_test_start(&t, 2, 4 * MIB);
    io_say_epoch(&t, 1, 0);
    for (int k = 0; k < 2; k++)
        io_worker_open(&w[k], &t, k);
    struct rlimit small = {100000, RLIM_INFINITY};
    assert_int_equal(prlimit(t.pid, RLIMIT_FSIZE, &small, NULL), 0);
    io_save(&w[0], &f, 1, 2, 0, 2, &op[0]);
    wait_done(&t, &op[0], ERR_NOSPACE);
    for (int i = 0; count_partials(&t) && i < 100; i++)
        io_run_ms(&t, 20);
    assert_int_equal(count_partials(&t), 0);
    io_save(&w[1], &f, 1, 2, 1, 2, &op[1]);
    wait_done(&t, &op[1], ERR_NOSPACE);
    fixture_free(&f);
    for (int k = 0; k < 2; k++)
        io_worker_close(&w[k]);
    io_test_stop(&t);
}

/* Control exits: saves continue, and the next control receives the reports. */
TEST(control_comes_back)
{
    struct io_test t;
    struct io_worker w;
    int seen = 0;
    io_test_start(&t, 1, 1 * MIB);
    io_say_epoch(&t, 1, 0);
    io_report_wait(&t, SCANNED, &seen, 10000);
    io_worker_open(&w, &t, 0);
    t.deny = true;
    rpc_conn_close(t.control);
    save_all(&t, &w, 1, 7, 1);
    assert_int_equal(t.n_reports, seen);
    t.deny = false;
    const struct io_seen *r = io_report_wait(&t, COMMITTED, &seen, 10000);
    assert_int_equal(r->step, 7);
    io_worker_close(&w);
    io_test_stop(&t);
}

TEST(orphan_ends)
{
    struct io_test t;
    io_test_start(&t, 1, 1 * MIB);
    io_say_epoch(&t, 1, 0);
    io_run_ms(&t, 100);
    t.deny = true;
    rpc_conn_close(t.control);
    assert_int_equal(io_wait_exit(&t, 10000), 0); /* orphan_seconds is 1 */
    io_test_stop(&t);
}

TEST(scan_and_remove)
{
    struct io_test t;
    struct io_worker w;
    int seen = 0;
    io_test_start(&t, 1, 1 * MIB);
    io_say_epoch(&t, 1, 0);
    io_worker_open(&w, &t, 0);
    save_all(&t, &w, 1, 1, 1);
    save_all(&t, &w, 1, 2, 1);
    io_say(&t, DTD__IO_COMMAND__KIND__REMOVE, 0, 1, NULL);
    const struct io_seen *r = io_report_wait(&t, REMOVED, &seen, 10000);
    assert_int_equal(r->step, 1);
    assert_false(exists(step_path(&t, 1)));
    io_say(&t, DTD__IO_COMMAND__KIND__REMOVE, 0, 1, NULL); /* does not exist: reported as removed */
    io_report_wait(&t, REMOVED, &seen, 10000);
    io_say(&t, DTD__IO_COMMAND__KIND__SCAN, 0, 0, t.yaml);
    r = io_report_wait(&t, COMMITTED, &seen, 10000);
    assert_int_equal(r->step, 2);
    assert_int_equal(r->epoch, 0);
    r = io_report_wait(&t, SCANNED, &seen, 10000);
    assert_string_equal(r->text, "");
    io_worker_close(&w);
    io_test_stop(&t);
}

TEST(metrics_and_quit)
{
    struct io_test t;
    struct buf b = {0};
    char path[PATH_MAX];
    io_test_start(&t, 1, 1 * MIB);
    io_say_epoch(&t, 1, 0);
    io_say(&t, DTD__IO_COMMAND__KIND__METRICS, 0, 0, "{\"step\": 1}\n");
    io_say(&t, DTD__IO_COMMAND__KIND__METRICS, 0, 0, "{\"step\": 2}\n");
    io_say(&t, DTD__IO_COMMAND__KIND__QUIT, 0, 0, NULL);
    assert_int_equal(io_wait_exit(&t, 10000), 0);
    snprintf(path, sizeof(path), "%s/metrics.jsonl", t.root);
    assert_ok(file_read(path, 4096, &b));
    assert_int_equal(b.len, 24);
    assert_memory_equal(b.data, "{\"step\": 1}\n{\"step\": 2}\n", 24);
    buf_fini(&b);
    io_test_stop(&t);
}

/* A new leader reads the metrics that the previous one has sent. */
TEST(metrics_are_read_back)
{
    static const struct {
        int64_t at;
        const char *text;
    } cases[] = {{0, "{\"step\": 1}\n{\"step\": 2}\n"}, {12, "{\"step\": 2}\n"}, {24, ""}, {1000, ""}};
    struct io_test t;
    int seen = 0;
    io_test_start(&t, 1, 1 * MIB);
    io_say(&t, DTD__IO_COMMAND__KIND__HISTORY, 0, 0, NULL); /* the job's spec has not been received */
    assert_string_equal("", io_report_wait(&t, DTD__IO_REPORT__KIND__HISTORY, &seen, 10000)->text);
    io_say_epoch(&t, 1, 0);
    io_say(&t, DTD__IO_COMMAND__KIND__HISTORY, 0, 0, NULL); /* no file yet */
    assert_string_equal("", io_report_wait(&t, DTD__IO_REPORT__KIND__HISTORY, &seen, 10000)->text);
    io_say(&t, DTD__IO_COMMAND__KIND__METRICS, 0, 0, "{\"step\": 1}\n{\"step\": 2}\n");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        io_say(&t, DTD__IO_COMMAND__KIND__HISTORY, 0, cases[i].at, NULL);
        assert_string_equal(cases[i].text, io_report_wait(&t, DTD__IO_REPORT__KIND__HISTORY, &seen, 10000)->text);
    }
    io_test_stop(&t);
}

/* Beside them, the usage of ranks has a file of its own, whose lines may be longer than a block of metrics. */
TEST(usage_is_read_back)
{
    char *line = calloc(1, 100001), path[PATH_MAX];
    struct io_test t;
    struct buf b = {0};
    int seen = 0;
    memset(line, 'x', 99999);
    line[99999] = '\n';
    io_test_start(&t, 1, 1 * MIB);
    io_say_epoch(&t, 1, 0);
    io_say(&t, DTD__IO_COMMAND__KIND__USAGE_HISTORY, 0, 0, NULL); /* no file yet */
    assert_string_equal("", io_report_wait(&t, DTD__IO_REPORT__KIND__USAGE_HISTORY, &seen, 10000)->text);
    io_say(&t, DTD__IO_COMMAND__KIND__METRICS, 0, 0, "{\"step\": 1}\n");
    io_say(&t, DTD__IO_COMMAND__KIND__USAGE, 0, 0, line);
    io_say(&t, DTD__IO_COMMAND__KIND__USAGE_HISTORY, 0, 0, NULL);
    const struct io_seen *first = io_report_wait(&t, DTD__IO_REPORT__KIND__USAGE_HISTORY, &seen, 10000);
    assert_int_equal(sizeof(first->text) - 1, strlen(first->text)); /* the harness keeps so much of it */
    assert_int_equal('x', first->text[0]);
    io_say(&t, DTD__IO_COMMAND__KIND__USAGE_HISTORY, 0, 100000, NULL);
    assert_string_equal("", io_report_wait(&t, DTD__IO_REPORT__KIND__USAGE_HISTORY, &seen, 10000)->text);
    snprintf(path, sizeof(path), "%s/usage.jsonl", t.root);
    assert_ok(file_read(path, 1 << 20, &b));
    assert_int_equal(100000, b.len);
    buf_fini(&b);
    free(line);
    io_test_stop(&t);
}

static void conn_closed(void *owner, struct rpc_conn *conn)
{
    *(bool *)owner = true;
}

TEST(no_hello_no_service)
{
    struct io_test t;
    struct io_op op;
    struct fixture f = sharded(1);
    bool closed = false;
    int fd;
    io_test_start(&t, 1, 1 * MIB);
    const struct rpc_conn_config config = {.loop = &t.loop,
                                           .methods = rpc_methods(),
                                           .n_methods = RPC_METHOD_COUNT,
                                           .owner = &closed,
                                           .on_close = conn_closed};
    struct io_worker w = {.test = &t};
    assert_ok(rpc_connect_unix(t.ticket.io, &fd));
    assert_ok(rpc_conn_open(&config, fd, RPC_ROLE_ANY, &w.conn));
    io_save(&w, &f, 1, 1, 0, 1, &op);
    wait_done(&t, &op, ERR_DENIED);
    fixture_free(&f);
    if (!closed)
        rpc_conn_close(w.conn);
    io_until(&t, &closed, 5000, "close");
    io_test_stop(&t);
}

static void hello_refused(void *arg, const struct rpc_result *result)
{
    *(err_t *)arg = result->err;
}

TEST(wrong_token_is_refused)
{
    struct io_test t;
    bool closed = false;
    err_t err = OK;
    int fd;
    io_test_start(&t, 1, 1 * MIB);
    const struct rpc_conn_config config = {.loop = &t.loop,
                                           .methods = rpc_methods(),
                                           .n_methods = RPC_METHOD_COUNT,
                                           .owner = &closed,
                                           .on_close = conn_closed};
    struct rpc_conn *conn;
    assert_ok(rpc_connect_unix(t.ticket.io, &fd));
    assert_ok(rpc_conn_open(&config, fd, RPC_ROLE_ANY, &conn));
    uint8_t token[TICKET_TOKEN_BYTES] = {0};
    Dtd__IoHello m = DTD__IO_HELLO__INIT;
    m.job = (char *)(uintptr_t) "7";
    m.token = (ProtobufCBinaryData){TICKET_TOKEN_BYTES, token};
    assert_ok(rpc_send(conn, IO_HELLO, &m.base, 5000, hello_refused, &err, NULL));
    io_until(&t, &closed, 5000, "the end of the connection");
    assert_err(ERR_DENIED, err);
    io_test_stop(&t);
}

TEST(load_names_what_is_wrong)
{
    struct io_test t;
    struct io_worker w;
    struct io_op op;
    char file[PATH_MAX + 32];
    io_test_start(&t, 1, 1 * MIB);
    io_say_epoch(&t, 1, 0);
    io_worker_open(&w, &t, 0);
    save_all(&t, &w, 1, 1, 1);
    struct fixture f = sharded(1);
    io_load(&w, &f, step_path(&t, 2), 0, &op);
    wait_done(&t, &op, ERR_NOTFOUND);
    f.pieces[0].piece.shape[0]++;
    io_load(&w, &f, step_path(&t, 1), 0, &op);
    wait_done(&t, &op, ERR_INVALID);
    assert_non_null(strstr(op.text, f.pieces[0].piece.fqn));
    f.pieces[0].piece.shape[0]--;
    snprintf(file, sizeof(file), "%s/__0_0.distcp", step_path(&t, 1));
    FILE *raw = fopen(file, "r+");
    assert_non_null(raw);
    fseek(raw, 5000, SEEK_SET);
    int c = fgetc(raw);
    fseek(raw, 5000, SEEK_SET);
    fputc(c ^ 4, raw);
    fclose(raw);
    io_load(&w, &f, step_path(&t, 1), 0, &op);
    wait_done(&t, &op, ERR_CORRUPT);
    assert_non_null(strstr(op.text, "__0_0.distcp"));
    assert_non_null(strstr(op.text, "extent 0"));
    fixture_free(&f);
    io_worker_close(&w);
    io_test_stop(&t);
}

/* Saves the fixture alone as the step, and loads it again. */
static void save_and_load(struct io_test *t, struct io_worker *w, const struct fixture *f, int64_t step)
{
    struct io_op op;
    io_save(w, f, 1, step, 0, 1, &op);
    wait_done(t, &op, OK);
    io_load(w, f, step_path(t, step), 0, &op);
    wait_done(t, &op, OK);
    io_check_loaded(w, f, 0);
}

TEST(an_arena_that_grows)
{
    static const struct fixture_tensor big[] = {{"big", DT_F32, 2, {768, 1024}}};
    struct fixture small = sharded(1), f = {.tensors = big, .n_tensors = 1};
    struct io_test t;
    struct io_worker w;
    fixture_shard(&f, 1);
    io_test_start(&t, 1, 1 * MIB);
    io_say_epoch(&t, 1, 0);
    io_worker_open(&w, &t, 0);
    save_and_load(&t, &w, &small, 1);
    munmap(t.maps[0], t.arena_bytes);
    t.arena_bytes = 4 * MIB;
    assert_int_equal(ftruncate(t.arenas[0], (off_t)t.arena_bytes), 0);
    t.maps[0] = mmap(NULL, t.arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, t.arenas[0], 0);
    assert_true(t.maps[0] != MAP_FAILED);
    save_and_load(&t, &w, &f, 2);
    save_and_load(&t, &w, &small, 3);
    fixture_free(&f);
    fixture_free(&small);
    io_worker_close(&w);
    io_test_stop(&t);
}

TEST(pieces_outside_the_arena)
{
    static const struct fixture_tensor big[] = {{"big", DT_F32, 2, {512, 1024}}};
    struct fixture f = {.tensors = big, .n_tensors = 1};
    struct io_test t;
    struct io_worker w;
    struct io_op op;
    fixture_shard(&f, 1);
    io_test_start(&t, 1, 4 * MIB);
    io_say_epoch(&t, 1, 0);
    io_worker_open(&w, &t, 0);
    assert_int_equal(ftruncate(t.arenas[0], 4096), 0);
    t.maps[0] = realloc(NULL, 4 * MIB); /* the worker's own mapping is not used here */
    io_save(&w, &f, 1, 1, 0, 1, &op);
    wait_done(&t, &op, ERR_INVALID);
    assert_non_null(strstr(op.text, "arena"));
    free(t.maps[0]);
    t.maps[0] = NULL;
    fixture_free(&f);
    io_worker_close(&w);
    kill(t.pid, SIGTERM);
    assert_int_equal(io_wait_exit(&t, 10000), 0);
    t.slots = 0;
    io_test_stop(&t);
}
