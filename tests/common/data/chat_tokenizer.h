/* A tokenizer for tests of conversations: one token per byte, and the control tokens of all chat templates. */
#ifndef DTD_TESTS_COMMON_DATA_CHAT_TOKENIZER_H
#define DTD_TESTS_COMMON_DATA_CHAT_TOKENIZER_H

#include "common/base/buf.h"
#include "tests/lib/test.h"

#include <string.h>

#define CHAT_TOKENS 96 /* printable ASCII, space and newline; the control tokens follow */

static const char *const chat_controls[] = {"<|begin_of_text|>",
                                            "<|start_header_id|>",
                                            "<|end_header_id|>",
                                            "<|eot_id|>",
                                            "<|im_start|>",
                                            "<|im_end|>",
                                            "<s>",
                                            "</s>",
                                            "<bos>",
                                            "<start_of_turn>",
                                            "<end_of_turn>",
                                            "<|system|>",
                                            "<|user|>",
                                            "<|assistant|>",
                                            "<|end|>",
                                            "[INST]",
                                            "[/INST]"};
#define CHAT_CONTROLS (int)(sizeof(chat_controls) / sizeof(chat_controls[0]))

/* A tokenizer.json of byte-level BPE without merges: printable ASCII, newline and space have the ids 0, 1, ..; then the
 * control tokens, without the one named `lacks`. */
static inline void chat_tokenizer_json(const char *lacks, struct buf *ret)
{
    int n = 0, id = CHAT_TOKENS;
    assert_ok(buf_printf(
        ret,
        "{\"version\": \"1.0\", \"normalizer\": null, \"pre_tokenizer\": {\"type\": "
        "\"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}, \"decoder\": {\"type\": \"ByteLevel\"}, "
        "\"added_tokens\": ["));
    for (int i = 0; i < CHAT_CONTROLS; i++)
        if (strcmp(chat_controls[i], lacks) != 0)
            assert_ok(buf_printf(ret,
                                 "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                                 "\"rstrip\": false, \"normalized\": false, \"special\": true}",
                                 id > CHAT_TOKENS ? ", " : "", id, chat_controls[i])),
                id++;
    assert_ok(buf_printf(ret, "], \"model\": {\"type\": \"BPE\", \"vocab\": {"));
    for (int c = 0x21; c < 0x7f; c++, n++)
        assert_ok(buf_printf(ret, "%s\"%s%c\": %d", n ? ", " : "", c == '"' || c == '\\' ? "\\" : "", c, n));
    assert_ok(buf_printf(ret, ", \"\xc4\xa0\": 94, \"\xc4\x8a\": 95}, \"merges\": []}}"));
}

#endif
