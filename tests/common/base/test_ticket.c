/* The ticket: a ticket that ticket_make created can be read, and nothing else is accepted. */
#include "common/base/ticket.h"
#include "tests/lib/test.h"

#include <fcntl.h>

static struct ticket sample(void)
{
    struct ticket t = {.control = "/run/dtd/control.sock", .io = "/run/dtd/jobs/7/io.sock", .slots = 3};
    for (int i = 0; i < TICKET_TOKEN_BYTES; i++) {
        t.token[i] = (uint8_t)(i * 7);
        t.io_token[i] = (uint8_t)(255 - i);
    }
    return t;
}

static size_t sample_text(char ret[TICKET_MAX_BYTES])
{
    struct ticket t = sample();
    int fd;
    assert_ok(ticket_make(&t, &fd));
    ssize_t n = pread(fd, ret, TICKET_MAX_BYTES - 1, 0);
    assert_true(n > 0);
    ret[n] = '\0';
    close(fd);
    return (size_t)n;
}

TEST(ticket_comes_back)
{
    struct ticket t = sample(), back;
    struct why why;
    int fd;
    assert_ok(ticket_make(&t, &fd));
    assert_ok(ticket_read(fd, &back, &why));
    assert_memory_equal(back.token, t.token, sizeof(t.token));
    assert_memory_equal(back.io_token, t.io_token, sizeof(t.io_token));
    assert_string_equal(back.control, t.control);
    assert_string_equal(back.io, t.io);
    assert_int_equal(back.slots, 3);
    close(fd);
}

TEST(nobody_can_write_on_a_ticket)
{
    struct ticket t = sample();
    int fd;
    assert_ok(ticket_make(&t, &fd));
    assert_int_equal(pwrite(fd, "x", 1, 0), -1);
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    close(fd);
}

TEST(every_truncation_is_refused)
{
    char text[TICKET_MAX_BYTES];
    struct ticket back;
    struct why why;
    size_t len = sample_text(text);
    assert_ok(ticket_parse(text, len, &back, &why));
    for (size_t n = 0; n < len; n++)
        assert_err(ERR_CORRUPT, ticket_parse(text, n, &back, &why));
}

/* The sample with `from` replaced by `to`. */
static err_t parse_changed(const char *from, const char *to, struct why *why)
{
    char text[TICKET_MAX_BYTES], changed[2 * TICKET_MAX_BYTES];
    struct ticket back;
    sample_text(text);
    char *at = strstr(text, from);
    assert_non_null(at);
    int n = snprintf(changed, sizeof(changed), "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return ticket_parse(changed, (size_t)n, &back, why);
}

TEST(each_value_is_checked)
{
    static const struct {
        const char *from, *to, *part;
    } cases[] = {
        {"slots=3", "slots=0", "slots"},
        {"slots=3", "slots=4097", "slots"},
        {"slots=3", "slots=3x", "slots"},
        {"slots=3", "slots=", "slots"},
        {"slots=3", "slots=3\nslots=3", "duplicate"},
        {"slots=3\n", "", "missing"},
        {"slots=3", "slits=3", "unknown"},
        {"control=/", "control=", "control"},
        {"\nio=/run", "\nio=run", "io"},
        {"\nio_token=ff", "\nio_token=FF", "io_token"},
        {"token=00", "token=0", "token"},
        {"token=00", "token=0000", "token"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct why why = {""};
        print_message("%s\n", cases[i].to);
        assert_err(ERR_CORRUPT, parse_changed(cases[i].from, cases[i].to, &why));
        if (!strstr(why.text, cases[i].part))
            fail_msg("'%s' does not contain '%s'", why.text, cases[i].part);
    }
}

TEST(sizes_are_bounded)
{
    char text[TICKET_MAX_BYTES + 1];
    struct ticket back;
    struct why why;
    memset(text, 'a', sizeof(text));
    assert_err(ERR_LIMIT, ticket_parse(text, sizeof(text), &back, &why));
    char path[400] = "control=/";
    memset(path + 9, 'p', 300);
    assert_err(ERR_CORRUPT, parse_changed("control=/", path, &why));
}

TEST(other_descriptors_are_no_tickets)
{
    struct ticket back;
    struct why why;
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    assert_err(ERR_CORRUPT, ticket_read(fds[0], &back, &why));
    assert_non_null(strstr(why.text, "dtd starts this program"));
    close(fds[0]);
    close(fds[1]);
    assert_true(ticket_read(fds[0], &back, &why) != OK);
    assert_non_null(strstr(why.text, "dtd starts this program"));
}
