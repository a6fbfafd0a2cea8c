/* Screens of dtctl top, compared as a whole with screens that are written here by hand, and what keys do. */
#include "client/top/draw.h"
#include "client/top/glyphs.h"
#include "client/top/keys.h"
#include "tests/lib/test.h"

#include <math.h>

static struct client_worker workers[4];
static struct incident incidents[1];
static struct top_node nodes[3];
static struct client_job jobs[3];
static struct top_model m;

static struct client_job job(const char *id, const char *name, const char *user, const char *state, const char *reason)
{
    return (struct client_job){.job = (char *)id,
                               .name = (char *)name,
                               .user = (char *)user,
                               .state = (char *)state,
                               .reason = (char *)reason,
                               .checkpoint_error = (char *)"",
                               .checkpoint_step = -1,
                               .workers = 4,
                               .max_workers = 4};
}

static void begin(void)
{
    setenv("TZ", "UTC", 1);
    m = (struct top_model){.now_ms = 1795794206000, .nodes = nodes, .n_nodes = 3, .jobs = jobs, .n_jobs = 3};
    strcpy(m.leader, "alpha");
    nodes[0] =
        (struct top_node){"alpha", "up", "leader", "", 8, 4, 16, 4, 2, INT64_C(64) << 30, INT64_C(48) << 30, 3.25};
    nodes[1] = (struct top_node){"beta", "drained", "voter", "fans", 8, 0, 16, 4, 4, -1, -1, NAN};
    nodes[2] = (struct top_node){"gamma", "lost", "", "", -1, -1, -1, -1, -1, -1, -1, NAN};
    jobs[0] = job("7", "first-job", "ann", "done", "all steps done");
    jobs[0].step = jobs[0].steps = 300;
    jobs[1] = job("8", "\x1b[31mpretrain", "bob", "running", "");
    jobs[1].step = 120;
    jobs[1].steps = 300;
    jobs[1].has_last = true;
    jobs[1].last = metric_none;
    jobs[1].last.loss = 2.4125;
    jobs[1].last.tokens_per_s = 3400;
    jobs[1].last.step_s = 0.5;
    jobs[1].last.mfu = 0.314;
    jobs[1].last_age_ms = 1000;
    jobs[2] = job("9", "\xe6\xa8\xa1\xe5\x9e\x8b", "ann", "pending", "waits for 4 slots: alpha has 4 of 8 free");
    jobs[2].steps = 50;
    strcpy(m.view.job, "9");
    m.view.delay_s = 1;
}

/* Job 8 in full: 4 ranks, of which the last is slow; one failure. */
static void open_job(void)
{
    static double step_s[] = {0.5, 0.5, 0.5, 0.5}, compute[] = {0.4, 0.41, 0.4, 0.48}, comm[] = {0.1, 0.09, 0.1, 0.01},
                  cpu[] = {1.9, 1.8, 1.9, 2}, rss[] = {3 << 20, 4 << 20, 5 << 20, 1500e6};
    static struct client_straggler slow[] = {{.rank = 3, .ratio = 1.19}};
    begin();
    m.view.screen = TOP_JOB;
    strcpy(m.view.job, "8");
    m.job.known = true;
    m.job.job = jobs[1];
    struct client_job *j = &m.job.job;
    j->name = (char *)"pretrain";
    j->epoch = 2;
    j->now_ms = m.now_ms;
    j->submitted_ms = m.now_ms - 200000;
    j->started_ms = m.now_ms - 190000;
    j->checkpoint_step = 100;
    j->saved_age_ms = 12000;
    for (int i = 0; i < 4; i++)
        workers[i] = (struct client_worker){.rank = i,
                                            .state = (char *)"running",
                                            .node = (char *)(i < 2 ? "alpha" : "beta"),
                                            .exit_status = -1,
                                            .exit_signal = -1};
    j->worker = workers;
    j->n_worker = 4;
    incidents[0] = incident_none;
    incidents[0].epoch = 1;
    incidents[0].seen = "worker rank 2 (pid 4711) was killed by signal 9";
    incidents[0].detect_ms = 2000;
    incidents[0].recover_ms = 18000;
    incidents[0].lost_steps = 20;
    j->incident = incidents;
    j->n_incident = 1;
    j->start = incident_none;
    j->start.epoch = 1;
    j->start.recover_ms = 30000; /* with the queue */
    for (int i = 0; i < 5; i++) {
        m.job.loss.v[m.job.loss.n++] = 3 - 0.2 * i;
        m.job.step_s.v[m.job.step_s.n++] = 0.5;
    }
    m.job.usage = (struct top_usage){
        .ranks = 4,
        .value = {
            [TOP_STEP_S] = step_s, [TOP_COMPUTE_S] = compute, [TOP_COMM_S] = comm, [TOP_CPU] = cpu, [TOP_RSS] = rss}};
    j->straggler = slow;
    j->n_straggler = 1;
}

static char drawn[60000];

static const char *screen(int rows, int columns, bool utf8)
{
    struct glyphs c;
    char row[5000];
    drawn[0] = '\0';
    glyphs_init(&c, rows, columns, utf8);
    top_draw(&m, &c);
    for (int i = 0; i < rows; i++) {
        glyphs_row_text(&c, i, row);
        strcat(strcat(drawn, row), "\n");
    }
    glyphs_fini(&c);
    return drawn;
}

static void compare(const char *have, const char *expected)
{
    if (strcmp(have, expected) != 0)
        fail_msg("the screen is:\n%s", have);
}

TEST(the_overview_has_nodes_and_jobs)
{
    begin();
    compare(screen(18, 80, true), "dtd  nodes up 1/3  jobs 3, 2 not ended  leader alpha                    15:43:26\n"
                                  "NODE         STATE      SLOTS CORES  LOAD      MEMORY  GPUS HEALTH\n"
                                  "alpha *      up           4/8    16   3.2     16G/64G   2/4 ok\n"
                                  "beta         drained      0/8    16     -           -   0/4 fans\n"
                                  "gamma        lost           -     -     -           -     - -\n"
                                  "\n"
                                  " JOB* NAME           USER     STATE      PROGRESS     %    LEFT     LOSS   TOK/S\n"
                                  "    9 模型           ann      pending    ·········   0%       -        -       -\n"
                                  "    8 ?[31mpretrain  bob      running    ███▋·····  40%  1m 30s   2.4125    3.4k\n"
                                  "    7 first-job      ann      done       █████████ 100%       -        -       -\n"
                                  "\n"
                                  "\n"
                                  "\n"
                                  "\n"
                                  "\n"
                                  "\n"
                                  "job 9: waits for 4 slots: alpha has 4 of 8 free\n"
                                  "?help Enter:open s:sort /:filter u:user e:events l:logs k:cancel q:quit\n");
}

TEST(a_narrow_terminal_has_the_most_important)
{
    begin();
    compare(screen(14, 40, false), "dtd  nodes up 1/3  jobs 3, 2 n~ 15:43:26\n"
                                   "NODE         STATE      SLOTS HEALTH\n"
                                   "alpha *      up           4/8 ok\n"
                                   "and 2 more, 0 of them up and healthy\n"
                                   "\n"
                                   " JOB* NAME               STATE         %\n"
                                   "    9 ????               pending      0%\n"
                                   "    8 ?[31mpretrain      running     40%\n"
                                   "    7 first-job          done       100%\n"
                                   "\n"
                                   "\n"
                                   "\n"
                                   "job 9: waits for 4 slots: alpha has 4 o~\n"
                                   "?help Enter:open s:sort /:filter u:user~\n");
}

TEST(a_wide_terminal_has_reasons)
{
    begin();
    compare(
        screen(9, 132, false),
        "dtd  nodes up 1/3  jobs 3, 2 not ended  leader alpha                                                          "
        "              15:43:26\n"
        " JOB* NAME              USER     STATE      PROGRESS     %    LEFT     LOSS   TOK/S WORKERS REASON\n"
        "    9 ????              ann      pending    .........   0%       -        -       -     4/4 waits for 4 "
        "slots: alpha has 4 of 8 free\n"
        "    8 ?[31mpretrain     bob      running    ####.....  40%  1m 30s   2.4125    3.4k     4/4\n"
        "    7 first-job         ann      done       ######### 100%       -        -       -     4/4 all steps done\n"
        "\n"
        "\n"
        "job 9: waits for 4 slots: alpha has 4 of 8 free\n"
        "?help Enter:open s:sort /:filter u:user e:events l:logs k:cancel q:quit\n");
}

/* A job without a reason has its forecast in its place. */
TEST(a_job_has_its_forecast)
{
    open_job();
    strcpy(m.job.forecast, "step 0.5 s, forecast 0.48 s (+4 %)");
    assert_non_null(strstr(screen(16, 80, true), "step 0.5 s, forecast 0.48 s (+4 %)\nstep 120/300"));
    m.job.job.reason = (char *)"waits";
    assert_non_null(strstr(screen(16, 80, true), "waits\nstep 120/300"));
}

TEST(a_job_has_its_ranks)
{
    open_job();
    compare(screen(16, 80, true), "job 8 pretrain  running  bob  epoch 2  ranks 4/4  3m 20s, left 1m 30s   15:43:26\n"
                                  "running\n"
                                  "step 120/300 ████▊······· 40%  3.4k tok/s  MFU 31.4%  last step 1s ago\n"
                                  "checkpoint: step 100, 12s ago; at risk: 20 steps, 10s\n"
                                  "time [qsss==================rdxx] ETTR 73.7% q 5% s 10% = 70% r 5% d 1% x 9%\n"
                                  "loss     2.2000 █▆▅▃▁                                           2.2000 to 3.0000\n"
                                  "step s    0.500 ▁▁▁▁▁                                             0.500 to 0.500\n"
                                  "RANK* ! NODE       STATE     STEP_S  COMP_S  WAIT%   CPU    MEM\n"
                                  "    0   alpha      running    0.500   0.400     20   1.9   3.0M\n"
                                  "    1   alpha      running    0.500   0.410     18   1.8   4.0M\n"
                                  "    2   beta       running    0.500   0.400     20   1.9   5.0M\n"
                                  "    3 ! beta       running    0.500   0.480      2   2.0   1.4G slow x1.19\n"
                                  "\n"
                                  "\n"
                                  "worker rank 2 (pid 4711) was killed by signal 9\n"
                                  "?help Esc:back s:sort m:map e:events l:logs k:cancel d:delay q:quit\n");
}

TEST(a_job_in_ascii_and_narrow)
{
    open_job();
    compare(screen(14, 40, false), "job 8 pretrain  running  bob  ~ 15:43:26\n"
                                   "running\n"
                                   "step 120/300 #####....... 40%  3.4k tok~\n"
                                   "checkpoint: step 100, 12s ago; at risk:~\n"
                                   "time [qs=========rx] ETTR 73.7% q 5% s ~\n"
                                   "loss     2.2000 #+:_    2.2000 to 2.8000\n"
                                   "step s    0.500 ____      0.500 to 0.500\n"
                                   "RANK* ! NODE       STATE\n"
                                   "    0   alpha      running\n"
                                   "    1   alpha      running\n"
                                   "    2   beta       running\n"
                                   "    3 ! beta       running  slow x1.19\n"
                                   "worker rank 2 (pid 4711) was killed by ~\n"
                                   "?help Esc:back s:sort m:map e:events l:~\n");
}

TEST(a_map_has_a_cell_per_rank)
{
    open_job();
    m.view.map = 2;
    compare(screen(11, 80, true), "job 8 pretrain  running  bob  epoch 2  ranks 4/4  3m 20s, left 1m 30s   15:43:26\n"
                                  "running\n"
                                  "step 120/300 ████▊······· 40%  3.4k tok/s  MFU 31.4%  last step 1s ago\n"
                                  "checkpoint: step 100, 12s ago; at risk: 20 steps, 10s\n"
                                  "time [qsss==================rdxx] ETTR 73.7% q 5% s 10% = 70% r 5% d 1% x 9%\n"
                                  "loss     2.2000 █▆▅▃▁                                           2.2000 to 3.0000\n"
                                  "step s    0.500 ▁▁▁▁▁                                             0.500 to 0.500\n"
                                  "seconds of a step in kernels, 0.400 to 0.480\n"
                                  "▁0.400   ▂0.410   ▁0.400   █0.480 !\n"
                                  "worker rank 2 (pid 4711) was killed by signal 9\n"
                                  "?help Esc:back s:sort m:map e:events l:logs k:cancel d:delay q:quit\n");
}

TEST(the_smallest_terminals_do_no_harm)
{
    begin();
    for (int s = TOP_OVERVIEW; s <= TOP_HELP; s++)
        for (int rows = 0; rows < 12; rows++)
            for (int columns = 0; columns < 40; columns++) {
                m.view.screen = s;
                screen(rows, columns, true);
                open_job();
                m.view.screen = s;
                m.view.map = rows & 1;
                screen(rows, columns, false);
                begin();
            }
}

/* ---- keys ---- */

static enum top_action press(const char *keys)
{
    enum top_action last = TOP_DRAW;
    for (; *keys; keys++)
        last = top_key(&m, (unsigned char)*keys, 10);
    return last;
}

TEST(the_cursor_stays_on_its_job)
{
    begin();
    top_key(&m, TOP_KEY_DOWN, 10);
    assert_string_equal("8", m.view.job);
    press("s"); /* by state: done, pending, running */
    assert_string_equal("8", m.view.job);
    top_key(&m, TOP_KEY_UP, 10);
    assert_string_equal("9", m.view.job);
    top_key(&m, TOP_KEY_HOME, 10);
    assert_string_equal("7", m.view.job);
    top_key(&m, TOP_KEY_UP, 10);
    assert_string_equal("7", m.view.job);
    top_key(&m, TOP_KEY_PAGE_DOWN, 10);
    assert_string_equal("8", m.view.job);
}

TEST(jobs_are_sorted)
{
    /* the order of jobs 9, 8, 7 (indices 2, 1, 0) by: job, state, progress, time left, speed, user, name */
    static const int expected[][3] = {{2, 1, 0}, {0, 2, 1}, {0, 1, 2}, {1, 2, 0}, {1, 2, 0}, {2, 0, 1}, {1, 0, 2}};
    int shown[3];
    assert_int_equal(7, top_job_sorts);
    begin();
    for (int i = 0; i < 7; i++, press("s")) {
        assert_int_equal(3, top_jobs_shown(&m, shown));
        assert_memory_equal(expected[i], shown, sizeof(shown));
    }
    assert_int_equal(0, m.view.job_sort);
}

TEST(ranks_are_sorted)
{
    /* by rank, step (all equal), compute, wait, cpu, memory, GPU (unknown) */
    static const int expected[][4] = {{0, 1, 2, 3}, {0, 1, 2, 3}, {3, 1, 0, 2}, {0, 2, 1, 3},
                                      {3, 0, 2, 1}, {3, 2, 1, 0}, {0, 1, 2, 3}};
    int shown[4];
    open_job();
    for (int i = 0; i < top_rank_sorts; i++, press("s")) {
        assert_int_equal(4, top_ranks_shown(&m, shown));
        assert_memory_equal(expected[i], shown, sizeof(shown));
    }
    press("ss");
    m.view.rank = 1;
    top_key(&m, TOP_KEY_UP, 10);
    assert_int_equal(3, m.view.rank);
}

TEST(filters_are_typed)
{
    int shown[3];
    begin();
    press("/ANx\x7f");
    assert_string_equal("", m.view.filter);
    assert_non_null(strstr(screen(18, 80, true), "filter: AN_"));
    press("\n");
    assert_string_equal("AN", m.view.filter);
    assert_int_equal(2, top_jobs_shown(&m, shown));
    press("ubob\n");
    assert_int_equal(0, top_jobs_shown(&m, shown));
    assert_non_null(strstr(screen(18, 80, true), "no job matches"));
    press("/\x7f\x7f\n");
    assert_int_equal(1, top_jobs_shown(&m, shown));
    press("u\x7f\x7f\x7f\n");
    assert_int_equal(3, top_jobs_shown(&m, shown));
    press("/xyz\x1b");
    assert_string_equal("", m.view.filter);
    press("/\xc3\xb6\x7f\n"); /* a letter of two bytes */
    assert_string_equal("", m.view.filter);
}

TEST(a_cancel_is_asked_for)
{
    begin();
    assert_int_equal(TOP_DRAW, press("k"));
    assert_non_null(strstr(screen(18, 80, true), "cancel job 9? y: yes, s: save a checkpoint first"));
    assert_int_equal(TOP_DRAW, press("q"));
    assert_non_null(strstr(screen(18, 80, true), "not canceled"));
    assert_int_equal(TOP_CANCEL_JOB, press("ky"));
    assert_int_equal(TOP_SAVE_CANCEL, press("ks"));
    m.n_jobs = 0;
    m.view.job[0] = '\0';
    assert_int_equal(TOP_DRAW, press("ky"));
}

TEST(screens_lead_back)
{
    begin();
    assert_int_equal(TOP_FETCH, press("\n"));
    assert_int_equal(TOP_JOB, m.view.screen);
    assert_int_equal(TOP_FETCH, press("e"));
    press("?");
    assert_int_equal(TOP_HELP, m.view.screen);
    press("x");
    assert_int_equal(TOP_EVENTS, m.view.screen);
    press("\x1b");
    assert_int_equal(TOP_JOB, m.view.screen);
    press("l\x1b\x1b");
    assert_int_equal(TOP_OVERVIEW, m.view.screen);
    press("\x1b");
    assert_int_equal(TOP_OVERVIEW, m.view.screen);
    press("e\x7f");
    assert_int_equal(TOP_OVERVIEW, m.view.screen);
    assert_int_equal(TOP_QUIT, press("q"));
}

TEST(the_delay_has_limits)
{
    begin();
    press("d\x7f"
          "0.5\n");
    assert_true(m.view.delay_s == 0.5);
    press("d\x7f\x7f\x7f"
          "0\n");
    assert_true(m.view.delay_s == 0.5);
    assert_non_null(strstr(screen(18, 80, true), "from 0.2 to 3600"));
}

TEST(a_daemon_without_an_answer_is_named)
{
    begin();
    strcpy(m.lost, "connection refused");
    assert_non_null(strstr(screen(18, 80, true), "! no answer from dtd, trying again: connection refused"));
}

static char *texts[3] = {"first", "second\x1b[2J", "third"};

TEST(events_scroll)
{
    begin();
    m.view.screen = TOP_EVENTS;
    for (int i = 0; i < 3; i++) {
        m.events.line[i] = (struct top_line){.wall_ms = m.now_ms + i * 1000, .text = texts[i]};
        strcpy(m.events.line[i].who, i ? "job 8" : "gamma");
        strcpy(m.events.line[i].kind, i ? "failure" : "lost");
    }
    m.events.n = 3;
    compare(screen(5, 60, true), "events                                              15:43:26\n"
                                 "15:43:27 job 8     failure           second?[2J\n"
                                 "15:43:28 job 8     failure           third\n"
                                 "\n"
                                 "?help Esc:back Up,Down,PgUp,PgDn:scroll q:quit\n");
    top_key(&m, TOP_KEY_UP, 10);
    compare(screen(5, 60, true), "events                                              15:43:26\n"
                                 "15:43:26 gamma     lost              first\n"
                                 "15:43:27 job 8     failure           second?[2J\n"
                                 "older lines; End: the newest\n"
                                 "?help Esc:back Up,Down,PgUp,PgDn:scroll q:quit\n");
    top_key(&m, TOP_KEY_END, 10);
    assert_int_equal(0, m.view.scroll);
}
