/* The log with several voters: elections, crashes, partitions, changes of the voters, snapshots, full disks. */
#include "common/base/clock.h"
#include "tests/daemon/control/log/voters_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

static struct voters c;

static int count(enum log_role role)
{
    struct log_member m[LOG_MAX_MEMBERS];
    int n = log_members(c.v[voters_leader(&c)].log, m), found = 0;
    for (int i = 0; i < n; i++)
        found += m[i].role == role;
    return found;
}

TEST(three_voters_agree)
{
    voters_open(&c);
    voters_form(&c, 3);
    assert_int_equal(3, count(LOG_VOTER));
    voters_write(&c, 300, 100);
    voters_agree(&c);
    int leader = voters_leader(&c);
    for (int i = 1; i <= 3; i++) {
        assert_int_equal(leader, log_leader(c.v[i].log));
        if (i != leader)
            assert_err(ERR_AGAIN, log_propose(c.v[i].log, "1234", 4, NULL, NULL));
    }
    voters_close(&c);
}

TEST(a_log_grows_from_one_to_three_voters)
{
    voters_open(&c);
    voter_start(&c, 1);
    voters_write(&c, 100, 100);
    voter_crash(&c, 1);
    voters_form(&c, 3);
    voters_agree(&c);
    assert_true(c.v[3].n_history > 100);
    voters_close(&c);
}

TEST(an_empty_log_waits_to_be_added)
{
    voters_open(&c);
    voter_start(&c, 2);
    voters_run_ms(&c, 1500);
    assert_true(c.v[2].ready);
    assert_false(log_leads(c.v[2].log));
    assert_int_equal(0, log_leader(c.v[2].log));
    assert_err(ERR_AGAIN, log_propose(c.v[2].log, "1234", 4, NULL, NULL));
    assert_int_equal(0, log_term(c.v[2].log));
    voters_close(&c);
}

TEST(a_new_leader_is_elected_after_a_crash)
{
    voters_open(&c);
    voters_form(&c, 3);
    for (int round = 0; round < 6; round++) {
        voters_write(&c, 50, 100);
        for (int k = 0; k < 20; k++)
            voters_propose(&c, 100); /* under way at the crash */
        int old = voters_leader(&c);
        voter_crash(&c, old);
        voters_wait_leader(&c);
        assert_int_not_equal(old, voters_leader(&c));
        voters_write(&c, 50, 100);
        voter_start(&c, old);
    }
    voters_agree(&c);
    voters_close(&c);
}

TEST(five_voters_lose_two)
{
    voters_open(&c);
    voters_form(&c, 5);
    for (int round = 0; round < 3; round++) {
        int a = voters_leader(&c);
        voter_crash(&c, a);
        voters_write(&c, 30, 0);
        int b = voters_leader(&c);
        voter_crash(&c, b);
        voters_write(&c, 30, 0);
        voter_start(&c, a);
        voter_start(&c, b);
        voters_wait_leader(&c);
    }
    voters_agree(&c);
    voters_close(&c);
}

static bool no_leader(struct voters *v)
{
    return !voters_leader(v);
}

TEST(a_minority_takes_no_proposals)
{
    voters_open(&c);
    voters_form(&c, 3);
    voters_write(&c, 20, 0);
    int leader = voters_leader(&c);
    for (int k = 0; k < 10; k++)
        assert_true(voters_propose(&c, 0));
    for (int i = 1; i <= 3; i++)
        if (i != leader)
            voter_crash(&c, i);
    voters_wait(&c, no_leader, "the last leader to step down");
    assert_int_equal(0, c.n_open); /* all have an answer: canceled, or committed before the crash */
    assert_err(ERR_AGAIN, log_propose(c.v[leader].log, "1234", 4, NULL, NULL));
    for (int i = 1; i <= 3; i++)
        if (i != leader)
            voter_start(&c, i);
    voters_wait_leader(&c);
    voters_agree(&c);
    voters_close(&c);
}

static int isolated;

static bool another_leads(struct voters *v)
{
    int leader = voters_leader(v);
    return leader && leader != isolated && !log_leads(v->v[isolated].log);
}

TEST(a_partition_heals)
{
    voters_open(&c);
    voters_form(&c, 5);
    for (int round = 0; round < 4; round++) {
        voters_write(&c, 30, 0);
        isolated = voters_leader(&c);
        for (int k = 0; k < 10; k++)
            assert_true(voters_propose(&c, 0)); /* some are only on its disk and have to be removed later */
        voters_isolate(&c, isolated, true);
        voters_wait(&c, another_leads, "another leader");
        voters_write(&c, 30, 0);
        uint64_t term = log_term(c.v[isolated].log);
        voters_run_ms(&c, 1500);
        /* Pre-vote: it does not increment its term without a majority, so it does not force an election later. */
        assert_int_equal(term, log_term(c.v[isolated].log));
        voters_isolate(&c, isolated, false);
        voters_run_ms(&c, 500);
        voters_wait_leader(&c);
    }
    voters_agree(&c);
    voters_close(&c);
}

TEST(a_follower_catches_up_by_a_snapshot)
{
    c.threshold = 64;
    voters_open(&c);
    voters_form(&c, 3);
    int away = voters_leader(&c) == 3 ? 2 : 3;
    voter_crash(&c, away);
    voters_write(&c, 500, 200);
    int restores = c.v[away].restores;
    voter_start(&c, away);
    voters_agree(&c);
    assert_true(c.v[away].restores > restores);
    voters_close(&c);
}

/* Restarts after snapshots, which may be newer than what a follower has applied. */
TEST(all_come_back_from_their_disks)
{
    c.threshold = 64;
    voters_open(&c);
    voters_form(&c, 3);
    for (int round = 0; round < 3; round++) {
        voters_write(&c, 150, 100);
        for (int i = 1; i <= 3; i++)
            voter_crash(&c, i);
        for (int i = 3; i >= 1; i--)
            voter_start(&c, i);
        voters_wait_leader(&c);
    }
    voters_agree(&c);
    voters_close(&c);
}

TEST(one_three_five_three)
{
    voters_open(&c);
    voters_form(&c, 5);
    assert_int_equal(5, count(LOG_VOTER));
    voters_write(&c, 50, 0);
    for (int id = 5; id >= 4; id--) {
        if (voters_leader(&c) == id) {
            voters_change(&c, change_transfer, 1);
            voters_wait_leader(&c);
        }
        voters_change(&c, change_spare, id);
        voters_change(&c, change_remove, id);
        voter_crash(&c, id);
        voters_write(&c, 20, 0);
    }
    assert_int_equal(3, count(LOG_VOTER));
    assert_int_equal(0, count(LOG_SPARE));
    /* Of three voters one may crash, and a removed one that restarts from its disk does not disturb the others. */
    voter_start(&c, 5);
    voter_crash(&c, voters_leader(&c));
    voters_write(&c, 20, 0);
    voter_crash(&c, 5);
    for (int i = 1; i <= 3; i++)
        if (!c.v[i].log)
            voter_start(&c, i);
    voters_agree(&c);
    voters_close(&c);
}

TEST(a_dead_voter_is_replaced)
{
    voters_open(&c);
    voters_form(&c, 3);
    int dead = voters_leader(&c);
    voter_crash(&c, dead);
    voter_start(&c, 4);
    voters_change(&c, change_add, 4);
    voters_change(&c, change_voter, 4);
    voters_change(&c, change_spare, dead);
    voters_change(&c, change_remove, dead);
    assert_int_equal(3, count(LOG_VOTER));
    voters_write(&c, 20, 0);
    voter_crash(&c, voters_leader(&c)); /* the new voter is part of the majority */
    voters_write(&c, 20, 0);
    for (int i = 1; i <= 4; i++)
        if (!c.v[i].log && i != dead)
            voter_start(&c, i);
    voters_agree(&c);
    voters_close(&c);
}

static int target;

static bool target_leads(struct voters *v)
{
    return voters_leader(v) == target && log_leader(v->v[1].log) == (uint64_t)target;
}

TEST(the_leadership_is_handed_over)
{
    voters_open(&c);
    voters_form(&c, 3);
    for (int round = 0; round < 4; round++) {
        voters_write(&c, 10, 0);
        target = voters_leader(&c) % 3 + 1;
        voters_change(&c, change_transfer, target);
        voters_wait(&c, target_leads, "the named voter to lead");
    }
    voters_agree(&c);
    voters_close(&c);
}

TEST(invalid_changes_are_refused)
{
    voters_open(&c);
    voters_form(&c, 3);
    struct log *log = c.v[voters_leader(&c)].log;
    int follower = voters_leader(&c) % 3 + 1;
    assert_err(ERR_AGAIN, log_add(c.v[follower].log, 4, NULL, NULL));
    assert_err(ERR_EXISTS, log_add(log, 2, NULL, NULL));
    assert_err(ERR_NOTFOUND, log_assign(log, 9, LOG_VOTER, NULL, NULL));
    assert_err(ERR_INVALID, log_assign(log, (uint64_t)follower, LOG_VOTER, NULL, NULL));
    assert_err(ERR_NOTFOUND, log_remove(log, 9, NULL, NULL));
    assert_err(ERR_NOTFOUND, log_transfer(log, 9, NULL, NULL));
    assert_ok(log_add(log, 4, NULL, NULL));
    assert_err(ERR_BUSY, log_add(log, 5, NULL, NULL));
    voters_run_ms(&c, 100);
    /* Node 4 is not running and cannot catch up. */
    c.change_done = false;
    voters_write(&c, 5, 0);
    voters_wait_leader(&c);
    assert_ok(change_voter(&c, c.v[voters_leader(&c)].log, 4));
    assert_err(ERR_BUSY, change_add(&c, c.v[voters_leader(&c)].log, 5));
    int64_t end = clock_mono_ms() + 60000;
    while (!c.change_done && clock_mono_ms() < end)
        voters_run_ms(&c, 10);
    assert_true(c.change_done && (c.change_err == ERR_TIMEOUT || c.change_err == ERR_CANCELED));
    voters_close(&c);
}

TEST(streams_for_others_are_refused)
{
    voters_open(&c);
    voters_form(&c, 1);
    assert_err(ERR_STALE, log_accept(c.v[1].log, 2, 3, 0));
    assert_err(ERR_STALE, log_accept(c.v[1].log, 1, 1, 0));
    voters_close(&c);
}

/* ---- random events ---- */

static uint32_t seed;

static int chance(int n)
{
    seed = seed * 1664525u + 1013904223u;
    return (int)((seed >> 8) % (uint32_t)n);
}

static int n_up(int n)
{
    int up = 0;
    for (int i = 1; i <= n; i++)
        up += c.v[i].log != NULL;
    return up;
}

static void disturb(int n)
{
    int id = 1 + chance(n);
    switch (chance(5)) {
    case 0:
        if (c.v[id].log && n_up(n) > 1)
            voter_crash(&c, id);
        break;
    case 1:
    case 2:
        if (!c.v[id].log)
            voter_start(&c, id);
        break;
    case 3:
        voters_isolate(&c, id, true);
        break;
    default:
        voters_isolate(&c, id, false);
    }
}

static void run_random_events(int n, uint32_t from)
{
    seed = from;
    c.threshold = 64;
    voters_open(&c);
    voters_form(&c, n);
    for (int event = 0; event < 60; event++) {
        for (int k = chance(20); k > 0; k--)
            voters_propose(&c, (size_t)chance(2000));
        voters_run_ms(&c, chance(250));
        disturb(n);
    }
    for (int i = 1; i <= n; i++) {
        voters_isolate(&c, i, false);
        if (!c.v[i].log)
            voter_start(&c, i);
    }
    voters_agree(&c);
    print_message("%d acknowledged, %d canceled\n", c.n_acknowledged, c.n_canceled);
    voters_close(&c);
}

TEST(three_voters_survive_random_events)
{
    run_random_events(3, 1);
}

TEST(five_voters_survive_random_events)
{
    run_random_events(5, 2);
}

/* ---- a full disk ---- */

static char disk[300], filler[320];

static void mount_small_disk(void)
{
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        TEST_SKIP("needs a mount namespace of its own (root): %s", strerror(errno));
    snprintf(disk, sizeof(disk), "%s/disk", test_tmpdir());
    assert_int_equal(mkdir(disk, 0700), 0);
    if (mount("tmpfs", disk, "tmpfs", 0, "size=8m"))
        TEST_SKIP("tmpfs cannot be mounted: %s", strerror(errno));
    snprintf(filler, sizeof(filler), "%s/filler", disk);
}

static void fill_disk(void)
{
    int fd = open(filler, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    char zeros[4096] = {0};
    assert_true(fd >= 0);
    while (write(fd, zeros, sizeof(zeros)) > 0)
        ;
    close(fd);
}

static int full;

/* Fills what the reserve and closing give back. */
static bool full_is_closed(struct voters *v)
{
    fill_disk();
    return strcmp(log_state(v->v[full].log), "unavailable") == 0;
}

static bool full_is_back(struct voters *v)
{
    return !log_warning(v->v[full].log) && log_leader(v->v[full].log);
}

static void fill_and_empty(bool of_leader)
{
    mount_small_disk();
    full = 2;
    snprintf(c.v[full].dir, sizeof(c.v[full].dir), "%s/state", disk);
    voters_open(&c);
    voters_form(&c, 3);
    for (int round = 0; round < 2; round++) {
        target = of_leader ? full : 1;
        if (voters_leader(&c) != target) {
            voters_change(&c, change_transfer, target);
            voters_wait(&c, target_leads, "the named voter to lead");
        }
        voters_write(&c, 20, 1000);
        voters_wait(&c, full_is_closed, "the voter with the full disk to close its log");
        assert_non_null(strstr(log_warning(c.v[full].log), "full"));
        fill_disk();
        voters_write(&c, 100, 1000); /* the others continue */
        assert_int_not_equal(full, voters_leader(&c));
        assert_int_equal(0, unlink(filler));
        voters_wait(&c, full_is_back, "that voter to open its log again");
    }
    voters_agree(&c);
    voters_close(&c);
    umount2(disk, MNT_DETACH);
}

TEST(a_follower_with_a_full_disk)
{
    fill_and_empty(false);
}

TEST(a_leader_with_a_full_disk)
{
    fill_and_empty(true);
}
