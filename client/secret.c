#include "client/secret.h"

#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

static const char space[] = " \t\r\n";

static err_t no_file(const char *file, struct why *why)
{
    return why_set(why, errno == EEXIST ? ERR_EXISTS : ERR_IO, "%s: %s", file, strerror(errno));
}

/* ---- read ---- */

/* Reads to the first newline or to the end; ERR_LIMIT if there are more bytes before it. */
static err_t read_line(int fd, char *ret, size_t size)
{
    size_t n = 0;
    for (;;) {
        ssize_t got = read(fd, ret + n, size - 1 - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return ERR_IO;
        n += (size_t)got;
        ret[n] = 0;
        if (got == 0 || memchr(ret, '\n', n))
            return OK;
        if (n == size - 1)
            return ERR_LIMIT;
    }
}

/* Typed characters are not shown. After an interrupt the shell restores its own terminal settings. */
static err_t read_terminal(const char *what, char *ret, size_t size)
{
    struct termios before, silent;
    if (tcgetattr(STDIN_FILENO, &before))
        return ERR_IO;
    silent = before;
    silent.c_lflag &= ~(tcflag_t)ECHO;
    fprintf(stderr, "%s: ", what);
    fflush(stderr);
    (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &silent);
    err_t err = read_line(STDIN_FILENO, ret, size);
    (void)tcsetattr(STDIN_FILENO, TCSAFLUSH, &before);
    fputc('\n', stderr);
    return err;
}

static void trim(char *line)
{
    line[strcspn(line, "\n")] = 0;
    size_t from = strspn(line, space), n = strlen(line + from);
    while (n && strchr(space, line[from + n - 1]))
        n--;
    memmove(line, line + from, n);
    line[n] = 0;
}

err_t secret_read(const char *file, const char *what, char *ret, size_t size, struct why *why)
{
    bool standard = !file || strcmp(file, "-") == 0;
    const char *name = standard ? "standard input" : file;
    int fd = standard ? STDIN_FILENO : open(file, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return no_file(file, why);
    err_t err = standard && isatty(fd) ? read_terminal(what, ret, size) : read_line(fd, ret, size);
    int saved = errno;
    if (!standard)
        close(fd);
    if (err == ERR_LIMIT)
        return why_set(why, ERR_INVALID, "%s: the first line is too long for a %s", name, what);
    if (err)
        return why_set(why, err, "%s: %s", name, strerror(saved));
    trim(ret);
    return ret[0] ? OK : why_set(why, ERR_INVALID, "%s: no %s in the first line", name, what);
}

/* ---- write ---- */

err_t secret_write(const char *file, const char *text, struct why *why)
{
    int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return no_file(file, why);
    err_t err = file_write_all(fd, text, strlen(text));
    err = err ? err : file_write_all(fd, "\n", 1);
    if (close(fd) && !err)
        err = ERR_IO;
    if (!err)
        return OK;
    no_file(file, why);
    (void)unlink(file);
    return err;
}
