/* dtd's own configuration. */
#include "common/conf/node.h"
#include "tests/lib/test.h"

TEST(everything_has_a_default)
{
    struct node_conf conf;
    struct why why = {0};
    assert_ok(node_conf_default(&conf, &why));
    assert_string_equal(conf.name, "");
    assert_string_equal(conf.state_dir, "");
    assert_int_equal(conf.slots, 0);
    assert_string_equal(conf.gpus, "auto");
    assert_int_equal(conf.log.level, LOG_INFO);
    assert_int_equal(conf.snapshot.entries, 1024);
    assert_int_equal(conf.snapshot.trailing, 256);
    assert_int_equal(conf.disk.reserve_mib, 16);
    node_conf_fini(&conf);
}

TEST(a_file)
{
    static const char text[] = "name: node-1.example\nstate_dir: /var/lib/dtd\nslots: 2\ngpus: 8\nlog: {level: debug}\n"
                               "snapshot: {entries: 64, trailing: 8}\ndisk: {reserve_mib: 4}\n";
    struct node_conf conf;
    struct why why = {0};
    assert_ok(node_conf_parse("dtd.yaml", text, sizeof(text) - 1, &conf, &why));
    assert_string_equal(conf.name, "node-1.example");
    assert_string_equal(conf.state_dir, "/var/lib/dtd");
    assert_int_equal(conf.slots, 2);
    assert_string_equal(conf.gpus, "8");
    assert_int_equal(conf.log.level, LOG_DEBUG);
    assert_int_equal(conf.snapshot.entries, 64);
    assert_int_equal(conf.snapshot.trailing, 8);
    assert_int_equal(conf.disk.reserve_mib, 4);
    node_conf_fini(&conf);
}

/* Files of older versions have a string. */
TEST(one_address_or_several)
{
    static const struct {
        const char *text, *addresses[3];
    } cases[] = {
        {"cluster: {advertise: \"\"}", {NULL}},
        {"cluster: {advertise: n1:7811}", {"n1:7811"}},
        {"cluster: {advertise: [\"10.0.0.1:7811\", \"[fd00::1]:7811\"]}", {"10.0.0.1:7811", "[fd00::1]:7811"}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct node_conf conf;
        struct why why = {0};
        int n = 0;
        if (node_conf_parse("dtd.yaml", cases[i].text, strlen(cases[i].text), &conf, &why))
            fail_msg("%s", why.text);
        for (; cases[i].addresses[n]; n++) {
            assert_true(n < conf.cluster.n_advertise);
            assert_string_equal(cases[i].addresses[n], conf.cluster.advertise[n]);
        }
        assert_int_equal(n, conf.cluster.n_advertise);
        node_conf_fini(&conf);
    }
}

TEST(errors)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"slots: -1", "dtd.yaml:1: slots: expected an integer from 0 to 512, found \"-1\""},
        {"slots: 1\nstatedir: /x",
         "dtd.yaml:2: statedir: unknown key; did you mean state_dir? (top level: name, state_dir, "
         "run_dir, user, slots, gpus, log, snapshot, disk, users, jobs, cluster, web)"},
        {"state_dir: x",
         "dtd.yaml:1: state_dir: expected an absolute path of at most 4095 bytes, or \"\", found \"x\""},
        {"gpus: 65", "dtd.yaml:1: gpus: expected auto, or a number from 0 to 64, found \"65\""},
        {"gpus: some", "dtd.yaml:1: gpus: expected auto, or a number from 0 to 64, found \"some\""},
        {"log: {level: loud}", "dtd.yaml:1: log.level: expected one of error, warn, info, debug, found \"loud\""},
        {"log: debug", "dtd.yaml:1: log: expected a map with some of the keys level, found \"debug\""},
        {"cluster: {advertise: n1}",
         "dtd.yaml:1: cluster.advertise: expected host:port, 1.2.3.4:port or [v6]:port, found \"n1\""},
        {"cluster: {advertise: [n1:1, n2]}",
         "dtd.yaml:1: cluster.advertise: expected host:port, 1.2.3.4:port or [v6]:port, found \"n2\""},
        {"[slots]", "dtd.yaml:1: expected a map with some of the keys name, state_dir, run_dir, user, slots, gpus, "
                    "log, snapshot, disk, users, jobs, cluster, web, found a list"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct node_conf conf;
        struct why why = {0};
        assert_err(ERR_INVALID, node_conf_parse("dtd.yaml", cases[i].text, strlen(cases[i].text), &conf, &why));
        assert_string_equal(why.text, cases[i].message);
    }
}

TEST(comments_alone_are_the_defaults)
{
    static const char *const texts[] = {"", "\n\n", "# slots: 4\n  # log:\n\t#\r\n", "#"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct node_conf conf;
        struct why why = {0};
        assert_ok(node_conf_parse("dtd.yaml", texts[i], strlen(texts[i]), &conf, &why));
        assert_int_equal(0, conf.slots);
        assert_string_equal("auto", conf.gpus);
        node_conf_fini(&conf);
    }
}
