/* Requests of PyTorch's TCPStore protocol (docs/store.md), from bytes as they come. Pure: no sockets, no clock.
 *
 * A parser belongs to one connection. It is fed whatever has arrived, cut anywhere, and hands out requests one by one;
 * what is whole in the caller's bytes is handed out as views of them, what is not is collected here, and no byte is
 * looked at twice. Lengths and counts are checked before memory is taken, and memory grows with the bytes that have
 * come, never with those that were announced; it counts against the store's budget.
 *
 * Requests with a list of keys come in parts, a head and then key after key, so that none of them has to be held. */
#ifndef DTD_DAEMON_STORE_WIRE_H
#define DTD_DAEMON_STORE_WIRE_H

#include "daemon/store/bytes.h"

#define WIRE_KEY_MAX 8192u
#define WIRE_VALUE_MAX (8u << 20)
#define WIRE_KEYS_MAX 131072u
#define WIRE_MAGIC 0x3c85f7ceu

/* The numbers are those of versions 2.2 to 2.14. Version 2.1 has those from SET to CANCEL_WAIT, each one lower, and no
 * VALIDATE: the first bytes of a connection tell. */
enum wire_op {
    WIRE_VALIDATE,
    WIRE_SET,
    WIRE_COMPARE_SET,
    WIRE_GET,
    WIRE_ADD,
    WIRE_CHECK,
    WIRE_WAIT,
    WIRE_GETNUMKEYS,
    WIRE_DELETE_KEY,
    WIRE_APPEND,
    WIRE_MULTI_GET,
    WIRE_MULTI_SET,
    WIRE_CANCEL_WAIT,
    WIRE_PING,
    WIRE_QUEUE_PUSH,
    WIRE_QUEUE_POP,
    WIRE_QUEUE_LEN,
    WIRE_LIST_KEYS,
    WIRE_BARRIER,
    WIRE_OPS
};

/* A request, or a part of one. Its views are valid until the next wire_next. */
struct wire_request {
    enum wire_op op;
    bool head;     /* of a list: `left` keys follow as parts of their own, none when it is 0 */
    uint32_t left; /* keys of the list that are still to come: 0 ends the request */
    struct byte_view key, value;
    struct byte_view desired; /* COMPARE_SET: `value` is what is expected */
    int64_t number;           /* ADD: what is added; BARRIER: how many come */
    uint32_t nonce;           /* PING */
};

enum wire_result {
    WIRE_MORE,    /* all input was taken */
    WIRE_REQUEST, /* one was found, the input moved on */
    WIRE_BROKEN,  /* close the connection; wire.reason says why */
};

/* Fields are the parser's own, but for `reason` and `legacy`. */
struct wire_parser {
    const char *reason;
    bool started, legacy; /* legacy: version 2.1 */
    bool in_part;         /* some of its bytes were understood */
    bool in_body;         /* of a key or value: its length is known */
    bool head;            /* this part is a list's operation and count */
    uint8_t op, field;    /* field: 0 before the operation, then 1 + the index of the one that comes next */
    uint8_t n_values;
    uint32_t left;
    uint64_t length;
    size_t at;           /* bytes of this part that were understood */
    struct bytebuf held; /* the part from its first byte, when the input ended inside it */
    size_t key_at, key_len, value_at[2], value_len[2];
    int64_t number;
    uint32_t nonce;
};

void wire_init(struct wire_parser *w, struct budget *budget);
void wire_fini(struct wire_parser *w);
/* The next request in `in`, which moves on by what was taken. The first one of versions 2.2 and later is VALIDATE, and
 * it is never given out again. */
enum wire_result wire_next(struct wire_parser *w, struct byte_view *in, struct wire_request *ret);
const char *wire_op_name(enum wire_op op);

#endif
