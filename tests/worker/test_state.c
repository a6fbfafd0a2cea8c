/* The handover of a snapshot to dtd-io: its time, and the step and scalars that it has, on a device that copies while
 * steps run and on one that copies at once. The link is replaced by a list of its calls. */
#include "tests/parity/harness.h"
#include "tests/worker/record_device.h"

#include "worker/state.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- a machine that may run out of memory ---- */

static _Atomic off_t memory_ends = INT64_MAX; /* offset from which on a file gets no pages */

int fallocate(int fd, int mode, off_t at, off_t bytes)
{
    if (at + bytes <= memory_ends)
        return (int)syscall(SYS_fallocate, fd, mode, at, bytes);
    errno = ENOSPC;
    return -1;
}

/* ---- the link ---- */

static struct {
    char log[512];
    int64_t said_step; /* in the scalars of the last save */
    uint8_t *arena;    /* contents at the last handover */
    const struct arena *is;
    size_t bytes;
    int fails;  /* number of commits that fail */
    bool owned; /* .. because another job has the folder, instead of for lack of space */
} fake;

static void say(const char *format, ...)
{
    va_list args;
    size_t at = strlen(fake.log);
    va_start(args, format);
    vsnprintf(fake.log + at, sizeof(fake.log) - at, format, args);
    va_end(args);
}

err_t link_save(struct link *l, const struct link_save *s)
{
    (void)l;
    say("save %" PRId64 "; ", s->step);
    for (int i = 0; i < s->n_scalars; i++)
        if (strcmp(s->scalars[i].fqn, SNAPSHOT_STEP) == 0)
            fake.said_step = s->scalars[i].i;
    fake.bytes = s->snapshot->bytes;
    fake.arena = realloc(fake.arena, fake.bytes);
    memcpy(fake.arena, fake.is->map, fake.bytes);
    return OK;
}

err_t link_save_wait(struct link *l, bool committed, struct why *why)
{
    (void)l;
    say(committed ? "committed; " : "free; ");
    if (committed && fake.fails-- > 0)
        return fake.owned ? why_set(why, ERR_OWNED, "taken over") : why_set(why, ERR_NOSPACE, "no space left");
    return OK;
}

err_t link_load(struct link *l, struct link_load *load, struct why *why)
{
    (void)l, (void)load;
    return why_set(why, ERR_NOTFOUND, "nothing to load");
}

const _Atomic int *link_cancel(const struct link *l)
{
    static _Atomic int never;
    (void)l;
    return &never;
}

/* ---- a rank alone ---- */

struct bench {
    struct parity_model m;
    struct engine e;
    struct comm *comm;
    struct arena arena;
    struct train_state state;
    struct parity_feed data;
};

static void begin(struct bench *b, struct dev *dev)
{
    struct why why = {""};
    *b = (struct bench){.arena = {.fd = memfd_create("arena", MFD_CLOEXEC)}};
    parity_model_init(&b->m, parity_gpt2, (const char *[]){"train.numerics=fast", NULL});
    const struct engine_config config = {.dev = dev, .job = &b->m.job, .graph = &b->m.graph, .world = 1};
    const struct comm_config cc = {.backend = "staged",
                                   .fd = memfd_create("state", MFD_CLOEXEC),
                                   .dev = dev,
                                   .world = 1,
                                   .epoch = 1,
                                   .timeout_ms = 1000};
    assert_ok(engine_init(&b->e, &config, &why));
    assert_ok(comm_open(&cc, &b->comm, &why));
    assert_ok(engine_start(&b->e, b->comm, &why));
    assert_ok(engine_fill_state(&b->e, &why));
    assert_ok(state_init(&b->state, NULL, &b->e, &b->arena, &why));
    b->data = (struct parity_feed){.seq = b->m.job.train.seq, .vocab = b->m.job.model.vocab};
    fake.is = &b->arena;
    fake.log[0] = '\0';
}

static void end(struct bench *b)
{
    state_fini(&b->state);
    engine_fini(&b->e);
    comm_close(b->comm);
    arena_fini(&b->arena);
    parity_model_fini(&b->m);
}

static void step(struct bench *b)
{
    const struct engine_feed feed = {.sample = parity_sample, .arg = &b->data};
    struct engine_result r;
    struct why why = {""};
    assert_ok(engine_step(&b->e, &feed, &r, &why));
    assert_ok(state_poll(&b->state, &why));
}

/* The snapshot that a device that copies at once hands over at step `n`. */
static uint8_t *expected(int n)
{
    struct bench b;
    begin(&b, test_cpu());
    for (int i = 0; i < n; i++)
        step(&b);
    assert_ok(state_save(&b.state, 1.0, NULL));
    assert_int_equal(fake.said_step, n);
    uint8_t *is = fake.arena;
    fake.arena = NULL;
    end(&b);
    return is;
}

TEST(a_save_is_handed_over_at_once_where_copies_are)
{
    struct bench b;
    begin(&b, test_cpu());
    step(&b);
    assert_ok(state_save(&b.state, 1.0, NULL));
    assert_string_equal(fake.log, "free; save 1; ");
    step(&b);
    assert_ok(state_save_finish(&b.state, 1000, NULL));
    assert_string_equal(fake.log, "free; save 1; committed; ");
    end(&b);
}

/* Steps continue during the copy; the snapshot that is handed over has the data and the number of the step that
 * requested it. */
TEST(a_save_is_handed_over_when_its_copies_are_over)
{
    struct bench b;
    uint8_t *want = expected(2);
    struct dev *dev = rec_open();
    begin(&b, dev);
    step(&b);
    step(&b);
    rec_forget();
    assert_ok(state_save(&b.state, 1.0, NULL));
    assert_string_equal(fake.log, "free; ");
    assert_int_equal(rec_count(REC_STREAM_SYNC) + rec_count(REC_EVENT_SYNC), 0);
    step(&b);
    assert_string_equal(fake.log, "free; save 2; ");
    assert_int_equal(fake.said_step, 2);
    assert_memory_equal(fake.arena, want, fake.bytes);
    step(&b);
    assert_string_equal(fake.log, "free; save 2; ");
    end(&b);
    rec_close(dev);
    free(want);
}

TEST(the_next_save_waits_for_the_copies_of_the_last)
{
    struct bench b;
    uint8_t *want = expected(1);
    struct dev *dev = rec_open();
    begin(&b, dev);
    step(&b);
    assert_ok(state_save(&b.state, 1.0, NULL));
    assert_ok(state_save(&b.state, 1.0, NULL));
    assert_string_equal(fake.log, "free; save 1; free; ");
    assert_memory_equal(fake.arena, want, fake.bytes);
    memset(fake.arena, 0, fake.bytes);
    fake.fails = 1; /* and a failed save is repeated unchanged */
    assert_ok(state_save_finish(&b.state, 5000, NULL));
    assert_string_equal(fake.log, "free; save 1; free; save 1; committed; save 1; committed; ");
    assert_memory_equal(fake.arena, want, fake.bytes);
    end(&b);
    rec_close(dev);
    free(want);
}

/* Another job has taken the checkpoint folder over: no repetition can succeed, and the job ends. */
TEST(a_save_into_a_lost_folder_is_not_repeated)
{
    struct bench b;
    begin(&b, test_cpu());
    step(&b);
    assert_ok(state_save(&b.state, 1.0, NULL));
    fake.owned = true;
    fake.fails = 2;
    assert_err(ERR_OWNED, state_save_finish(&b.state, 20000, NULL));
    assert_string_equal(fake.log, "free; save 1; committed; ");
    fake.owned = false;
    end(&b);
}

TEST(the_arena_is_pinned_while_it_is_mapped)
{
    struct bench b;
    struct why why;
    struct dev *dev = rec_open();
    begin(&b, dev);
    int pins = rec_count(REC_PIN), unpins = rec_count(REC_UNPIN);
    assert_ptr_equal(b.arena.pinned, dev);
    assert_ok(arena_need(&b.arena, dev, b.arena.bytes, &why));
    assert_int_equal(rec_count(REC_PIN), pins);
    assert_ok(arena_need(&b.arena, dev, b.arena.bytes + 1, &why));
    assert_int_equal(rec_count(REC_PIN), pins + 1);
    assert_int_equal(rec_count(REC_UNPIN), unpins + 1);
    end(&b);
    assert_null(b.arena.pinned);
    rec_close(dev);
    begin(&b, test_cpu());
    assert_null(b.arena.pinned);
    end(&b);
}

/* A thread allocates the arena's pages. Its waiter then has all of them, and the contents that were there. */
TEST(all_pages_of_the_arena_are_there_after_the_wait)
{
    const size_t bytes = (size_t)100 << 20;
    struct arena a = {.fd = memfd_create("arena", MFD_CLOEXEC)};
    struct why why;
    struct stat st;
    assert_int_equal(ftruncate(a.fd, (off_t)bytes), 0);
    assert_int_equal(pwrite(a.fd, "kept", 5, (off_t)(bytes / 2)), 5);
    assert_ok(arena_need(&a, test_cpu(), bytes, &why));
    assert_ok(arena_wait(&a, &why));
    assert_int_equal(fstat(a.fd, &st), 0);
    assert_int_equal(st.st_blocks * 512, a.bytes);
    assert_string_equal((char *)a.map + bytes / 2, "kept");
    assert_ok(arena_wait(&a, &why));
    arena_fini(&a);
    close(a.fd);
}

TEST(an_arena_without_memory_is_an_error_of_the_next_step_or_wait)
{
    struct bench b;
    struct why why = {""};
    begin(&b, test_cpu());
    assert_ok(arena_wait(&b.arena, &why));
    memory_ends = (off_t)b.arena.bytes;
    assert_ok(arena_need(&b.arena, test_cpu(), b.arena.bytes + ((size_t)64 << 20), &why));
    assert_err(ERR_NOMEM, arena_wait(&b.arena, &why));
    assert_non_null(strstr(why.text, "checkpoint arena: No space left on device; use fewer workers"));
    assert_err(ERR_NOMEM, state_poll(&b.state, &why));
    assert_err(ERR_NOMEM, state_save(&b.state, 1.0, &why));
    memory_ends = INT64_MAX; /* the next epoch tries again */
    assert_ok(arena_need(&b.arena, test_cpu(), b.arena.bytes, &why));
    assert_ok(state_save(&b.state, 1.0, &why));
    end(&b);
}

TEST(an_arena_may_end_before_it_is_filled)
{
    for (int i = 0; i < 20; i++) {
        struct arena a = {.fd = memfd_create("arena", MFD_CLOEXEC)};
        struct why why;
        assert_ok(arena_need(&a, test_cpu(), (size_t)32 << 20, &why));
        assert_ok(arena_need(&a, test_cpu(), (size_t)48 << 20, &why));
        arena_fini(&a);
        assert_null(a.map);
        close(a.fd);
    }
}
