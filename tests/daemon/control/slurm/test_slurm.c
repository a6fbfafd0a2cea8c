/* From the environment that srun sets to the configuration of dtd. tests/slurm runs a real Slurm. */
#include "daemon/control/slurm/slurm.h"
#include "tests/lib/test.h"

static const char *vars[32][2];
static int n_vars;

static const char *get(const char *name)
{
    for (int i = n_vars - 1; i >= 0; i--)
        if (strcmp(vars[i][0], name) == 0)
            return vars[i][1];
    return NULL;
}

/* NULL unsets. */
static void set(const char *name, const char *value)
{
    vars[n_vars][0] = name;
    vars[n_vars++][1] = value;
}

static void allocation(void)
{
    n_vars = 0;
    set("SLURM_JOB_ID", "4711");
    set("SLURM_STEP_NODELIST", "n[08-10]");
    set("SLURM_JOB_NODELIST", "n[07-10]");
    set("SLURM_NODEID", "1");
    set("SLURM_LOCALID", "0");
    set("SLURM_STEP_TASKS_PER_NODE", "1(x3)");
    set("SLURM_CPUS_ON_NODE", "16");
}

TEST(step_is_read)
{
    struct slurm s;
    struct why why = {""};
    allocation();
    set("SLURM_RESTART_COUNT", "2");
    assert_ok(slurm_read(get, &s, &why));
    assert_int_equal(s.job, 4711);
    assert_int_equal(s.restart, 2);
    assert_int_equal(s.nodes, 3);
    assert_int_equal(s.node, 1);
    assert_int_equal(s.cpus, 16);
    assert_string_equal(s.names[0], "n08");
    assert_string_equal(s.names[2], "n10");
    slurm_fini(&s);
}

TEST(configuration_is_derived)
{
    struct slurm s;
    struct why why = {""};
    struct buf b = {0};
    allocation();
    set("DTD_SLURM_PORT", "30000");
    assert_ok(slurm_read(get, &s, &why));
    assert_ok(slurm_conf(&s, "/tmp/k", &b));
    assert_ok(buf_append(&b, "", 1));
    assert_string_equal((char *)b.data, "name: \"n09\"\n"
                                        "slots: 16\n"
                                        "cluster:\n"
                                        "  listen: \"[::]:30001\"\n"
                                        "  advertise: \"n09:30001\"\n"
                                        "  key_file: \"/tmp/k\"\n"
                                        "  first: false\n"
                                        "  peers: [\"n08:30000\", \"n09:30001\", \"n10:30002\"]\n");
    buf_fini(&b);
    slurm_fini(&s);
}

TEST(neighbouring_jobs_have_ports_apart)
{
    struct slurm a, b;
    struct why why = {""};
    allocation();
    set("SLURM_STEP_NODELIST", "n[1-4]");
    assert_ok(slurm_read(get, &a, &why));
    set("SLURM_JOB_ID", "4712");
    assert_ok(slurm_read(get, &b, &why));
    assert_true(b.port >= a.port + a.nodes);
    slurm_fini(&a);
    slurm_fini(&b);
}

TEST(state_is_keyed_by_job_restart_and_node)
{
    struct slurm s;
    struct why why = {""};
    char dir[72];
    allocation();
    assert_ok(slurm_read(get, &s, &why));
    assert_ok(slurm_state_dir(&s, get, 1000, dir, sizeof(dir), &why));
    assert_string_equal(dir, "/tmp/dtd-1000-4711.0/1");
    s.restart = 3;
    assert_ok(slurm_state_dir(&s, get, 1000, dir, sizeof(dir), &why));
    assert_string_equal(dir, "/tmp/dtd-1000-4711.3/1");
    s.restart = 0;
    set("TMPDIR", "/scratch");
    assert_ok(slurm_state_dir(&s, get, 1000, dir, sizeof(dir), &why));
    assert_string_equal(dir, "/scratch/dtd-1000-4711.0/1");
    set("DTD_DIR", "/d");
    assert_ok(slurm_state_dir(&s, get, 1000, dir, sizeof(dir), &why));
    assert_string_equal(dir, "/d/4711.0/1");
    set("DTD_DIR", "/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789/0123456789");
    assert_err(ERR_LIMIT, slurm_state_dir(&s, get, 1000, dir, sizeof(dir), &why));
    set("DTD_DIR", "/a\"b");
    assert_err(ERR_INVALID, slurm_state_dir(&s, get, 1000, dir, sizeof(dir), &why));
    set("DTD_DIR", "a/b");
    assert_err(ERR_INVALID, slurm_state_dir(&s, get, 1000, dir, sizeof(dir), &why));
    slurm_fini(&s);
}

TEST(errors_name_the_variable)
{
    static const struct {
        const char *name, *value, *says;
    } cases[] = {
        {"SLURM_JOB_ID", NULL, "SLURM_JOB_ID is not set"},
        {"SLURM_JOB_ID", "x", "SLURM_JOB_ID is \"x\""},
        {"SLURM_JOB_ID", "-1", "SLURM_JOB_ID is \"-1\""},
        {"SLURM_JOB_ID", "", "SLURM_JOB_ID is \"\""},
        {"SLURM_RESTART_COUNT", "99999999999", "SLURM_RESTART_COUNT"},
        {"SLURM_NODEID", NULL, "SLURM_NODEID is not set"},
        {"SLURM_NODEID", "3", "SLURM_NODEID is \"3\""},
        {"SLURM_STEP_NODELIST", "n[", "is not a host list"},
        {"SLURM_STEP_TASKS_PER_NODE", "2(x3)", "--ntasks-per-node=1"},
        {"SLURM_LOCALID", "1", "--ntasks-per-node=1"},
        {"DTD_SLURM_PORT", "80", "DTD_SLURM_PORT"},
        {"DTD_SLURM_PORT", "65534", "DTD_SLURM_PORT"},
        {"SLURM_CPUS_ON_NODE", "many", "SLURM_CPUS_ON_NODE"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct slurm s;
        struct why why = {""};
        allocation();
        set(cases[i].name, cases[i].value);
        if (slurm_read(get, &s, &why) != ERR_INVALID || !strstr(why.text, cases[i].says))
            fail_msg("%s=%s: %s", cases[i].name, cases[i].value ? cases[i].value : "(unset)", why.text);
    }
}

TEST(node_list_of_the_job_is_the_fallback)
{
    struct slurm s;
    struct why why = {""};
    allocation();
    set("SLURM_STEP_NODELIST", NULL);
    assert_ok(slurm_read(get, &s, &why));
    assert_int_equal(s.nodes, 4);
    slurm_fini(&s);
    set("SLURM_JOB_NODELIST", NULL);
    assert_err(ERR_INVALID, slurm_read(get, &s, &why));
}

TEST(missing_key_is_reported)
{
    uint8_t key[SLURM_KEY_BYTES];
    struct why why = {""};
    allocation();
    assert_err(ERR_INVALID, slurm_key(get, key, &why));
    assert_non_null(strstr(why.text, "DTD_SLURM_KEY"));
}
