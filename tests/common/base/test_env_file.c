/* Files with variables: what is read, what is refused, and which names are those of secrets. */
#include "common/base/env_file.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct file_case {
    const char *text;
    const char *words; /* with a | after each; NULL: refused */
    const char *message;
};

static const struct file_case cases[] = {
    {"", "", NULL},
    {"A=1", "A=1|", NULL},
    {"A=1\nB=two words = x\n", "A=1|B=two words = x|", NULL},
    {"# a comment\n\n  \t\nA=\n_b9=#no comment\n", "A=|_b9=#no comment|", NULL},
    {"A=1\r\nB=2\r\n", "A=1|B=2|", NULL},
    {"A=  spaces stay \n", "A=  spaces stay |", NULL},
    {"A=1\nhf_planted\n", NULL, "f:2: expected KEY=VALUE"},
    {"=x", NULL, "f:1: expected KEY=VALUE"},
    {"9A=x", NULL, "f:1: expected KEY=VALUE"},
    {"export A=x", NULL, "f:1: expected KEY=VALUE"},
    {" A=x", NULL, "f:1: expected KEY=VALUE"},
};

TEST(texts_of_a_table)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct env_file f = {0};
        struct why why = {""};
        char got[256] = "";
        err_t err = env_file_parse("f", cases[i].text, strlen(cases[i].text), &f, &why);
        for (int k = 0; k < f.n; k++)
            snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s|", f.words[k]);
        if (cases[i].words) {
            assert_ok(err);
            assert_string_equal(cases[i].words, got);
        } else {
            assert_err(ERR_INVALID, err);
            assert_non_null(strstr(why.text, cases[i].message));
            assert_null(strstr(why.text, "planted"));
        }
        env_file_fini(&f);
    }
    struct env_file f = {0};
    struct why why = {""};
    assert_err(ERR_INVALID, env_file_parse("f", "A=\0", 3, &f, &why));
}

TEST(rights_of_the_file)
{
    char path[512];
    struct env_file f = {0};
    struct why why = {""};
    snprintf(path, sizeof(path), "%s/secrets", test_tmpdir());
    assert_err(ERR_INVALID, env_file_read(path, &f, &why));
    FILE *out = fopen(path, "w");
    assert_non_null(out);
    fputs("A=1\nB=2\n", out);
    fclose(out);
    assert_int_equal(0, chmod(path, 0644));
    assert_err(ERR_INVALID, env_file_read(path, &f, &why));
    assert_non_null(strstr(why.text, "other users have rights on it (mode 0644); chmod 600"));
    assert_int_equal(0, chmod(path, 0600));
    assert_ok(env_file_read(path, &f, &why));
    assert_int_equal(2, f.n);
    assert_string_equal("B=2", f.words[1]);
    env_file_fini(&f);
    assert_int_equal(0, unlink(path));
    assert_int_equal(0, mkfifo(path, 0600));
    assert_err(ERR_INVALID, env_file_read(path, &f, &why)); /* at once */
    assert_non_null(strstr(why.text, "no regular file"));
}

TEST(names_of_secrets)
{
    static const char *const secret[] = {
        "HF_TOKEN=x", "hf_token=x",  "WANDB_API_KEY=x",      "AWS_SECRET_ACCESS_KEY=x", "PGPASSWORD_PASSWORD=x",
        "TOKEN=",     "SLURM_JWT=x", "MY_PRIVATE_KEY_FILE=x"};
    static const char *const other[] = {"TOKENIZERS_PARALLELISM=1",
                                        "PATH=TOKEN",
                                        "KEY=1",
                                        "SSH_AUTH_SOCK=x",
                                        "KEYBOARD=us",
                                        "API=KEY",
                                        "",
                                        "MONKEY_KEY=1"};
    for (size_t i = 0; i < sizeof(secret) / sizeof(secret[0]); i++)
        if (!env_is_secret(secret[i]))
            fail_msg("%s counts as no secret", secret[i]);
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++)
        if (env_is_secret(other[i]))
            fail_msg("%s counts as a secret", other[i]);
}
