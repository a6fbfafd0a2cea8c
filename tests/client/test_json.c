#include "client/json.h"
#include "tests/lib/test.h"

#include <math.h>

TEST(job_has_every_field_and_leaves_out_what_is_not)
{
    char id[] = "7", name[] = "n", state[] = "recovering", none[] = "", reason[] = "worker lost", dir[] = "/c\xff";
    char w_state[] = "exited", w_node[] = "n2", seen[] = "s", decided[] = "d", log[] = "l";
    struct client_worker w = {
        .rank = 1, .pid = 42, .state = w_state, .node = w_node, .exit_status = -1, .exit_signal = 9};
    struct incident in = incident_none, start = incident_none;
    in.wall_ms = 5;
    in.epoch = 2;
    in.seen = seen;
    in.decided = decided;
    in.log = log;
    in.detect_ms = 1.5;
    in.restart_ms = 7.5;
    in.lost_steps = 12;
    start.epoch = 1;
    start.slots_ms = 0.25;
    struct client_job job = {.job = id,
                             .name = name,
                             .state = state,
                             .reason = reason,
                             .epoch = 2,
                             .step = 10,
                             .steps = 20,
                             .workers = 2,
                             .restarts = 1,
                             .submitted_ms = 3,
                             .checkpoint_dir = dir,
                             .checkpoint_error = none,
                             .checkpoint_step = -1,
                             .has_last = true,
                             .worker = &w,
                             .n_worker = 1,
                             .parent = none,
                             .spec_yaml = none,
                             .layout_why = none,
                             .user = name,
                             .incident = &in,
                             .n_incident = 1,
                             .start = start};
    job.last = (struct metric){.step = 10,
                               .loss = NAN,
                               .valid_loss = NAN,
                               .test_loss = 2.25,
                               .workers = 2,
                               .skipped = true,
                               .traffic = {1, {1u << AXIS_DP | 1u << AXIS_CP}, {77}}};
    json_t *j = json_of_job(&job);
    assert_non_null(j);
    assert_string_equal(json_string_value(json_object_get(j, "job")), "7");
    assert_string_equal(json_string_value(json_object_get(j, "state")), "recovering");
    assert_string_equal(json_string_value(json_object_get(j, "checkpoint_dir")), "/c\xef\xbf\xbd");
    assert_null(json_object_get(j, "checkpoint_step"));
    assert_null(json_object_get(j, "parent"));
    assert_null(json_object_get(j, "layout_why"));
    assert_string_equal(json_string_value(json_object_get(j, "user")), "n");
    assert_null(json_object_get(j, "ended_ms"));
    json_t *last = json_object_get(j, "last");
    assert_true(json_is_null(json_object_get(last, "loss")));
    assert_null(json_object_get(last, "valid_loss"));
    assert_true(json_real_value(json_object_get(last, "test_loss")) == 2.25);
    assert_true(json_is_true(json_object_get(last, "skipped")));
    assert_int_equal(77, json_integer_value(json_object_get(json_object_get(last, "bytes"), "dp x cp")));
    json_t *worker = json_array_get(json_object_get(j, "worker"), 0);
    assert_int_equal(json_integer_value(json_object_get(worker, "pid")), 42);
    assert_int_equal(json_integer_value(json_object_get(worker, "exit_signal")), 9);
    assert_string_equal(json_string_value(json_object_get(worker, "node")), "n2");
    assert_null(json_object_get(worker, "exit_status"));
    json_t *incident = json_array_get(json_object_get(j, "incident"), 0);
    assert_true(json_real_value(json_object_get(incident, "detect_ms")) == 1.5);
    assert_null(json_object_get(incident, "recover_ms"));
    assert_true(json_real_value(json_object_get(incident, "restart_ms")) == 7.5);
    assert_null(json_object_get(incident, "load_ms"));
    assert_int_equal(12, json_integer_value(json_object_get(incident, "lost_steps")));
    assert_string_equal(json_string_value(json_object_get(incident, "log")), "l");
    assert_null(json_object_get(incident, "slots_ms"));
    assert_true(json_real_value(json_object_get(json_object_get(j, "start"), "slots_ms")) == 0.25);
    json_decref(j);
}

TEST(a_node_has_numa_nodes_where_there_are_several)
{
    char none[] = "", cores0[] = "0-15,32-47", cores1[] = "";
    int gpu[] = {0, 3};
    struct client_numa_node numa[] = {{0, cores0, gpu, 2}, {8, cores1, gpu, 0}};
    struct client_node node = {.version = none,
                               .node = none,
                               .state_dir = none,
                               .raft_state = none,
                               .warning = none,
                               .gpus = 4,
                               .gpu_model = none,
                               .gpu_missing = none,
                               .numa_node = numa};
    json_t *o = json_of_node(&node);
    assert_non_null(o);
    assert_null(json_object_get(o, "numa_nodes"));
    json_decref(o);
    node.n_numa_node = 2;
    o = json_of_node(&node);
    char *text = json_dumps(json_object_get(o, "numa_nodes"), 0);
    assert_string_equal("[{\"number\": 0, \"cores\": \"0-15,32-47\", \"gpus\": [0, 3]}, "
                        "{\"number\": 8, \"cores\": \"\", \"gpus\": []}]",
                        text);
    free(text);
    json_decref(o);
}

TEST(scalars)
{
    char text[] = "x";
    const struct {
        struct ckpt_scalar scalar;
        const char *json;
    } table[] = {{{.kind = CKPT_INT, .i = 7}, "7"},     {{.kind = CKPT_FLOAT, .f = {0.5}}, "0.5"},
                 {{.kind = CKPT_BOOL, .i = 1}, "true"}, {{.kind = CKPT_STR, .s = text}, "\"x\""},
                 {{.kind = CKPT_NONE}, "null"},         {{.kind = CKPT_FLOAT_PAIR, .f = {0.9, 0.95}}, "[0.9, 0.95]"}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        json_t *v = json_of_scalar(&table[i].scalar);
        char *got = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(4));
        assert_string_equal(got, table[i].json);
        free(got);
        json_decref(v);
    }
}
