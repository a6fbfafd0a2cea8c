/* Memory for unpacking: the budget is enforced, dtd's own largest messages fit, and hostile messages do not leak. */
#include "common/rpc/alloc.h"
#include "proto/io.pb-c.h"
#include "tests/lib/test.h"

#define BASE (64u << 10)

TEST(budget_is_spent_once)
{
    struct rpc_alloc a;
    rpc_alloc_init(&a, 100);
    assert_int_equal(a.left, BASE + 40 * 100);
    void *p = a.base.alloc(a.base.allocator_data, BASE);
    assert_non_null(p);
    a.base.free(a.base.allocator_data, p); /* a free returns nothing to the budget */
    assert_null(a.base.alloc(a.base.allocator_data, 4001));
    assert_true(a.exhausted);
    p = a.base.alloc(a.base.allocator_data, 4000);
    assert_non_null(p);
    a.base.free(a.base.allocator_data, p);
    assert_null(a.base.alloc(a.base.allocator_data, 1));
}

/* The valid message that needs the most memory per byte: many empty pieces. */
TEST(the_smallest_pieces_fit)
{
    enum { N = 20000 };
    Dtd__SaveRequest save = DTD__SAVE_REQUEST__INIT;
    static Dtd__Piece pieces[N], *list[N];
    static Dtd__BoxMsg box;
    struct rpc_alloc a;
    dtd__box_msg__init(&box);
    for (int i = 0; i < N; i++) {
        dtd__piece__init(&pieces[i]);
        pieces[i].fqn = (char *)"";
        pieces[i].box = &box;
        list[i] = &pieces[i];
    }
    save.n_piece = N;
    save.piece = list;
    size_t len = dtd__save_request__get_packed_size(&save);
    uint8_t *bytes = malloc(len);
    assert_int_equal(dtd__save_request__pack(&save, bytes), len);
    rpc_alloc_init(&a, len);
    Dtd__SaveRequest *back = dtd__save_request__unpack(&a.base, len, bytes);
    assert_non_null(back);
    assert_int_equal(back->n_piece, N);
    assert_false(a.exhausted);
    dtd__save_request__free_unpacked(back, &a.base);
    free(bytes);
}

/* A message that exceeds its budget is refused, whichever allocation fails, and nothing leaks. */
TEST(too_little_is_refused_cleanly)
{
    static const uint8_t bytes[] = {0x08, 0x01, 0x10, 0x0a, 0x18, 0x00, 0x20, 0x01, 0x2a, 0x09, 0x0a, 0x01, 'w', 0x10,
                                    0x01, 0x22, 0x00, 0x28, 0x00, 0x32, 0x06, 0x0a, 0x04, 's',  't',  'e',  'p', '2'};
    struct rpc_alloc a;
    for (size_t left = 0; left < 2000; left++) {
        rpc_alloc_init(&a, 0);
        a.left = left;
        Dtd__SaveRequest *m = dtd__save_request__unpack(&a.base, sizeof(bytes) - 1, bytes);
        assert_int_equal(m == NULL, a.exhausted);
        if (m)
            dtd__save_request__free_unpacked(m, &a.base);
    }
    assert_false(a.exhausted); /* the last budget was large enough */
}
