/* The manual pages and the completions, compared with the help texts of the programs. */
#include "client/commands.h"
#include "common/base/file.h"
#include "tests/client/run.h"
#include "tests/lib/test.h"

#include <ctype.h>

/* ---- sets of names ---- */

struct name_set {
    char name[160][48];
    int n;
};

static bool name_set_has(const struct name_set *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->name[i], name) == 0)
            return true;
    return false;
}

static void name_set_add(struct name_set *s, const char *text, size_t len)
{
    char name[48];
    assert_in_range(snprintf(name, sizeof(name), "%.*s", (int)len, text), 1, sizeof(name) - 1);
    if (name_set_has(s, name))
        return;
    assert_in_range(s->n, 0, (int)(sizeof(s->name) / sizeof(s->name[0])) - 1);
    strcpy(s->name[s->n++], name);
}

/* Adds every long option that occurs in a line of plain text. */
static void options_find(const char *line, struct name_set *ret)
{
    for (const char *p = line; (p = strstr(p, "--"));) {
        size_t n = 2;
        while (isalnum((unsigned char)p[n]) || p[n] == '-')
            n++;
        if (n > 2)
            name_set_add(ret, p, n);
        p += n;
    }
}

/* The options that a program's --help describes, without those that argp adds to all programs. argp indents lines with
 * a short option by two spaces, and lines with a long option only by six. */
static void help_options(const char *help, struct name_set *ret)
{
    static const char *const of_argp[] = {"--help", "--usage", "--version"};
    struct name_set all = {0};
    for (const char *line = help; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        bool with_short = strncmp(line, "  -", 3) == 0 && strncmp(line + 4, ", --", 4) == 0;
        if (!with_short && strncmp(line, "      --", 8) != 0)
            continue;
        const char *name = strstr(line, "--");
        name_set_add(&all, name, strcspn(name, "=[ \n"));
    }
    for (int i = 0; i < all.n; i++) {
        bool added = false;
        for (size_t k = 0; k < sizeof(of_argp) / sizeof(of_argp[0]); k++)
            added = added || strcmp(all.name[i], of_argp[k]) == 0;
        if (!added)
            name_set_add(ret, all.name[i], strlen(all.name[i]));
    }
}

/* Fails unless both sets are equal. */
static void sets_compare(const char *page, const char *of, const struct name_set *manual, const struct name_set *help)
{
    for (int i = 0; i < help->n; i++)
        if (!name_set_has(manual, help->name[i]))
            fail_msg("%s does not describe %s of %s", page, help->name[i], of);
    for (int i = 0; i < manual->n; i++)
        if (!name_set_has(help, manual->name[i]))
            fail_msg("%s describes %s of %s, which the program does not have", page, manual->name[i], of);
}

/* ---- reading a page ---- */

static char *source_read(const char *name)
{
    char path[PATH_MAX];
    struct buf text = {0};
    const char *source = getenv("DTD_SOURCE");
    if (!source)
        TEST_SKIP("DTD_SOURCE is not set: run this test by ctest");
    snprintf(path, sizeof(path), "%s/%s", source, name);
    assert_ok(file_read(path, 1 << 20, &text));
    assert_ok(buf_append(&text, "", 1));
    return (char *)text.data;
}

/* A line of a page without font changes and escapes. */
static void line_plain(const char *line, char *ret, size_t size)
{
    size_t n = 0;
    for (const char *p = line; *p && n + 1 < size;) {
        if (p[0] == '\\' && p[1] == 'f' && p[2]) {
            p += 3;
        } else if (strncmp(p, "\\(aq", 4) == 0) {
            ret[n++] = '\'';
            p += 4;
        } else {
            p += *p == '\\' && p[1];
            ret[n++] = *p++;
        }
    }
    ret[n] = '\0';
}

struct page {
    char *text, *rest;
    char plain[1024];
    char section[64]; /* the .SH that the line belongs to */
    int depth;        /* .RS without its .RE */
    const char *line;
};

static void page_open(struct page *p, const char *name)
{
    *p = (struct page){.text = source_read(name)};
    p->rest = p->text;
}

static bool page_next(struct page *p)
{
    p->line = strsep(&p->rest, "\n");
    if (!p->line)
        return false;
    if (strncmp(p->line, ".SH ", 4) == 0)
        snprintf(p->section, sizeof(p->section), "%.60s", p->line + 4);
    p->depth += strcmp(p->line, ".RS") == 0;
    p->depth -= strcmp(p->line, ".RE") == 0;
    line_plain(p->line, p->plain, sizeof(p->plain));
    return true;
}

/* Whether the line names options of the program: text in italics quotes other programs. */
static bool page_has_options(const struct page *p)
{
    return strncmp(p->line, ".I", 2) != 0;
}

/* ---- dtctl(1) ---- */

struct manual_entry {
    char command[48];
    struct name_set options;
};

/* The commands of the section COMMANDS: an entry begins with a tag outside of .RS, whose first bold text is the
 * command. */
static int entries_read(struct manual_entry *ret, int max)
{
    struct page p;
    int n = 0;
    bool tag = false;
    page_open(&p, "docs/man/dtctl.1");
    while (page_next(&p)) {
        if (strcmp(p.section, "COMMANDS") != 0)
            continue;
        if (tag) {
            assert_true(n < max && strncmp(p.line, "\\fB", 3) == 0);
            snprintf(ret[n].command, sizeof(ret[n].command), "%.*s", (int)strcspn(p.line + 3, "\\"), p.line + 3);
            n++;
        }
        if (n && page_has_options(&p))
            options_find(p.plain, &ret[n - 1].options);
        tag = p.depth == 0 && strcmp(p.line, ".TP") == 0;
    }
    free(p.text);
    return n;
}

/* Terminals have 80 columns, and a longer line breaks within words. */
static void lines_fit(const char *command, const char *text)
{
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1)
        if (strcspn(line, "\n") > 80)
            fail_msg("%s: a line has more than 80 columns: %.*s", command, (int)strcspn(line, "\n"), line);
}

/* Calls `check` with the name and the options of every command, by their help. For a group such as ckpt, these are its
 * subcommands. */
static void commands_visit(void (*check)(const char *command, const struct name_set *options, void *arg), void *arg)
{
    struct run_result r;
    struct name_set names = {0};
    char line[128];
    name_set_add(&names, "node drain", 10);
    name_set_add(&names, "node undrain", 12);
    for (int i = 0; i < n_commands; i++) {
        snprintf(line, sizeof(line), "dtctl %s --help", commands[i].name);
        run_expect(&r, 0, line);
        lines_fit(line, r.out);
        const char *list = strstr(r.out, " COMMAND [ARGUMENT...]\n\nCommands:\n");
        if (!list || strcmp(commands[i].name, "help") == 0) {
            name_set_add(&names, commands[i].name, strlen(commands[i].name));
            continue;
        }
        for (list = strstr(list, ":\n") + 2; strncmp(list, "  ", 2) == 0; list = strchr(list, '\n') + 1) {
            snprintf(line, sizeof(line), "%s %.*s", commands[i].name, (int)strcspn(list + 2, " "), list + 2);
            name_set_add(&names, line, strlen(line));
        }
    }
    for (int i = 0; i < names.n; i++) {
        struct name_set all = {0}, options = {0};
        snprintf(line, sizeof(line), "dtctl %s --help", names.name[i]);
        run_expect(&r, 0, line);
        lines_fit(line, r.out);
        help_options(r.out, &all);
        for (int k = 0; k < all.n; k++)
            if (strcmp(all.name[k], "--dtd-dir") != 0 && strcmp(all.name[k], "--output") != 0)
                name_set_add(&options, all.name[k], strlen(all.name[k]));
        check(names.name[i], &options, arg);
    }
}

TEST(the_list_of_commands_fits)
{
    struct run_result r;
    run_expect(&r, 0, "dtctl help");
    lines_fit("dtctl help", r.out);
}

struct manual {
    struct manual_entry entries[64];
    bool seen[64];
    int n;
};

static void entry_check(const char *command, const struct name_set *options, void *arg)
{
    struct manual *m = arg;
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->entries[i].command, command) == 0) {
            m->seen[i] = true;
            sets_compare("dtctl(1)", command, &m->entries[i].options, options);
            return;
        }
    fail_msg("dtctl(1) does not describe the command %s", command);
}

TEST(dtctl_1_describes_the_commands_and_their_options)
{
    static struct manual m;
    m.n = entries_read(m.entries, 64);
    commands_visit(entry_check, &m);
    for (int i = 0; i < m.n; i++)
        if (!m.seen[i])
            fail_msg("dtctl(1) describes %s, which is no command", m.entries[i].command);
}

/* Without its tag, an option becomes a part of the paragraph before it. */
TEST(every_option_has_a_tag)
{
    static const char *const files[] = {"docs/man/dtctl.1", "docs/man/dtd.8", "docs/man/dt-worker.8",
                                        "docs/man/dtd-web.8"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        struct page p;
        bool tag = false;
        page_open(&p, files[i]);
        while (page_next(&p)) {
            if (!tag && strncmp(p.line, "\\fB\\-", 5) == 0)
                fail_msg("%s: no .TP before %s", files[i], p.line);
            tag = strcmp(p.line, ".TP") == 0;
        }
        free(p.text);
    }
}

static void options_section(const char *file, struct name_set *ret)
{
    struct page p;
    page_open(&p, file);
    while (page_next(&p))
        if (strcmp(p.section, "OPTIONS") == 0 && page_has_options(&p))
            options_find(p.plain, ret);
    free(p.text);
}

TEST(the_section_options_is_that_of_the_help)
{
    static const struct {
        const char *page, *line;
    } table[] = {{"docs/man/dtd.8", "\"$DTD_BIN/dtd\" --help"},
                 {"docs/man/dt-worker.8", "\"$DTD_BIN/dt-worker\" --help"},
                 {"docs/man/dtd-web.8", "\"$DTD_BIN/dtd-web\" --help"},
                 {"docs/man/dtctl.1", "dtctl --help"}};
    struct run_result r;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct name_set manual = {0}, help = {0};
        run_expect(&r, 0, table[i].line);
        help_options(r.out, &help);
        assert_true(help.n > 0);
        options_section(table[i].page, &manual);
        sets_compare(table[i].page, table[i].line, &manual, &help);
    }
}

TEST(dtctl_1_lists_the_exit_codes)
{
    char found[64] = "";
    bool tag = false;
    struct page p;
    page_open(&p, "docs/man/dtctl.1");
    while (page_next(&p)) {
        if (tag && strcmp(p.section, "EXIT STATUS") == 0 && strncmp(p.line, ".B ", 3) == 0)
            snprintf(found + strlen(found), sizeof(found) - strlen(found), "%s ", p.line + 3);
        tag = strcmp(p.line, ".TP") == 0;
    }
    free(p.text);
    char want[64];
    snprintf(want, sizeof(want), "%d %d %d %d %d %d %d %d ", EXIT_DONE, EXIT_ERROR, EXIT_REFUSED, EXIT_NOT_FOUND,
             EXIT_JOB_FAILED, EXIT_JOB_CANCELED, EXIT_RETRY, EXIT_INTERRUPTED);
    assert_string_equal(found, want);
}

/* ---- all pages ---- */

/* The sections that man-pages(7) orders; other ones may stand between them. Pages of section 5 describe no program. */
TEST(pages_have_the_sections_of_man_pages_7)
{
    static const char *const sections[] = {"NAME",        "SYNOPSIS", "DESCRIPTION", "OPTIONS",
                                           "EXIT STATUS", "FILES",    "EXAMPLES",    "SEE ALSO"};
    static const char *const pages[] = {"docs/man/dtctl.1", "docs/man/dtd.8", "docs/man/dt-worker.8",
                                        "docs/man/dtd-web.8", "docs/man/dtd-job.5"};
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        char *text = source_read(pages[i]), *at = text, heading[64];
        for (size_t k = 0; k < sizeof(sections) / sizeof(sections[0]); k++) {
            if (strstr(pages[i], ".5") &&
                (strcmp(sections[k], "OPTIONS") == 0 || strcmp(sections[k], "EXIT STATUS") == 0))
                continue;
            snprintf(heading, sizeof(heading), "\n.SH %s\n", sections[k]);
            char *next = strstr(at, heading);
            if (!next)
                fail_msg("%s has no section %s, or not in this order", pages[i], sections[k]);
            at = next;
        }
        free(text);
    }
}

TEST(the_example_of_dtd_job_5_can_run)
{
    struct run_result r;
    struct page p;
    char yaml[4096] = "", text[2048] = "";
    bool in = false;
    page_open(&p, "docs/man/dtd-job.5");
    while (page_next(&p)) {
        in = in && strcmp(p.line, ".fi") != 0;
        if (in)
            snprintf(yaml + strlen(yaml), sizeof(yaml) - strlen(yaml), "%s\n", p.plain);
        in = in || (strcmp(p.section, "EXAMPLES") == 0 && strcmp(p.line, ".nf") == 0);
    }
    free(p.text);
    for (int i = 0; i < 40; i++)
        strcat(text, "a quick brown fox jumps over it\n");
    run_write("text.txt", text);
    run_write("job.yaml", yaml);
    run_expect(&r, 0, "dtctl plan job.yaml --set 'data.train=[text.txt]'");
    expect_text(r.out, "job first-job can run");
}

/* ---- completions ---- */

static void completion_check(const char *command, const struct name_set *options, void *arg)
{
    struct name_set completed = {0};
    options_find(*(char **)arg, &completed);
    for (int i = 0; i < options->n; i++)
        if (!name_set_has(&completed, options->name[i]))
            fail_msg("a completion lacks %s of %s", options->name[i], command);
}

TEST(completions_have_every_option)
{
    static const char *const files[] = {"deploy/completions/dtctl.bash", "deploy/completions/_dtctl"};
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char *text = source_read(files[i]);
        commands_visit(completion_check, &text);
        free(text);
    }
}
