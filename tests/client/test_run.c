/* dtctl run: the real dtctl with a fake control, which keeps the spec. */
#include "tests/client/fake_control.h"
#include "tests/client/run.h"
#include "tests/lib/test.h"

#include <limits.h>

static struct fake_control *start(void)
{
    static const struct fake_script script = {.steps = 1, .end_state = "done"};
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%s/dtd", test_tmpdir());
    return fake_start(dir, &script);
}

/* Options end at the command, as with torchrun: what follows is the script's, whether it looks like an option of dtctl
 * or not. */
TEST(options_of_the_script_are_the_script_s)
{
    static const char want[] =
        "command: [\"python3\", \"train.py\", \"-d\", \"data\", \"-n\", \"4\", \"--env\", \"A=B\", \"-o\", "
        "\"json\", \"--help\", \"--nodes\", \"9\"]";
    static const char *const lines[] = {
        "dtctl run --name mine --env C=D python3 train.py -d data -n 4 --env A=B -o json --help --nodes 9",
        "dtctl run --name mine --env C=D -- python3 train.py -d data -n 4 --env A=B -o json --help --nodes 9"};
    struct fake_control *f = start();
    struct run_result r;
    for (size_t i = 0; i < 2; i++) {
        run_expect(&r, 0, lines[i]);
        expect_text(fake_spec(f), want);
        expect_text(fake_spec(f), "name: \"mine\"");
        expect_text(fake_spec(f), "\"C\": \"D\"");
        assert_null(strstr(fake_spec(f), "\"A\": \"B\""));
    }
    run_expect(&r, 2, "dtctl run --nodes two python3 train.py");
    fake_stop(f);
    fake_free(f);
}
