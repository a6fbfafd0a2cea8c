/* `dt-worker --probe` and `--health`: facts about GPUs, and the message if there are none. The driver's library is a
 * fake (fake_nvml.c); the CUDA module is built over the stand-ins, if these were built. */
#include "tests/lib/test.h"

#include "common/base/file.h"
#include "daemon/control/local/gpus.h"

#include <dlfcn.h>
#include <jansson.h>
#include <sys/wait.h>

#define STAND_INS "DTD_MODULE_DIR=$STAND_INS "
#define NO_MODULE "DTD_MODULE_DIR= "
#define DRIVER "LD_LIBRARY_PATH=$FAKE_NVML:$LD_LIBRARY_PATH "

static char words[1 << 16];

static json_t *run_worker(const char *option, const char *environment)
{
    char command[1024];
    json_error_t e;
    snprintf(command, sizeof(command), "env %s \"$DTD_BIN/dt-worker\" --%s", environment, option);
    FILE *f = popen(command, "r");
    assert_non_null(f);
    size_t n = fread(words, 1, sizeof(words) - 1, f);
    words[n] = '\0';
    assert_int_equal(0, pclose(f));
    json_t *root = json_loads(words, JSON_REJECT_DUPLICATES, &e);
    if (!root)
        fail_msg("no JSON: %s\n%s", e.text, words);
    return root;
}

static json_t *probe(const char *environment)
{
    return run_worker("probe", environment);
}

static void expect_missing(const char *environment, const char *const *parts)
{
    struct gpus g = {0};
    struct why why = {""};
    json_t *root = probe(environment);
    const char *missing = json_string_value(json_object_get(root, "gpu_missing"));
    if (!missing)
        fail_msg("it does not say what is missing: %s", words);
    for (; *parts; parts++)
        if (!strstr(missing, *parts))
            fail_msg("'%s' is not in: %s", *parts, missing);
    assert_int_equal(0, json_array_size(json_object_get(root, "gpus")));
    assert_ok(gpus_read(&g, words, strlen(words), &why)); /* as control reads it */
    assert_int_equal(0, gpus_count(&g));
    assert_int_equal(0, strncmp(g.missing, missing, 100)); /* the message may be truncated here */
    json_decref(root);
}
#define EXPECT_MISSING(environment, ...) expect_missing(environment, (const char *const[]){__VA_ARGS__, NULL})

static bool here(const char *library)
{
    void *handle = dlopen(library, RTLD_LAZY);
    if (handle)
        dlclose(handle);
    return handle != NULL;
}

static void need_no_driver(void)
{
    if (here("libcuda.so.1") || here("libnvidia-ml.so.1"))
        TEST_SKIP("this machine has a driver of its own");
}

static void need_stand_ins(void)
{
    char path[4096];
    need_no_driver();
    snprintf(path, sizeof(path), "%s/dtd-cuda.so", getenv("STAND_INS"));
    if (access(path, R_OK))
        TEST_SKIP("no stand-ins for CUDA in this build");
}

TEST(the_processor_is_always_available)
{
    json_t *root = probe("");
    assert_true(json_integer_value(json_object_get(json_object_get(root, "cpu"), "cores")) >= 1);
    assert_true(json_integer_value(json_object_get(json_object_get(root, "memory"), "total_bytes")) > 1 << 20);
    json_decref(root);
}

TEST(no_driver)
{
    need_no_driver();
    EXPECT_MISSING(NO_MODULE, "there is no NVIDIA driver", "libcuda.so.1 and libnvidia-ml.so.1", "run.device: cpu");
}

TEST(a_driver_without_a_device)
{
    need_no_driver();
    EXPECT_MISSING(NO_MODULE DRIVER "FAKE_NVML_GPUS=0", "driver 580.95.05 sees no device", "CUDA_VISIBLE_DEVICES");
}

TEST(a_device_without_the_module)
{
    char path[4096];
    need_no_driver();
    snprintf(path, sizeof(path), "%s/dtd-cuda.so", getenv("DTD_BIN"));
    if (access(path, F_OK) == 0)
        TEST_SKIP("this build has the module");
    EXPECT_MISSING(NO_MODULE DRIVER, "driver 580.95.05 has 2 GPUs, but", "dtd-cuda.so", "CUDA toolkit");
}

TEST(a_driver_that_does_not_answer)
{
    need_no_driver();
    EXPECT_MISSING(NO_MODULE DRIVER "FAKE_NVML_INIT=18", "does not answer",
                   "Driver/library version mismatch (code 18)");
}

TEST(devices_that_cuda_does_not_show)
{
    need_stand_ins();
    EXPECT_MISSING(STAND_INS DRIVER "DTD_CUDA_HOST_DEVICES=0", "580.95.05 has 2 GPUs and CUDA shows none",
                   "CUDA_VISIBLE_DEVICES");
}

TEST(facts_and_health)
{
    int index, processors, temperature, power, limit, links, retired, row[4], clock[2];
    const char *model, *uuid, *capability, *pci, *t0, *t1;
    json_int_t memory, ecc[2];
    need_stand_ins();
    json_t *root = probe(STAND_INS DRIVER "DTD_CUDA_HOST_DEVICES=3");
    assert_string_equal("580.95.05", json_string_value(json_object_get(root, "driver")));
    json_t *gpus = json_object_get(root, "gpus");
    assert_int_equal(3, json_array_size(gpus));
    for (int i = 0; i < 3; i++) {
        json_error_t e;
        if (json_unpack_ex(
                json_array_get(gpus, (size_t)i), &e, 0,
                "{s:i, s:s, s:s, s:s, s:i, s:I, s:s, s:n, s:i, s:{s:i, s:i, s:i, s:i, s:i, s:I, s:I, s:[s, s!], s:i, "
                "s:{s:i, s:i, s:i, s:i}}}",
                "index", &index, "model", &model, "uuid", &uuid, "compute_capability", &capability, "processors",
                &processors, "memory_bytes", &memory, "pci", &pci, "numa_node", "nvlinks_up", &links, "health",
                "temperature_c", &temperature, "sm_mhz", &clock[0], "memory_mhz", &clock[1], "power_mw", &power,
                "power_limit_mw", &limit, "ecc_uncorrected_volatile", &ecc[0], "ecc_uncorrected_aggregate", &ecc[1],
                "throttle", &t0, &t1, "retired_pages", &retired, "remapped_rows", "correctable", &row[0],
                "uncorrectable", &row[1], "pending", &row[2], "failed", &row[3]))
            fail_msg("GPU %d: %s\n%s", i, e.text, words);
        assert_int_equal(i, index);
        assert_true(processors > 0 && memory > 0 && strchr(capability, '.') && *uuid && *model);
        assert_string_equal("0000:1b:00.0", pci);
        assert_true(links == 17 && temperature == 41 && power == 98765 && limit == 700000 && retired == 2);
        assert_true(clock[0] == 1755 && clock[1] == 2619);
        assert_true(ecc[0] == 3 && ecc[1] == 5000000000);
        assert_string_equal("power cap (software)", t0);
        assert_string_equal("thermal (hardware)", t1);
        assert_true(row[0] == 1 && row[1] == 2 && row[2] == 1 && row[3] == 0);
    }
    assert_non_null(strstr(json_string_value(json_object_get(root, "health_note")), "Xid"));
    struct gpus g = {0};
    struct why why = {""};
    assert_ok(gpus_read(&g, words, strlen(words), &why));
    assert_int_equal(0, gpus_count(&g)); /* no GPU is healthy */
    assert_non_null(strstr(g.sick, "GPU 0 is not used: it has"));
    json_decref(root);
}

static const json_t *numa_node(json_t **root, const char *text)
{
    char path[4096], environment[1024];
    snprintf(path, sizeof(path), "%s/bus/pci/devices/0000:1b:00.0", test_tmpdir());
    assert_ok(file_make_dirs(path, 0700));
    strcat(path, "/numa_node");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(0, fclose(f));
    snprintf(environment, sizeof(environment), STAND_INS DRIVER "DTD_SYSFS=%s", test_tmpdir());
    *root = probe(environment);
    return json_object_get(json_array_get(json_object_get(*root, "gpus"), 0), "numa_node");
}

TEST(a_gpus_numa_node_stands_in_sysfs)
{
    json_t *root;
    need_stand_ins();
    assert_int_equal(3, json_integer_value(numa_node(&root, "3\n")));
    json_decref(root);
    const json_t *unknown = numa_node(&root, "-1\n"); /* as Linux has it; json_is_null reads its argument twice */
    assert_true(json_is_null(unknown));
    json_decref(root);
}

TEST(facts_that_a_gpu_lacks_are_null)
{
    need_stand_ins();
    json_t *root = probe(STAND_INS DRIVER "FAKE_NVML_OLD=1");
    json_t *gpu = json_array_get(json_object_get(root, "gpus"), 0), *health = json_object_get(gpu, "health");
    const char *key;
    json_t *value;
    assert_true(json_is_null(json_object_get(gpu, "pci")) && json_is_null(json_object_get(gpu, "nvlinks_up")));
    assert_int_equal(13, json_object_size(health));
    json_object_foreach(health, key, value)
    {
        if (strcmp(key, "remapped_rows") != 0 && strcmp(key, "lost") != 0)
            assert_true(json_is_null(value));
    }
    assert_true(json_is_false(json_object_get(health, "lost")));
    assert_true(json_is_null(json_object_get(json_object_get(health, "remapped_rows"), "pending")));
    json_decref(root);
}

TEST(gpus_without_the_drivers_library)
{
    need_stand_ins();
    json_t *root = probe(STAND_INS);
    assert_int_equal(1, json_array_size(json_object_get(root, "gpus")));
    assert_string_equal("libnvidia-ml.so.1 was not found", json_string_value(json_object_get(root, "health_missing")));
    assert_null(json_object_get(json_array_get(json_object_get(root, "gpus"), 0), "health"));
    json_decref(root);
}

/* ---- --health: the driver's library alone ---- */

TEST(health_without_a_driver)
{
    char missing[2048];
    need_no_driver();
    json_t *root = probe(NO_MODULE);
    snprintf(missing, sizeof(missing), "%s", json_string_value(json_object_get(root, "gpu_missing")));
    json_decref(root);
    root = run_worker("health", NO_MODULE);
    assert_string_equal(missing, json_string_value(json_object_get(root, "gpu_missing")));
    assert_int_equal(0, json_array_size(json_object_get(root, "gpus")));
    json_decref(root);
}

TEST(health_without_a_device)
{
    need_no_driver();
    json_t *root = run_worker("health", NO_MODULE DRIVER "FAKE_NVML_GPUS=0");
    assert_non_null(strstr(json_string_value(json_object_get(root, "gpu_missing")), "580.95.05 sees no device"));
    json_decref(root);
    root = run_worker("health", NO_MODULE DRIVER "FAKE_NVML_INIT=18");
    assert_non_null(strstr(json_string_value(json_object_get(root, "gpu_missing")), "mismatch (code 18)"));
    json_decref(root);
}

/* Parses the output as control does, with three GPUs whose uuids the probe has reported. */
static uint64_t sick_of(struct gpus *g)
{
    uint64_t sick = 0;
    struct why why = {""};
    if (gpus_health_read(g, words, strlen(words), &sick, &why))
        fail_msg("%s: %s", why.text, words);
    return sick;
}

static void know_gpus(struct gpus *g)
{
    const char *text = "{\"gpus\": [{\"index\": 0, \"uuid\": \"GPU-fake-2\", \"health\": {}}, {\"index\": 1, \"uuid\": "
                       "\"GPU-fake-0\", \"health\": {}}, {\"index\": 2, \"uuid\": \"GPU-fake-1\", \"health\": {}}]}";
    struct why why = {""};
    *g = (struct gpus){0};
    assert_ok(gpus_read(g, text, strlen(text), &why));
}

/* Without dtd's CUDA module and without CUDA. */
TEST(health_of_all_gpus)
{
    struct gpus g;
    need_no_driver();
    json_t *root = run_worker("health", NO_MODULE DRIVER "FAKE_NVML_GPUS=3");
    json_t *list = json_object_get(root, "gpus");
    assert_int_equal(3, json_array_size(list));
    assert_null(json_object_get(root, "gpu_missing"));
    for (int i = 0; i < 3; i++) {
        json_t *gpu = json_array_get(list, (size_t)i), *health = json_object_get(gpu, "health");
        char uuid[32];
        snprintf(uuid, sizeof(uuid), "GPU-fake-%d", i);
        assert_string_equal(uuid, json_string_value(json_object_get(gpu, "uuid")));
        assert_string_equal("0000:1b:00.0", json_string_value(json_object_get(gpu, "pci")));
        assert_int_equal(13, json_object_size(health));
        assert_int_equal(73, json_integer_value(json_object_get(health, "busy_percent")));
        assert_int_equal(21474836480, json_integer_value(json_object_get(health, "memory_used_bytes")));
        assert_int_equal(3, json_integer_value(json_object_get(health, "ecc_uncorrected_volatile")));
        assert_int_equal(41, json_integer_value(json_object_get(health, "temperature_c")));
        assert_true(json_is_false(json_object_get(health, "lost")));
    }
    json_decref(root);
    know_gpus(&g);
    assert_int_equal(7, sick_of(&g));
    assert_string_equal("has uncorrectable memory errors (3) and has rows of memory that wait for a reset (1)",
                        gpus_sick(&g, 0));
    json_decref(run_worker("health", NO_MODULE DRIVER "FAKE_NVML_OLD=1"));
    know_gpus(&g);
    assert_int_equal(0, sick_of(&g)); /* an unknown fact is not a defect */
}

TEST(health_of_a_lost_gpu)
{
    struct gpus g;
    need_no_driver();
    json_t *root = run_worker("health", NO_MODULE DRIVER "FAKE_NVML_OLD=1 FAKE_NVML_GPUS=3");
    know_gpus(&g);
    assert_int_equal(0, sick_of(&g));
    json_decref(root);
    root = run_worker("health", NO_MODULE DRIVER "FAKE_NVML_OLD=1 FAKE_NVML_GPUS=3 FAKE_NVML_RIDDLE=1");
    const char *error = json_string_value(json_object_get(json_array_get(json_object_get(root, "gpus"), 1), "error"));
    assert_string_equal("nvmlDeviceGetHandleByIndex: Unknown Error (code 4)", error);
    assert_int_equal(0, sick_of(&g));
    json_decref(root);
    root = run_worker("health", NO_MODULE DRIVER "FAKE_NVML_OLD=1 FAKE_NVML_GPUS=3 FAKE_NVML_LOST=1");
    json_t *gpu = json_array_get(json_object_get(root, "gpus"), 1);
    assert_true(json_is_true(json_object_get(gpu, "lost")));
    assert_string_equal("nvmlDeviceGetHandleByIndex: GPU is lost (code 15)",
                        json_string_value(json_object_get(gpu, "error")));
    assert_int_equal(4, sick_of(&g)); /* FAKE_NVML_* takes the library's index; dtd's index is 2 */
    json_decref(root);
    root = run_worker("health", NO_MODULE DRIVER "FAKE_NVML_OLD=1 FAKE_NVML_GPUS=3 FAKE_NVML_FALLS=2");
    gpu = json_array_get(json_object_get(root, "gpus"), 2);
    assert_true(json_is_true(json_object_get(json_object_get(gpu, "health"), "lost")));
    assert_true(json_is_null(json_object_get(json_object_get(gpu, "health"), "temperature_c")));
    assert_int_equal(1, sick_of(&g));
    assert_non_null(strstr(gpus_sick(&g, 0), "is lost"));
    json_decref(root);
}
