#include "worker/prompts.h"

#include "common/base/buf.h"
#include "common/base/file.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_BYTES ((size_t)256 << 20)
#define MAX_PROMPTS 1000000

void prompts_fini(struct prompts *p)
{
    for (int i = 0; i < p->n; i++)
        free(p->text[i]);
    free(p->text);
    *p = (struct prompts){0};
}

static err_t add(struct prompts *p, const char *text, size_t len)
{
    if (p->n == MAX_PROMPTS)
        return ERR_LIMIT;
    if ((p->n & (p->n - 1)) == 0) { /* room doubles */
        char **grown = realloc(p->text, (size_t)(p->n ? 2 * p->n : 1) * sizeof(*grown));
        if (!grown)
            return ERR_NOMEM;
        p->text = grown;
    }
    char *copy = strndup(text, len);
    if (!copy)
        return ERR_NOMEM;
    p->text[p->n++] = copy;
    return OK;
}

static err_t add_json(struct prompts *p, const char *path, int line, const char *text, size_t len, struct why *why)
{
    json_error_t error;
    json_t *v = json_loadb(text, len, JSON_DECODE_ANY, &error);
    json_t *prompt = json_is_object(v) ? json_object_get(v, "prompt") : v;
    const bool whole = json_is_string(prompt) && strlen(json_string_value(prompt)) == json_string_length(prompt);
    err_t err = whole ? add(p, json_string_value(prompt), json_string_length(prompt)) : ERR_INVALID;
    if (err == ERR_INVALID)
        why_set(why, err, "%s, line %d: %s; a line of JSON is a string, or an object with a string \"prompt\"", path,
                line,
                !v                       ? error.text
                : json_is_string(prompt) ? "a prompt has no NUL byte"
                                         : "there is no prompt");
    json_decref(v);
    return err;
}

err_t prompts_read(const char *path, struct prompts *ret, struct why *why)
{
    struct prompts p = {0};
    struct buf file = {0};
    err_t err = file_read(path, MAX_BYTES, &file);
    if (err)
        why_set(why, err, "cannot read the prompts in %s: %s", path, err_text(err));
    const char *at = (const char *)file.data, *end = at + file.len;
    const bool json = file.len && (*at == '{' || *at == '"');
    for (int line = 1; !err && at < end; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        const size_t len = (size_t)((stop ? stop : end) - at);
        if (memchr(at, '\0', len))
            err = why_set(why, ERR_INVALID, "%s, line %d: a prompt has no NUL byte", path, line);
        else if (len)
            err = json ? add_json(&p, path, line, at, len, why) : add(&p, at, len);
        at += len + 1;
    }
    if (err == ERR_LIMIT)
        why_set(why, err, "%s has more than %d prompts", path, MAX_PROMPTS);
    if (!err && p.n == 0)
        err = why_set(why, ERR_INVALID, "%s has no prompt", path);
    buf_fini(&file);
    if (err)
        prompts_fini(&p);
    else
        *ret = p;
    return err;
}
