/* dt-worker --generate --chat on a checkpoint that the test writes. The oracle is generation without --chat, which
 * processes the whole conversation anew: its prompt spells the control tokens. */
#include "tests/common/data/chat_tokenizer.h"
#include "tests/worker/tiny_checkpoint.h"

#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>

#define MODEL(SEQ, TEMPLATE)                                                                     \
    "name: tiny\nmodel: {arch: llama, dim: 32, layers: 3, heads: 4, kv_heads: 2, vocab: 128}\n"  \
    "data: {train: [/nothing], tokenizer: bpe, tokenizer_files: [/nothing], template: " TEMPLATE \
    "}\ntrain: {steps: 1, seq: " SEQ ", global_batch: 1, micro_batch: 1}\ncheckpoint: {dir: /nowhere}\n"

/* With matrices of this scale, a token depends on all before it; with the other one, answers do not end soon. */
#define SHARP 40
#define DULL 10

static void make_checkpoint(const char *yaml, const char *hf, float scale, char *ret, size_t size)
{
    struct buf vocab = {0};
    chat_tokenizer_json("", &vocab);
    tiny_checkpoint(yaml, &(struct tiny_files){.job = yaml, .vocab = &vocab, .hf = hf, .scale = scale}, ret, size);
    buf_fini(&vocab);
}

static const char *program(void)
{
    static char path[512];
    const char *bin = getenv("DTD_BIN");
    snprintf(path, sizeof(path), "%s/dt-worker", bin ? bin : "bin");
    return path;
}

/* Runs dt-worker --generate DIR ARGUMENTS with standard input `in`, and returns its exit status. `ret`: what it writes,
 * the messages too. */
static int run(const char *in, const char *dir, const char *arguments, char *ret, size_t size)
{
    char command[2048], path[512];
    snprintf(path, sizeof(path), "%s/in", test_tmpdir());
    assert_ok(file_replace(path, in, strlen(in), 0600));
    snprintf(command, sizeof(command), "%s --generate %s <%s 2>&1 %s", program(), dir, path, arguments);
    FILE *f = popen(command, "r");
    size_t n = fread(ret, 1, size - 1, f);
    ret[n] = '\0';
    return WEXITSTATUS(pclose(f));
}

/* The member of the JSON object in line `line` of the text. */
static json_t *line_of(const char *text, int line)
{
    for (; line > 0; line--)
        text = strchr(text, '\n') + 1;
    json_t *v = json_loadb(text, strcspn(text, "\n"), 0, NULL);
    if (!v)
        fail_msg("not JSON: %s", text);
    return v;
}

static const char *string_of(const json_t *v, const char *key)
{
    const char *text = json_string_value(json_object_get(v, key));
    assert_non_null(text);
    return text;
}

/* ---- answers ---- */

static const char *const questions[] = {"Hi", "And who are you?", "a", "What is 2 + 2?"};
#define QUESTIONS 4

/* The continuation of a text by a run that has no cache of it; the text may have line breaks. */
static json_t *continued(const char *dir, const char *text)
{
    char path[512], arguments[800], out[8192];
    json_t *v = json_string(text);
    char *line = json_dumps(v, JSON_ENCODE_ANY);
    snprintf(path, sizeof(path), "%s/prompt.jsonl", test_tmpdir());
    assert_ok(file_replace(path, line, strlen(line), 0600));
    snprintf(arguments, sizeof(arguments), "--prompts %s --tokens 12 --temperature 0 --json 2>/dev/null", path);
    assert_int_equal(run("", dir, arguments, out, sizeof(out)), 0);
    free(line);
    json_decref(v);
    return line_of(out, 0);
}

/* Compares the answers of a conversation with those of fresh runs over everything before them. `dir` has the template
 * ChatML. */
static void check_conversation(const char *dir, const char *arguments, const char *system)
{
    char all[1024], out[16384], in[512] = "";
    struct buf whole = {0};
    for (int i = 0; i < QUESTIONS; i++)
        snprintf(in + strlen(in), sizeof(in) - strlen(in), "%s\n%s", questions[i], i ? "" : "\n");
    snprintf(all, sizeof(all), "--chat --tokens 12 --temperature 0 --json %s", arguments);
    if (run(in, dir, all, out, sizeof(out)))
        fail_msg("%s", out);
    assert_ok(system ? buf_printf(&whole, "<|im_start|>system\n%s<|im_end|>\n", system) : OK);
    for (int i = 0; i < QUESTIONS; i++) {
        json_t *got = line_of(out, i), *want;
        assert_string_equal(string_of(got, "prompt"), questions[i]);
        assert_ok(buf_printf(&whole, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n", questions[i]));
        want = continued(dir, (const char *)whole.data);
        assert_string_equal(string_of(want, "text") + whole.len, string_of(got, "text"));
        assert_string_equal(string_of(want, "ended"), string_of(got, "ended"));
        assert_true(json_equal(json_object_get(want, "tokens"), json_object_get(got, "tokens")));
        assert_ok(buf_printf(&whole, "%s<|im_end|>\n", string_of(got, "text")));
        json_decref(got);
        json_decref(want);
    }
    buf_fini(&whole);
}

TEST(kept_keys_and_values_give_the_answers_of_a_fresh_run)
{
    char dir[512];
    make_checkpoint(MODEL("512", "chatml"), NULL, SHARP, dir, sizeof(dir));
    check_conversation(dir, "", NULL);
    check_conversation(dir, "--system 'Be brief.'", "Be brief.");
    check_conversation(dir, "--tp 2", NULL);
    check_conversation(dir, "--pp 3", NULL);
    check_conversation(dir, "--tp 2 --pp 3", NULL);
}

/* Every token is processed once. A question of n characters has n + 19 tokens: three of control, "user\n", "\n" and
 * "assistant\n". One that follows an answer has two more, <|im_end|> and "\n" of the answer, and the
 * answer's last token, which was chosen but not processed. The last chosen token is not processed in its own turn. */
TEST(a_turn_processes_only_its_own_tokens)
{
    char dir[512], out[4096];
    make_checkpoint(MODEL("512", "chatml"), NULL, DULL, dir, sizeof(dir));
    assert_int_equal(
        run("ab\nabcd\na\n", dir, "--chat --tokens 9 --ignore-eos --temperature 0 --json", out, sizeof(out)), 2);
    assert_int_equal(run("ab\nabcd\na\n", dir, "--chat --tokens 9 --temperature 0 --json", out, sizeof(out)), 0);
    static const int lengths[] = {2, 4, 1};
    for (int i = 0; i < 3; i++) {
        json_t *v = line_of(out, i);
        const int made = (int)json_integer_value(json_object_get(v, "tokens"));
        assert_string_equal(string_of(v, "ended"), "length");
        assert_int_equal(json_integer_value(json_object_get(v, "processed")), lengths[i] + 19 + (i ? 3 : 0) + made - 1);
        json_decref(v);
    }
}

TEST(an_answer_is_text_without_the_question)
{
    char dir[512], out[4096], json[4096], want[4096];
    make_checkpoint(MODEL("512", "chatml"), NULL, DULL, dir, sizeof(dir));
    assert_int_equal(run("", dir, "--chat --prompt Hi --tokens 9 --temperature 0 --json", json, sizeof(json)), 0);
    assert_int_equal(run("", dir, "--chat --prompt Hi --tokens 9 --temperature 0 2>/dev/null", out, sizeof(out)), 0);
    json_t *v = line_of(json, 0);
    snprintf(want, sizeof(want), "%s\n", string_of(v, "text"));
    assert_string_equal(out, want);
    assert_int_equal(run("", dir, "--chat --prompt Hi --tokens 9 --temperature 0 2>&1 >/dev/null", out, sizeof(out)),
                     0);
    assert_string_equal(out, "dt-worker: the answer was cut after 9 tokens; --tokens allows more\n");
    json_decref(v);
}

/* ---- the window ---- */

TEST(a_full_window_ends_the_answer_and_then_the_conversation)
{
    char dir[512], out[4096];
    make_checkpoint(MODEL("64", "chatml"), NULL, DULL, dir, sizeof(dir));
    assert_int_equal(run("Hello\nHello\n", dir, "--chat --temperature 0 --json", out, sizeof(out)), 1);
    json_t *v = line_of(out, 0);
    assert_string_equal(string_of(v, "ended"), "window");
    assert_int_equal(json_integer_value(json_object_get(v, "tokens")), 64 - 24);
    assert_non_null(strstr(out,
                           "do not fit behind the 64 of the conversation into the window of 64 tokens (train.seq). "
                           "Ask with fewer words, or start another conversation"));
    assert_int_equal(run("Hello\n", dir, "--chat --temperature 0 2>&1 >/dev/null", out, sizeof(out)), 0);
    assert_non_null(strstr(out, "the answer was cut, because the conversation fills the window of 64 tokens"));
    json_decref(v);
}

/* ---- the template ---- */

TEST(the_template_comes_from_the_checkpoint)
{
    static const char *const kept[] = {
        "{\"chat_template.jinja\": \"<|im_start|> <|im_end|>\", \"tokenizer_config.json\": \"{}\"}",
        "{\"tokenizer_config.json\": \"{\\\"model_max_length\\\": 1000000000000000019884624838656, "
        "\\\"chat_template\\\": \\\"<|im_start|> <|im_end|>\\\"}\"}",
        "{\"chat_template.json\": \"{\\\"chat_template\\\": \\\"<|im_start|> <|im_end|>\\\"}\"}",
        "{\"tokenizer_config.json\": \"{\\\"chat_template\\\": [{\\\"name\\\": \\\"tool\\\", \\\"template\\\": "
        "\\\"\\\"}, "
        "{\\\"name\\\": \\\"default\\\", \\\"template\\\": \\\"<|im_start|> <|im_end|>\\\"}]}\"}"};
    char dir[512], want[4096], out[4096];
    make_checkpoint(MODEL("512", "chatml"), NULL, SHARP, dir, sizeof(dir));
    assert_int_equal(run("", dir, "--chat --prompt Hi --tokens 20 --temperature 0", want, sizeof(want)), 0);
    assert_int_equal(run("", dir, "--chat --prompt Hi --tokens 20 --temperature 0 --template gemma", out, sizeof(out)),
                     0);
    assert_string_not_equal(out, want);
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++) {
        make_checkpoint(MODEL("512", "none"), kept[i], SHARP, dir, sizeof(dir));
        assert_int_equal(run("", dir, "--chat --prompt Hi --tokens 20 --temperature 0", out, sizeof(out)), 0);
        assert_string_equal(out, want);
    }
}

TEST(a_conversation_that_cannot_begin_names_the_cause)
{
    static const struct {
        const char *arguments;
        int status;
        const char *sentence;
    } bad[] = {
        {"--chat", 2, "does not name the chat template the model was trained"},
        {"--chat", 2, "Name it with --template: llama3, chatml, mistral, gemma, phi"},
        {"--chat --template alpaca", 2, "--template alpaca: there is no such template. Templates are llama3, "},
        {"--chat --template gemma --system x", 2, "--system: the template gemma has no system turn"},
        {"--template gemma", 2, "--template needs --chat"},
        {"--system x", 2, "--system needs --chat"},
        {"--chat --prompts x", 2, "use either --chat or --prompts"},
    };
    char dir[512], out[4096];
    make_checkpoint(MODEL("512", "none"), NULL, DULL, dir, sizeof(dir));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(run("Hi\n", dir, bad[i].arguments, out, sizeof(out)), bad[i].status);
        if (!strstr(out, bad[i].sentence))
            fail_msg("%s: %s", bad[i].arguments, out);
    }
    make_checkpoint(MODEL("512", "none"), "{\"chat_template.jinja\": \"### Instruction\"}", DULL, dir, sizeof(dir));
    assert_int_equal(run("Hi\n", dir, "--chat", out, sizeof(out)), 2);
    assert_non_null(
        strstr(out, "imported with is none that dtd supports. Choose one that has the same form with --template"));
    assert_int_equal(run("", dir, "--chat --template phi", out, sizeof(out)), 0);
    assert_string_equal(out, "");
}

/* ---- a terminal ---- */

struct terminal {
    int fd;
    pid_t pid;
    char text[1 << 16];
    size_t n;
};

static void terminal_open(struct terminal *t, const char *const *argv)
{
    *t = (struct terminal){0};
    t->pid = forkpty(&t->fd, NULL, NULL, NULL);
    assert_true(t->pid >= 0);
    if (t->pid == 0) {
        execv(argv[0], (char *const *)argv);
        _exit(127);
    }
}

/* Reads more; false: the program has ended. */
static bool terminal_read(struct terminal *t)
{
    struct pollfd p = {.fd = t->fd, .events = POLLIN};
    assert_true(poll(&p, 1, 30000) > 0);
    assert_true(t->n < sizeof(t->text) - 1);
    const ssize_t n = read(t->fd, t->text + t->n, sizeof(t->text) - 1 - t->n);
    t->n += n > 0 ? (size_t)n : 0;
    t->text[t->n] = '\0';
    return n > 0; /* EIO: no process has the terminal open */
}

/* Reads until `text` appears behind `from`. */
static void terminal_await(struct terminal *t, size_t from, const char *text)
{
    while (!strstr(t->text + from, text))
        if (!terminal_read(t))
            fail_msg("the program ended before \"%s\": %s", text, t->text);
}

static void terminal_type(const struct terminal *t, const char *text)
{
    assert_int_equal(write(t->fd, text, strlen(text)), strlen(text));
}

static int terminal_close(struct terminal *t)
{
    int status;
    while (terminal_read(t))
        ;
    assert_int_equal(waitpid(t->pid, &status, 0), t->pid);
    close(t->fd);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Asks, and interrupts the answer, which would have 15000 tokens; then another question is answered, and Ctrl-D ends
 * the program. */
static void check_interrupt(const char *dir, const char *tp)
{
    const char *const argv[] = {program(), "--generate",    dir, "--chat", "--tokens", "15000", "--stop",
                                "zqzq",    "--temperature", "0", "--tp",   tp,         NULL};
    struct terminal t;
    terminal_open(&t, argv);
    terminal_await(&t, 0, "> ");
    terminal_type(&t, "Hi\n");
    while (t.n < 40)
        assert_true(terminal_read(&t));
    terminal_type(&t, "\x03");
    terminal_await(&t, 10, "\n> ");
    assert_true(t.n < 14000);
    const size_t first = t.n;
    terminal_type(&t, "Again\n");
    while (t.n < first + 40)
        assert_true(terminal_read(&t));
    terminal_type(&t, "\x03");
    terminal_await(&t, first + 10, "\n> ");
    terminal_type(&t, "\x04");
    assert_int_equal(terminal_close(&t), 0);
}

TEST(an_interrupt_ends_the_answer_and_not_the_program)
{
    char dir[512];
    make_checkpoint(MODEL("16384", "chatml"), NULL, DULL, dir, sizeof(dir));
    check_interrupt(dir, "1");
    check_interrupt(dir, "2");
}

/* While a question is typed, Ctrl-C ends the program. A question that does not fit is refused, and another follows. */
TEST(a_question_on_a_terminal)
{
    char dir[512];
    struct terminal t;
    make_checkpoint(MODEL("64", "chatml"), NULL, DULL, dir, sizeof(dir));
    const char *const argv[] = {program(), "--generate", dir, "--chat", "--temperature", "0", "--tokens", "3", NULL};
    terminal_open(&t, argv);
    terminal_await(&t, 0, "> ");
    terminal_type(&t, "A question of so many letters that the window cannot hold it\n");
    terminal_await(&t, 0, "do not fit behind the 0 of the conversation");
    terminal_type(&t, "\nHi\n");
    terminal_await(&t, 0, "the answer was cut after 3 tokens");
    terminal_await(&t, t.n - 2, "> ");
    terminal_type(&t, "x\x03");
    assert_int_equal(terminal_close(&t), 128 + SIGINT);
}

/* ---- dtctl ---- */

static void start_dtctl(const char *dir, const char *format, int *ret_in, FILE **ret_out, pid_t *ret_pid)
{
    int in[2], out[2];
    char path[512];
    const char *bin = getenv("DTD_BIN");
    snprintf(path, sizeof(path), "%s/dtctl", bin ? bin : "bin");
    assert_int_equal(pipe2(in, O_CLOEXEC) | pipe2(out, O_CLOEXEC), 0);
    *ret_pid = fork();
    if (*ret_pid == 0) {
        dup2(in[0], STDIN_FILENO);
        dup2(out[1], STDOUT_FILENO);
        execl(path, "dtctl", "generate", dir, "--chat", "--tokens", "5", "--temperature", "0", "-o", format, NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    *ret_in = in[1];
    *ret_out = fdopen(out[0], "r");
}

static void check_answer(const json_t *v, const char *dir, const char *prompt)
{
    assert_string_equal(string_of(v, "checkpoint"), dir);
    assert_string_equal(string_of(v, "prompt"), prompt);
    assert_string_equal(string_of(v, "ended"), "length");
    assert_int_equal(json_integer_value(json_object_get(v, "tokens")), 5);
    assert_true(strlen(string_of(v, "text")) >= 5);
}

/* With jsonl, an answer comes before the next question is asked; with json, all of them as an array at the end. */
TEST(dtctl_prints_an_object_per_answer)
{
    static const char *const prompts[] = {"One", "Two"};
    char dir[512], line[4096];
    int in, status;
    FILE *out;
    pid_t pid;
    make_checkpoint(MODEL("512", "chatml"), NULL, DULL, dir, sizeof(dir));
    start_dtctl(dir, "jsonl", &in, &out, &pid);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(dprintf(in, "%s\n", prompts[i]), 4);
        assert_non_null(fgets(line, sizeof(line), out));
        json_t *v = line_of(line, 0);
        check_answer(v, dir, prompts[i]);
        json_decref(v);
    }
    close(in);
    assert_null(fgets(line, sizeof(line), out));
    fclose(out);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    start_dtctl(dir, "json", &in, &out, &pid);
    assert_int_equal(dprintf(in, "%s\n%s\n", prompts[0], prompts[1]), 8);
    close(in);
    json_t *all = json_loadf(out, 0, NULL);
    fclose(out);
    assert_int_equal(json_array_size(all), 2);
    for (size_t i = 0; i < 2; i++)
        check_answer(json_array_get(all, i), dir, prompts[i]);
    json_decref(all);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}
