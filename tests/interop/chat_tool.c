/* chat_tool FILE TEMPLATE <messages >ids: reads a conversation per line, [["role", "text"], ..] in JSON, and writes for
 * each a line with the ids of the question that chat_ask makes of it. chat_side.py compares them. */
#include "common/data/chat.h"
#include "common/data/data.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TURNS 16

static int fail(const char *what)
{
    fprintf(stderr, "chat_tool: %s\n", what);
    return 1;
}

static int turns_of(const json_t *list, struct doc_turn *turns)
{
    const json_t *x;
    size_t i;
    json_array_foreach(list, i, x)
    {
        const json_t *text = json_array_get(x, 1);
        if (i == MOST_TURNS)
            return -1;
        turns[i] = (struct doc_turn){.role = json_string_value(json_array_get(x, 0)),
                                     .text = json_string_value(text),
                                     .len = json_string_length(text)};
    }
    return (int)json_array_size(list);
}

static int ask(const struct chat *c, const char *line)
{
    struct doc_turn turns[MOST_TURNS];
    struct buf ids = {0};
    struct why why = {""};
    json_t *list = json_loads(line, JSON_ALLOW_NUL, NULL);
    const int n = list ? turns_of(list, turns) : -1;
    const int rc = n < 0 ? fail("not a conversation") : chat_ask(c, turns, n, true, &ids, &why) ? fail(why.text) : 0;
    for (size_t i = 0; !rc && i < ids.len / sizeof(int32_t); i++)
        printf("%s%d", i ? " " : "", ((const int32_t *)(const void *)ids.data)[i]);
    puts("");
    buf_fini(&ids);
    json_decref(list);
    return rc;
}

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    struct chat *c = NULL;
    struct why why = {""};
    enum chat_template template;
    char *line = NULL;
    size_t size = 0;
    int rc = 0;
    if (argc != 3 || !chat_find(argv[2], &template))
        return fail("FILE TEMPLATE");
    if (tokenizer_bpe_files(argv + 1, 1, &t, &why) || chat_new(template, t, &c, &why))
        return fail(why.text);
    while (!rc && getline(&line, &size, stdin) > 0)
        rc = ask(c, line);
    free(line);
    chat_free(c);
    tokenizer_free(t);
    return rc;
}
