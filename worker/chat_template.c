/* A job that was trained on conversations has its template in the job file. Of a model of Hugging Face, the import
 * keeps the published template, a program in Jinja, of which only the family is recognized. The tokens of the
 * vocabulary decide nothing: base models have the control tokens too, without having been trained on them. */
#include "worker/chat_template.h"

#include "common/ckpt/ckpt.h"
#include "common/data/chat.h"

#include <jansson.h>
#include <string.h>

#define CONFIG "tokenizer_config.json"

/* transformers reads them in this order. The first is a program, the others are JSON with the key chat_template. */
static const char *const files[] = {"chat_template.jinja", "chat_template.json", CONFIG};

/* The key is a program, or a list of {"name": .., "template": ..}. */
static const char *program_of(const json_t *root)
{
    const json_t *t = json_object_get(root, "chat_template"), *x;
    size_t i;
    const char *program = json_string_value(t);
    json_array_foreach(t, i, x)
    {
        const char *name = json_string_value(json_object_get(x, "name"));
        if (name && strcmp(name, "default") == 0)
            program = json_string_value(json_object_get(x, "template"));
    }
    return program;
}

/* CHAT_NONE and *ret_any false: the file has no template. */
static enum chat_template recognize(const char *file, const char *text, bool *ret_any)
{
    json_t *root = file == files[0] ? NULL : json_loads(text, JSON_DECODE_INT_AS_REAL, NULL); /* some exceed 64 bits */
    const char *program = file == files[0] ? text : program_of(root);
    const enum chat_template found = program ? chat_recognize(program) : CHAT_NONE;
    *ret_any = program != NULL;
    json_decref(root);
    return found;
}

static err_t kept_read(struct ckpt *ckpt, json_t **ret, struct why *why)
{
    struct buf text = {0};
    json_error_t error;
    err_t err = ckpt_small_file(ckpt, CKPT_HF_FILE, &text, why);
    if (!err && !(*ret = json_loadb((const char *)text.data, text.len, 0, &error)))
        err = why_set(why, ERR_CORRUPT, "%s: %s", CKPT_HF_FILE, error.text);
    buf_fini(&text);
    return err == ERR_NOTFOUND ? OK : err;
}

static err_t choose_kept(struct ckpt *ckpt, enum chat_template *ret, struct why *why)
{
    char list[128];
    bool any = false;
    enum chat_template found = CHAT_NONE;
    json_t *kept = NULL;
    err_t err = kept_read(ckpt, &kept, why);
    for (size_t i = 0; !err && !any && i < sizeof(files) / sizeof(files[0]); i++) {
        const char *text = json_string_value(json_object_get(kept, files[i]));
        if (text)
            found = recognize(files[i], text, &any);
    }
    json_decref(kept);
    if (err)
        return err;
    *ret = found;
    chat_list(list, sizeof(list));
    return found != CHAT_NONE ? OK
           : any              ? why_set(why, ERR_INVALID,
                                        "the chat template that the model was imported with is none that dtd supports. Choose one "
                                                     "that has the same form with --template: %s",
                                        list)
                              : why_set(why, ERR_INVALID,
                                        "the checkpoint does not name the chat template with which the model was trained (neither "
                                                     "data.template of its job nor files of an import do). Name it with --template: %s",
                                        list);
}

err_t chat_template_choose(struct ckpt *ckpt, const struct job_spec *job, const char *named, enum chat_template *ret,
                           struct why *why)
{
    char list[128];
    chat_list(list, sizeof(list));
    if (named && !chat_find(named, ret))
        return why_set(why, ERR_INVALID, "--template %.40s: there is no such template. Templates are %s", named, list);
    if (named)
        return OK;
    *ret = job->data.template;
    return *ret != CHAT_NONE ? OK : choose_kept(ckpt, ret, why);
}
