/* See attacker.h. */
#include "tests/attack/attacker.h"

#include "common/base/clock.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    DEPTH_MAX = 3, /* of nested messages */
    REPEATED_MAX = 4,
    BODY_MAX = 60000, /* no new field starts after this size, so that most bodies are accepted */
    PATIENCE_MS = 60000,
    HEADER_BYTES = 24, /* this and the kinds of frames: docs/formats/wire.md */
    REQUEST = 1,
    REPLY = 2,
    CANCEL = 6
};

uint64_t attacker_draw(struct attacker *s, uint64_t n)
{
    s->dice = s->dice * 6364136223846793005u + 1442695040888963407u;
    return (s->dice >> 33) % n;
}

/* ---- values ---- */

static void append_bytes(struct buf *b, const void *data, size_t len)
{
    assert_ok(buf_append(b, data, len));
}

static void append_varint(struct buf *b, uint64_t x)
{
    for (; x >= 128; x >>= 7)
        append_bytes(b, &(uint8_t){(uint8_t)(x | 128)}, 1);
    append_bytes(b, &(uint8_t){(uint8_t)x}, 1);
}

static uint64_t draw_number(struct attacker *s)
{
    static const int64_t edges[] = {0,  1,  2,   3,    -1,        -2,        63,         64,        255,
                                    -9, 16, 100, 4096, INT32_MAX, INT32_MIN, UINT32_MAX, INT64_MAX, INT64_MIN};
    const uint64_t n_edges = sizeof(edges) / sizeof(*edges);
    uint64_t i = attacker_draw(s, n_edges + (uint64_t)s->values.n_numbers * 4 + 2);
    if (i < n_edges)
        return (uint64_t)edges[i];
    if (s->values.n_numbers && i < n_edges + (uint64_t)s->values.n_numbers * 4)
        return (uint64_t)s->values.number[(i - n_edges) % (uint64_t)s->values.n_numbers];
    return attacker_draw(s, UINT64_MAX) << 33 | attacker_draw(s, UINT64_MAX);
}

/* A floating-point number has any bits, among them NaN and infinity. */
static void append_fixed(struct attacker *s, size_t bytes, struct buf *b)
{
    static const double reals[] = {0, -0.0, 1e308, 1e-308, -1, 0.0 / 1e9, 1e300 * 1e300};
    double real = reals[attacker_draw(s, sizeof(reals) / sizeof(*reals))];
    uint64_t bits = draw_number(s);
    append_bytes(b, attacker_draw(s, 2) ? (void *)&real : (void *)&bits, bytes);
}

static void append_string(struct attacker *s, bool is_text, struct buf *b)
{
    static const char *const edges[] = {"",
                                        "/",
                                        "..",
                                        "../../../../etc/passwd",
                                        "a\nb",
                                        "%s%s%n",
                                        "\xff\xfe",
                                        "~",
                                        "-1",
                                        "18446744073709551616",
                                        "/proc/self/fd/0",
                                        "null",
                                        "\x01",
                                        " "};
    const uint64_t n_edges = sizeof(edges) / sizeof(*edges);
    uint64_t n_texts = 0, i;
    while (s->values.text && s->values.text[n_texts])
        n_texts++;
    i = attacker_draw(s, n_edges + n_texts * 3 + (is_text ? 2 : n_edges * 3));
    if (i < n_edges + n_texts * 3) {
        const char *word = i < n_edges ? edges[i] : s->values.text[(i - n_edges) % n_texts];
        append_varint(b, strlen(word));
        append_bytes(b, word, strlen(word));
        return;
    }
    const uint64_t lengths[] = {16, 32, attacker_draw(s, 40),
                                attacker_draw(s, 5000)}; /* 16: a request id, 32: a token */
    uint64_t len = lengths[attacker_draw(s, 4)];
    append_varint(b, len);
    for (uint64_t k = 0; k < len; k++) {
        uint8_t byte = (uint8_t)attacker_draw(s, 256);
        byte = is_text && byte == 0 ? 'x' : byte;
        append_bytes(b, &byte, 1);
    }
}

/* ---- messages ---- */

static void append_message(struct attacker *s, const ProtobufCMessageDescriptor *type, int depth, struct buf *ret);

static void append_value(struct attacker *s, const ProtobufCFieldDescriptor *f, int depth, struct buf *b)
{
    struct buf inner = {0};
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
        append_string(s, f->type == PROTOBUF_C_TYPE_STRING, b);
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        if (depth < DEPTH_MAX)
            append_message(s, f->descriptor, depth + 1, &inner);
        append_varint(b, inner.len);
        append_bytes(b, inner.data, inner.len);
        buf_fini(&inner);
        break;
    case PROTOBUF_C_TYPE_ENUM: {
        const ProtobufCEnumDescriptor *e = f->descriptor;
        append_varint(b,
                      attacker_draw(s, 8) ? (uint64_t)e->values[attacker_draw(s, e->n_values)].value : draw_number(s));
        break;
    }
    case PROTOBUF_C_TYPE_DOUBLE:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
        append_fixed(s, 8, b);
        break;
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
        append_fixed(s, 4, b);
        break;
    default: /* the rest are varints */
        append_varint(b, draw_number(s));
    }
}

static int wire_type(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return 2;
    case PROTOBUF_C_TYPE_DOUBLE:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
        return 1;
    case PROTOBUF_C_TYPE_FLOAT:
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
        return 5;
    default:
        return 0;
    }
}

static void append_message(struct attacker *s, const ProtobufCMessageDescriptor *type, int depth, struct buf *ret)
{
    for (unsigned i = 0; i < type->n_fields && ret->len < BODY_MAX; i++) {
        const ProtobufCFieldDescriptor *f = &type->fields[i];
        uint64_t times = f->label == PROTOBUF_C_LABEL_REPEATED   ? attacker_draw(s, REPEATED_MAX)
                         : f->label == PROTOBUF_C_LABEL_REQUIRED ? attacker_draw(s, 50) != 0
                                                                 : attacker_draw(s, 2);
        for (; times; times--) { /* repeated fields are never packed here; a parser accepts both forms */
            append_varint(ret, (uint64_t)f->id << 3 | (uint64_t)wire_type(f->type));
            append_value(s, f, depth, ret);
        }
    }
}

void attacker_append_message(struct attacker *s, const ProtobufCMessageDescriptor *type, struct buf *ret)
{
    append_message(s, type, 0, ret);
    while (ret->len && attacker_draw(s, 30) == 0) /* one message in thirty has a flipped bit, some have several */
        ret->data[attacker_draw(s, ret->len)] ^= (uint8_t)(1 << attacker_draw(s, 8));
}

/* ---- frames ---- */

static void write_header(uint8_t kind, uint16_t method, uint64_t call, uint32_t deadline, uint32_t len, uint8_t *ret)
{
    const uint32_t magic = 0x31445444;
    memcpy(ret, &magic, 4);
    ret[4] = 1;
    ret[5] = kind;
    memcpy(ret + 6, &method, 2);
    memcpy(ret + 8, &call, 8);
    memcpy(ret + 16, &deadline, 4);
    memcpy(ret + 20, &len, 4);
}

/* Discards what has arrived. Returns false at the end of the connection. */
static bool discard_received(struct attacker *s)
{
    static char bytes[1 << 16];
    ssize_t n;
    while ((n = recv(s->fd, bytes, sizeof(bytes), MSG_DONTWAIT)) > 0)
        ;
    return n < 0 && (errno == EAGAIN || errno == EINTR);
}

static bool send_all(struct attacker *s, const void *data, size_t len)
{
    int64_t until = clock_mono_ms() + PATIENCE_MS;
    for (size_t at = 0; at < len;) {
        ssize_t n = send(s->fd, (const char *)data + at, len - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        at += n > 0 ? (size_t)n : 0;
        if (s->turn)
            s->turn(s->arg);
        if (!discard_received(s) || (n < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (clock_mono_ms() > until)
            fail_msg("the other side neither reads nor closes the connection within %d s", PATIENCE_MS / 1000);
        if (n < 0)
            poll(&(struct pollfd){.fd = s->fd, .events = POLLIN | POLLOUT}, 1, 1);
    }
    return true;
}

bool attacker_send(struct attacker *s, uint16_t method, const struct buf *body)
{
    uint8_t header[HEADER_BYTES];
    write_header(REQUEST, method, ++s->call, (uint32_t)attacker_draw(s, 100), (uint32_t)body->len, header);
    bool open = send_all(s, header, sizeof(header)) && send_all(s, body->data, body->len);
    if (open && attacker_draw(s, 10) == 0) {
        write_header(CANCEL, method, s->call, 0, 0, header);
        open = send_all(s, header, sizeof(header));
    }
    s->sent++;
    return open;
}

/* Receives exactly `len` bytes. Returns false if the connection ends before that. */
static bool receive_exactly(struct attacker *s, uint8_t *ret, size_t len)
{
    int64_t until = clock_mono_ms() + PATIENCE_MS;
    for (size_t got = 0; got < len;) {
        ssize_t n = recv(s->fd, ret + got, len - got, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return false;
        if (clock_mono_ms() > until)
            fail_msg("a valid call was not answered within %d s", PATIENCE_MS / 1000);
        got += n > 0 ? (size_t)n : 0;
        if (s->turn)
            s->turn(s->arg);
        if (n < 0)
            poll(&(struct pollfd){.fd = s->fd, .events = POLLIN}, 1, 1);
    }
    return true;
}

bool attacker_call_valid(struct attacker *s, uint16_t method, const ProtobufCMessage *message)
{
    struct buf bytes = {0};
    uint8_t *header;
    uint32_t len = (uint32_t)protobuf_c_message_get_packed_size(message);
    assert_ok(buf_reserve(&bytes, HEADER_BYTES + (len > 65536 ? len : 65536)));
    header = bytes.data;
    write_header(REQUEST, method, ++s->call, 0, len, header);
    protobuf_c_message_pack(message, header + HEADER_BYTES);
    bool answered =
        send(s->fd, header, HEADER_BYTES + len, MSG_NOSIGNAL) > 0 && receive_exactly(s, header, HEADER_BYTES);
    memcpy(&len, header + 20, sizeof(len));
    answered = answered && len <= 65536 && receive_exactly(s, header + HEADER_BYTES, len);
    bool good = answered && header[5] == REPLY;
    buf_fini(&bytes);
    return good;
}

/* ---- random calls ---- */

static const struct rpc_method *draw_method(struct attacker *s, int group, const uint16_t *but)
{
    for (;;) {
        const struct rpc_method *m = &rpc_methods()[attacker_draw(s, RPC_METHOD_COUNT)];
        bool out = m->id >> 8 != group;
        for (const uint16_t *b = but; *b; b++)
            out |= *b == m->id;
        if (!out)
            return m;
    }
}

void attacker_send_random(struct attacker *s, int group, const uint16_t *but, int times)
{
    for (int i = 0; i < times; i++) {
        const struct rpc_method *m = draw_method(s, group, but);
        struct buf body = {0};
        attacker_append_message(s, m->request, &body);
        if (!attacker_send(s, m->id, &body) || attacker_draw(s, 200) == 0) {
            close(s->fd);
            s->closed++;
            s->call = 0;
            s->open(s);
        }
        buf_fini(&body);
    }
}
