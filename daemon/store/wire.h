/* Incremental parser for requests of PyTorch's TCPStore protocol (docs/use/c10d-store.md). Pure: no sockets, no clock.
 *
 * Each connection has one parser. It receives the input in arbitrary pieces and returns requests one by one. A request
 * that is complete in the caller's input is returned as views of that input; the bytes of an incomplete one are
 * collected in the parser, and no byte is parsed twice. Lengths and counts are checked before memory is allocated.
 * Memory grows with the bytes that have arrived, never with those that were announced, and counts against the store's
 * budget.
 *
 * A request with a list of keys is returned in parts, a head and then key by key, so that the list is never held. */
#ifndef DTD_DAEMON_STORE_WIRE_H
#define DTD_DAEMON_STORE_WIRE_H

#include "daemon/store/bytes.h"

#define WIRE_KEY_MAX 8192u
#define WIRE_VALUE_MAX (8u << 20)
#define WIRE_KEYS_MAX 131072u
#define WIRE_MAGIC 0x3c85f7ceu

/* The numbers of PyTorch 2.2 to 2.14. PyTorch 2.1 has only SET to CANCEL_WAIT, each number lower by one, and no
 * VALIDATE. The first bytes of a connection show which of the two it is. */
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

/* A request or a part of one. The views are valid until the next wire_next. */
struct wire_request {
    enum wire_op op;
    bool head;     /* the head of a list: `left` keys follow, each as a part of its own */
    uint32_t left; /* keys of the list that follow; 0: the request is complete */
    struct byte_view key, value;
    struct byte_view desired; /* COMPARE_SET; `value` is then the expected value */
    int64_t number;           /* ADD: the summand; BARRIER: the number of clients */
    uint32_t nonce;           /* PING */
};

enum wire_result {
    WIRE_MORE,    /* all input has been consumed, and the request is not complete */
    WIRE_REQUEST, /* a request was returned, and its input consumed */
    WIRE_BROKEN,  /* the connection must be closed; `reason` is the reason */
};

/* Only `reason` and `legacy` are for the caller. */
struct wire_parser {
    const char *reason;
    bool started, legacy; /* legacy: version 2.1 */
    bool in_part;         /* a part has begun */
    bool in_body;         /* inside a key or value whose length is known */
    bool head;            /* this part is the operation and count of a list */
    uint8_t op, field;    /* field: 0 before the operation, then 1 + the index of the next field */
    uint8_t n_values;
    uint32_t left;
    uint64_t length;
    size_t at;           /* bytes of this part that have been parsed */
    struct bytebuf held; /* the part from its first byte, if the input ended inside it */
    size_t key_at, key_len, value_at[2], value_len[2];
    int64_t number;
    uint32_t nonce;
};

void wire_init(struct wire_parser *w, struct budget *budget);
void wire_fini(struct wire_parser *w);
/* Returns the next request in `in` and advances `in` past it. PyTorch 2.2 and later sends VALIDATE as the first request
 * of a connection; a second VALIDATE is an error. */
enum wire_result wire_next(struct wire_parser *w, struct byte_view *in, struct wire_request *ret);
/* A request has begun and is not complete. */
bool wire_in_request(const struct wire_parser *w);
const char *wire_op_name(enum wire_op op);

#endif
