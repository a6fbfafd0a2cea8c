/* The real dtctl without a daemon: help, usage errors, exit codes, and the commands that need no daemon. */
#include "client/commands.h"
#include "tests/client/run.h"
#include "tests/lib/test.h"

TEST(every_command_has_help_with_an_example)
{
    struct run_result r;
    char line[128];
    for (int i = 0; i < n_commands; i++) {
        snprintf(line, sizeof(line), "dtctl help %s", commands[i].name);
        run_expect(&r, 0, line);
        expect_text(r.out, "Usage: ");
        if (!strstr(" ckpt cluster data help store ", commands[i].name)) /* for groups, the subcommands have examples */
            expect_text(r.out, "Example");
    }
    static const char *const sub[] = {"ckpt ls",        "ckpt inspect",   "ckpt verify",     "data prepare",
                                      "data info",      "data show",      "data tokenize",   "cluster init",
                                      "cluster token",  "cluster join",   "cluster status",  "cluster leave",
                                      "cluster remove", "cluster rotate", "cluster recover", "store open",
                                      "store ls",       "store close",    "node drain",      "node undrain"};
    for (size_t i = 0; i < sizeof(sub) / sizeof(sub[0]); i++) {
        snprintf(line, sizeof(line), "dtctl %s --help", sub[i]);
        run_expect(&r, 0, line);
        expect_text(r.out, "Example");
        snprintf(line, sizeof(line), "Usage: dtctl %s", sub[i]);
        expect_text(r.out, line);
    }
}

TEST(short_help_and_other_words)
{
    struct run_result r;
    run_expect(&r, 0, "dtctl submit -h");
    expect_text(r.out, "Usage: dtctl submit");
    run_expect(&r, 0, "dtctl run -h");
    expect_text(r.out, "Usage: dtctl run");
    run_expect(&r, 0, "dtctl ls --help");
    expect_text(r.out, "Usage: dtctl status");
    run_expect(&r, 0, "dtctl stop -h");
    expect_text(r.out, "Usage: dtctl cancel");
}

TEST(help_lists_every_command)
{
    struct run_result r;
    run_expect(&r, 0, "dtctl --help");
    for (int i = 0; i < n_commands; i++)
        expect_text(r.out, commands[i].summary);
    run_expect(&r, 0, "dtctl help");
    run_expect(&r, 2, "dtctl");
    expect_text(r.err, "Usage: dtctl");
    run_expect(&r, 0, "dtctl --version");
    expect_text(r.out, DTD_VERSION);
}

TEST(wrong_arguments_are_refused)
{
    static const struct {
        const char *line, *message;
    } table[] = {
        {"dtctl stauts", "Did you mean 'status'?"},
        {"dtctl ckpt insepct x", "Did you mean 'inspect'?"},
        {"dtctl frobnicate", "there is no command 'dtctl frobnicate'"},
        {"dtctl --nonsense", "unrecognized option"},
        {"dtctl -o yaml status", "text, json and jsonl"},
        {"dtctl status -o xml", "text, json and jsonl"},
        {"dtctl status 1 2", "one job at a time"},
        {"dtctl metrics", "which job?"},
        {"dtctl logs", "which job?"},
        {"dtctl cancel", "which job?"},
        {"dtctl rm", "which job?"},
        {"dtctl rerun", "which job?"},
        {"dtctl rerun 1 2", "one job at a time"},
        {"dtctl logs 1 --rank two", "--rank two"},
        {"dtctl logs 1 --tail -5", "--tail -5"},
        {"dtctl metrics 1 --from x", "--from x"},
        {"dtctl submit", "which job file?"},
        {"dtctl submit a b", "one job file at a time"},
        {"dtctl resume", "which job or checkpoint folder?"},
        {"dtctl resume 1 --steps 5 --more 5", "give either --steps or --more"},
        {"dtctl resume 1 --workers 0", "--workers 0"},
        {"dtctl ckpt", "Usage: dtctl ckpt COMMAND"},
        {"dtctl ckpt ls", "which checkpoint folder"},
        {"dtctl data prepare", "give an argument"},
        {"dtctl data prepare x --tokenizer wpe", "bytes, words, split and bpe"},
        {"dtctl data prepare x --tokenizer bpe", "give --tokenizer-file"},
        {"dtctl data prepare x --tokenizer-file y", "for --tokenizer bpe"},
        {"dtctl data prepare x --vocab-from y", "for --tokenizer words, split and bpe"},
        {"dtctl data prepare x --lowercase", "for --tokenizer words"},
        {"dtctl data tokenize a.txt", "Give --tokenizer-file"},
        {"dtctl data tokenize -f t.json a.txt b.txt", "one text at a time"},
        {"dtctl generate", "which checkpoint or job?"},
        {"dtctl generate x --temperature warm", "--temperature warm"},
        {"dtctl generate x --chat --template alpaca",
         "--template alpaca: expected one of llama3, chatml, mistral, gemma, phi"},
        {"dtctl generate x --template phi", "--template needs --chat"},
        {"dtctl generate x --system text", "--system needs --chat"},
        {"dtctl generate x --chat --prompts file", "use either --chat or --prompts"},
        {"dtctl generate x --chat --ignore-eos", "use either --chat or --ignore-eos"},
        {"dtctl --dtd-dir= status", "--dtd-dir"},
    };
    struct run_result r;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        run_expect(&r, 2, table[i].line);
        expect_text(r.err, table[i].message);
        assert_string_equal(r.out, "");
    }
}

TEST(without_a_daemon_the_error_names_the_next_command)
{
    static const char *const lines[] = {"dtctl status", "dtctl status 1 -o json", "dtctl metrics 1",
                                        "dtctl logs 1", "dtctl cancel 1",         "dtctl resume 1",
                                        "dtctl node",   "dtctl ckpt ls 1"};
    struct run_result r;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        run_expect(&r, 75, lines[i]);
        expect_text(r.err, "Start one: dtctl up");
        assert_string_equal(r.out, "");
    }
    run_expect(&r, 0, "dtctl version");
    expect_text(r.out, "no dtd is running");
    run_expect(&r, 0, "dtctl down");
    expect_text(r.out, "no dtd is running");
}

TEST(a_state_directory_that_is_too_long_is_named)
{
    struct run_result r;
    run_shell(&r, "dtctl --dtd-dir /tmp/$(printf 'x%.0s' $(seq 200)) status");
    assert_int_equal(r.code, 2);
    expect_text(r.err, "xxx");
}

TEST(data_prepare_and_info)
{
    struct run_result r;
    run_write("a.txt", "to be or not to be\nthat is the question\n");
    run_expect(&r, 0,
               "h=$(dtctl data prepare a.txt -o json | sed -n 's/.*\"hash\": \"\\([0-9a-f]*\\)\".*/\\1/p') && "
               "dtctl data info $h && test $(dtctl data prepare a.txt | cut -d' ' -f1) = $h");
    expect_text(r.out, "40 tokens, vocabulary 256");
    run_expect(&r, 0, "dtctl data prepare a.txt --tokenizer words");
    expect_text(r.out, "12 tokens"); /* ten words and two line ends */
    run_expect(&r, 3, "dtctl data prepare missing.txt");
    expect_text(r.err, "missing.txt");
    run_expect(&r, 3, "dtctl data info 0000000000000000000000000000000000000000000000000000000000000000");
}

TEST(ctrl_c_leaves_work_that_continues)
{
    struct run_result r;
    const char *start =
        "yes 'the way that can be spoken of is not the constant way' | head -c 60000000 > big.txt; "
        "\"$DTD_BIN/dtctl\" data prepare big.txt --tokenizer words --cache c & p=$!; "
        "until ls c/.unfinished-*/tokens-00000.bin >d 2>/dev/null; do sleep .01; done; kill -INT $p; wait $p";
    run_expect(&r, 130, start);
    expect_text(r.err, "dtctl: interrupted; run the same command again to continue");
    run_expect(&r, 0, "dtctl data prepare big.txt --tokenizer words --cache c");
    expect_text(r.err, "dtctl: continues: 0 of 1 files were done");
    run_expect(&r, 0, "dtctl data prepare big.txt --tokenizer words --cache d2 && diff -r c d2");
}

TEST(data_show_shows_sources_and_samples)
{
    struct run_result r;
    run_write("a.jsonl", "{\"body\": \"one\"}\n{\"body\": \"two\\nlines\"}\n");
    run_write("m.jsonl", "{\"input_ids\": [104, 105, 33], \"loss_mask\": [0, 1, 1]}\n");
    run_expect(&r, 0, "dtctl data show $(dtctl data prepare a.jsonl --field body | cut -d' ' -f1) -n 20");
    expect_text(r.out, "12 tokens, vocabulary 256, 2 documents\n");
    expect_text(r.out, "jsonl   /");
    expect_text(r.out, "document 0, 3 tokens:\n  one\n");
    expect_text(r.out, "document 1, 9 tokens:\n  two\n  lines\n");
    run_expect(&r, 0, "dtctl data show $(dtctl data prepare m.jsonl | cut -d' ' -f1)");
    expect_text(r.out, "1 documents, with a loss mask");
    expect_text(r.out, "document 0, 3 tokens (2 in the loss):\n  hi!\n");
    run_expect(&r, 0, "dtctl data show $(dtctl data prepare m.jsonl | cut -d' ' -f1) -o json | tr -d ' \\n'");
    expect_text(r.out, "\"ids\":[104,105,33],\"weights\":[0,1,1],\"text\":\"hi!\"");
    run_write("a.txt", "plain text\n");
    run_expect(&r, 0, "dtctl data show $(dtctl data prepare a.txt | cut -d' ' -f1) --samples 1");
    expect_text(r.out, "11 tokens, vocabulary 256\n\ntokens from 0:\n  plain text\n");
    run_expect(&r, 0, "dtctl data show $(dtctl data prepare a.txt | cut -d' ' -f1) --samples 2");
    expect_text(r.out, "tokens from 0:\n  plain text\n  \n\ntokens from 5:\n   text\n");
    run_expect(&r, 2, "dtctl data show");
    run_expect(&r, 2, "dtctl data prepare a.jsonl --field title");
    expect_text(r.err, "no key \"title\"");
}

/* Long documents are cut, control characters do not reach the terminal, and no document comes twice. */
TEST(data_show_shows_parts_of_large_sets)
{
    struct run_result r;
    char line[400];
    snprintf(line, sizeof(line), "{\"text\": \"%0200d\"}\n{\"text\": \"a\\u0001b\"}\n", 0);
    run_write("long.jsonl", line);
    run_expect(&r, 0, "dtctl data show $(dtctl data prepare long.jsonl | cut -d' ' -f1) -n 200");
    expect_text(r.out, "\n        2     203  ");
    expect_text(r.out, "document 0, 200 tokens, the first 128:\n  0");
    expect_text(r.out, "document 1, 3 tokens:\n  a\\x01b\n");
    const char *first = strstr(r.out, "document 0,");
    assert_null(strstr(first + 1, "document 0,"));
}

/* Two rows, typed in: tests/common/data/test_parquet.c explains the bytes. */
static const char make_parquet[] =
    "printf 'PAR1\\25\\0\\25\\24\\25\\24\\54\\25\\4\\25\\0\\25\\6\\25\\6\\0\\0\\2\\0\\0\\0ab\\0\\0\\0\\0"
    "\\25\\2\\31\\54\\110\\1r\\25\\2\\0\\25\\14\\45\\0\\30\\4text\\0\\26\\4\\31\\34\\31\\34\\46\\10\\34"
    "\\25\\14\\31\\25\\0\\31\\30\\4text\\25\\0\\26\\4\\26\\66\\26\\66\\46\\10\\0\\0"
    "\\26\\66\\26\\4\\0\\0\\74\\0\\0\\0PAR1'";

TEST(tables_give_the_documents_of_json_lines)
{
    struct run_result r;
    char command[1024];
    run_write("t.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"\"}\n");
    snprintf(command, sizeof(command), "mkdir set && %s >t.parquet", make_parquet);
    run_expect(&r, 0, command);
    run_expect(
        &r, 0,
        "a=$(dtctl data prepare t.parquet | cut -d' ' -f1) && b=$(dtctl data prepare t.jsonl | cut -d' ' -f1) && "
        "test $a != $b && cd \"$XDG_CACHE_HOME/dtd/data\" && cmp $a/tokens-00000.bin $b/tokens-00000.bin && "
        "cmp $a/documents.bin $b/documents.bin && dtctl data show $a");
    expect_text(r.out, "2 tokens, vocabulary 256");
    expect_text(r.out, "parquet  /");
    run_write("set/state.json", "{\"_data_files\": [{\"filename\": \"t.parquet\"}]}"); /* a folder of datasets */
    run_expect(&r, 0,
               "cp t.parquet set && test $(dtctl data prepare set | cut -d' ' -f1) = $(dtctl data prepare t.parquet | "
               "cut -d' ' -f1)");
    run_expect(&r, 2, "dtctl data prepare t.parquet --field title");
    expect_text(r.err, "t.parquet: no column title; the columns are: text");
    run_expect(&r, 2, "gzip <t.parquet >t.gz && dtctl data prepare t.gz");
    expect_text(r.err, "a parquet file inside gzip cannot be read; decompress it");
    run_expect(&r, 2, "dtctl data prepare t.parquet --format xml");
    expect_text(r.err, "the formats are auto, parquet, arrow, hdf5, megatron");
}

TEST(data_tokenize_shows_ids_places_and_pieces)
{
    struct run_result r;
    run_write(
        "t.json",
        "{\"normalizer\": {\"type\": \"Lowercase\"}, \"pre_tokenizer\": {\"type\": \"Whitespace\"}, "
        "\"post_processor\": "
        "{\"type\": \"BertProcessing\", \"cls\": [\"[A]\", 3], \"sep\": [\"[Z]\", 4]}, \"model\": {\"type\": "
        "\"WordLevel\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0, \"to\": 1, \"be\": 2, \"[A]\": 3, \"[Z]\": 4}}}");
    run_write("a.txt", "To  be or");
    run_expect(&r, 0, "dtctl data tokenize -f t.json a.txt | tr -s ' '");
    expect_text(r.out, " 0 1 0 2 \"to\"\n 1 2 4 6 \"be\"\n 2 0 7 9 \"?\"\n");
    run_expect(&r, 0, "dtctl data tokenize -f t.json --special -o json <a.txt | tr -d ' \\n'");
    expect_text(r.out, "{\"vocab\":5,\"tokens\":[{\"id\":3,\"piece\":\"[A]\",\"from\":0,\"to\":0},{\"id\":1,");
    expect_text(r.out, "{\"id\":4,\"piece\":\"[Z]\",\"from\":9,\"to\":9}]}");
    run_expect(&r, 3, "dtctl data tokenize -f missing.json a.txt");
    run_write("bad.json", "{\"model\": {\"type\": \"Magic\"}}");
    run_expect(&r, 2, "dtctl data tokenize -f bad.json a.txt");
    expect_text(r.err, "model.type: \"Magic\" is not supported");
}

TEST(ckpt_commands_name_what_is_missing)
{
    struct run_result r;
    run_expect(&r, 3, "dtctl ckpt ls ./nothing");
    expect_text(r.err, "nothing");
    run_expect(&r, 3, "mkdir -p empty && dtctl ckpt inspect empty");
    expect_text(r.err, "no complete checkpoint");
    run_expect(&r, 0, "dtctl ckpt ls empty -o json");
    assert_string_equal(r.out, "[]\n");
    run_expect(&r, 3, "dtctl generate empty --prompt x");
    run_expect(&r, 3, "dtctl resume ./empty");
}

TEST(a_closed_pipe_is_no_error)
{
    struct run_result r;
    run_expect(&r, 0, "dtctl --help | head -n 1");
}

TEST(output_that_cannot_be_written_is_an_error)
{
    static const char *const lines[] = {"dtctl version >/dev/full",       "dtctl version -o json >/dev/full",
                                        "dtctl --help >/dev/full",        "dtctl submit --help >/dev/full",
                                        "dtctl ckpt ls empty >/dev/full", "\"$DTD_BIN/dt-worker\" --help >/dev/full"};
    struct run_result r;
    run_expect(&r, 0, "mkdir empty");
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        run_shell(&r, lines[i]);
        if (r.code == 0 || !strstr(r.err, "No space left on device"))
            fail_msg("%s: exit status %d, \"%s\"", lines[i], r.code, r.err);
    }
    run_shell(&r, "dtctl version >&-");
    assert_int_equal(r.code, 1);
    run_shell(&r, "{ sleep 0.2; dtctl --help; echo \"status $?\" >&2; } | true"); /* the reader has ended */
    assert_string_equal(r.err, "status 0\n");
}

/* Checks the completions that bash offers for a line; `offers`: sorted, on one line. */
static void completes(const char *words, const char *offers)
{
    struct run_result r;
    char line[1024];
    snprintf(line, sizeof(line),
             "bash -c '. \"$DTD_SOURCE/deploy/completions/dtctl.bash\"; COMP_WORDS=(%s); "
             "COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _dtctl; printf \"%%s\\n\" \"${COMPREPLY[@]}\" | sort | xargs'",
             words);
    run_expect(&r, 0, line);
    r.out[strcspn(r.out, "\n")] = '\0';
    assert_string_equal(r.out, offers);
}

TEST(bash_completion_completes)
{
    completes("dtctl su", "submit");
    completes("dtctl --dtd-dir /x ckpt \"\"", "export import inspect ls upcycle verify");
    completes("dtctl -o js", "json jsonl");
    completes("dtctl resume --s", "--set --step --steps");
    completes("dtctl data prepare --tokenizer w", "words");
    completes("dtctl help can", "cancel");
}

TEST(up_prints_why_dtd_did_not_start)
{
    struct run_result r;
    run_expect(&r, 1, "cp \"$DTD_BIN/dtctl\" . && ./dtctl up");
    expect_text(r.err, "/dtd: No such file or directory");
    run_write("broken", "#!/bin/sh\necho 'dtd: the configuration is bad' >&2\nexit 7\n");
    run_expect(&r, 0, "mkdir -p bin && cp dtctl bin/ && cp broken bin/dtd && chmod +x bin/dtd");
    run_expect(&r, 1, "bin/dtctl up");
    expect_text(r.err, "dtd exited with status 7. The last lines of ");
    expect_text(r.err, "\n  dtd: the configuration is bad");
}
