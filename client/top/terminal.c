/* A signal that ends the process is noticed by the loop, which restores the terminal and then ends by the same signal.
 * For a crash, the bytes that restore the terminal are prepared at the start, so that the handler only writes them. */
#include "client/top/terminal.h"

#include "client/top/keys.h"

#include <curses.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

static SCREEN *screen;
static struct termios termios_before;
static char restore[256]; /* what a crash writes */
static size_t restore_bytes;
static volatile sig_atomic_t signal_number;

static void on_signal(int number)
{
    signal_number = number;
}

static void on_crash(int number)
{
    tcsetattr(STDIN_FILENO, TCSANOW, &termios_before);
    ssize_t n = write(STDOUT_FILENO, restore, restore_bytes);
    (void)n;
    raise(number); /* SA_RESETHAND: now by default */
}

void terminal_catch(void)
{
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
    struct sigaction action = {.sa_handler = on_signal};
    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++)
        sigaction(ends[i], &action, NULL);
}

int terminal_signal(void)
{
    return signal_number;
}

static void catch_crash(void)
{
    static const int crashes[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
    struct sigaction action = {.sa_handler = on_crash, .sa_flags = SA_RESETHAND};
    for (size_t i = 0; i < sizeof(crashes) / sizeof(crashes[0]); i++)
        sigaction(crashes[i], &action, NULL);
}

static void prepare_restore(void)
{
    const char *const parts[] = {tigetstr("sgr0"), tigetstr("cnorm"), tigetstr("rmcup")};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        size_t n = parts[i] ? strlen(parts[i]) : 0;
        if (restore_bytes + n > sizeof(restore))
            continue;
        memcpy(restore + restore_bytes, parts[i] ? parts[i] : "", n);
        restore_bytes += n;
    }
}

static void start_colors(void)
{
    static const struct {
        enum glyphs_style style;
        short color;
    } colors[] = {{STYLE_GOOD, COLOR_GREEN},     {STYLE_WARN, COLOR_YELLOW}, {STYLE_BAD, COLOR_RED},
                  {STYLE_REPEAT, COLOR_MAGENTA}, {STYLE_START, COLOR_CYAN},  {STYLE_WAIT, COLOR_BLUE}};
    if (getenv("NO_COLOR") || !has_colors() || start_color() == ERR)
        return;
    use_default_colors();
    for (size_t i = 0; i < sizeof(colors) / sizeof(colors[0]); i++)
        init_pair((short)colors[i].style, colors[i].color, -1);
}

err_t terminal_start(struct why *why)
{
    const char *term = getenv("TERM");
    setlocale(LC_CTYPE, "");
    tcgetattr(STDIN_FILENO, &termios_before);
    screen = newterm(NULL, stdout, stdin);
    if (!screen || !tigetstr("cup"))
        return terminal_stop(), why_set(why, ERR_INVALID,
                                        "TERM=%s: this terminal is unknown or cannot move its cursor; set TERM, or use "
                                        "`dtctl top -b`",
                                        term ? term : "");
    set_term(screen);
    atexit(terminal_stop);
    prepare_restore();
    catch_crash();
    terminal_catch();
    raw();
    noecho();
    nonl();
    curs_set(0);
    set_escdelay(25);
    keypad(stdscr, TRUE);
    nodelay(stdscr, TRUE);
    start_colors();
    return OK;
}

void terminal_stop(void)
{
    if (!screen)
        return;
    endwin();
    delscreen(screen);
    screen = NULL;
}

void terminal_size(int *ret_rows, int *ret_columns)
{
    getmaxyx(stdscr, *ret_rows, *ret_columns);
}

bool terminal_is_utf8(void)
{
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

static attr_t attribute(enum glyphs_style style)
{
    static const attr_t plain[STYLE_COUNT] = {[STYLE_BOLD] = A_BOLD,
                                              [STYLE_DIM] = A_DIM,
                                              [STYLE_TITLE] = A_BOLD | A_UNDERLINE,
                                              [STYLE_CURSOR] = A_REVERSE,
                                              [STYLE_BAD] = A_BOLD};
    bool colored = style >= STYLE_GOOD && has_colors() && !getenv("NO_COLOR");
    return plain[style] | (colored ? (attr_t)COLOR_PAIR((short)style) : 0);
}

/* The last column of the last row stays empty: a character there makes some terminals scroll. */
void terminal_show(const struct glyphs *c)
{
    erase();
    for (int row = 0; row < c->rows; row++)
        for (int column = 0; column < c->columns - (row == c->rows - 1); column++) {
            const struct glyphs_cell *cell = &c->cells[(size_t)row * (size_t)c->columns + (size_t)column];
            if (!cell->text[0] || (cell->style == STYLE_PLAIN && strcmp(cell->text, " ") == 0))
                continue;
            attrset(attribute(cell->style));
            mvaddstr(row, column, cell->text);
        }
    attrset(A_NORMAL);
    refresh();
}

int terminal_key(void)
{
    static const struct {
        int curses, key;
    } keys[] = {{KEY_UP, TOP_KEY_UP},
                {KEY_DOWN, TOP_KEY_DOWN},
                {KEY_PPAGE, TOP_KEY_PAGE_UP},
                {KEY_NPAGE, TOP_KEY_PAGE_DOWN},
                {KEY_HOME, TOP_KEY_HOME},
                {KEY_END, TOP_KEY_END},
                {KEY_ENTER, TOP_KEY_ENTER},
                {'\r', TOP_KEY_ENTER},
                {KEY_BACKSPACE, TOP_KEY_BACKSPACE},
                {'\b', TOP_KEY_BACKSPACE},
                {KEY_F(1), '?'},
                {KEY_F(9), 'k'},
                {KEY_F(10), 'q'},
                {KEY_RESIZE, 0},
                {16, TOP_KEY_UP},
                {14, TOP_KEY_DOWN},
                {3, 'q'},
                {12, 0}};
    int key = getch();
    if (key == ERR)
        return -1;
    if (key == 12) /* Ctrl-L: draw everything again */
        clearok(curscr, TRUE);
    if (key == 26) /* Ctrl-Z; the terminal does not make a signal of it */
        kill(0, SIGTSTP);
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (keys[i].curses == key)
            return keys[i].key;
    return key < 256 && key != 26 ? key : 0;
}
