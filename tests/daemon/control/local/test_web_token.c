/* Tokens of the web page. The right code is from Python: hmac.new(bytes(range(32)), b"dtd web 1000-1900000000",
 * hashlib.sha256). */
#include "common/base/file.h"
#include "daemon/control/local/web_token.h"
#include "tests/lib/test.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#define NOW 1899999999
static const char right[] = "1000-1900000000-3abfbce5ec8fac21c1f121bab8cbb02fccc1f0fb61119b76fd2e012ea4a20ba9";

static const char *dir_with_key(size_t bytes)
{
    char path[PATH_MAX];
    uint8_t key[33];
    const char *dir = test_tmpdir();
    for (size_t i = 0; i < sizeof(key); i++)
        key[i] = (uint8_t)i;
    snprintf(path, sizeof(path), "%s/cluster", dir);
    assert_true(mkdir(path, 0700) == 0);
    snprintf(path, sizeof(path), "%s/cluster/web.key", dir);
    assert_ok(file_replace(path, key, bytes, 0600));
    return dir;
}

TEST(is_the_hmac_of_user_and_expiry)
{
    struct why why;
    char token[WEB_TOKEN_MAX];
    uint32_t uid = 0;
    const char *dir = dir_with_key(32);
    assert_ok(web_token_make(dir, 1000, NOW + 1, token, &why));
    assert_string_equal(token, right);
    assert_ok(web_token_check(dir, right, NOW, &uid, &why));
    assert_true(uid == 1000);
}

TEST(a_changed_character_is_refused)
{
    struct why why;
    char token[WEB_TOKEN_MAX];
    uint32_t uid = 77;
    const char *dir = dir_with_key(32);
    for (size_t i = 0; i <= strlen(right); i++) {
        snprintf(token, sizeof(token), "%s", right);
        token[i] = token[i] == '1' ? '2' : '1'; /* at the end: one character more */
        token[i == strlen(right) ? i + 1 : strlen(right)] = '\0';
        assert_err(ERR_DENIED, web_token_check(dir, token, NOW, &uid, &why));
    }
    static const char *const strange[] = {"",
                                          "-",
                                          "0",
                                          "1000-1900000000",
                                          "1000-1900000000-",
                                          " 1000-1900000000-3abf",
                                          "99999999999999999999-1900000000-00",
                                          "1000-99999999999999999999-00"};
    for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++)
        assert_err(ERR_DENIED, web_token_check(dir, strange[i], NOW, &uid, &why));
    assert_true(uid == 77);
}

TEST(expires_and_ends_with_its_key)
{
    struct why why;
    uint32_t uid;
    char token[WEB_TOKEN_MAX], path[PATH_MAX];
    struct stat st;
    const char *dir = dir_with_key(32);
    assert_err(ERR_DENIED, web_token_check(dir, right, NOW + 1, &uid, &why));
    snprintf(path, sizeof(path), "%s/cluster/web.key", dir);
    assert_true(unlink(path) == 0);
    assert_err(ERR_DENIED, web_token_check(dir, right, NOW, &uid, &why));
    assert_ok(web_token_make(dir, 1000, NOW + 1, token, &why));
    assert_true(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600 && st.st_size == 32);
    assert_true(strcmp(token, right) != 0);
    assert_ok(web_token_check(dir, token, NOW, &uid, &why));
}

TEST(a_damaged_key_is_named)
{
    struct why why;
    char token[WEB_TOKEN_MAX];
    assert_true(web_token_make(dir_with_key(31), 1000, NOW, token, &why) != OK);
    assert_true(strstr(why.text, "web.key"));
}
