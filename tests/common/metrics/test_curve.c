#include "common/metrics/curve.h"
#include "tests/common/metrics/fixture.h"

#include <math.h>

static const struct curve *find(const struct curve *c, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(c[i].name, name) == 0)
            return &c[i];
    return NULL;
}

TEST(names_and_values)
{
    struct curve c[CURVES_MAX];
    struct metric m = fixture_row(3, 2, NAN);
    m.valid_loss = 1.25;
    m.skipped = true;
    m.expert_load = 1.5;
    traffic_add(&m.traffic, 1, 4096);
    int n = curves_of(&m, c);
    assert_true(isnan(find(c, n, "train/loss")->value));
    assert_true(fabs(find(c, n, "valid/loss")->value - 1.25) < 1e-12);
    assert_true(fabs(find(c, n, "perf/step_s")->value - 0.5) < 1e-12);
    assert_true(fabs(find(c, n, "perf/epoch")->value - 2) < 1e-12);
    assert_true(fabs(find(c, n, "train/skipped")->value - 1) < 1e-12);
    assert_true(fabs(find(c, n, "experts/load")->value - 1.5) < 1e-12);
    assert_null(find(c, n, "test/loss"));
    assert_null(find(c, n, "train/targets"));
    int bytes = 0;
    for (int i = 0; i < n; i++) {
        bytes += strncmp(c[i].name, "bytes/", 6) == 0;
        assert_null(strstr(c[i].name, "wall_ms"));
        assert_null(strstr(c[i].name, "step/"));
    }
    assert_int_equal(bytes, 1);
}

/* Variables of the environment may be secrets, and W&B uploads what a run contains. */
TEST(a_card_has_settings_and_no_environment)
{
    struct card card = fixture_card();
    bool lr = false, schedule = false;
    for (int i = 0; i < card.n_setting; i++) {
        const struct card_setting *s = &card.setting[i];
        lr = lr || (strcmp(s->key, "train.lr") == 0 && s->kind == CARD_NUMBER && fabs(s->number - 0.001) < 1e-15);
        schedule = schedule ||
                   (strcmp(s->key, "train.schedule") == 0 && s->kind == CARD_WORD && strcmp(s->text, "cosine") == 0);
        assert_null(strstr(s->text, "/text.txt"));
    }
    assert_true(lr && schedule);
    assert_null(strstr(card.file, "hidden"));
    assert_null(strstr(card.file, "SECRET"));
    assert_non_null(strstr(card.file, "dim: 64"));
    assert_int_equal(strlen(card.run_id), 8);
    assert_int_equal(strspn(card.run_id, "0123456789abcdefghijklmnopqrstuvwxyz"), 8);
    card_fini(&card);
}

TEST(a_point_replaces_later_ones)
{
    struct curve_points p = {0};
    const int64_t steps[] = {1, 2, 3, 4, 3};
    for (size_t i = 0; i < 5; i++)
        assert_ok(curve_points_add(&p, &(struct curve_point){.step = steps[i], .wall_ms = (int64_t)i}));
    assert_int_equal(p.n, 3);
    assert_int_equal(p.point[2].wall_ms, 4);
    struct metric m = metric_none;
    m.step = 3;
    m.wall_ms = 4;
    assert_true(curve_points_have(&p, &m));
    m.wall_ms = 2;
    assert_false(curve_points_have(&p, &m));
    curve_points_fini(&p);
}
