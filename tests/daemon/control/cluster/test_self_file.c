/* A changed bit in the files of a node's identity is always an error. */
#include "common/base/file.h"
#include "daemon/control/cluster/self_file.h"
#include "daemon/control/state/state.h"
#include "tests/lib/test.h"

static struct cluster_self example(void)
{
    struct cluster_self self = {.name = "n1", .id = 3, .listen = "0.0.0.0:7811", .address = "n1:7811", .joins = true};
    memset(self.instance, 0x5a, sizeof(self.instance));
    return self;
}

TEST(each_flipped_bit_of_self_is_an_error)
{
    char text[CLUSTER_FILE_MAX];
    struct cluster_self self = example(), back;
    struct why why;
    size_t len = cluster_file_print(&self, text);
    assert_ok(cluster_file_parse("self", text, len, &back, &why));
    assert_string_equal(back.name, "n1");
    assert_true(back.id == 3 && back.joins && !back.fresh);
    for (size_t bit = 0; bit < 8 * len; bit++) {
        text[bit / 8] ^= (char)(1 << bit % 8);
        if (cluster_file_parse("self", text, len, &back, &why) != ERR_CORRUPT)
            fail_msg("bit %zu of byte %zu is missed", bit % 8, bit / 8);
        text[bit / 8] ^= (char)(1 << bit % 8);
    }
}

TEST(self_of_a_version_without_checksums_is_read)
{
    char text[CLUSTER_FILE_MAX];
    struct cluster_self self = example(), back;
    struct why why;
    size_t len = cluster_file_print(&self, text) - strlen("sum=00000000\n");
    assert_ok(cluster_file_parse("self", text, len, &back, &why));
    assert_string_equal(back.address, "n1:7811");
}

/* A view of one node and one token. */
static struct buf example_view(void)
{
    struct buf bytes = {0};
    struct state *s;
    struct state_result result;
    struct record node = {
        .kind = RECORD_NODE, .wall_ms = 5, .node = {.name = "n1", .address = "n1:7811", .domain = ""}};
    struct record drained = {.kind = RECORD_NODE_ADMIN, .wall_ms = 30, .node_admin = {"n1", "memory is replaced"}};
    assert_ok(state_new(&s));
    assert_ok(state_apply(s, &node, &result));
    assert_ok(state_apply(s, &drained, &result));
    assert_ok(state_cluster_snapshot(s, &bytes));
    assert_true(bytes.len > 20);
    state_free(s);
    return bytes;
}

/* Reads the file and takes it into a state, as a starting node does. */
static err_t take_view(const char *path)
{
    struct buf bytes = {0};
    struct state *s;
    assert_ok(state_new(&s));
    err_t err = cluster_view_read(path, &bytes);
    if (!err)
        err = state_restore(s, bytes.data, bytes.len);
    buf_fini(&bytes);
    state_free(s);
    return err;
}

TEST(each_flipped_bit_of_the_view_is_an_error)
{
    char path[300];
    struct buf view = example_view(), bytes = {0};
    snprintf(path, sizeof(path), "%s/view", test_tmpdir());
    assert_err(ERR_NOTFOUND, take_view(path));
    assert_ok(cluster_view_write(path, view.data, view.len));
    assert_ok(take_view(path));
    assert_ok(file_read(path, 1000, &bytes));
    for (size_t bit = 0; bit < 8 * bytes.len; bit++) {
        bytes.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        FILE *f = fopen(path, "w");
        assert_int_equal(fwrite(bytes.data, 1, bytes.len, f), bytes.len);
        assert_int_equal(fclose(f), 0);
        if (take_view(path) != ERR_CORRUPT)
            fail_msg("bit %zu of byte %zu is missed", bit % 8, bit / 8);
        bytes.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    buf_fini(&bytes);
    buf_fini(&view);
}
