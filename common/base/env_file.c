#include "common/base/env_file.h"

#include "common/base/buf.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_BYTES (128 * 1024) /* as much as Linux accepts for one variable */

/* ---- lines ---- */

static bool is_name(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)text[i]) && text[i] != '_')
            return false;
    return n > 0 && !isdigit((unsigned char)text[0]);
}

static err_t parse_line(const char *path, int number, char *line, struct env_file *f, struct why *why)
{
    const char *equals = strchr(line, '=');
    size_t n = strlen(line);
    if (n && line[n - 1] == '\r')
        line[n - 1] = '\0';
    if (!line[strspn(line, " \t\r")] || line[0] == '#')
        return OK;
    if (!equals || !is_name(line, (size_t)(equals - line))) /* the line may be a secret, so it is not printed */
        return why_set(why, ERR_INVALID,
                       "%s:%d: expected KEY=VALUE, where KEY consists of letters, digits and _ and does not begin with "
                       "a digit",
                       path, number);
    f->words[f->n++] = line;
    return OK;
}

static int count_lines(const char *text, size_t len)
{
    int n = 1;
    for (size_t i = 0; i < len; i++)
        n += text[i] == '\n';
    return n;
}

err_t env_file_parse(const char *path, const char *text, size_t len, struct env_file *ret, struct why *why)
{
    struct env_file f = {0};
    err_t err = OK;
    if (memchr(text, '\0', len))
        return why_set(why, ERR_INVALID, "%s: a byte 0 cannot be part of a variable", path);
    f.text = malloc(len + 1);
    f.words = calloc((size_t)count_lines(text, len) + 1, sizeof(*f.words));
    if (!f.text || !f.words)
        err = why_set(why, ERR_NOMEM, "%s: %s", path, err_text(ERR_NOMEM));
    if (!err) {
        memcpy(f.text, text, len);
        f.text[len] = '\0';
    }
    char *line = f.text;
    for (int number = 1; !err && line; number++) {
        char *end = strchr(line, '\n'), *next = end ? end + 1 : NULL;
        if (end)
            *end = '\0';
        err = parse_line(path, number, line, &f, why);
        line = next;
    }
    if (err)
        env_file_fini(&f);
    else
        *ret = f;
    return err;
}

void env_file_fini(struct env_file *f)
{
    for (int i = 0; i < f->n; i++)
        explicit_bzero(f->words[i], strlen(f->words[i]));
    free(f->words);
    free(f->text);
    *f = (struct env_file){0};
}

/* ---- the file ---- */

static err_t check_rights(const char *path, int fd, struct why *why)
{
    struct stat st;
    if (fstat(fd, &st))
        return why_set(why, ERR_IO, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return why_set(why, ERR_INVALID, "%s: it is no regular file", path);
    if (st.st_uid != geteuid())
        return why_set(why, ERR_INVALID, "%s: it belongs to another user (uid %u)", path, (unsigned)st.st_uid);
    if (st.st_mode & 077)
        return why_set(why, ERR_INVALID, "%s: other users have rights on it (mode %04o); chmod 600 %s", path,
                       (unsigned)st.st_mode & 07777, path);
    if (st.st_size > MAX_BYTES)
        return why_set(why, ERR_INVALID, "%s: it has more than %d KiB", path, MAX_BYTES / 1024);
    return OK;
}

static err_t read_all(const char *path, int fd, struct buf *ret, struct why *why)
{
    char part[4096];
    ssize_t n = 0;
    err_t err = OK;
    while (!err && ret->len <= MAX_BYTES && (n = read(fd, part, sizeof(part))) > 0)
        err = buf_append(ret, part, (size_t)n);
    explicit_bzero(part, sizeof(part));
    if (n < 0)
        return why_set(why, ERR_IO, "%s: %s", path, strerror(errno));
    return err ? why_set(why, err, "%s: %s", path, err_text(err)) : OK;
}

err_t env_file_read(const char *path, struct env_file *ret, struct why *why)
{
    struct buf text = {0};
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* a pipe must not block */
    if (fd < 0)
        return why_set(why, ERR_INVALID, "%s: %s", path, strerror(errno));
    err_t err = check_rights(path, fd, why);
    err = err ? err : read_all(path, fd, &text, why);
    close(fd);
    if (!err)
        err = env_file_parse(path, text.data ? (const char *)text.data : "", text.len, ret, why);
    if (text.data)
        explicit_bzero(text.data, text.len);
    buf_fini(&text);
    return err;
}

/* ---- names ---- */

static bool is_word(const char *at, size_t n, const char *word)
{
    return n == strlen(word) && strncasecmp(at, word, n) == 0;
}

/* A part of the name between underscores: TOKENIZERS_PARALLELISM has none of these. KEY alone would match too many
 * names. */
bool env_is_secret(const char *word)
{
    static const char *const secret[] = {"TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "JWT", "APIKEY"};
    static const char *const before_key[] = {"API", "ACCESS", "PRIVATE", "SECRET"};
    const size_t end = strcspn(word, "=");
    const char *last = "";
    size_t last_n = 0;
    for (size_t at = 0; at <= end;) {
        const size_t n = strcspn(word + at, "_=");
        for (size_t i = 0; i < sizeof(secret) / sizeof(secret[0]); i++)
            if (is_word(word + at, n, secret[i]))
                return true;
        for (size_t i = 0; i < sizeof(before_key) / sizeof(before_key[0]); i++)
            if (is_word(word + at, n, "KEY") && is_word(last, last_n, before_key[i]))
                return true;
        last = word + at;
        last_n = n;
        at += n + 1;
    }
    return false;
}
