/* Readers that behave, crash and attack. */
#include "common/data/apart.h"
#include "tests/common/data/read_all.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

struct odd_reader {
    struct doc_reader base;
    struct byte_source *in;
    int n;
};

static void odd_close(struct doc_reader *base)
{
    free(base);
}

/* The first byte of the file selects what the reader does. */
static err_t odd_next(struct doc_reader *base, struct document *ret, bool *ret_end, struct why *why)
{
    static int32_t ids[] = {1, 2, 3};
    static const uint8_t weights[] = {1, 0, 1};
    static uint8_t large[300000];
    struct odd_reader *r = (struct odd_reader *)base;
    uint8_t first = 0;
    int n = r->n++;
    err_t err = r->in->ops->read(r->in, 0, &first, 1, why);
    *ret_end = n == 4;
    memset(large, 'x', sizeof(large));
    struct document rows[] = {{.row = 0, .text = (const uint8_t *)"one", .len = 3},
                              {.row = 2, .text = (const uint8_t *)"", .len = 0},
                              {.row = 3, .ids = ids, .weights = weights, .n_ids = 3},
                              {.row = 4, .text = large, .len = sizeof(large)}};
    if (n < 4)
        *ret = rows[n];
    if (first == 'n') /* what a reader that keeps its promise never sends */
        ids[1] = -2;
    if (first == 'c' && n == 2)
        __builtin_trap();
    for (volatile unsigned turns = 0; first == 'l' && n == 2;)
        turns++;
    if (first == 'e' && n == 2)
        return why_set(why, ERR_UNSUPPORTED, "row 2 of \033 is odd");
    if (first == 'k' && n == 2) /* writes to the pipe that is not a frame */
        for (int fd = 3; fd < 20; fd++)
            if (write(fd, "nonsense, and more of it", 24) == 24)
                break;
    return err;
}

static err_t odd_open(struct byte_source *in, const struct doc_options *o, struct doc_reader **ret, struct why *why)
{
    static const struct doc_reader_ops ops = {.next = odd_next, .close = odd_close};
    uint8_t first = 0;
    err_t err = in->ops->read(in, 0, &first, 1, why);
    if (err)
        return err;
    if (first == 'a' && (open("/etc/passwd", O_RDONLY) >= 0 || socket(AF_INET, SOCK_STREAM, 0) >= 0 || fork() >= 0 ||
                         write(1, "x", 1) >= 0 || kill(getppid(), 0) == 0))
        return why_set(why, ERR_INTERNAL, "the process is not confined");
    if (first == 'C')
        __builtin_trap();
    struct odd_reader *r = calloc(1, sizeof(*r));
    assert_non_null(r);
    r->base.ops = &ops;
    r->in = in;
    *ret = &r->base;
    return OK;
}

static const struct doc_format odd = {.name = "odd", .open = odd_open};

static err_t odd_open_apart(struct byte_source *in, const struct doc_options *o, struct doc_reader **ret,
                            struct why *why)
{
    return apart_open(&odd, in, o, ret, why);
}

static const struct doc_format apart = {.name = "odd", .open = odd_open_apart};

TEST(documents_arrive)
{
    struct buf got = {0};
    struct why why = {0};
    assert_ok(read_all(&apart, "w", 1, NULL, &got, &why));
    assert_memory_equal(got.data, "0 one\n2 \n3 1*1 2*0 3*1\n4 xxx", 28);
    assert_int_equal(got.len, 23 + 2 + 300000 + 1 + 1);
    buf_fini(&got);
}

TEST(errors_arrive)
{
    assert_refuses(&apart, "e", 1, NULL, ERR_UNSUPPORTED, "row 2 of ? is odd");
    assert_refuses(&apart, "", 0, NULL, ERR_CORRUPT, "t: it ends early");
}

TEST(a_crash_is_an_error)
{
    assert_refuses(&apart, "c", 1, NULL, ERR_CORRUPT, "t: the library for odd crashed (signal ");
    assert_refuses(&apart, "C", 1, NULL, ERR_CORRUPT, "t: the library for odd crashed (signal ");
}

TEST(an_endless_loop_is_an_error)
{
    assert_refuses(&apart, "l", 1, NULL, ERR_CORRUPT, "took more than 10 s of processor time");
}

TEST(nonsense_is_an_error)
{
    assert_refuses(&apart, "k", 1, NULL, ERR_CORRUPT, "sent nonsense");
    assert_refuses(&apart, "n", 1, NULL, ERR_CORRUPT, "sent nonsense");
}

TEST(the_process_is_confined)
{
    struct buf got = {0};
    struct why why = {0};
    if (read_all(&apart, "a", 1, NULL, &got, &why))
        fail_msg("%s", why.text);
    buf_fini(&got);
}

/* A reader that is closed early leaves no process. */
TEST(closing_early)
{
    struct memory_source in = memory_source_of((const uint8_t *)"w", 1, "t");
    struct doc_reader *r;
    struct document d;
    bool end;
    assert_ok(apart_open(&odd, &in.base, NULL, &r, NULL));
    assert_ok(r->ops->next(r, &d, &end, NULL));
    r->ops->close(r);
    assert_int_equal(waitpid(-1, NULL, 0), -1);
}
