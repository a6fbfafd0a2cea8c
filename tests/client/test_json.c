#include "client/json.h"
#include "tests/lib/test.h"

#include <math.h>

/* A job that recovers, with a worker that was killed and an incident. */
static struct client_job recovering_job(struct client_worker *w, struct incident *in)
{
    static char id[] = "7", name[] = "n", state[] = "recovering", none[] = "", reason[] = "worker lost",
                dir[] = "/c\xff", w_state[] = "exited", w_node[] = "n2", seen[] = "s", decided[] = "d", log[] = "l";
    struct incident start = incident_none;
    start.epoch = 1;
    start.slots_ms = 0.25;
    *w = (struct client_worker){
        .rank = 1, .pid = 42, .state = w_state, .node = w_node, .exit_status = -1, .exit_signal = 9};
    *in = incident_none;
    in->wall_ms = 5;
    in->epoch = 2;
    in->seen = seen;
    in->decided = decided;
    in->log = log;
    in->detect_ms = 1.5;
    in->restart_ms = 7.5;
    in->lost_steps = 12;
    return (struct client_job){.job = id,
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
                               .last = {.step = 10,
                                        .loss = NAN,
                                        .valid_loss = NAN,
                                        .test_loss = 2.25,
                                        .workers = 2,
                                        .skipped = true,
                                        .traffic = {1, {1u << AXIS_DP | 1u << AXIS_CP}, {77}}},
                               .worker = w,
                               .n_worker = 1,
                               .parent = none,
                               .spec_yaml = none,
                               .layout_why = none,
                               .user = name,
                               .incident = in,
                               .n_incident = 1,
                               .start = start};
}

/* The value at a path of keys and indexes, with points between them; NULL: there is none. */
static json_t *value_at(json_t *j, const char *path)
{
    char copy[100], *rest = copy, *key;
    snprintf(copy, sizeof(copy), "%s", path);
    while (j && (key = strsep(&rest, ".")))
        j = json_is_array(j) ? json_array_get(j, (size_t)atoi(key)) : json_object_get(j, key);
    return j;
}

TEST(job_has_every_field_and_leaves_out_what_is_not)
{
    static const struct {
        const char *path, *text; /* NULL: absent */
    } rows[] = {
        {"job", "\"7\""},
        {"state", "\"recovering\""},
        {"checkpoint_dir", "\"/c\xef\xbf\xbd\""},
        {"checkpoint_step", NULL},
        {"parent", NULL},
        {"layout_why", NULL},
        {"user", "\"n\""},
        {"ended_ms", NULL},
        {"last.loss", "null"},
        {"last.valid_loss", NULL},
        {"last.test_loss", "2.25"},
        {"last.skipped", "true"},
        {"last.bytes.dp x cp", "77"},
        {"worker.0.pid", "42"},
        {"worker.0.exit_signal", "9"},
        {"worker.0.node", "\"n2\""},
        {"worker.0.exit_status", NULL},
        {"incident.0.detect_ms", "1.5"},
        {"incident.0.recover_ms", NULL},
        {"incident.0.restart_ms", "7.5"},
        {"incident.0.load_ms", NULL},
        {"incident.0.lost_steps", "12"},
        {"incident.0.log", "\"l\""},
        {"incident.0.slots_ms", NULL},
        {"start.slots_ms", "0.25"},
    };
    struct client_worker w;
    struct incident in;
    struct client_job job = recovering_job(&w, &in);
    json_t *j = json_of_job(&job);
    assert_non_null(j);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *value = value_at(j, rows[i].path);
        char *text = value ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
        if (!text != !rows[i].text || (text && strcmp(text, rows[i].text) != 0))
            fail_msg("%s is %s, not %s", rows[i].path, text ? text : "absent", rows[i].text ? rows[i].text : "absent");
        free(text);
    }
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
                               .drained = none,
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
