/* Names of users with a name service that does not answer (getpwuid_r is replaced by the linker). */
#include "daemon/control/local/names.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <pwd.h>
#include <semaphore.h>
#include <stdatomic.h>

int __wrap_getpwuid_r(uid_t uid, struct passwd *pw, char *buf, size_t size, struct passwd **ret);

static sem_t answer, asked;
static atomic_int n_asked;

/* User N is called uN; 7 does not exist, and for 8 the service fails. */
int __wrap_getpwuid_r(uid_t uid, struct passwd *pw, char *buf, size_t size, struct passwd **ret)
{
    atomic_fetch_add(&n_asked, 1);
    sem_post(&asked);
    while (sem_wait(&answer))
        ;
    snprintf(buf, size, "u%u", uid);
    *pw = (struct passwd){.pw_name = buf, .pw_uid = uid};
    *ret = uid == 7 || uid == 8 ? NULL : pw;
    return uid == 8 ? EIO : 0;
}

static uv_loop_t loop;
static struct user_names names;

static void begin(void)
{
    assert_int_equal(0, sem_init(&answer, 0, 0));
    assert_int_equal(0, sem_init(&asked, 0, 0));
    assert_int_equal(0, uv_loop_init(&loop));
    assert_ok(names_init(&names, &loop));
}

static enum name_state await(uint32_t uid, const char **ret)
{
    enum name_state state;
    while ((state = names_get(&names, uid, ret)) == NAME_NONE)
        uv_run(&loop, UV_RUN_ONCE);
    return state;
}

TEST(nobody_waits_for_the_name_service)
{
    const char *name = NULL;
    begin();
    for (int i = 0; i < 100; i++)
        assert_int_equal(NAME_NONE, names_get(&names, 1000, &name));
    while (sem_wait(&asked)) /* the thread is in the name service, which does not answer */
        ;
    uv_run(&loop, UV_RUN_NOWAIT);
    assert_int_equal(NAME_NONE, names_get(&names, 1000, &name));
    assert_null(name);
    assert_int_equal(1, atomic_load(&n_asked));
    sem_post(&answer);
    assert_int_equal(NAME_KNOWN, await(1000, &name));
    assert_string_equal("u1000", name);
    assert_int_equal(1, atomic_load(&n_asked));
}

TEST(missing_users_and_errors_are_unknown)
{
    const char *name = NULL;
    begin();
    sem_post(&answer);
    sem_post(&answer);
    assert_int_equal(NAME_UNKNOWN, await(7, &name));
    assert_int_equal(NAME_UNKNOWN, await(8, &name));
    assert_null(name);
    assert_int_equal(2, atomic_load(&n_asked));
}

/* More users than there are entries, all with the same place in the table. */
TEST(more_users_than_entries)
{
    const char *name;
    char want[16];
    begin();
    for (uint32_t i = 0; i < 40; i++)
        sem_post(&answer);
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t uid = 3 + i * NAMES_MAX;
        assert_int_equal(NAME_KNOWN, await(uid, &name));
        snprintf(want, sizeof(want), "u%u", uid);
        assert_string_equal(want, name);
    }
}

/* While the service is asked for as many users as may be, others have no name, and the answers still arrive. */
TEST(entries_that_are_asked_for_are_kept)
{
    const char *name;
    begin();
    for (uint32_t i = 0; i < 2 * NAMES_NEAR; i++)
        assert_int_equal(NAME_NONE, names_get(&names, 3 + i * NAMES_MAX, &name));
    for (uint32_t i = 0; i < NAMES_NEAR; i++)
        sem_post(&answer);
    for (uint32_t i = 0; i < NAMES_NEAR; i++)
        assert_int_equal(NAME_KNOWN, await(3 + i * NAMES_MAX, &name));
    assert_int_equal(NAMES_NEAR, atomic_load(&n_asked));
}
