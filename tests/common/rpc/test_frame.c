/* The header: every field survives encoding and decoding, and every rule is enforced. */
#include "common/rpc/frame.h"
#include "tests/lib/test.h"

TEST(header_comes_back)
{
    const struct frame f = {RPC_VERSION, RPC_REQUEST, 0xbeef, 0x0123456789abcdef, 0x01020304, 0x00fedcba};
    struct frame back = {0};
    uint8_t bytes[RPC_HEADER_BYTES];
    const char *reason = NULL;
    frame_encode(&f, bytes);
    assert_ok(frame_decode(bytes, &back, &reason));
    assert_int_equal(back.version, f.version);
    assert_int_equal(back.kind, f.kind);
    assert_int_equal(back.method, f.method);
    assert_int_equal(back.call, f.call);
    assert_int_equal(back.deadline_ms, f.deadline_ms);
    assert_int_equal(back.length, f.length);
    assert_null(reason);
}

TEST(header_is_little_endian)
{
    const struct frame f = {1, RPC_ITEM, 0x0201, 0x0807060504030201, 0, 0x00030201};
    static const uint8_t golden[RPC_HEADER_BYTES] = {'D', 'T', 'D', '1', 1, 3, 0x01, 0x02, 1, 2, 3, 4,
                                                     5,   6,   7,   8,   0, 0, 0,    0,    1, 2, 3, 0};
    uint8_t bytes[RPC_HEADER_BYTES];
    frame_encode(&f, bytes);
    assert_memory_equal(bytes, golden, sizeof(golden));
}

TEST(every_kind_and_no_other)
{
    for (int kind = 0; kind < 256; kind++) {
        const struct frame f = {.version = RPC_VERSION, .kind = (uint8_t)kind, .call = 1};
        struct frame back = {.method = 77};
        uint8_t bytes[RPC_HEADER_BYTES];
        const char *reason = NULL;
        frame_encode(&f, bytes);
        err_t err = frame_decode(bytes, &back, &reason);
        assert_err(kind >= RPC_REQUEST && kind <= RPC_CANCEL ? OK : ERR_PROTO, err);
        assert_int_equal(reason != NULL, err != OK);
        assert_int_equal(back.method, err ? 77 : 0); /* outputs are written on success only */
    }
}

TEST(largest_body_and_one_more)
{
    struct frame f = {.version = RPC_VERSION, .kind = RPC_REPLY, .call = 1, .length = RPC_MAX_BODY_BYTES};
    uint8_t bytes[RPC_HEADER_BYTES];
    const char *reason;
    frame_encode(&f, bytes);
    assert_ok(frame_decode(bytes, &f, &reason));
    f.length++;
    frame_encode(&f, bytes);
    assert_err(ERR_PROTO, frame_decode(bytes, &f, &reason));
}

TEST(each_rule_alone)
{
    static const struct {
        struct frame frame;
        err_t err;
    } cases[] = {
        {{RPC_VERSION, RPC_REQUEST, 0, 1, 9, 5}, OK},
        {{RPC_VERSION_OLDEST - 1, RPC_REQUEST, 0, 1, 0, 0}, ERR_PROTO},
        {{RPC_VERSION + 1, RPC_REQUEST, 0, 1, 0, 0}, ERR_PROTO},
        {{RPC_VERSION, RPC_REQUEST, 0, 0, 0, 0}, ERR_PROTO}, /* call 0 */
        {{RPC_VERSION, RPC_REPLY, 0, 1, 1, 0}, ERR_PROTO},   /* a deadline where none belongs */
        {{RPC_VERSION, RPC_CANCEL, 0, 1, 1, 0}, ERR_PROTO},
        {{RPC_VERSION, RPC_END, 0, 1, 0, 0}, OK},
        {{RPC_VERSION, RPC_END, 0, 1, 0, 1}, ERR_PROTO}, /* a body where none belongs */
        {{RPC_VERSION, RPC_CANCEL, 0, 1, 0, 0}, OK},
        {{RPC_VERSION, RPC_CANCEL, 0, 1, 0, 1}, ERR_PROTO},
        {{RPC_VERSION, RPC_ERROR, 0, 1, 0, 1}, OK},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct frame back;
        uint8_t bytes[RPC_HEADER_BYTES];
        const char *reason;
        print_message("case %zu\n", i);
        frame_encode(&cases[i].frame, bytes);
        assert_err(cases[i].err, frame_decode(bytes, &back, &reason));
    }
}
